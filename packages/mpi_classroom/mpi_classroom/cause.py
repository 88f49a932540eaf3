"""Why is everyone waiting? The report of a hang: one line per rank, then the likely cause.

The way to it: each rank notes the MPI call that it is in, in a small file (`recording/record.py`). In a close
look, its Python stack adds the line, and the names of torch's calls. `observer.py` reads these into
`RankState`s. `watch.py` decides when to intervene and calls `report`: at once after a death or when the
cluster is down; when no busy rank moves, after 1 s if a rank raised and after 10 s otherwise; else, as for a
rank that computes, is stopped or silent, at the deadline or when the learner interrupts. `running_cell.py`
shows the report and frees the ranks: by an interrupt, else by replacing the cluster. (`answer_job.py` reports
exercises; `lanes.py` uses `find_cycle`, `is_in` and `has_not_completed`.) Here is only reasoning, about data
that `snapshot.py` explains. A rank that is dead, silent, stopped, has raised or computes may explain why the
others wait. Otherwise all wait, and messages come before collectives, because a circle of messages is certain
(of Sendrecvs, nearly). Its reason is not: a message that never came may have been sent with another tag.
Threads come first, if no rank's call is known; then torch.

A new cause is a function that returns a sentence, or "" where it does not fit: put it in `_all_wait` by its
certainty, and a row in `CAUSES` of `tests/test_hang.py`. A new fact about a call goes into `Call`, about a
rank into `RankState`.

Of a rank's `Call`, `on` is its communicator (equal if made by the same calls, of the same ranks), `turn`
counts the collectives that the rank made there before, `peer` is its partner or root (-1: any rank; other
negative numbers: nobody; None: everyone, or nobody knows), `other` is the rank to which a Sendrecv sends (its
`tag` is that of its receive), and `of` is the non-blocking operation that a Wait completes. A Sendrecv never
`sends`; it has an `other`. Only intracommunicators and a rank's main thread are recorded. A rank's `done` is
the last collective that it completed, or began without blocking. Ranks are those of the world.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from mpi_classroom.errors import meaning
from mpi_classroom.recording.calls import (
    MAKERS,
    NUMBERING,
    OF_TORCH,
    OPENERS,
    SAME_CALL,
    TORCH_MESSAGES,
    Call,
)
from mpi_classroom.sentences import listed, listed_ranks
from mpi_classroom.snapshot import AWAITS, Death, RankState

_COLUMN_WIDTH = 120
_CALL_IT_EVERYWHERE = (
    "Run any loop around it equally often on all ranks, or move the call out of the branch that only some "
    "ranks take."
)
_ADD_TO_TARGETS = "Add it to --targets, or look at what it runs in the background."
_CHECK_MESSAGES = "Check partners, tags and the number of messages."


def report(states: Sequence[RankState], cause: str = "") -> str:
    """The table of all ranks, then the likely cause: `cause`, if `watch.py` knows it.

    It knows three: a rank still moves, a part of the cluster was removed, a rank computes while others move.
    """
    what = [_shorten(state.what()) for state in states]
    width = max(map(len, what))
    who = [f"rank {state.rank} on {state.host}" if state.host else f"rank {state.rank}" for state in states]
    rows = [
        f"{name}  {words:<{width}}  {_shorten(state.where())}".rstrip()
        for name, state, words in zip(who, states, what, strict=True)
    ]
    return "\n".join([*rows, "", f"Likely cause: {cause or likely_cause(states)}"])


def _shorten(text: str) -> str:
    return text if len(text) <= _COLUMN_WIDTH else text[: _COLUMN_WIDTH - 1] + "…"


def _ranks(states: Sequence[RankState], one: str = "", several: str = "") -> str:
    """`rank 2` or `ranks 0 and 1`, then the verb in the number that fits."""
    verb = one if len(states) == 1 else several
    return f"{listed_ranks(state.rank for state in states)} {verb}".rstrip()


def likely_cause(states: Sequence[RankState]) -> str:
    """One or two sentences on why these ranks do not end: first what explains the waiting of the others."""
    by_kind: dict[str, list[RankState]] = {}
    for state in states:
        by_kind.setdefault(state.kind, []).append(state)
    waiting, computing, finished = (by_kind.get(kind, []) for kind in ("waiting", "computing", "finished"))
    if deaths := [state.death for state in states if state.death is not None]:
        if lost := [death for death in deaths if death.how == "host"]:
            names = list(dict.fromkeys(death.host for death in lost))
            them = "it" if len(names) == 1 else "them"
            others = "; MPI then ends all the others" if len(lost) < len(states) else ""
            lost_ranks = listed_ranks(death.rank for death in lost)
            return f"{listed(names)} died or cannot be reached, and {lost_ranks} with {them}{others}."
        if any(death.how == "perhaps" for death in deaths):
            one_of_them = " or ".join(f"rank {death.rank}" for death in deaths)
            perhaps = "perhaps " if len(deaths) == 1 else ""
            return f"{perhaps}{one_of_them} died first; MPI then ends all the others."
        others = "; MPI then ends all the others" if len(deaths) < len(states) else ""
        words = f"{listed_ranks(death.rank for death in deaths)} died{others}."
        return " ".join((words, *_why_it_died(deaths, by_kind.get("raised", []))))
    if silent := [state for state in states if state.silent]:
        hosts = list(dict.fromkeys(state.host for state in silent))
        do = "does" if len(hosts) == 1 else "do"
        return f"{listed(hosts)} {do} not answer, so nothing is known of {_ranks(silent)}."
    if stopped := by_kind.get("stopped"):
        was = "was" if len(stopped) == 1 else "were"
        return (
            f"{_ranks(stopped, 'is', 'are')} held by a stop signal (SIGSTOP) or a debugger, and {was} not "
            "let go on in time."
        )
    if raised := by_kind.get("raised"):
        return _after_raise(raised, waiting, computing)
    if computing:
        return _still_computing(waiting, computing, finished)
    if gone := by_kind.get("gone"):  # all were ended with others, and nobody else explains it
        return f"{_ranks(gone, 'was', 'were')} ended; who died first is not known, or does not run this cell."
    return _all_wait(waiting, finished)


def _why_it_died(deaths: Sequence[Death], raised: Sequence[RankState]) -> list[str]:
    """What the errors of the others say of it, or else what a crash mostly is."""
    if meanings := _meanings(raised):
        return meanings
    if any(death.how == "crash" for death in deaths):
        return [
            "A crash often means that more data came than a buffer holds: the counts and types of an MPI "
            "call must agree on all ranks."
        ]
    return []


def _meanings(raised: Sequence[RankState]) -> list[str]:
    """What the errors mean, each once, where they do not say so themselves."""
    return list(filter(None, dict.fromkeys(meaning(state.error) for state in raised)))


def _after_raise(
    raised: Sequence[RankState], waiting: Sequence[RankState], computing: Sequence[RankState]
) -> str:
    if not waiting and not computing:
        return f"{_ranks(raised)} raised an error; the cell ended everywhere."
    left = f"and {_ranks(computing, 'still computes', 'still compute')}"
    if waiting and computing:
        left = f"so {_ranks(waiting)} may wait for something that never comes, {left}"
    elif waiting:
        left = f"so {_ranks(waiting, 'waits', 'wait')} for something that never comes"
    return (
        f"{_ranks(raised)} raised an error and left the cell, {left}. "
        f"{' '.join(('Correct the error first.', *_meanings(raised)))}"
    )


def _still_computing(
    waiting: Sequence[RankState], computing: Sequence[RankState], finished: Sequence[RankState]
) -> str:
    at_work = [state for state in computing if state.inside != AWAITS]
    if at_work:
        work = (
            f"{_ranks(at_work, 'still computes', 'still compute')}: "
            "an endless loop, a sleep, or work that is not done yet."
        )
    else:
        work = f"{_ranks(computing, 'is', 'are')} in an await that has not ended."
    if names := sorted({name for state in at_work for name in state.unrecorded}):
        work += f" If {' or '.join(names)} is called on an intercommunicator, it may wait, unrecorded."
    if not waiting:
        return work
    if cause := _point_to_point(_messages(waiting), finished):
        return f"{cause} Besides, {work}"
    return f"{_ranks(waiting, 'waits', 'wait')} for the others. {work}"


def _all_wait(waiting: Sequence[RankState], finished: Sequence[RankState]) -> str:
    """The first cause that fits, from the most certain to the least."""
    calls = {state.rank: state.call for state in waiting if state.call is not None}
    if not calls and (for_threads := [state for state in waiting if state.waits_for_thread]):
        return (
            f"{_ranks(for_threads, 'waits', 'wait')} for another thread, whose MPI calls are not recorded. "
            "If it is in a collective, every rank of the communicator must call it; if it receives, some "
            "rank must send."
        )
    if cause := _in_torch(waiting, finished):
        return cause
    if cause := _point_to_point(_messages(waiting), finished):
        return cause
    collectives = sorted((call for call in calls.values() if call.collective), key=lambda call: call.turn)
    skipped = any(
        has_not_completed(state, call) and _surely_misses(state, call)
        for state in finished
        for call in collectives
    )
    if not skipped and (cause := _opposite_orders(waiting)):
        return cause
    for call in collectives:
        if cause := _incomplete(call, waiting, finished):
            return cause
    if collectives:
        for call in collectives:
            if begun := [state for state in finished if call.of and _made_last(state, call)]:
                has = "has" if len(begun) == 1 else "have"
                return f"{_ranks(begun)} began {call.of} too, but {has} finished without waiting for it."
        return _disagreement(collectives[0], waiting, finished)
    return _less_certain(waiting, finished)


def _less_certain(waiting: Sequence[RankState], finished: Sequence[RankState]) -> str:
    """Why the ranks wait when neither a circle nor a collective explains it."""
    messages = _messages(waiting)
    if any(state.call is not None and state.call.on_window for state in waiting):
        return (
            "somebody waits for another rank's call on the window: every Lock needs its Unlock, and every "
            "Start and Complete of one side a Post and Wait of the other."
        )
    for rank, call in sorted(messages.items()):  # its send may be complete
        if any(state.rank == call.other for state in finished):
            return _left_alone(rank, call, call.other, "receives", finished)
    here = {state.rank for state in (*waiting, *finished)}
    for rank, call in sorted(messages.items()):
        if call.peer is not None and call.peer >= 0 and call.peer not in here:
            return f"rank {rank} is in {call}, but rank {call.peer} does not run this cell. {_ADD_TO_TARGETS}"
    if not messages:
        return (
            f"{_ranks(waiting, 'is', 'are')} in calls that are not recorded. If a call is a collective, "
            "every rank of its communicator must make it; if it receives, some rank must send."
        )
    where = ", ".join(f"rank {rank} is in {call}" for rank, call in sorted(messages.items()))
    if unknown := [state for state in waiting if state.call is None]:
        where += f", {_ranks(unknown, 'is', 'are')} in calls that are not recorded"
    if finished:
        where += f", and {_ranks(finished, 'has', 'have')} finished"
    return f"no send and receive among these match: {where}. {_CHECK_MESSAGES}"


def _in_torch(waiting: Sequence[RankState], finished: Sequence[RankState]) -> str:
    """Why calls of torch.distributed do not complete, or "" when no rank is in one."""
    groups: dict[str, list[RankState]] = {}
    for state in waiting:
        if state.call is not None:
            groups.setdefault(str(state.call), []).append(state)
    if not any(state.call is not None and state.call.in_library for state in waiting):
        return ""
    where = " and ".join(f"{_ranks(group, 'is', 'are')} in {name}" for name, group in groups.items())
    if finished:
        where += f", but {_ranks(finished, 'has', 'have')} finished"
    if all(name.removeprefix(f"{OF_TORCH}.") in TORCH_MESSAGES for name in groups):
        return f"{where}. Every send needs its receive. {_CHECK_MESSAGES}"
    must = "Every rank of a process group must make the same collective calls in the same order."
    return f"{where}. {must} {_CALL_IT_EVERYWHERE}"


def _opposite_orders(waiting: Sequence[RankState]) -> str:
    """Why two collectives on different communicators keep each other from completing, or ""."""
    calls = {s.rank: s.call for s in waiting if s.call is not None and s.call.collective}
    waits_for = {
        rank: [s.rank for s in waiting if s.call and s.call.on != call.on and has_not_completed(s, call)]
        for rank, call in calls.items()
    }
    if not (cycle := find_cycle(waits_for)):
        return ""
    where = []
    for on in dict.fromkeys(calls[rank].on for rank in cycle):
        group = [state for state in waiting if state.rank in calls and calls[state.rank].on == on]
        names = sorted({str(state.call) for state in group})
        where.append(f"{_ranks(group, 'is', 'are')} in {' or '.join(names)}")
    return (
        f"{listed(where)}: collectives of different communicators that wait for each "
        "other. All ranks must make the collective calls of their communicators in the same order."
    )


def _incomplete(call: Call, waiting: Sequence[RankState], finished: Sequence[RankState]) -> str:
    """Why the collective `call` that somebody is in does not complete, or ""."""
    here = [state.call for state in waiting if state.call is not None and is_in(state, call)]
    done = [each.done.name for each in (*finished, *waiting) if each.done and _made_last(each, call)]
    names = sorted({SAME_CALL.get(name, name) for name in (*(other.operation for other in here), *done)})
    if len(names) > 1:
        are_in = "are in, or have made," if done else "are in"
        return (
            f"the ranks {are_in} different collectives ({', '.join(names)}). "
            "All ranks must make the same collective calls in the same order."
        )
    if len(roots := {other.peer or 0 for other in here}) > 1:
        numbers = ", ".join(map(str, sorted(roots))) + (f", {NUMBERING}" if call.on.part else "")
        return f"the ranks are in {call.operation} with different roots ({numbers})."
    must = _must(call)
    if skipped := [state for state in finished if has_not_completed(state, call)]:
        if certain := [state for state in skipped if _surely_misses(state, call)]:
            again = all(each.done and each.done.name == call.operation for each in certain)
            did_not = f"{_ranks(certain)} did not{' call it again' * again}."
        else:
            its = "its last collective was" if len(skipped) == 1 else "their last collectives were"
            did_not = f"{_ranks(skipped)} perhaps did not: {its} on another communicator."
        return f"{must} {did_not} {_CALL_IT_EVERYWHERE}"
    for state in sorted(waiting, key=lambda state: not _surely_misses(state, call)):
        mine = state.call
        on_it = mine is not None and mine.collective and mine.on == call.on  # in it, or in an earlier one
        if has_not_completed(state, call) and not on_it:
            perhaps = "" if _surely_misses(state, call) else ", which perhaps has not,"
            where = mine or next(iter(state.unrecorded), "another call")
            return f"{must} rank {state.rank}{perhaps} is still in {where}."
    return ""


def _must(call: Call) -> str:
    what = replace(call, name=call.operation, of="")
    return f"{what} is a collective: every rank of the communicator must call it, and"


def _disagreement(call: Call, waiting: Sequence[RankState], finished: Sequence[RankState]) -> str:
    """Why `call` does not complete although every rank that runs the cell has made it."""
    here = [state for state in waiting if is_in(state, call)]
    if absent := sorted(set(call.on.members) - {state.rank for state in (*waiting, *finished)}):
        do = "does" if len(absent) == 1 else "do"
        return f"{_must(call)} {listed_ranks(absent)} {do} not run this cell. {_ADD_TO_TARGETS}"
    if not call.on.members or len(here) == len(call.on.members):
        return (
            f"all ranks of its communicator are in {call.operation}: perhaps with different sizes or types."
        )
    return (
        f"{_ranks(here, 'is', 'are')} still in {call.operation}, which the other ranks have completed: not "
        "all made it with the same size, type or root."
    )


def is_in(state: RankState, call: Call) -> bool:
    """Whether the rank is in the collective `call`, or in a different one with its number."""
    mine = state.call
    return mine is not None and mine.collective and (mine.on, mine.turn) == (call.on, call.turn)


def _made_last(state: RankState, call: Call) -> bool:
    """Whether the rank's last collective, completed or only begun, was `call` or another with its number."""
    return state.done is not None and (state.done.on, state.done.turn) == (call.on, call.turn)


