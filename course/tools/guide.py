"""The instructor's guide, `docs/teaching/`: writes into it what the lessons know, and finds what it lacks.

    python -m course.tools.guide     # fills the pages

Each lesson has a page. What stands in it between `<!-- computed: NAME -->` and `<!-- end -->` is computed:
minutes and run times, the discussion with its answer, the letters of the right options, what came out of the
predictions, the solution of the core's exercise. In the README such a part is a list of the lessons. In the
walk through a track, the clock is computed: the times of the headings from the track's schedule, those of the
rows from the sections that they name. An exercise has its six minutes, a question one, each **vote** of a row
one and each **guess** half a minute. What is left of the slot, runs included, is divided by what there is to
read. Other words are written by hand.
"""

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from course.paths import ROOT
from course.tools.build import lesson_sources, notebook_of
from course.tools.catalogue import find_lessons
from course.tools.coverage import MAGIC, asked, items
from course.tools.frame import label, stem
from course.tools.lesson import LessonSource
from course.tools.parts import MORE, in_core, run_seconds
from course.tools.schedule import DISCUSSION, NEXT, clock, find_track, lesson_slot, sessions
from course.tools.times import (
    ALIKE,
    RUNS,
    TRACKS,
    WORDS_PER_MINUTE,
    cell_minutes,
    core_minutes,
    count_words,
    discuss_minutes,
    minutes,
)
from mpi_classroom.exercises import Exercise, Question

GUIDE = ROOT / "docs" / "teaching"
WALKS = {"2-hours.md": "two hours", "3-hours.md": "three hours"}  # page: its track
HEADINGS = (
    "The point",
    "Show",
    "Where learners get stuck",
    "Wrong answers, and what to say",
    "Skip",
    "Discuss",
    "Answers",
)
MAX_WORDS = 1100  # two printed pages
BLOCK = re.compile(r"(<!-- computed: (\S+) -->\n).*?(\n<!-- end -->)", re.DOTALL)
SLOT = re.compile(r"^## \d\d:\d\d · (.+)$", re.MULTILINE)
ROW = re.compile(r"^\| (?:\d\d:\d\d )?\| (.+?) \|(.*)$", re.MULTILINE)
BOLD, QUESTION = re.compile(r"\*\*[^*]*?(vote|guess)[^*]*\*\*", re.IGNORECASE), re.compile(r"\d\d\.q\d")
MINUTES_PER_VOTE, MINUTES_PER_GUESS = 1.0, 0.5
HURRY = 0.75  # of a reader's minutes (240 words in one): a section is not run through in less
ENDS_CORE = re.compile(r"^## Discuss\n+(.*?)\s*<details><summary>[^<]*</summary>(.*?)</details>", re.M | re.S)

# -------------------------------------------------------------------- a lesson's page


def facts(lesson: LessonSource) -> str:
    """Minutes, run times, tracks, and what the lesson builds on."""
    takes, says, ran = minutes(lesson), lesson.frame.minutes, run_seconds(notebook_of(lesson.source))
    core = takes["core"] - round(discuss_minutes(lesson))
    slot = lesson_slot(lesson.number, {lesson.number: core}, {lesson.number: ""}).minutes
    before = re.search(r"^\| \*\*Before this\*\* \| (.+?) \|$", lesson.cells[0].source, re.MULTILINE)
    builds_on = re.sub(r"\]\((\d\d_\w+\.ipynb)", r"](../../../notebooks/\1", before[1] if before else "–")
    tracks = [track.name for track in TRACKS if lesson.number in track.lessons]
    running = f"core {about(ran['core'])} and More {about(ran['more'])}, on 2 cores. " if ran else ""
    rows = {
        "The lesson": f"[{label(lesson.source)}](../../../notebooks/{stem(lesson.source)}.ipynb)",
        "A learner's minutes": f"core {says['core']}, More {says.get(MORE, 0)}, warm-up {takes['warm-up']}",
        "In a schedule": f"{slot} min: {slot - DISCUSSION} for the core without its discussion, "
        f"{DISCUSSION} for vote and questions",
        "The cells run for": f"{running}Not measured on 4 or 8 cores",
        "Builds on": builds_on,
        "Tracks": ", ".join(tracks),
    }
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {text} |" for name, text in rows.items())])


