"""From `course/lessons/lNN_topic/lesson.py` to `notebooks/NN_topic.ipynb`, executed.

    source ── read ──> cells ── frame ──> lesson ── fill ──> with library code ── run, clean ──> notebook
              jupytext          `frame`             `source: module:name`         nbclient
                                                    `exercise: 04.1`

The frame (header, warm-up, Setup, Teardown) is what all lessons have alike. A cell with the tag `source:
module:name` gets the code of the library, one with `exercise: 04.1` becomes the text and the cell of that
exercise or question. From the cell with the tag `more` on, all is More. The tags `slide`, `subslide`,
`fragment` and `skip` say how a cell begins on slides; a text with the tag `notes` is for the speaker and is
left out of the notebook. Cells that say `--save 06_by_hand.py` are also the parts of `code/06_by_hand.py`,
the program to take home, which the build writes from them.

Everything but the outputs is a function of the source and the library, so `drift` can tell whether a
notebook is up to date without running it. A build that fails leaves the old notebook as it was.

    python -m course.tools.build              all lessons
    python -m course.tools.build 02 06        these
    python -m course.tools.build --text 06    a text has changed, no code: keep the outputs, run nothing
"""

import argparse
import hashlib
import os
import re
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from pathlib import Path

import jupytext
import nbformat
from nbclient.exceptions import CellExecutionError, CellTimeoutError
from nbformat import NotebookNode

from course.paths import LESSONS, ROOT
from course.tools.failures import plain, raised_while_shown
from course.tools.frame import FrameError, framed, stem
from course.tools.parts import (
    MORE,
    RUN_SECONDS,
    in_core,
    is_run,
    least,
    run_seconds,
    seconds_by_part,
)
from course.tools.runner import Deadlines, NotebookRun
from course.tools.shown import ShowError, shown
from mpi_classroom import take_home
from mpi_classroom.exercises import Exercise
from mpi_classroom.lessons import find_exercise

DEADLINES = Deadlines(cell=120, lesson=600)
TRACEBACK_LINES = 15
SHOWN_TAG = re.compile(r"source:\s*(\S+:\w+)")
EXERCISE_TAG = re.compile(r"exercise:\s*(\S+)")
SLIDES = ("slide", "subslide", "fragment", "skip")
NOTES = "notes"  # what the speaker says, in the source only
KERNEL = {"name": "python3", "display_name": "Python 3 (ipykernel)", "language": "python"}
LANGUAGE = {
    "name": "python",
    "file_extension": ".py",
    "mimetype": "text/x-python",
    "pygments_lexer": "ipython3",
}
# comment_magics is off: with it, jupytext would make a command of the comment "# rm the old file".
SOURCE_FORMAT = {"extension": ".py", "format_name": "percent", "comment_magics": False}
IMPORT = re.compile(r"(?:import|from) \w")
COMMENTED_MAGIC = re.compile(r"^(\s*)# ?(%%?[a-zA-Z].*|![^\s=].*)$")


class BuildError(Exception):
    """A lesson that cannot be built: in which cell, counted from 1, and why, with the remedy."""

    def __init__(self, sentence: str, cell: int | None = None) -> None:
        super().__init__(sentence if cell is None else f"cell {cell}: {sentence}")
        self.sentence, self.cell = sentence, cell


# -------------------------------------------------------------------- which lessons


def source_of(notebook: Path) -> Path:
    """The source that a notebook is built from, in the same checkout."""
    return notebook.parents[1] / "course" / "lessons" / f"l{notebook.stem}" / "lesson.py"


def notebook_of(source: Path) -> Path:
    """The notebook that is built from a source."""
    return source.parents[3] / "notebooks" / f"{stem(source)}.ipynb"


