"""Why is everyone waiting? The report of a hang: one line a rank, then the likely cause."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from mpi_classroom.hang import ENDED, RankState
from mpi_classroom.recording.calls import Call

_WIDTH = 120


def report(states: Sequence[RankState], cause: str = "") -> str:
    """The table of all ranks, then the likely cause: `cause`, when it is known from elsewhere."""
    what = [_shorten(state.what()) for state in states]
    width = max(map(len, what))
    rows = [
        f"rank {state.rank}  {words:<{width}}  {_shorten(state.where())}".rstrip()
        for state, words in zip(states, what, strict=True)
    ]
    return "\n".join([*rows, "", f"Likely cause: {cause or likely_cause(states)}"])


def _shorten(text: str) -> str:
    return text if len(text) <= _WIDTH else text[: _WIDTH - 1] + "…"


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
    if gone := [state for state in by_kind.get("gone", []) if state.error != ENDED]:
        return f"{_ranks(gone)} died; MPI then ends all the others."
    if stopped := by_kind.get("stopped"):
        return (
            f"{_ranks(stopped)} {'is' if len(stopped) == 1 else 'are'} held by a stop signal (SIGSTOP) or a "
            "debugger. To let it go on, type in a terminal: kill -CONT and the number of its process."
        )
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
    messages = {rank: call for rank, call in calls.items() if not (call.collective or call.on_window)}
    if cause := _point_to_point(messages, finished):
        return cause
    collectives = [call for call in calls.values() if call.collective]
    for call in sorted(collectives, key=lambda call: call.turn):
        if cause := _incomplete(call, waiting, finished):
            return cause
    if collectives:
        name = collectives[0].operation
        if begun := [s for s in finished if collectives[0].of and _has_made(s, collectives[0])]:
            return f"{_ranks(begun)} began {name} too, but has finished without waiting for it."
        return f"all have come to {name}, but with different sizes, types or roots."
    if any(call.on_window for call in calls.values()):
        return (
            "somebody waits for another rank's call on the window: every Lock needs its Unlock, and every "
            "Start and Complete of one side a Post and Wait of the other."
        )
    return "a message is waited for that no rank sends: check partners, tags and the number of messages."


def _incomplete(call: Call, waiting: Sequence[RankState], finished: Sequence[RankState]) -> str:
    """Why the collective `call` that somebody is in does not come to its end, or ""."""
    here = [state.call for state in waiting if state.call is not None and _is_in(state, call)]
    done = [state.done.name for state in finished if state.done is not None and _has_made(state, call)]
    names = sorted({*(other.operation for other in here), *done})
    if len(names) > 1:
        return (
            f"the ranks are in different collectives ({', '.join(names)}). "
            "All ranks must make the same collective calls in the same order."
        )
    if len(roots := {other.peer or 0 for other in here}) > 1:
        return (
            f"the ranks are in {call.operation} with different roots ({', '.join(map(str, sorted(roots)))})."
        )
    what = replace(call, name=call.operation, of="")
    must = f"{what} is a collective: every rank of the communicator must call it, and"
    if skipped := [state for state in finished if _misses(state, call)]:
        return f"{must} {_ranks(skipped)} did not. Move the call out of the branch that only some ranks take."
    elsewhere = [state for state in waiting if _misses(state, call) and not _is_in(state, call)]
    for state in elsewhere:
        return f"{must} rank {state.rank} is still in {state.call or 'another call'}."
    return ""


def _is_in(state: RankState, call: Call) -> bool:
    """Whether the rank is in the collective `call`, or in another one in its place."""
    mine = state.call
    return mine is not None and mine.collective and (mine.on, mine.turn) == (call.on, call.turn)


def _has_made(state: RankState, call: Call) -> bool:
    """Whether the last collective that the rank completed was `call`, or another one in its place."""
    return state.done is not None and (state.done.on, state.done.turn) == (call.on, call.turn)


def _misses(state: RankState, call: Call) -> bool:
    """Whether the rank must make the collective `call` and has not completed it, as far as one can know."""
    if call.on.members and state.rank not in call.on.members:
        return False
    if state.call is not None and state.call.collective and state.call.on == call.on:
        return state.call.turn <= call.turn
    return state.done is None or state.done.on != call.on or state.done.turn < call.turn


def _point_to_point(calls: Mapping[int, Call], finished: Sequence[RankState]) -> str:
    if cycle := find_cycle({rank: call.peer for rank, call in calls.items()}):
        return _circle(calls, cycle)
    for rank, call in sorted(calls.items()):
        if any(state.rank == call.peer for state in finished):
            verb = "receives" if call.sends else "sends"
            return (
                f"rank {rank} is in {call}, but rank {call.peer} has finished without a call that "
                f"{verb} it. Check the partner, the tag and the number of messages."
            )
    return ""


def _circle(calls: Mapping[int, Call], cycle: Sequence[int]) -> str:
    if len(cycle) == 1:
        return f"rank {cycle[0]} waits for itself, and while it waits it can do nothing else."
    circle = " → ".join(f"rank {rank}" for rank in [*cycle, cycle[0]])
    sends = [rank for rank in cycle if calls[rank].sends]
    if len(sends) == len(cycle):
        why = "Each sends a message too large to be buffered, and none has come to its receive."
    elif sends or any(calls[rank].other is not None for rank in cycle):
        return _mismatch(calls, cycle, circle)
    else:
        why = "Each waits for a message that the next will send only after its own receive."
    return f"a circle of waiting: {circle}. {why} Let one of them go the other way round, or use Sendrecv."


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