def about(seconds: int) -> str:
    """Run time in words; a build rounds it to five seconds."""
    return f"about {seconds} s" if seconds else "a few seconds"


def discussion(lesson: LessonSource) -> str:
    """The question that ends the core, and the answer that the notebook folds away; "" without a question."""
    text = "\n\n".join(cell.source for cell in core_cells(lesson) if cell.cell_type == "markdown")
    found = ENDS_CORE.search(text)
    if found is None:
        return ""
    question, answer = found.groups()
    question = " ".join(question.split())
    if "```" not in answer:  # a table keeps its lines
        answer = " ".join(answer.split())
    return f"> {question}\n\n**Answer.** {re.sub(r'</?code>', '`', answer)}"


def answers(lesson: LessonSource) -> str:
    """The letters of the right options, what came out of predictions, the solution of the core's exercise."""
    core = in_core(lesson.cells)
    found = [(core[n - 1], item) for n, item in items(lesson)]
    parts = []
    for of_core, name in ((True, "Core"), (False, "More")):
        letters = [
            f"{item.id} **{item.right}**"
            for where, item in found
            if where is of_core and isinstance(item, Question)
        ]
        parts += [f"{name}: {', '.join(letters)}."] if letters else []
    parts += (
        [f"Predictions, as they came out in the committed run on 2 cores: {'; '.join(came)}."]
        if (came := predictions(lesson))
        else []
    )
    solved = [item for of_core, item in found if of_core and isinstance(item, Exercise)]
    code = [f"{item.id}, {item.title}:\n\n```python\n{item.solution.strip(chr(10))}\n```" for item in solved]
    return "\n\n".join([" ".join(parts), *code])


def predictions(lesson: LessonSource) -> list[str]:
    """What came out of the core's predictions in the committed notebook; nothing where it is not built."""
    path = notebook_of(lesson.source)
    found = []
    for cell in nbformat.read(path, as_version=4).cells if path.exists() else ():
        if cell.cell_type != "code" or MORE in cell.metadata.get("tags", ()):
            continue
        text = "".join(output.get("text", "") for output in cell.outputs)
        for question in asked(cell.source, "outcome"):
            said = re.search(rf"^{re.escape(question)}  (.+?)\.(?= |$)", text, re.MULTILINE)
            if said is not None:
                found.append(f"{question} *{said[1]}*")
    return found


def core_cells(lesson: LessonSource) -> list[NotebookNode]:
    """The cells of the core."""
    return [cell for cell, core in zip(lesson.cells, in_core(lesson.cells), strict=True) if core]


OF_A_LESSON: Mapping[str, Callable[[LessonSource], str]] = {
    "facts": facts,
    "discussion": discussion,
    "answers": answers,
}


def list_of_lessons(course: Sequence[LessonSource]) -> str:
    """A table of all lessons: the page of each, and the minutes of its core."""
    rows = [
        f"| [{label(lesson.source)}](lessons/{lesson.number}.md) | {minutes(lesson)['core']} "
        f"| {', '.join(track.name for track in TRACKS if lesson.number in track.lessons)} |"
        for lesson in course
    ]
    return "\n".join(["| page | core, minutes | tracks |", "|---|--:|---|", *rows])


# -------------------------------------------------------------------- a walk through a track


def core_parts(lesson: LessonSource) -> Iterator[tuple[str, float, float]]:
    """For each piece of the core its heading, a reader's minutes, and those of an exercise or a question.

    Runs and the discussion are not among them.
    """
    read = set[str]() if lesson.number == "00" else set(ALIKE.splitlines())
    here = "Setup"
    for cell in core_cells(lesson):
        if cell.cell_type != "markdown":
            asks, takes = MAGIC.match(cell.source) is not None, cell_minutes(cell, read)
            yield here, 0.0 if asks else takes, takes if asks else 0.0
            continue
        for piece in re.split(r"^(?=## )", cell.source, flags=re.MULTILINE):
            if heading := re.match(r"## (.+)", piece):
                here = heading[1].strip()
            yield here, count_words(piece) / WORDS_PER_MINUTE, 0.0


