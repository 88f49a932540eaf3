"""The instructor's guide lacks nothing, its links lead somewhere, and what it computes is right.

`make check` holds the real pages to the lessons (`course.tools.guide.stale`); here is what it would find.
"""

import re
import symtable
from pathlib import Path

import nbformat
import pytest
from mpi4py import MPI

from course.paths import ROOT
from course.tools import guide
from course.tools.build import lesson_sources
from course.tools.lesson import LessonSource
from mpi_classroom import before_setup
from mpi_classroom.lessons import exercises_of, find_exercise, lessons, predictions_of

GUIDE = ROOT / "docs" / "teaching"
PAGES = sorted(GUIDE.rglob("*.md"))
SOURCES = lesson_sources(())


@pytest.fixture(scope="module")
def first() -> LessonSource:
    """Lesson 00."""
    return LessonSource(SOURCES[0])


@pytest.fixture(scope="module")
def page() -> str:
    """The page of lesson 00."""
    return (GUIDE / "lessons" / "00.md").read_text()


# -------------------------------------------------------------------- a page of a lesson


@pytest.mark.parametrize("path", sorted((GUIDE / "lessons").glob("*.md")), ids=lambda path: path.stem)
def test_every_page_of_a_lesson_is_complete(path: Path) -> None:
    assert list(guide.lacking(path.read_text())) == []


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("## Skip\n", "", "its headings are The point, Show,"),
        ("<!-- computed: discussion -->", "", "they should be facts, discussion, answers"),
        ("## Skip\n", "## Skip\n\n" + "word " * guide.MAX_WORDS, "more than two pages"),
    ],
)
def test_what_a_page_lacks_is_found(page: str, old: str, new: str, words: str) -> None:
    (sentence,) = guide.lacking(page.replace(old, new))
    assert words in sentence


def test_the_letters_are_those_that_the_learner_sees(first: LessonSource) -> None:
    text = guide.answers(first)
    letter = re.search(r"00.q1 [*]+(.)", text)[1]  # type: ignore[index]
    assert f"- ({letter}) {_right('00.q1')}" in find_exercise("00.q1").text
    assert "right_neighbour" not in text, "which is in More"


def _right(id: str) -> str:
    (text,) = (option.text for option in find_exercise(id).options if option.right)  # type: ignore[union-attr]
    return text


def test_a_page_that_is_missing_is_found(tmp_path: Path) -> None:
    (tmp_path / "lessons").mkdir()
    found = list(guide.stale(tmp_path))
    assert len(found) == len(SOURCES)
    assert found[0] == "the instructor's guide has no page 00.md for lesson 00; write it"


# -------------------------------------------------------------------- what may be left out

LEFT_OUT = re.compile(r"[Ll]eave out section (\d+)(?!\d|'s)")  # "section 4's exercise" is a part of a section


def test_no_later_cell_of_the_core_needs_a_section_that_may_be_left_out() -> None:
    named = [
        (page.stem, int(section))
        for page in sorted((GUIDE / "lessons").glob("*.md"))
        for section in LEFT_OUT.findall(page.read_text())
    ]
    walk = (GUIDE / "3-hours.md").read_text()
    for part in re.split(r"^## \d\d:\d\d · (?=\d\d )", walk, flags=re.MULTILINE)[1:]:
        rows = re.findall(r"^\| [\d:]+ \| (\d+) · .*\| leave out(?:,[^|]*)? \|$", part, re.MULTILINE)
        named += [(part[:2], int(section)) for section in rows]
    assert len(named) >= 2
    assert {at: names for at in named if (names := needed_after(*at))} == {}


def needed_after(number: str, section: int) -> set[str]:
    """The names that later cells of the core read and only `section` defines: "ranks errors"."""
    (path,) = (ROOT / "notebooks").glob(f"{number}_*.ipynb")
    here, lost, known, needed = 0, set[str](), set[str](), set[str]()
    for cell in nbformat.read(path, as_version=4).cells:
        if "more" in cell.metadata.get("tags", ()):
            break
        if cell.cell_type == "markdown":
            headings = re.findall(r"^## (?:(\d+) · )?", cell.source, re.MULTILINE)
            here = int(headings[-1] or 0) if headings else here
            continue
        defined, read = names_of(cell.source)
        if here == section:
            lost |= defined
            continue
        needed |= read & lost - known - defined
        known |= defined
    return needed