def has_not_completed(state: RankState, call: Call) -> bool:
    """Whether the rank must make the collective `call` and has not completed it, as far as one can know."""
    if call.on.members and state.rank not in call.on.members:
        return False
    if state.call is not None and state.call.collective and state.call.on == call.on:
        return state.call.turn <= call.turn
    return state.done is None or state.done.on != call.on or state.done.turn < call.turn


def _surely_misses(state: RankState, call: Call) -> bool:
    """Whether a rank that `has_not_completed` the collective is known not to have made it.

    Of a rank only the last collective is known. When that was on another communicator, the rank may have made
    `call` before it, unless it made this communicator just then.
    """
    if state.done is None or state.done.on == call.on:
        return True
    return call.turn == 0 and state.done.name in (*MAKERS, *OPENERS)


def _messages(waiting: Sequence[RankState]) -> dict[int, Call]:
    """The calls of ranks that wait neither in a collective nor for a window, by rank."""
    calls = {state.rank: state.call for state in waiting if state.call is not None}
    return {rank: call for rank, call in calls.items() if not (call.collective or call.on_window)}


def _point_to_point(calls: Mapping[int, Call], finished: Sequence[RankState]) -> str:
    if cycle := find_cycle({rank: [call.peer] for rank, call in calls.items()}):
        circle, alike = _arrows(cycle), []
        why = _circle(calls, cycle, circle)
        rest = {rank: [call.peer] for rank, call in calls.items() if rank not in cycle}
        while other := find_cycle(rest):
            # Written with the first circle's names, so that equal words mean the same reason.
            if _circle(calls, other, circle) == why:
                alike.append(_arrows(other))
            rest = {rank: partners for rank, partners in rest.items() if rank not in other}
        return f"{why} The same holds for {listed(alike)}." if alike else why
    for rank, call in sorted(calls.items()):
        if any(state.rank == call.peer for state in finished):
            return _left_alone(rank, call, call.peer, "receives" if call.sends else "sends", finished)
    # A Sendrecv may have received already, and be stuck in its send.
    if cycle := find_cycle({rank: [call.peer, call.other] for rank, call in calls.items()}):
        return _circle(calls, cycle, _arrows(cycle))
    return ""