def section_minutes(lesson: LessonSource) -> dict[str, tuple[float, float]]:
    """Minutes of reading and of exercises and questions, by section; what comes before the first is Setup's.

    The warm-up is left out.
    """
    takes = {"Setup": (0.0, 0.0)}
    for heading, reading, doing in core_parts(lesson):
        before = takes.get(heading, (0.0, 0.0))
        takes[heading] = before[0] + reading, before[1] + doing
    takes.pop("Warm-up", None)
    return takes


def vote_minutes(words: str) -> float:
    """What votes and guesses of a row take; a vote on the question that is on the screen has its minute."""
    found = [kind.lower() for kind in BOLD.findall(words)]
    votes = found.count("vote") - len(QUESTION.findall(words.partition("|")[0]))
    return MINUTES_PER_VOTE * max(0, votes) + MINUTES_PER_GUESS * found.count("guess")


def timed(text: str, slots: Sequence[tuple[str, int, str]], course: Mapping[str, LessonSource]) -> str:
    """The page with the clock of `slots` (begin, minutes, what), one for each of its headings with a time.

    Raises ValueError if the page has other slots, or a row that names no section of its lesson.
    """
    head, *parts = re.split(r"^(?=## \d\d:\d\d )", text, flags=re.MULTILINE)
    told = [SLOT.match(part) for part in parts]
    names = [match[1] if match else part.splitlines()[0] for match, part in zip(told, parts, strict=True)]
    scheduled = [what.partition(":")[0].partition(";")[0] for _, _, what in slots]
    if names != scheduled:
        raise ValueError(f"its parts are {', '.join(names)}; those of the track are {', '.join(scheduled)}")
    done = [head]
    for part, name, (begin, length, _) in zip(parts, names, slots, strict=True):
        part = SLOT.sub(f"## {begin} · {name}", part, count=1)
        done.append(timed_rows(part, begin, length, course[name[:2]]) if name[:2] in course else part)
    return "".join(done)


def timed_rows(part: str, begin: str, length: int, lesson: LessonSource) -> str:
    """The rows of one lesson with their times; of two rows of one section, the second has none."""
    rows = ROW.findall(part)
    takes = class_minutes(lesson, rows, length - DISCUSSION)
    start = datetime.strptime(begin, "%H:%M")
    at, passed = {"Discuss": start + timedelta(minutes=length - DISCUSSION)}, 0.0
    for name, needed in takes.items():
        at.setdefault(name, start + timedelta(minutes=round(passed)))
        passed += needed
    named = set[str]()

    def row(match: re.Match[str]) -> str:
        time = "" if match[1] in named else f"{at[match[1]]:%H:%M} "
        named.add(match[1])
        return f"| {time}| {match[1]} |{match[2]}"

    return ROW.sub(row, part)


def class_minutes(lesson: LessonSource, rows: Sequence[tuple[str, str]], length: int) -> dict[str, float]:
    """What each section takes in a class that has `length` minutes for all of them, without the discussion.

    `rows` are those of the walk: a section, and what the instructor does. Raises ValueError if they name
    another section or have them in another order, or if too little time is left for reading.
    """
    sections = section_minutes(lesson)
    sections.pop("Discuss", None)
    if wrong := misfit(lesson.number, [name for name, _ in rows], list(sections)):
        raise ValueError(wrong)
    fixed = {name: doing for name, (_, doing) in sections.items()}
    for name, words in rows:
        if name in fixed:
            fixed[name] += vote_minutes(words)
    left, to_read = length - sum(fixed.values()), sum(reading for reading, _ in sections.values())
    if (share := (left - RUNS) / to_read) < HURRY:
        raise ValueError(
            f"lesson {lesson.number} leaves {share:.0%} of a reader's minutes; leave out a vote of its rows"
        )
    return {name: fixed[name] + left / to_read * reading for name, (reading, _) in sections.items()}


def misfit(number: str, named: Sequence[str], sections: Sequence[str]) -> str:
    """Why the rows of a walk are not those of the lesson; empty if they are."""
    order = [*sections, "Discuss"]
    if strangers := [name for name in named if name not in order]:
        return f"lesson {number} has no section {strangers[0]!r}"
    if sorted(named, key=order.index) != list(named):
        return f"the sections of lesson {number} stand in the order {', '.join(order)}"
    return ""


