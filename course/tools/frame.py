"""What all lessons have alike, which the build puts around a lesson's own cells.

    header, navigation     from the YAML above the first cell of `lesson.py`, as is the line below `## More`
    warm-up                three questions of the YAML, their answers folded
    ## Setup               the cell that starts four ranks; a lesson may have its own `## Setup` text above it
    … the lesson's own cells, its last part at the end …
    ## Teardown            the link to the next lesson, and the cell that stops the ranks

A source begins like this; `{01}` becomes the link to lesson 01:

    # ---
    # title: Data parallelism by hand
    # goal: Train one network on several ranks with nothing but MPI.
    # able: [divide a batch among ranks, say what a rank waits for]
    # more: [send fewer messages]
    # before: "{01}, {04}; a training loop in PyTorch"
    # minutes: {core: 20, more: 20}
    # ranks: 4
    # warm-up:
    #   - ask: Which ranks hold the sum after `Reduce`?
    #     answer: The root, and no other.
    # ---

A lesson whose minutes have no `more` is an elective: a core alone, without a program to take home.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell

from course.tools.parts import MORE

SETUP = "from mpi_classroom.cluster import start_cluster\n\ncluster = start_cluster(n=4)"
TEARDOWN = "cluster.stop()"
START, MAP = "00_start_here", "The-course"  # the lesson with the course map, and the anchor of its heading
FIELDS = ("title", "goal", "able", "before", "minutes", "ranks")
OPTIONAL = ("more", "also", "warm-up")
QUESTIONS = 3  # of a warm-up
MAX_CORE_MINUTES = 20


class FrameError(ValueError):
    """What a lesson says of itself is missing or wrong: in one sentence, with the remedy."""


@dataclass(frozen=True, slots=True)
class Frame:
    """What a lesson says of itself: the YAML above its first cell."""

    title: str
    goal: str
    able: tuple[str, ...]
    more: tuple[str, ...]
    before: str
    minutes: Mapping[str, int]
    ranks: int
    also: str
    warm_up: tuple[tuple[str, str], ...]

    @property
    def objectives(self) -> tuple[str, ...]:
        """What the reader will be able to do, after the core and after More; exercises count from 1."""
        return (*self.able, *self.more)

    @property
    def elective(self) -> bool:
        """Whether it is a core alone."""
        return MORE not in self.minutes


def read_frame(source: Path) -> Frame:
    """The frame of the lesson with this source; FrameError when it has none or it is incomplete."""
    text = source.read_text(encoding="utf-8")
    header = re.match(r"# ---\n((?:#.*\n)+?)# ---\n", text)
    if header is None:
        raise FrameError("the source must begin with '# ---', YAML with title, goal, … and '# ---'")
    try:
        said = yaml.safe_load(re.sub(r"^# ?", "", header[1], flags=re.MULTILINE))
    except yaml.YAMLError as error:
        raise FrameError(
            f"the YAML above the first cell cannot be read: {' '.join(str(error).split())}"
        ) from None
    return _checked(said if isinstance(said, dict) else {}, first=stem(source) == START)


def _checked(said: dict[str, object], first: bool) -> Frame:
    if missing := [name for name in FIELDS if not said.get(name)]:
        raise FrameError(f"the YAML above the first cell lacks {', '.join(missing)}; add it")
    if unknown := set(said) - {*FIELDS, *OPTIONAL}:
        raise FrameError(
            f"the YAML has {', '.join(sorted(unknown))}; it may have {', '.join(FIELDS + OPTIONAL)}"
        )
    minutes = said["minutes"]
    if not _minutes_of_parts(minutes):
        raise FrameError("the minutes must read {core: 20, more: 15}, or {core: 20} without More")
    assert isinstance(minutes, dict)
    if said.get(MORE) and MORE not in minutes:
        raise FrameError("the YAML has objectives of More and no minutes for it; write {core: 20, more: 15}")
    if minutes["core"] > MAX_CORE_MINUTES:
        raise FrameError(
            f"the core takes {minutes['core']} min; move something to More until it is {MAX_CORE_MINUTES}"
        )
    if not isinstance(said["ranks"], int):
        raise FrameError("the ranks must be one number, as in 'ranks: 4'")
    asked = [(str(each["ask"]), str(each["answer"])) for each in _mappings(said.get("warm-up"))]
    if len(asked) != (0 if first else QUESTIONS):
        raise FrameError(f"the warm-up has {len(asked)} questions with `ask` and `answer`; ask {QUESTIONS}")
    words = {name: str(said.get(name) or "").strip() for name in ("title", "goal", "before", "also")}
    able, more = (tuple(map(str, _list(said.get(name)))) for name in ("able", MORE))
    return Frame(**words, able=able, more=more, minutes=minutes, ranks=said["ranks"], warm_up=tuple(asked))


def _minutes_of_parts(value: object) -> bool:
    """Whether it gives whole minutes for the core, and for More if there is one."""
    parts = value if isinstance(value, dict) else {}
    return {"core"} <= set(parts) <= {"core", MORE} and {*map(type, parts.values())} == {int}


def _list(value: object) -> Sequence[object]:
    return value if isinstance(value, list) else []


def _mappings(value: object) -> list[Mapping[str, object]]:
    return [each for each in _list(value) if isinstance(each, dict) and {"ask", "answer"} <= set(each)]


def stem(source: Path) -> str:
    """The name of the lesson that a source is of: "04_collectives"."""
    return source.parent.name.removeprefix("l")


def label(source: Path) -> str:
    """What a lesson is called in links: "02 · Monte Carlo π"."""
    return f"{stem(source)[:2]} · {read_frame(source).title}"


# -------------------------------------------------------------------- the cells of the frame


def framed(source: Path, own: Sequence[NotebookNode]) -> list[NotebookNode]:
    """The lesson's `own` cells with the frame around them. Raises FrameError."""
    frame = read_frame(source)
    setup = new_code_cell(SETUP, metadata={"tags": ["nbval-ignore-output"]})
    place = next((n for n, cell in enumerate(own, 1) if cell.source.startswith("## Setup")), 0)
    before = list(own[:place]) or [_text("## Setup", "slide")]
    warm_up = [_text(_warm_up(frame), "subslide")] if frame.warm_up else []
    end = [_text(f"## Teardown\n\n{_links(source, last=True)}"), new_code_cell(TEARDOWN)]
    rest = [_with_promises(cell, frame.more) for cell in own[place:]]
    return [_text(_header(frame, source), "slide"), *warm_up, *before, setup, *rest, *end]


