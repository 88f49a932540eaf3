"""No term before the lesson that introduces it.

Looked at are the text of a lesson and the comments and docstrings of its code; not where links lead nor what
they are called, not References, not the map of the course. A line that names the lesson which introduces the
term ("collectives (lesson 04)") points ahead and may use it. Any other early use needs a reason in its cell:

    <!-- early: ZeRO: the title of a paper -->
"""

import re
from collections.abc import Callable, Iterator

from markdown_it import MarkdownIt
from markdown_it.token import Token
from nbformat import NotebookNode

from course.lessons.shared.glossary import GLOSSARY
from course.tools.lesson import LessonSource, Problem
from course.tools.times import docstring_lines

EXCEPTION = re.compile(r"<!--\s*early:\s*([^:>]+?)\s*(?::\s*([^>]*?)\s*)?-->")
LESSONS = re.compile(r"\blessons?((?:,? (?:and |to )?\d\d)+)")  # lesson 04; lessons 02, 04 and 06
NOT_READ = ("7 · The course", "10 · All lessons", "References")  # headings; the first two in lesson 00


def used(text: str, after: str) -> Iterator[tuple[str, str]]:
    """The terms in `text` that only lessons after `after` ("04") introduce, each with its lesson."""
    announced = {number for numbers in LESSONS.findall(text) for number in re.findall(r"\d\d", numbers)}
    for number, terms in GLOSSARY.items():
        if number <= after or number in announced:
            continue
        for term in terms:
            if match := find_term(term, text):
                yield match[0], number


def find_term(term: str, text: str) -> re.Match[str] | None:
    """Where a term is used in `text`; a term with a capital is a name, and only that."""
    name = any(letter.isupper() for letter in term)
    return re.search(rf"(?<![\w-]){term}(?![\w-])", text, 0 if name else re.IGNORECASE)


def read(lesson: LessonSource) -> Iterator[tuple[int, str]]:
    """What is read in a lesson, with the cells: paragraphs, rows of tables, comments, lines of docstrings."""
    section = ""
    for n, cell in enumerate(lesson.cells, 1):
        if cell.cell_type == "code":
            if section not in NOT_READ:
                yield from ((n, line) for line in told(cell))
            continue
        for heading, line in paragraphs(cell.source):
            section = line if heading else section
            if section not in NOT_READ:
                yield n, line


def told(cell: NotebookNode) -> list[str]:
    """The comments and docstrings of a code cell, line by line."""
    source = "\n".join("" if line.startswith("%%") else line for line in cell.source.splitlines())
    docstrings = docstring_lines(source)
    numbered = enumerate(source.splitlines(), 1)
    return [line if n in docstrings else line.partition("#")[2] for n, line in numbered]


def paragraphs(markdown: str) -> Iterator[tuple[bool, str]]:
    """The words of a markdown text without its links, by paragraph or row; and whether it heads a section."""
    heading, row, in_row = False, list[str](), False
    for token in MarkdownIt("commonmark").enable("table").parse(markdown):
        if token.type in ("tr_open", "tr_close"):
            in_row = token.type == "tr_open"
            if not in_row:
                yield False, " | ".join(row)
            row = []
        elif token.type == "heading_open":
            heading = token.tag in ("h1", "h2", "h3")
        elif token.type == "html_block":
            yield False, re.sub(r"<!--.*?-->|<[^>]+>", " ", token.content, flags=re.DOTALL)
        elif token.type == "inline":
            if in_row:
                row.append(_words(token))
            else:
                yield heading, _words(token)
            heading = False


def _words(inline: Token) -> str:
    linked, words = 0, list[str]()
    for part in inline.children or []:
        linked += (part.type == "link_open") - (part.type == "link_close")
        if part.type in ("text", "code_inline") and not linked:
            words.append(part.content)
        if part.type in ("softbreak", "hardbreak"):
            words.append(" ")
    return "".join(words)


def early_terms(lesson: LessonSource) -> Iterator[Problem]:
    """Every term is used by its own lesson or by later ones, or the cell says why not."""
    found: dict[int, dict[str, str]] = {}
    for n, line in read(lesson):
        found.setdefault(n, {}).update({term.lower(): number for term, number in used(line, lesson.number)})
    for n, cell in enumerate(lesson.cells, 1):
        early = found.get(n, {})
        reasons = {term.lower(): reason for term, reason in EXCEPTION.findall(cell.source)}
        for term, number in early.items():
            if term not in reasons:
                yield n, f"{term!r} is used here, and lesson {number} introduces it; use other words"
        for term, reason in reasons.items():
            if not reason:
                yield n, f"the exception for {term!r} gives no reason; write <!-- early: {term}: why -->"
            if term not in early:
                yield n, f"{term!r} is not used early here; remove the exception for it"


def own_terms(lesson: LessonSource) -> Iterator[Problem]:
    """A lesson uses the terms that it introduces."""
    text = "\n".join(line for _, line in read(lesson)) + "\n".join(cell.source for _, cell in lesson.code)
    for term in GLOSSARY.get(lesson.number, ()):
        if not find_term(term, text):
            yield 1, f"glossary.py says that this lesson introduces {term!r}, and it does not; move the term"


VOCABULARY_RULES: tuple[Callable[[LessonSource], Iterator[Problem]], ...] = (early_terms, own_terms)