def lesson_sources(names: Iterable[str] = (), folder: Path = LESSONS) -> list[Path]:
    """The sources of the lessons named by number ("02") or stem, or of all, in course order."""
    existing = sorted(folder.glob("l[0-9][0-9]_*/lesson.py"))
    wanted = [Path(name).stem for name in names]
    for name in wanted:
        if not any(_is_named(source, name) for source in existing):
            there = ", ".join(stem(source) for source in existing) or "none"
            raise BuildError(f"there is no lesson {name!r} in {folder}; there are: {there}")
    return [source for source in existing if not wanted or any(_is_named(source, name) for name in wanted)]


def _is_named(source: Path, name: str) -> bool:
    return stem(source) == name or (name.isdigit() and stem(source).startswith(f"{int(name):02d}_"))


# -------------------------------------------------------------------- composing, without running


def compose(source: Path, *, notes: bool = False) -> NotebookNode:
    """The notebook that `source` makes, without outputs: cells filled, ids set. Raises BuildError.

    With `notes`, the speaker's notes are in it too.
    """
    notebook = nbformat.v4.new_notebook(
        metadata={"kernelspec": dict(KERNEL), "language_info": dict(LANGUAGE)}
    )
    read = jupytext.reads(source.read_text(encoding="utf-8"), fmt=SOURCE_FORMAT)
    own = read.cells[1:] if read.cells and read.cells[0].source.startswith("---\n") else read.cells
    try:
        cells = framed(source, [_checked(cell, number) for number, cell in enumerate(own, 1)])
    except FrameError as error:
        raise BuildError(str(error)) from None
    notebook.cells = [each for number, cell in enumerate(cells, 1) for each in _practised(cell, number)]
    if not notes:
        notebook.cells = [cell for cell in notebook.cells if NOTES not in tags(cell)]
    _fill(notebook)
    _mark_parts_and_slides(notebook)
    for cell, id in zip(notebook.cells, _ids(notebook), strict=True):
        cell.id = id
    return notebook


def tags(cell: NotebookNode) -> list[str]:
    """The tags of a cell."""
    return list(cell.metadata.get("tags", []))


def _checked(cell: NotebookNode, number: int) -> NotebookNode:
    """The cell as it goes into the notebook: magics uncommented, no metadata but the tags."""
    if title := cell.metadata.get("title"):
        raise BuildError(f"the comment '# %% {title}' begins a new cell; drop the %% or the words", number)
    if unknown := set(cell.metadata) - {"tags", "lines_to_next_cell"}:
        raise BuildError(f"only tags are kept in a cell's metadata, not {', '.join(sorted(unknown))}", number)
    metadata = {"tags": tags(cell)} if tags(cell) else {}
    if cell.cell_type == "markdown":
        return nbformat.v4.new_markdown_cell(cell.source, metadata=metadata)
    if cell.cell_type != "code":
        raise BuildError(f"a lesson has markdown and code cells only, not {cell.cell_type}", number)
    lines = [COMMENTED_MAGIC.sub(r"\1\2", line) for line in cell.source.splitlines()]
    if late := next((line for line in lines[1:] if line.startswith("%%")), None):
        raise BuildError(f"{late} must be the first line of a cell; put a line '# %%' above it", number)
    return nbformat.v4.new_code_cell("\n".join(lines), metadata=metadata)


def _practised(cell: NotebookNode, number: int) -> list[NotebookNode]:
    """The text and the cell of the exercise that `cell` stands for; any other cell as it is."""
    ids = [match[1] for tag in tags(cell) if (match := EXERCISE_TAG.fullmatch(tag))]
    if not ids:
        return [cell]
    if len(ids) > 1 or cell.cell_type != "code" or cell.source.strip():
        raise BuildError(
            "a cell with an `exercise: …` tag is a code cell with one such tag and no content", number
        )
    try:
        exercise = find_exercise(ids[0])
    except LookupError as error:
        raise BuildError(f"{error}; correct the number, or write the exercise", number) from None
    others = [tag for tag in tags(cell) if not EXERCISE_TAG.fullmatch(tag)]
    metadata = {"tags": others} if others else {}
    save = f" --save {exercise.save}" if isinstance(exercise, Exercise) and exercise.save else ""
    return [
        nbformat.v4.new_markdown_cell(exercise.text, metadata=metadata),
        nbformat.v4.new_code_cell(f"%%exercise {exercise.id}{save}\n{exercise.cell}"),
    ]


