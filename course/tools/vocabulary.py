"""No term before the lesson that introduces it.

Looked at are the text of a lesson and the comments of its code; not links, References, or the course map.
A paragraph that names the lesson which introduces the term ("collectives (lesson 04)") points ahead and
may use it. Any other early use needs a reason in its cell:

    <!-- early: ZeRO: the title of a paper -->
"""

import re
from collections.abc import Callable, Iterator

from nbformat import NotebookNode

from course.lessons.shared.glossary import glossary
from course.tools.lesson import LessonSource, Problem

EXCEPTION = re.compile(r"<!--\s*early:\s*([^:>]+?)\s*(?::\s*([^>]*?)\s*)?-->")
LESSONS = re.compile(r"\blessons?((?:,? (?:and |to )?\d\d)+)")  # lesson 04; lessons 02, 04 and 06
NOT_READ = ("The course", "All lessons", "References")  # sections; the first two in lesson 00


def paragraphs(cell: NotebookNode) -> list[str]:
    """What is read in a cell, without links and HTML: paragraphs and rows of tables, or comments."""
    if cell.cell_type == "code":
        return [line.partition("#")[2] for line in cell.source.splitlines()]
    text = re.sub(r"<!--.*?-->|!?\[[^\]]*\]\([^)]*\)|<[^>]+>", " ", cell.source, flags=re.DOTALL)
    return [" ".join(part.split()) for part in re.split(r"\n\s*\n|\n(?=\s*(?:[-|]|\d+\.) ?)", text)]


def early(lesson: LessonSource) -> Iterator[tuple[int, str, str]]:
    """Every use of a term that a later lesson introduces: cell, words, that lesson."""
    section = ""
    for n, cell in enumerate(lesson.cells, 1):
        for text in paragraphs(cell):
            if cell.cell_type == "markdown" and text.startswith("#"):
                section = re.sub(r"^#+ (\d+ · )?", "", text)
            announced = {
                number for numbers in LESSONS.findall(text) for number in re.findall(r"\d\d", numbers)
            }
            if section in NOT_READ:
                continue
            for number, terms in glossary().items():
                if number > lesson.number and number not in announced:
                    yield from ((n, match[0].lower(), number) for term in terms if (match := term.find(text)))


def early_terms(lesson: LessonSource) -> Iterator[Problem]:
    """Every term is used by its own lesson or by later ones, or the cell says why not."""
    found = {(n, words): number for n, words, number in early(lesson)}
    reasons = {
        (n, term.lower()): reason
        for n, cell in enumerate(lesson.cells, 1)
        for term, reason in EXCEPTION.findall(cell.source)
    }
    for (n, words), number in found.items():
        if (n, words) not in reasons:
            yield n, f"{words!r} is used here, and lesson {number} introduces it; use other words"
    for (n, words), reason in reasons.items():
        if not reason:
            yield n, f"the exception for {words!r} gives no reason; write <!-- early: {words}: why -->"
        if (n, words) not in found:
            yield n, f"{words!r} is not used early here; remove the exception for it"


def own_terms(lesson: LessonSource) -> Iterator[Problem]:
    """A lesson uses the terms that it introduces."""
    text = "\n".join(cell.source for cell in lesson.cells)
    for term in glossary().get(lesson.number, ()):
        if term.forms != "" and not term.find(text):
            yield (
                1,
                f"terms.py says that this lesson introduces {term.term!r}, and it does not; move the term",
            )


VOCABULARY_RULES: tuple[Callable[[LessonSource], Iterator[Problem]], ...] = (early_terms, own_terms)