def _with_promises(cell: NotebookNode, able: Sequence[str]) -> NotebookNode:
    """The cell; below the heading of More, what the reader will be able to do with it."""
    heading = "## More\n"
    if not able or not cell.source.startswith(heading):
        return cell
    promises = f"*You will also be able to {'; '.join(able)}.*"
    return NotebookNode(cell, source=f"{heading}\n{promises}\n{cell.source.removeprefix(heading)}")


def _text(source: str, *tags: str) -> NotebookNode:
    return new_markdown_cell(source, metadata={"tags": list(tags)} if tags else {})


def _header(frame: Frame, source: Path) -> str:
    rows = {
        "You will be able to": "; ".join(frame.able),
        "Before this": _linked(frame.before, source),
        "Time": " · ".join(f"{part} {minutes} min" for part, minutes in frame.minutes.items()),
        "Ranks": str(frame.ranks),
    }
    table = ["| | |", "|---|---|", *(f"| **{name}** | {text} |" for name, text in rows.items() if text)]
    also = [frame.also, ""] if frame.also else []
    title = f"# {stem(source)[:2]} · {frame.title}"
    return "\n".join([title, "", f"*{frame.goal}*", "", *table, "", *also, _links(source)])


def _warm_up(frame: Frame) -> str:
    lines = ["## Warm-up", "", "Answer from memory, then open the answer.", ""]
    for number, (question, answer) in enumerate(frame.warm_up, 1):
        lines += [f"{number}. {question}", f"   <details><summary>Answer</summary>{answer}</details>"]
    return "\n".join(lines)


def _others(source: Path) -> list[Path]:
    return sorted(source.parents[1].glob("l[0-9][0-9]_*/lesson.py"))


def _links(source: Path, last: bool = False) -> str:
    """The line of navigation: lesson before, course map, lesson after; `last` has none before."""
    course = _others(source)
    place = course.index(source)
    before = [] if last else [f"[← {label(other)}]({stem(other)}.ipynb)" for other in course[:place][-1:]]
    after = [f"[{label(other)} →]({stem(other)}.ipynb)" for other in course[place + 1 :][:1]]
    return " · ".join([*before, f"[Course map]({'' if place == 0 else f'{START}.ipynb'}#{MAP})", *after])


def _linked(text: str, source: Path) -> str:
    """`text` with the link to lesson 01 in place of every `{01}`."""
    by_number = {stem(other)[:2]: other for other in _others(source)}

    def link(match: re.Match[str]) -> str:
        if match[1] not in by_number:
            raise FrameError(f"'before' names lesson {match[1]}; there are {', '.join(by_number)}")
        other = by_number[match[1]]
        return f"[{label(other)}]({stem(other)}.ipynb)"

    return re.sub(r"\{(\d\d)\}", link, text)