def _mark_parts_and_slides(notebook: NotebookNode) -> None:
    """Give every cell of More the tag `more`; what a tag says of slides goes where slide makers look."""
    more = False
    for cell in notebook.cells:
        more = more or MORE in tags(cell)
        kinds = [tag for tag in tags(cell) if tag in (*SLIDES, NOTES)]
        kept = [tag for tag in tags(cell) if tag not in (*kinds, MORE)] + [MORE] * more
        cell.metadata = NotebookNode({"tags": kept} if kept else {})
        if kinds:
            cell.metadata["slideshow"] = {"slide_type": kinds[0]}


def _fill(notebook: NotebookNode) -> None:
    """Give the cells tagged `source: module:name` the code of the library; nothing is imported twice."""
    shown_before: dict[bool, set[str]] = defaultdict(set)  # on the ranks, in the kernel
    for number, cell in enumerate(notebook.cells, 1):
        references = [match[1] for tag in tags(cell) if (match := SHOWN_TAG.fullmatch(tag))]
        if not references:
            continue
        magic = cell.source.strip()
        on_ranks = magic.startswith("%%px")
        if len(references) > 1 or cell.cell_type != "code" or (magic and not on_ranks) or "\n" in magic:
            sentence = "a cell with a `source: …` tag is a code cell with one such tag and no other content"
            raise BuildError(f"{sentence} than, if it is for the ranks, the line '# %%px'", number)
        try:
            code = shown(references[0], before=shown_before[on_ranks])
        except ShowError as error:
            raise BuildError(str(error), number) from None
        shown_before[on_ranks].add(references[0].partition(":")[2])
        code = _without_known_imports(code, notebook.cells[: number - 1], on_ranks)
        cell.source = f"{magic}\n{code}" if magic else code


def _without_known_imports(code: str, before: Sequence[NotebookNode], on_ranks: bool) -> str:
    """`code` without the imports at its top that an earlier cell has: a program needs each once."""
    same_side = (cell.source for cell in before if cell.source.startswith("%%px") == on_ranks)
    known = {line for source in same_side for line in source.splitlines() if IMPORT.match(line)}
    lines = code.splitlines()
    return "\n".join(line for line in lines if line not in known).lstrip("\n")


def _ids(notebook: NotebookNode) -> Iterator[str]:
    """An id for every cell: a hash of what it says; the second cell to say the same gets -2."""
    seen: Counter[str] = Counter()
    for cell in notebook.cells:
        digest = hashlib.sha256(f"{cell.cell_type}\n{cell.source}".encode()).hexdigest()[:8]
        seen[digest] += 1
        yield digest if seen[digest] == 1 else f"{digest}-{seen[digest]}"


def drift(notebook: Path) -> int | None:
    """The first cell, counted from 1, whose type, source, tags or id is not what its source composes to.

    None when there is none. Outputs are not looked at. Raises BuildError.
    """
    built, composed = nbformat.read(notebook, as_version=4), compose(source_of(notebook))
    for number, (is_, should) in enumerate(zip_longest(built.cells, composed.cells), 1):
        if is_ is None or should is None:
            return number
        same = all(is_.get(key) == should.get(key) for key in ("cell_type", "source", "id"))
        if not same or is_.metadata != should.metadata:
            return number
    return None


# -------------------------------------------------------------------- the program to take home


