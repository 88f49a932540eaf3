"""What ranks raised, in a line or two each instead of a full traceback from every one."""

import re
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from ipyparallel import error

from mpi_classroom.cells import Cell
from mpi_classroom.snapshot import RankState

LONGEST = 500  # characters of an error
_ENGINE_FILE = re.compile(r" \(\d+\.py, line \d+\)$")  # of a syntax error, whose line is shown below
_MPI_FILES = ("record.py", "recorder.py", "requests.py", ".pyx", ".pxi")
_CHAIN = re.compile(r"The above exception was the direct cause|During handling of the above exception")
_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_FRAME = re.compile(  # of IPython's traceback: "Cell In[3], line 4, in f()" or "File /path/to.py:12, in f(x)"
    r"^ *(?:Cell In\[(?P<cell>\d+)\]|File (?P<file>\S+?)(?::(?P<line>\d+))?), ?(?:line (?P<at>\d+)|in )"
    r"(?:, in (?P<function>\w+))?",
    re.MULTILINE,
)


class RanksRaised(error.CompositeError):
    """Some ranks raised, all ended the cell: each different error once, with its cell line."""

    def __init__(self, original: error.CompositeError, text: str) -> None:
        super().__init__(original.msg, original.elist)
        self.text = text

    def __str__(self) -> str:
        return self.text

    def render_traceback(self, excid: Any = None) -> list[str]:
        """The report instead of one full traceback per rank."""
        return self.text.splitlines()


def raised(rank: int, problem: Any, cell: Cell) -> RankState:
    """The state of a rank that raised `problem` in `cell`: the error, the cell's line, what that led to."""
    if not isinstance(problem, error.RemoteError):
        return RankState(rank, "raised", error=f"raised {problem}")
    trace = _CHAIN.split(_ANSI.sub("", str(problem.traceback)))[-1]
    name, message = problem.ename, _ENGINE_FILE.sub("", (problem.evalue or "").strip()).splitlines()
    if name == "NoneType" and trace.strip():  # raised while the cell's last value was shown
        name, *message = trace.strip().splitlines()[-1].split(": ", 1)
    text = ": ".join(["raised " + name, *message[:1]]).replace("Exception: MPI_ERR", "MPI_ERR")
    text = text if len(text) <= LONGEST else text[:LONGEST] + "…"
    frames = [f for f in _FRAME.finditer(trace) if not (f["file"] or "").endswith(_MPI_FILES)]
    if not frames or not frames[0]["cell"]:
        return RankState(rank, "raised", error=text)
    first, last = frames[0], frames[-1]
    number, code = _numbered_line(cell, first)
    inside = ""
    if last["file"]:
        inside = f"{PurePath(last['file']).name}, line {last['line'] or last['at']}"
    elif last["cell"] != first["cell"]:
        inside = f"in {last['function']}, line {last['at']} of its cell"
    elif last["at"] != first["at"]:
        inside = "line {}: {}".format(*_numbered_line(cell, last))
    return RankState(rank, "raised", error=text, line=number, code=code, inside=inside)


def _numbered_line(cell: Cell, frame: re.Match[str]) -> tuple[int, str]:
    number = int(frame["at"])
    lines = cell.text.splitlines()
    return number + cell.lines_above, lines[number - 1].strip() if number <= len(lines) else ""


def all_raised(states: Mapping[int, RankState]) -> str:
    """Each different error once, with the ranks that raised it."""
    groups: dict[tuple[str, str], list[int]] = {}
    for rank, state in sorted(states.items()):
        if state.kind == "raised":
            groups.setdefault((state.error, state.where()), []).append(rank)
    lines = []
    for (text, where), ranks in groups.items():
        who = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
        lines.append(f"{who} {text}" + (f"\n    {where}" if where else ""))
    return "\n".join(lines)
