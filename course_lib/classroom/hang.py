"""Why is everyone waiting? One line a rank, then the likely cause, in words for a beginner.

    rank 0  waiting in Allreduce                  cell line 7   comm.Allreduce(mine, total)
    rank 1  raised ValueError: boom               cell line 4   raise ValueError("boom")
    rank 2  waiting in Recv from rank 1, tag 5    cell line 9   comm.Recv(inbox, source=1, tag=5)
    rank 3  finished

What a rank is doing is known from outside: the call from `comm/recorder.py`, the line from the stack that
the rank writes when it receives SIGUSR1, which it does even while blocked inside MPI.
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

from course_lib.comm.recorder import Call, read_call, stack_file

_FRAME = re.compile(r'^  File "(?P<file>.+)", line (?P<line>\d+) in (?P<function>.+)$', re.MULTILINE)
_WAITS = re.compile(r"\b(Wait(?:all|any|some)?|wait(?:all|any|some)?|Spawn|Disconnect|result|get)\s*\(")
_WIDTH = 60
STACK_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class RankState:
    """What one rank is doing: `line` and `code` are where in the cell, `inside` where in another place."""

    rank: int
    kind: Literal["finished", "raised", "waiting", "computing", "gone"]
    call: Call | None = None
    error: str = ""
    line: int | None = None
    code: str = ""
    inside: str = ""

    def what(self) -> str:
        """The middle column: what this rank is doing."""
        if self.kind == "waiting":
            wait = _WAITS.search(self.inside or self.code)
            return f"waiting in {self.call or (wait[1] if wait else 'MPI')}"
        if self.kind in ("raised", "gone"):
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
        sizes[rank] = path.stat().st_size if path.exists() else 0
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGUSR1)
    stacks: dict[int, list[tuple[str, int, str]]] = {}
    deadline = time.monotonic() + STACK_SECONDS
    while len(stacks) < len(sizes) and time.monotonic() < deadline:
        time.sleep(0.02)
        for rank in sizes.keys() - stacks.keys():
            path = stack_file(folder, rank)
            text = path.read_text(errors="replace")[sizes[rank] :] if path.exists() else ""
            if "_run_module_as_main" in text:  # the last frame: the dump is complete
                stacks[rank] = [
                    (frame["file"], int(frame["line"]), frame["function"]) for frame in _FRAME.finditer(text)
                ]
    return stacks


def observe(
    folder: Path,
    rank: int,
    stack: Sequence[tuple[str, int, str]],
    lines: Callable[[str], Sequence[str] | None],
) -> RankState:
    """The state of a rank that has not finished.

    `lines(file)` returns the lines of a cell, or None when `file` is no cell; the running cell is the one
    whose frame is a `<module>`.
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
    waiting = call is not None or bool(_WAITS.search(inside or code))
    return RankState(rank, "waiting" if waiting else "computing", call, "", number, code, inside)


def _line(text: Sequence[str], number: int) -> str:
    return text[number - 1].strip() if 0 < number <= len(text) else ""


# -------------------------------------------------------------------- saying it


def report(states: Sequence[RankState]) -> str:
    """The table of all ranks, then the likely cause."""
    width = max(len(state.what()) for state in states)
    rows = [
        f"rank {state.rank}  {state.what():<{width}}  {_shorten(state.where())}".rstrip() for state in states
    ]
    return "\n".join([*rows, "", f"Likely cause: {likely_cause(states)}"])


def _shorten(text: str) -> str:
    return text if len(text) <= 2 * _WIDTH else text[: 2 * _WIDTH - 1] + "…"


def _ranks(states: Sequence[RankState]) -> str:
    numbers = [str(state.rank) for state in states]
    if len(numbers) == 1:
        return f"rank {numbers[0]}"
    return f"ranks {', '.join(numbers[:-1])} and {numbers[-1]}"


def likely_cause(states: Sequence[RankState]) -> str:
    """One or two sentences on why these ranks do not end."""
    by_kind: dict[str, list[RankState]] = {}
    for state in states:
        by_kind.setdefault(state.kind, []).append(state)
    waiting, computing = by_kind.get("waiting", []), by_kind.get("computing", [])
    if gone := by_kind.get("gone"):
        return f"{_ranks(gone)} died; MPI then ends all the others."
    if raised := by_kind.get("raised"):
        return _after_raise(raised, waiting, computing)
    if computing:
        return _still_computing(waiting, computing)
    return _all_wait(waiting, by_kind.get("finished", []))