def take_home_files(notebook: NotebookNode) -> dict[str, str]:
    """The programs that the cells of a composed notebook make, by file name. Raises BuildError."""
    files: dict[str, list[str]] = {}
    for number, cell in enumerate(notebook.cells, 1):
        if cell.cell_type != "code" or not (saved := take_home.SAVED.match(cell.source)):
            continue
        parts = files.setdefault(saved["file"], [])
        part = take_home.solved(find_exercise(saved["id"])) if saved["id"] else saved["code"]
        if any(take_home.defines(part) & take_home.defines(other) for other in parts):
            names = ", ".join(sorted(set.union(*map(take_home.defines, parts)) & take_home.defines(part)))
            raise BuildError(f"another part of {saved['file']} defines {names}, too; rename one", number)
        parts.append(part)
    return {name: take_home.composed(name, parts) for name, parts in files.items()}


def differing_files(source: Path) -> list[str]:
    """The programs to take home of a lesson that are not what its cells make. Raises BuildError."""
    folder = notebook_of(source).parent / take_home.FOLDER
    files = take_home_files(compose(source))
    return [name for name, text in files.items() if not _says(folder / name, text)]


def _says(path: Path, text: str) -> bool:
    return path.is_file() and path.read_text(encoding="utf-8") == text


# -------------------------------------------------------------------- running


def execute(notebook: NotebookNode, folder: Path, deadlines: Deadlines = DEADLINES) -> list[float]:
    """Run all cells in `folder` with a fresh kernel and keep their outputs in `notebook`.

    Returns when each code cell began, and the end, in seconds of one clock. Raises BuildError at the first
    error, or when a cell or the whole takes too long. No process is left.
    """
    began = list[float]()
    run = NotebookRun(notebook, deadlines, lambda number, cells: began.append(time.monotonic()))
    error = run.run(folder)
    if error is not None:
        raise _cell_error(*run.code[run.done], _problem(run, error))
    for index, cell in run.code:
        if "raises-exception" in tags(cell) and not any(out.output_type == "error" for out in cell.outputs):
            raise _cell_error(index, cell, "is tagged raises-exception and did not raise")
    return [*began, time.monotonic()]


def _problem(run: NotebookRun, error: Exception) -> str:
    """What stopped a lesson, with the end of the traceback where a cell raised."""
    if isinstance(error, CellExecutionError):
        traceback = plain(error.traceback).rstrip().splitlines()
        shown = run.code[run.done][1].outputs
        name, said = raised_while_shown(error.ename, plain(error.evalue), shown)
        return "\n".join([f"raised {name}: {said.partition(chr(10))[0]}", "…", *traceback[-TRACEBACK_LINES:]])
    if isinstance(error, CellTimeoutError):
        deadlines = run.deadlines
        late, limit = ("the lesson", deadlines.lesson) if run.late else ("this cell", deadlines.cell)
        return f"{late} was not done after {limit:g} s; do ranks wait for each other?"
    return str(error)


def _cell_error(index: int, cell: NotebookNode, problem: str) -> BuildError:
    source = "\n".join(f"    {line}" for line in cell.source.splitlines())
    return BuildError(f"{problem}\n\nThe cell:\n{source}", index + 1)


# -------------------------------------------------------------------- cleaning and writing


def clean(notebook: NotebookNode) -> None:
    """Remove what differs from machine to machine and is not a result: paths, widgets, metadata."""
    notebook.metadata = nbformat.from_dict({"kernelspec": dict(KERNEL), "language_info": dict(LANGUAGE)})
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [output for output in map(_clean_output, cell.outputs) if output.get("data") != {}]


def _clean_output(output: NotebookNode) -> NotebookNode:
    output = nbformat.from_dict(_without_paths(output))
    if "data" in output:
        if "application/vnd.jupyter.widget-view+json" in output.data:  # nothing without its live widget
            output.data = NotebookNode()
        output.metadata = NotebookNode(
            {key: output.metadata[key] for key in output.metadata if key in output.data}
        )
    return output