def _left_alone(rank: int, call: Call, partner: int | None, does: str, finished: Sequence[RankState]) -> str:
    """Why `rank` waits for a finished `partner`; "perhaps" if that message may be complete."""
    posted = any(state.rank == partner and state.counts.posted for state in finished)
    without = " without" if call.other is None and not posted else ", perhaps without"
    requests = f"Rank {partner} has requests that it never waited for, perhaps of an earlier cell. "
    check = f"{requests * posted}{_CHECK_MESSAGES}"
    return (
        f"rank {rank} is in {call}, but rank {partner} has finished{without} a call that {does} it. {check}"
    )


def _circle(calls: Mapping[int, Call], cycle: Sequence[int], circle: str) -> str:
    """Why the ranks in `cycle` wait for each other; `circle` names them in the sentence."""
    if len(cycle) == 1:
        why = f"rank {cycle[0]} waits for itself, and while it waits it can do nothing else."
        begun = not calls[cycle[0]].sends or calls[cycle[0]].of
        return (
            f"{why} If it has begun that message with Isend or Irecv, both tags must agree." if begun else why
        )
    sends = [rank for rank in cycle if calls[rank].sends]
    both = [rank for rank in cycle if calls[rank].other is not None]  # in a Sendrecv
    if len(sends) == len(cycle):
        why = "Each waits until its send is done, and none has reached its receive."
        if all("ssend" in calls[rank].operation.lower() for rank in cycle):
            why = "Each sends synchronously: until a receive matches, the send does not end."
    elif len(both) == len(cycle) or (len(cycle) == 2 and sends):
        return _mismatch(calls, cycle, circle)  # a send and its receive face each other
    elif sends or both:
        why = "Each can go on only after the next has. Let one of them make its calls in the opposite order"
        why += "." if both else ", or use Sendrecv."
    else:
        why = (
            "Each waits for a message that the next has not sent yet, or has sent with another tag. "
            "Let one of them send before it receives, or use Sendrecv."
        )
    return f"a circle of waiting: {circle}. {why}"