def _after_raise(
    raised: Sequence[RankState], waiting: Sequence[RankState], computing: Sequence[RankState]
) -> str:
    if not waiting and not computing:
        return f"{_ranks(raised)} raised; the cell ended everywhere."
    left = waiting or computing
    wait = "waits" if len(left) == 1 else "wait"
    return (
        f"{_ranks(raised)} raised an error and left the cell, so {_ranks(left)} {wait} for something "
        "that never comes. Mend the error first."
    )


def _still_computing(waiting: Sequence[RankState], computing: Sequence[RankState]) -> str:
    compute = "computes" if len(computing) == 1 else "compute"
    work = (
        f"{_ranks(computing)} still {compute}: an endless loop, or work that takes longer than this cell may."
    )
    if not waiting:
        return work
    return f"{_ranks(waiting)} {'waits' if len(waiting) == 1 else 'wait'} for the others. {work}"


def _all_wait(waiting: Sequence[RankState], finished: Sequence[RankState]) -> str:
    calls = {state.rank: state.call for state in waiting if state.call is not None}
    collectives = {rank: call for rank, call in calls.items() if call.collective}
    names = sorted({call.name for call in collectives.values()})
    if len(names) > 1:
        return (
            f"the ranks are in different collectives ({', '.join(names)}). "
            "All ranks must make the same collective calls in the same order."
        )
    if collectives and finished:
        return (
            f"{names[0]} is a collective: every rank of the communicator must call it, "
            f"and {_ranks(finished)} did not. Move the call out of the branch that only some ranks take."
        )
    if collectives and len(collectives) < len(waiting):
        other = next(state for state in waiting if state.rank not in collectives)
        return (
            f"{names[0]} is a collective: every rank of the communicator must call it, and rank {other.rank} "
            f"is still in {other.call or 'another call'}."
        )
    if collectives:
        return f"all are in {names[0]}, with different sizes, roots or communicators."
    return _point_to_point(calls, finished)


def _point_to_point(calls: Mapping[int, Call], finished: Sequence[RankState]) -> str:
    if cycle := find_cycle({rank: call.peer for rank, call in calls.items()}):
        if len(cycle) == 1:
            return f"rank {cycle[0]} waits for itself, and while it waits it can do nothing else."
        circle = " → ".join(f"rank {rank}" for rank in [*cycle, cycle[0]])
        sends = [rank for rank in cycle if "send" in calls[rank].name.lower()]
        if len(sends) == len(cycle):
            why = "Each sends a message too large to be buffered, and none has come to its receive."
        elif sends:
            return _mismatch(calls, cycle, circle)
        else:
            why = "Each waits for a message that the next will send only after its own receive."
        return (
            f"a circle of waiting: {circle}. {why} Let one of them go the other way round, or use Sendrecv."
        )
    for rank, call in sorted(calls.items()):
        if call.peer is not None and any(state.rank == call.peer for state in finished):
            verb = "receives" if "send" in call.name.lower() else "sends"
            return (
                f"rank {rank} is in {call}, but rank {call.peer} has finished without a call that "
                f"{verb} it. Check the partner, the tag and the number of messages."
            )
    return "a message is waited for that no rank sends: check partners, tags and the number of messages."


def _mismatch(calls: Mapping[int, Call], cycle: Sequence[int], circle: str) -> str:
    tags = {tag for rank in cycle if (tag := calls[rank].tag) is not None and tag >= 0}
    if len(tags) > 1:
        return f"{circle} wait for each other with different tags ({', '.join(map(str, sorted(tags)))})."
    return f"{circle} wait for each other: the one's send and the other's receive do not match."


def find_cycle(waits_for: Mapping[int, int | None]) -> list[int]:
    """The ranks of a circle in which each waits for the next, smallest first; [] when there is none.

    >>> find_cycle({0: 1, 1: 2, 2: 1})
    [1, 2]
    """
    for start in sorted(waits_for):
        path: list[int] = []
        rank: int | None = start
        while rank is not None and rank in waits_for and rank not in path:
            path.append(rank)
            rank = waits_for[rank]
        if rank in path:
            cycle = path[path.index(rank) :]
            first = cycle.index(min(cycle))
            return cycle[first:] + cycle[:first]
    return []