def _without_paths(value: object) -> object:
    """`value` with the folders of this machine taken out of every string in it."""
    if isinstance(value, dict):
        return {key: _without_paths(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_paths(item) for item in value]
    if isinstance(value, str):
        for pattern, replacement in _OF_THIS_MACHINE:
            value = pattern.sub(replacement, value)
    return value


_OF_THIS_MACHINE = [
    (
        re.compile(
            r"\n([^\n]*also has a running cluster, and both share the cores|Stopped the cluster of )[^\n]*"
        ),
        "",
    ),
    (re.compile(r"/tmp/ipykernel_\d+/\d+\.py"), "<cell>"),
    (re.compile(r"/[^\s:\"'<>]*/site-packages/"), ".../site-packages/"),
    (re.compile(re.escape(str(ROOT)) + "/?"), ""),
    (re.compile(re.escape(sys.base_prefix + "/lib/")), ".../lib/"),
    (re.compile(re.escape(str(Path.home())) + r"(?=/)"), "~"),
]


def write(notebook: NotebookNode, path: Path) -> None:
    """Write a notebook so that readers see the old one or the new one, never half of it."""
    text = nbformat.writes(notebook) + "\n"
    nbformat.validate(notebook)
    new = path.with_name(f".{path.name}.new")
    new.write_text(text, encoding="utf-8")
    os.replace(new, path)


def build(source: Path, deadlines: Deadlines = DEADLINES) -> Path:
    """Build the notebook of one source and return its path; raises BuildError, the old one untouched."""
    target = notebook_of(source)
    notebook = compose(source)
    write_take_home(source, notebook)
    times = run_times(notebook, execute(notebook, target.parent, deadlines), target)
    clean(notebook)
    notebook.metadata["course"] = {RUN_SECONDS: times}
    write(notebook, target)
    return target


def run_times(ran: NotebookNode, clock: Sequence[float], target: Path) -> dict[str, int]:
    """The seconds of core and More; none is longer than `target` says already."""
    core = [of for cell, of in zip(ran.cells, in_core(ran.cells), strict=True) if is_run(cell)]
    times = seconds_by_part(core, clock)
    if not run_seconds(target) or drift(target) is not None:
        return times  # nothing known, or another lesson's time
    return least(times, run_seconds(target))


def write_take_home(source: Path, notebook: NotebookNode) -> None:
    """Write the programs that the cells of a composed notebook make."""
    for name, text in take_home_files(notebook).items():
        path = notebook_of(source).parent / take_home.FOLDER / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")


def refresh(source: Path) -> Path:
    """Carry a changed text into a built notebook without running it: every code cell keeps its outputs.

    Raises BuildError when a code cell has changed: then the outputs are no longer its own.
    """
    target = notebook_of(source)
    built, composed = nbformat.read(target, as_version=4), compose(source)
    ran, new = ([cell for cell in each.cells if cell.cell_type == "code"] for each in (built, composed))
    for number, (old, cell) in enumerate(zip_longest(ran, new), 1):
        if old is None or cell is None or old.source != cell.source:
            raise BuildError(f"code cell {number} has changed; run make notebooks LESSON={target.stem[:2]}")
        cell.outputs, cell.execution_count = old.outputs, old.execution_count
    composed.metadata = built.metadata
    write_take_home(source, composed)
    write(composed, target)
    return target


def main(arguments: Sequence[str] | None = None) -> int:
    """Build the lessons named on the command line, or all; 1 at the first that fails."""
    parser = argparse.ArgumentParser(prog="python -m course.tools.build", description="Build the lessons.")
    parser.add_argument("lesson", nargs="*", help="number (02) or stem; none means all")
    parser.add_argument("--text", action="store_true", help="only texts have changed: run nothing")
    options = parser.parse_args(arguments)
    try:
        for source in lesson_sources(options.lesson):
            began = time.monotonic()
            print(f"{stem(source)} … ", end="", flush=True)
            target = refresh(source) if options.text else build(source)
            print(f"{time.monotonic() - began:.1f} s, {target.stat().st_size / 1000:.0f} kB")
    except BuildError as error:
        print(f"\nnot built: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
