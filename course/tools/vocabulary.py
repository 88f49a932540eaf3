"""No term before the lesson that introduces it.

Looked at are the text of a lesson and the comments of its code; not links and References.
A paragraph that names the lesson which introduces the term ("collectives (lesson 04)") points ahead and
may use it.
"""

import re
from collections.abc import Iterator

from nbformat import NotebookNode

from course.lessons.shared.glossary import glossary
from course.tools.lesson import LessonSource, Problem

LESSONS = re.compile(r"\blessons?((?:,? (?:and |to )?\d\d)+)")  # lesson 04; lessons 02, 04 and 06
NOT_READ = ("References",)  # sections


def paragraphs(cell: NotebookNode) -> list[str]:
    """What is read in a cell, without links and HTML: paragraphs and rows of tables, or comments."""
    if cell.cell_type == "code":
        return [line.partition("#")[2] for line in cell.source.splitlines()]
    text = re.sub(r"<!--.*?-->|!?\[[^\]]*\]\([^)]*\)|<[^>]+>", " ", cell.source, flags=re.DOTALL)
    return [" ".join(part.split()) for part in re.split(r"\n\s*\n|\n(?=\s*(?:[-|]|\d+\.) ?)", text)]


def early_terms(lesson: LessonSource) -> Iterator[Problem]:
    """Every term is used by its own lesson or by later ones."""
    section, found = "", dict[tuple[int, str], str]()
    for n, cell in enumerate(lesson.cells, 1):
        for text in paragraphs(cell):
            if cell.cell_type == "markdown" and text.startswith("#"):
                section = re.sub(r"^#+ (\d+ · )?", "", text)
            named = {number for numbers in LESSONS.findall(text) for number in re.findall(r"\d\d", numbers)}
            for number, terms in glossary().items():
                if number > lesson.number and number not in named and section not in NOT_READ:
                    uses = (match for term in terms if (match := term.find(text)))
                    found |= {(n, match[0].lower()): number for match in uses}
    remedy = "use other words, or name that lesson in the paragraph"
    for (n, words), number in found.items():
        yield n, f"{words!r} is used here, and lesson {number} introduces it; {remedy}"


def own_terms(lesson: LessonSource) -> Iterator[Problem]:
    """A lesson uses the terms that it introduces."""
    text = "\n".join(cell.source for cell in lesson.cells)
    for term in glossary().get(lesson.number, ()):
        if term.forms != "" and not term.find(text):
            yield 1, f"terms.py has {term.term!r} for this lesson, which does not use it; move the term"