def names_of(source: str) -> tuple[set[str], set[str]]:
    """What a code cell defines and what it reads, after the process: "ranks errors", "kernel cluster"."""
    where = "ranks" if source.startswith("%%px") else "kernel"
    code = "\n".join(line for line in source.splitlines() if not line.startswith(("%", "!")))
    table = symtable.symtable(code, "cell", "exec")
    names = table.get_symbols()
    defined = {f"{where} {name.get_name()}" for name in names if name.is_assigned() or name.is_imported()}
    read = {f"{where} {name}" for name in globals_of(table)}
    for name, assigned in re.findall(r'cluster\["(\w+)"\]( = )?', code):
        (defined if assigned else read).add(f"ranks {name}")
    for exercise in re.findall(r'continue_with\("(.+?)"\)', code):
        functions = re.findall(r"^def (\w+)", find_exercise(exercise).solution, re.MULTILINE)  # type: ignore[union-attr]
        defined |= {f"{process} {name}" for process in ("ranks", "kernel") for name in functions}
    return defined, read


def globals_of(table: symtable.SymbolTable) -> set[str]:
    """The global names that the code reads, also inside its functions."""
    top = table.get_type() == "module"
    names = {
        each.get_name() for each in table.get_symbols() if each.is_referenced() and (top or each.is_global())
    }
    return names.union(*map(globals_of, table.get_children()))


# -------------------------------------------------------------------- the clock of a walk

WALK = """\
# A walk

## 00:00 · Arrive

Doors open.

## 00:00 · 00 Start here

| time | section |
|---|---|
| 00:00 | Setup |
| 00:00 | 4 · Four ranks, one classifier |
| 00:00 | Discuss |
"""
SLOTS = [("09:00", 10, "Arrive; everybody is there"), ("09:10", 30, "00 Start here")]


def test_the_minutes_of_the_sections_are_those_of_the_core(first: LessonSource) -> None:
    from course.tools.times import RUNS, minutes

    sections = sum(map(sum, guide.section_minutes(first).values()))
    assert sections + RUNS == pytest.approx(minutes(first)["core"], abs=0.6)


def test_a_walk_of_other_sections_or_parts_than_its_lessons_is_refused(first: LessonSource) -> None:
    with pytest.raises(ValueError, match="lesson 00 has no section '4 · Your turn'"):
        guide.timed(WALK.replace("Four ranks, one classifier", "Your turn"), SLOTS, {"00": first})
    with pytest.raises(ValueError, match="those of the track are Arrive, Break"):
        guide.timed(WALK, [SLOTS[0], ("09:10", 15, "Break"), SLOTS[1]], {"00": first})


@pytest.fixture(scope="module")
def course() -> dict[str, LessonSource]:
    """All lessons by number."""
    return {source.parent.name[1:3]: LessonSource(source) for source in SOURCES}


def test_too_many_votes_for_a_lesson_are_refused(course: dict[str, LessonSource]) -> None:
    rows = [("1 · Five lines", "**Vote**, **vote**, **vote**, **guess**, **guess**, **vote**")]
    with pytest.raises(ValueError, match=r"lesson 06 leaves \d+% of a reader's minutes; leave out a vote"):
        guide.class_minutes(course["06"], rows, 19)


# -------------------------------------------------------------------- facts that go stale

ID = re.compile(r"(?<![\d.,:#-])(\d\d\.[qp]?\d{1,2})(?![\d%]| cores| GB)")


def strange_ids(text: str) -> list[str]:
    """Exercises and questions that a page names and no lesson has."""
    known = {item.id for number in lessons() for item in (*exercises_of(number), *predictions_of(number))}
    return [id for id in ID.findall(text) if id[:2] in lessons() and id not in known]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(GUIDE).as_posix())
def test_every_exercise_that_the_guide_names_is_there_today(path: Path) -> None:
    assert strange_ids(path.read_text()) == []


def missing_headings(page: str, lesson: LessonSource) -> list[str]:
    """The questions that Skip sends people to and that are no heading of the lesson."""
    skip = page.partition("\n## Skip\n")[2].partition("\n## ")[0]
    headings = re.findall(
        r"^#+ (?:\d+ · )?(.+)$", "\n".join(cell.source for cell in lesson.cells), re.MULTILINE
    )
    return [name for name in re.findall(r"\*([A-Z][^*]+\?)\*", skip) if name not in headings]


def test_what_the_fast_are_sent_to_is_there(course: dict[str, LessonSource]) -> None:
    pages = {number: (GUIDE / "lessons" / f"{number}.md").read_text() for number in course}
    assert [each for number, page in pages.items() for each in missing_headings(page, course[number])] == []


def unknown_names(page: str) -> set[str]:
    """The calls that the page for learners names, and neither a communicator nor the classroom knows."""
    calls = set(re.findall(r"`comm\.(\w+)\(|= comm\.(\w+)\(", page))
    mine = {name for name in re.findall(r"`(\w+)\(", page) if name != "cluster"}
    missing = {a or b for a, b in calls if not hasattr(MPI.Intracomm, a or b)}
    return missing | mine - {*before_setup.FUNCTIONS, "answer"}


def test_the_page_for_learners_names_calls_that_there_are() -> None:
    assert unknown_names((GUIDE / "learners-page.md").read_text()) == set()


# -------------------------------------------------------------------- tests, the site
