"""What a person can get wrong in a lesson, as rules: each yields the cells that break it, and the remedy.

The rules look at what the source composes to, so they work before anything was built.
"""

import re
from collections.abc import Callable, Iterator
from urllib.parse import unquote, urlsplit

from course.tools.build import SHOWN_TAG, notebook_of, source_of, tags
from course.tools.lesson import LessonSource, Problem, local_path
from course.tools.parts import MORE, STOP_LINE, in_core
from course.tools.shown import WIDTH

CORE_ENDING = ("On a cluster", "Key points", "Discuss")
ENDING = ("References", "Teardown")
KNOWN_TAGS = ("nbval-ignore-output", "raises-exception", MORE)
MAX_CODE_LINES = 25
MAX_CODE_CELLS = 3
LIST_IN_SENTENCE = re.compile(r"^[^\s\d#>|*+-].*[\w,]\n((?:1[.)]|[-+*]) .*)", re.MULTILINE)
DRAWERS = re.compile(r"^from course\.lessons\.\S+figures\S* import (.+)", re.MULTILINE)
CALL = re.compile(r"(\w+)\(.*\)(?:\s*#.*)?$")  # on one line, and not assigned
UNREMOVED = re.compile(r"\b(mkdtemp|mkstemp)\((?![^()]*\bdir=)")


def sections(lesson: LessonSource) -> Iterator[Problem]:
    """The required headings, in their order."""
    more = () if lesson.frame.elective else ("More",)
    ending = CORE_ENDING[:-1] if lesson.number == "00" else CORE_ENDING  # ten minutes have no discussion
    order = [*ending, *more, *ENDING]
    found = [(n, text) for n, level, text in lesson.headings if level == 2]
    place, here = 0, 1
    for title in order:
        later = [i for i, (_, text) in enumerate(found) if i >= place and text == title]
        if later:
            place, here = later[0] + 1, found[later[0]][0]
        else:
            yield here, f"'## {title}' does not come after this; the order is: {', '.join(order)}"


def numbering(lesson: LessonSource) -> Iterator[Problem]:
    """The steps are numbered through, More included."""
    numbered = [(n, re.match(r"(\d+) · ", text)) for n, level, text in lesson.headings if level > 1]
    numbers = [(n, int(match[1])) for n, match in numbered if match]
    if not numbers:
        yield 1, "there is no numbered section; begin the first with '## 1 · …'"
    for expected, (n, number) in enumerate(numbers, 1):
        if number != expected:
            yield n, f"section {number} comes where {expected} is due; number the sections 1, 2, 3, …"
            break


def stop_line(lesson: LessonSource) -> Iterator[Problem]:
    """The core ends where a short workshop stops, and More begins with its heading; an elective has none."""
    if lesson.frame.elective:
        yield from ((n, "an elective ends with its core") for n, text, _ in lesson.pages if STOP_LINE in text)
        return
    stops = [n for n, text, _ in lesson.pages if STOP_LINE in text]
    more, _ = lesson.section("More")
    if stops != [more - 1]:
        yield more or len(lesson.cells), f"'{STOP_LINE}' must stand once, in the cell before '## More'"
    if more and sum(in_core(lesson.cells)) != more - 1:
        yield more, f"the cell with '## More' and no cell before it must have the tag {MORE!r}"


def short_imports(source: str) -> str:
    """The code with each import that is broken over several lines on one line."""

    def joined(match: re.Match[str]) -> str:
        return f"{match[1]} {' '.join(match[2].split()).rstrip(',')}"

    return re.sub(r"^(\s*from \S+ import) \(([^)]*)\)", joined, source, flags=re.MULTILINE)


def code_length(lesson: LessonSource) -> Iterator[Problem]:
    """One idea a cell."""
    for n, cell in lesson.code:
        lines = len(short_imports(cell.source).splitlines())
        if lines > MAX_CODE_LINES:
            yield n, f"{lines} lines of code are more than {MAX_CODE_LINES}; split the cell or shorten it"
        if lines == 0:
            yield n, "the code cell is empty; remove it"
        for line in cell.source.splitlines():
            if len(line) > WIDTH:
                words = f"a cell shows {WIDTH} characters of a line, not {len(line)}"
                yield n, f"{words}; break {line.strip()[:30]!r}"


def prose(lesson: LessonSource) -> Iterator[Problem]:
    """Words come before code."""
    run = 0
    for n, cell in enumerate(lesson.cells, 1):
        run = run + 1 if cell.cell_type == "code" else 0
        if run == MAX_CODE_CELLS + 1:
            yield n, f"this is the {run}th code cell in a row; say in words what the next step is before it"