def slots_of(track: str, cores: Mapping[str, int]) -> list[tuple[str, int, str]]:
    """Begin, minutes and name of every slot of a track of one session, without its changes and its end."""
    titles = {lesson.number: lesson.title for lesson in find_lessons()}
    (session,) = sessions(find_track(track), cores, titles)
    slots = clock(session, "09:00")
    return [(time, slot.minutes, slot.what) for time, slot in slots if slot.minutes and slot.what != NEXT]


# -------------------------------------------------------------------- all pages


def filled(page: Path, course: Mapping[str, LessonSource], cores: Mapping[str, int]) -> str:
    """What `page` should say; raises ValueError where that cannot be computed."""
    text = page.read_text(encoding="utf-8")
    if page.name in WALKS:
        text = timed(text, slots_of(WALKS[page.name], cores), course)

    def computed(match: re.Match[str]) -> str:
        if match[2] == "lessons":
            return match[1] + list_of_lessons(list(course.values())) + match[3]
        if match[2] not in OF_A_LESSON or page.stem not in course:
            return match[0]
        return match[1] + (OF_A_LESSON[match[2]](course[page.stem]) or "This lesson has none.") + match[3]

    return BLOCK.sub(computed, text)


def lacking(text: str) -> Iterator[str]:
    """What the text of a lesson's page lacks."""
    found = re.findall(r"^## (.+)$", text, re.MULTILINE)
    if found != list(HEADINGS):
        yield f"its headings are {', '.join(found)}; they should be {', '.join(HEADINGS)}"
    blocks = [match[2] for match in BLOCK.finditer(text)]
    if blocks != list(OF_A_LESSON):
        yield f"its computed parts are {', '.join(blocks)}; they should be {', '.join(OF_A_LESSON)}"
    for part in re.split(r"^## ", BLOCK.sub("", text), flags=re.MULTILINE)[1:-1]:
        if count_words(part) - count_words(part.splitlines()[0]) < 10:
            yield f"it says nothing under {part.splitlines()[0]!r}"
    if (words := count_words(text)) > MAX_WORDS:
        yield f"its {words} words are more than two pages ({MAX_WORDS}); shorten it"


def whole_course() -> tuple[dict[str, LessonSource], dict[str, int]]:
    """All lessons, and the minutes of their cores, by number."""
    sources = lesson_sources(())
    return {stem(source)[:2]: LessonSource(source) for source in sources}, core_minutes(sources)


def stale(folder: Path = GUIDE) -> Iterator[str]:
    """A sentence for every page that is missing, lacks something, or is not what the lessons say."""
    course, cores = whole_course()
    for number, lesson in course.items():
        page = folder / "lessons" / f"{number}.md"
        if not page.exists():
            yield f"the instructor's guide has no page {page.name} for lesson {number}; write it"
            continue
        text = page.read_text(encoding="utf-8")
        yield from (f"docs/teaching/lessons/{page.name}: {sentence}" for sentence in lacking(text))
        if discuss_minutes(lesson) and not discussion(lesson):
            yield f"the core of lesson {number} ends without a question under 'Discuss' and its folded answer"
    for page in sorted(folder.rglob("*.md")):
        name = page.relative_to(folder).as_posix()
        try:
            if filled(page, course, cores) != page.read_text(encoding="utf-8"):
                yield f"docs/teaching/{name} is not what the lessons say; run python -m course.tools.guide"
        except ValueError as error:
            yield f"docs/teaching/{name}: {error}"


def main() -> int:
    """Fill the pages; 1 when one lacks something."""
    course, cores = whole_course()
    for page in sorted(GUIDE.rglob("*.md")):
        try:
            page.write_text(filled(page, course, cores), encoding="utf-8")
        except ValueError:
            continue  # `stale` says what is wrong
    sentences = list(stale())
    print(*sentences or ["The guide is complete."], sep="\n")
    return 1 if sentences else 0


if __name__ == "__main__":
    sys.exit(main())
