"""The two parts of a lesson, core and More, and how long the cells of each ran.

A source marks the cell that begins More with the tag `more`; in the notebook every cell of More has it.
The build writes down how long the cells of each part ran.
"""

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from nbformat import NotebookNode

STOP_LINE = "**Stop here in a short workshop.**"  # the last cell of the core
MORE = "more"  # the tag of what is not of the core
RUN_SECONDS = "run_seconds"
SECONDS_STEP = 5  # run times are rounded, or every build would change the notebook


def is_run(cell: NotebookNode) -> bool:
    """Whether a kernel gets the cell: it is code, and not empty."""
    return cell.cell_type == "code" and bool(cell.source.strip())


def in_core(cells: Sequence[NotebookNode]) -> list[bool]:
    """For every cell whether it is of the core."""
    return [MORE not in cell.metadata.get("tags", ()) for cell in cells]


def seconds_by_part(core: Sequence[bool], clock: Sequence[float]) -> dict[str, int]:
    """The seconds of the cells in the core and in More, rounded; `clock` is when each began, and the end."""
    seconds = {"core": 0.0, "more": 0.0}
    for of_core, (begin, end) in zip(core, pairwise(clock), strict=True):
        seconds["core" if of_core else "more"] += end - begin
    return {part: SECONDS_STEP * round(spent / SECONDS_STEP) for part, spent in seconds.items()}


def run_seconds(notebook: Path) -> dict[str, int]:
    """What the cells of core and More ran; empty when no build wrote it down."""
    try:
        metadata = json.loads(notebook.read_text(encoding="utf-8"))["metadata"]
        return dict(metadata["course"][RUN_SECONDS])
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def least(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    """The shorter time of each part: what a busy machine adds is not the lesson's."""
    return {part: min(seconds, other.get(part, seconds)) for part, seconds in one.items()}
