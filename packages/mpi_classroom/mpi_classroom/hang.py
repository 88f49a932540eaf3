"""What is every rank doing? One line per rank, in words for a beginner; `cause.py` then says why they wait.

    rank 0  waiting in Allreduce                  cell line 7   comm.Allreduce(mine, total)
    rank 1  raised ValueError: boom               cell line 4   raise ValueError("boom")
    rank 2  waiting in Recv from rank 1, tag 5    cell line 9   comm.Recv(inbox, source=1, tag=5)
    rank 3  finished

Another process reads what a rank is doing: the call from the file that `recording/recorder.py` writes on the
rank; the line from the stack that the rank writes when it receives SIGUSR1, even while blocked inside MPI.
"""

import contextlib
import linecache
import os
import re
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from mpi_classroom.recording.calls import Call, Done, read_call, read_done, stack_file

_FRAME = re.compile(r'^  File "(?P<file>.+)", line (?P<line>\d+) in (?P<function>.+)$', re.MULTILINE)
# Calls that wait although the recorder need not see them: known only by their source line.
_WAITS = re.compile(
    r"\b((?:[Ww]ait(?:all|any|some)?|Spawn|Merge|Fence|Free|Disconnect|Create_intercomm)(?=\s*\()"
    r"|(?:result|get)(?=\(\)))"
)
_MAY_WAIT = ("result", "get")  # of a future; many other classes have methods of these names
STACK_SECONDS = 0.5
ENDED = "was ended with the others"
AWAITS = "in an await, or in nothing at all"


@dataclass(frozen=True, slots=True)
class RankState:
    """What one rank is doing: `line` and `code` are the cell's line that it has come to.

    `inside`: the line where it is in a function of a cell that this line called; without any cell on the
    stack, the library's line. `done` is the last collective that it completed.
    """

    rank: int
    kind: Literal["finished", "raised", "waiting", "computing", "stopped", "gone"]
    call: Call | None = None
    error: str = ""
    line: int | None = None
    code: str = ""
    inside: str = ""
    done: Done | None = None

    def what(self) -> str:
        """The middle column: what this rank is doing."""
        if self.kind == "waiting":
            wait = _WAITS.search(self.inside or self.code)
            return f"waiting in {self.call or (wait[1] if wait else 'MPI')}"
        if self.kind in ("raised", "stopped", "gone"):
            return self.error
        return self.kind

    def where(self) -> str:
        """The last column: the cell's line, and what that led to."""
        if self.line is None:
            return self.inside
        code = f"cell line {self.line:<3} {self.code}"
        return f"{code}  → {self.inside}" if self.inside else code


# -------------------------------------------------------------------- looking at the ranks


def request_stacks(folder: Path, pids: Mapping[int, int]) -> dict[int, list[tuple[str, int, str]]]:
    """The Python stacks of the ranks in `pids` (rank → pid): (file, line, function), innermost first.

    A rank that is stopped or gone has none after half a second.
    """
    sizes = {}
    for rank, pid in pids.items():
        path = stack_file(folder, rank)
        sizes[rank] = path.stat().st_size if path.exists() else 0  # in bytes
        with contextlib.suppress(ProcessLookupError):
            if _answers(pid):
                os.kill(pid, signal.SIGUSR1)
    stacks: dict[int, list[tuple[str, int, str]]] = {}
    deadline = time.monotonic() + STACK_SECONDS
    while len(stacks) < len(sizes) and time.monotonic() < deadline:
        time.sleep(0.02)
        for rank in sizes.keys() - stacks.keys():
            path = stack_file(folder, rank)
            text = path.read_bytes()[sizes[rank] :].decode(errors="replace") if path.exists() else ""
            if "_run_module_as_main" in text or "\n  ...\n" in text:  # the last frame, or the hundredth
                stacks[rank] = [
                    (frame["file"], int(frame["line"]), frame["function"]) for frame in _FRAME.finditer(text)
                ]
    return stacks


def _answers(pid: int) -> bool:
    """Whether the process handles SIGUSR1: without a handler, which a cell may remove, the signal ends it."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:  # another system
        return True
    handled = re.search(r"^SigCgt:\s*([0-9a-f]+)", status, re.MULTILINE)
    return handled is None or bool(int(handled[1], 16) >> (signal.SIGUSR1 - 1) & 1)


def observe(
    folder: Path,
    rank: int,
    stack: Sequence[tuple[str, int, str]],
    lines: Callable[[str], Sequence[str] | None],
) -> RankState:
    """The state of a rank that has not finished.

    `lines(file)` returns the lines of a cell, or None when `file` is no cell. Functions of earlier cells may
    be on the stack, too: the running cell is the outermost frame that is a `<module>` of a cell.
    """
    call = read_call(folder, rank)
    cells = [(lines(file) or (), line, function) for file, line, function in stack if lines(file) is not None]
    outermost = next(
        ((text, line) for text, line, function in reversed(cells) if function == "<module>"), None
    )
    number = outermost[1] if outermost else None
    code = _line(*outermost) if outermost else ""
    inside = ""
    if cells and (cells[0][0], cells[0][1]) != outermost:
        inside = f"{_line(cells[0][0], cells[0][1])} in {cells[0][2]}"
    elif not cells and stack:
        file, line, function = stack[0]
        inside = f"{linecache.getline(file, line).strip()} in {function}"
        if function == "select":  # the rank's event loop
            inside = AWAITS
    names = {found[1] for found in _WAITS.finditer(inside or code)}
    if stack and stack[0][2] != "wait":  # of `threading`, in which futures and queues wait
        names.difference_update(_MAY_WAIT)
    waiting = call is not None or bool(names)
    kind: Literal["waiting", "computing"] = "waiting" if waiting else "computing"
    return RankState(rank, kind, call, "", number, code, inside, read_done(folder, rank))


def _line(text: Sequence[str], number: int) -> str:
    return text[number - 1].strip() if 0 < number <= len(text) else ""