def wrapped(lesson: LessonSource) -> Iterator[Problem]:
    """No sentence is torn: a line that begins as a list does is one, also in the middle of a sentence."""
    for n, text, _ in lesson.pages:
        for match in LIST_IN_SENTENCE.finditer(text):
            yield n, f"the line {match[1][:30]!r} becomes a list; break the line at a different word"


def pictures(lesson: LessonSource) -> Iterator[Problem]:
    """A notebook shows the value of a cell's last expression only: a picture drawn before it is lost."""
    drawers = {"show"}
    for n, cell in lesson.code:
        for names in DRAWERS.findall(short_imports(cell.source)):
            drawers |= {name.strip() for name in names.split(",")}
        for line in cell.source.rstrip().splitlines()[:-1]:
            if (match := CALL.match(line)) and match[1] in drawers:
                yield n, f"nobody sees the picture of {match[1]}(…), for more follows; draw it at the end"


def alt_text(lesson: LessonSource) -> Iterator[Problem]:
    """An image is also for those who cannot see it."""
    for n, _, page in lesson.pages:
        for alt in page.images:
            if not alt.strip():
                yield (
                    n,
                    'an image has no alt text; write ![what it shows](file) or <img alt="what it shows" …>',
                )


def cell_tags(lesson: LessonSource) -> Iterator[Problem]:
    """Only tags that mean something, and no other way to have a cell passed over."""
    for n, cell in enumerate(lesson.cells, 1):
        for tag in tags(cell):
            if tag not in KNOWN_TAGS and not SHOWN_TAG.fullmatch(tag):
                yield n, f"the tag {tag!r} is not known; use 'source: module:name', {', '.join(KNOWN_TAGS)}"
        if cell.cell_type == "code" and re.search(
            r"^\s*#\s*(NBVAL|PYTEST)_\w+\s*$", cell.source, re.MULTILINE
        ):
            yield n, "a comment changes how nbval checks this cell; use the tag nbval-ignore-output instead"


def paths_in_source(lesson: LessonSource) -> Iterator[Problem]:
    """A lesson runs on every machine."""
    for n, cell in enumerate(lesson.cells, 1):
        if path := local_path(cell.source):
            yield n, f"{path} is a path of one machine; write it relative to the lesson, or use tempfile"


def temporary_folders(lesson: LessonSource) -> Iterator[Problem]:
    """A lesson leaves nothing in the temporary folder."""
    for n, cell in lesson.code:
        if match := UNREMOVED.search(cell.source):
            yield (
                n,
                f"nobody removes what {match[1]} makes; give it dir=job_folder(), or use TemporaryDirectory",
            )


def links(lesson: LessonSource) -> Iterator[Problem]:
    """Links lead somewhere. Those to the web are looked at, not followed."""
    for n, _, page in lesson.pages:
        for link in page.links:
            if problem := link_problem(link, lesson):
                yield n, f"the link {link} {problem}"


def link_problem(link: str, lesson: LessonSource) -> str:
    """What is wrong with a link of `lesson`; empty when nothing is."""
    try:
        parts = urlsplit(link)
    except ValueError:
        return "is not a valid address; correct it"
    if parts.scheme in ("http", "https"):
        well_formed = "." in (parts.hostname or "") and not re.search(r"\s", link)
        return "" if well_formed else "is not a valid address; correct it"
    if parts.scheme or parts.netloc or parts.path.startswith("/"):
        return "leads to one machine or program; use an https address or a path relative to the lesson"
    folder = notebook_of(lesson.source).parent
    target = (folder / unquote(parts.path)).resolve() if parts.path else notebook_of(lesson.source).resolve()
    if not target.is_relative_to(folder.parent.resolve()):
        return "leads out of the project; use an https address"
    of_lesson = target.suffix == ".ipynb" and source_of(target).exists()
    if not of_lesson and not target.exists():
        return "leads to a file that does not exist; correct it"
    if (
        parts.fragment
        and of_lesson
        and unquote(parts.fragment) not in LessonSource(source_of(target)).anchors
    ):
        return "leads to a heading that does not exist; write the heading with - for every space"
    return ""


RULES: tuple[Callable[[LessonSource], Iterator[Problem]], ...] = (
    sections,
    numbering,
    stop_line,
    code_length,
    prose,
    wrapped,
    pictures,
    alt_text,
    cell_tags,
    paths_in_source,
    temporary_folders,
    links,
)