def _arrows(cycle: Sequence[int]) -> str:
    return " → ".join(f"rank {rank}" for rank in [*cycle, cycle[0]])


def _mismatch(calls: Mapping[int, Call], cycle: Sequence[int], circle: str) -> str:
    for rank in cycle:
        to = calls[rank].other
        source = calls[to].peer if to is not None and to in calls and calls[to].other is not None else None
        if source is not None and source not in (-1, rank):
            return (
                f"{circle} wait for each other: rank {rank} sends to rank {to}, but rank {to} receives from "
                f"rank {source}. If each sends to one side, each must receive from the other side."
            )
    if len({calls[rank].on for rank in cycle}) > 1:
        return (
            f"{circle} wait for each other on different communicators: a message can be received only on the "
            "communicator on which it was sent."
        )
    # Of a Sendrecv, the tag is that of its receive: it counts only if that is from the circle.
    facing = [calls[rank] for rank in cycle if calls[rank].peer in cycle]
    tags = {call.tag for call in facing if call.tag is not None and call.tag >= 0}
    if len(tags) > 1:
        return f"{circle} wait for each other with different tags ({', '.join(map(str, sorted(tags)))})."
    return f"{circle} wait for each other: the one's send and the other's receive do not match."


def find_cycle(waits_for: Mapping[int, Collection[int | None]]) -> list[int]:
    """A cycle of the wait-for graph, its smallest rank first; [] when there is none.

    >>> find_cycle({0: [1], 1: [None, 2], 2: [1]})
    [1, 2]
    """
    for start in sorted(waits_for):
        if cycle := _cycle_from([start], waits_for, set()):
            first = cycle.index(min(cycle))
            return cycle[first:] + cycle[:first]
    return []


def _cycle_from(
    path: list[int], waits_for: Mapping[int, Collection[int | None]], seen: set[int]
) -> list[int]:
    """The circle that `path` runs into, [] when it runs into none; `seen`: ranks that lead to none."""
    for rank in waits_for[path[-1]]:
        if rank in path:
            return path[path.index(rank) :]
        if rank is None or rank not in waits_for or rank in seen:
            continue
        if cycle := _cycle_from([*path, rank], waits_for, seen):
            return cycle
    seen.add(path[-1])
    return []
