"""The report of every broken cell, from a snapshot of its ranks: the table of causes without a cluster.

Each snapshot was recorded from a real cell when the watch stepped in. Its report must say what
`tests/notebooks/broken_cells.py` wants the learner to read. `test_guard.py` runs a dozen of the same
cells live, `make test-all` runs all of them.
"""

import re
from collections.abc import Sequence
from dataclasses import replace

import pytest

from mpi_classroom import steps
from mpi_classroom.cause import report
from mpi_classroom.recording.calls import EVERYONE, Call, Collectives, Communicator, Counts, Done
from mpi_classroom.snapshot import ENDED_WITH_OTHERS, RankState
from tests.notebooks.broken_cells import BROKEN_CELLS, FREE, RARE, RESTARTED, Broken

RANKS = range(4)
WORLD = Communicator(0, (0, 1, 2, 3))
WINDOW = Communicator(2, (0, 1, 2, 3))
HALF = Communicator(2, (2, 3), part=True)
TWIN = Communicator(5, (0, 1, 2, 3))
DUP = Done("Dup", 1, WORLD)
FIRST = Done("allreduce", 0, WORLD)  # every rank completed it before the cell


def waits(
    line: int,
    name: str,
    peer: int | None = None,
    tag: int | None = None,
    *,
    of: str = "",
    turn: int = 1,
    on: Communicator = WORLD,
    done: Done = FIRST,
) -> RankState:
    """A rank in an MPI call on that line of the cell."""
    return RankState(-1, "waiting", Call(name, peer, None, tag, 1, turn, on, of), line=line, done=done)


def in_torch(line: int, name: str) -> RankState:
    """A rank that announced a wait, whose stack shows that function of torch.distributed."""
    return RankState(
        -1, "waiting", Call(f"torch.distributed.{name}", None, None, None, 7), line=line, done=FIRST
    )


def raised(error: str, line: int | None = None) -> RankState:
    return RankState(-1, "raised", error=f"raised {error}", line=line)


def computes(line: int | None) -> RankState:
    inside = "" if line else "in an await, or in nothing at all"
    return RankState(-1, "computing", line=line, inside=inside, done=FIRST)


def finished(name: str = "", turn: int = 1, on: Communicator = WORLD) -> RankState:
    return RankState(-1, "finished", done=Done(name, turn, on) if name else FIRST)


def gone(words: str = ENDED_WITH_OTHERS) -> RankState:
    return RankState(-1, "gone", error=words)


def ring(line: int, name: str, tag: int, of: str = "") -> list[RankState]:
    """Every rank waits for the next."""
    return [waits(line, name, (rank + 1) % 4, tag, of=of) for rank in RANKS]


DONE, KILLED = finished(), gone("was killed (signal 9: by hand, or because memory ran out)")
BARRIER, BCAST = waits(3, "Barrier"), waits(2, "Bcast", 0)
NO_BUFFER = raised("TypeError: message: expecting buffer or list/tuple", 2)

SNAPSHOTS: dict[str, list[RankState]] = {
    "rank 0 raises before a collective": [raised("ValueError: boom", 2), BARRIER, BARRIER, BARRIER],
    "rank 0 raises inside a collective": [NO_BUFFER, BCAST, BCAST, BCAST],
    "an import error on one rank": [
        *(BARRIER, raised("ModuleNotFoundError: No module named 'no_such_module'", 2), BARRIER, BARRIER),
    ],
    "sys.exit on one rank before a collective": [BARRIER, raised("SystemExit: 3"), BARRIER, BARRIER],
    "a KeyboardInterrupt of its own": [BARRIER, BARRIER, raised("KeyboardInterrupt", 2), BARRIER],
    "a collective skipped by one rank": [*[waits(2, "Barrier")] * 3, DONE],
    "a reduction skipped by one leaf": [
        *(waits(3, "Reduce", 0), waits(3, "Reduce", 0), finished("Reduce"), DONE),
    ],
    "two different collectives": [waits(2, "Allreduce"), BARRIER, BARRIER, BARRIER],
    "different roots": [
        *(waits(2, "Reduce", 0), waits(2, "Reduce", 1), finished("Reduce"), finished("Reduce")),
    ],
    "a barrier of a part that one member skips": [
        finished("Barrier", 0, Communicator(2, (0, 1), part=True)),
        finished("Barrier", 0, Communicator(2, (0, 1), part=True)),
        waits(3, "Barrier", turn=0, on=HALF, done=Done("Split", 1, WORLD)),
        finished("Split"),
    ],
    "barriers of two communicators in opposite orders": [
        *[waits(4, "Barrier", turn=0, on=TWIN, done=DUP), waits(4, "Barrier", turn=2, done=DUP)] * 2,
    ],
    "synchronous sends whose tags do not fit the receives": [
        *(waits(4, "ssend", 1, 0), waits(4, "ssend", 0, 1), DONE, DONE),
    ],
    "a request of many that never completes, in a loop of tests": [
        *(waits(4, "Testall", -1, of="Irecv"), DONE, DONE, DONE),
    ],
    "a probe with naps between, while the others wait": [
        *(waits(4, "Barrier"), waits(4, "Barrier"), waits(4, "Barrier"), waits(3, "iprobe", 0, -1)),
    ],
    "a large send without a receive": [waits(2, "Send", 1, 0), DONE, DONE, DONE],
    "a receive without a send": [DONE, DONE, waits(2, "recv", 1, 5), DONE],
    "a circle of receives": ring(2, "recv", -1),
    "a broadcast into larger buffers": [*[waits(3, "Barrier", turn=2)] * 3, waits(2, "Bcast", 0)],
    "a circle of large sends": ring(3, "Send", 0),
    "a wrong tag": [waits(2, "ssend", 1, 7), waits(3, "recv", 0, 8), DONE, DONE],
    "a rank that waits for itself": [DONE, waits(2, "recv", 1, -1), DONE, DONE],
    "an endless loop": [computes(3)] * 4,
    "an endless loop on one rank with the others in a collective": [
        *(waits(4, "allreduce"), waits(4, "allreduce"), computes(3), waits(4, "allreduce")),
    ],
    "a loop that no interrupt ends": [computes(3)] * 4,
    "an await that never ends": [computes(None)] * 4,
    "output without end": [computes(2)] * 4,
    "a subprocess that prints for ever": [computes(3)] * 4,
    "a receive request that never completes": ring(3, "wait", -1, of="irecv"),
    "a fence that one rank skips": [
        finished("Win.Allocate"),
        *[waits(3, "Win.Fence", turn=0, on=WINDOW, done=Done("Win.Allocate", 1, WORLD))] * 3,
    ],
    "a large send request that never completes": ring(3, "Wait", 0, of="Isend"),
    "an interrupt while all are blocked": ring(2, "recv", -1),
    "an interrupt of a computation": [computes(2)] * 4,
    "a rank killed in the cell": [gone(), gone(), KILLED, gone()],
    "a rank that leaves by os._exit": [gone(), gone("ended itself with exit code 1"), gone(), gone()],
    "a rank that aborts itself": [DONE, DONE, DONE, gone("crashed (signal 6)")],
    "a crash in C": [gone("crashed (signal 11)"), DONE, DONE, DONE],
    "MPI_Abort": [DONE, gone("called Abort"), DONE, DONE],
    "all ranks killed": [KILLED, gone(), gone(), gone()],
    "a receive request that one rank waits for in vain": [
        waits(3, "Wait", 1, 5, of="Irecv"),
        DONE,
        DONE,
        DONE,
    ],
    "a raise while another rank waits for a request": [
        *(waits(2, "wait", 1, -1, of="irecv"), raised("ValueError: boom", 3), DONE, DONE),
    ],
    "a rank that is stopped": [
        *(waits(4, "Barrier"), waits(4, "Barrier")),
        RankState(-1, "stopped", error="is stopped (process 19193)"),
        waits(4, "Barrier"),
    ],
    "a collective of torch.distributed that one rank skips": [
        *(in_torch(4, "all_reduce"), in_torch(4, "all_reduce"), DONE, in_torch(4, "all_reduce")),
    ],
    "a receive of torch.distributed without a send": [in_torch(4, "recv"), DONE, DONE, DONE],
    "DistributedDataParallel: one batch more on one rank": [in_torch(5, "all_reduce"), DONE, DONE, DONE],
    "os._exit(0) on one rank": [gone(), gone("left Python without finishing MPI (os._exit)"), gone(), gone()],
}

# The cells that end although their calls do not fit: what the ranks did, how many collectives each made, and
# the last one.
OUT_OF_STEP: dict[str, tuple[list[RankState], tuple[int, ...], str]] = {
    "a reduction that the root skips, so that nobody waits": (
        [DONE] * 4,
        (0, 1, 1, 1),
        "Reduce(op=SUM, root=0)",
    ),
    "a raise at the root of a reduction, so that nobody waits": (
        [raised("ValueError: boom", 2), *[DONE] * 3],
        (0, 1, 1, 1),
        "Reduce(op=SUM, root=0)",
    ),
}

# What the watch adds: why it stepped in, and what became of the ranks.
FROM_THE_WATCH = re.compile(
    rf"{re.escape(RESTARTED)}|{re.escape(FREE)}|"
    "Not done after|Interrupted|Nobody has|no rank can go on|A rank (died|raised)"
)
CELLS = {broken.name: broken for broken in [*BROKEN_CELLS, *RARE]}


def in_the_cell(states: Sequence[RankState], broken: Broken) -> list[RankState]:
    """The states as those of ranks 0 to 3, with the code of the lines of the cell."""
    lines = ["%%px", *broken.source.splitlines()]
    return [
        replace(state, rank=rank, code=lines[state.line - 1].strip() if state.line else "")
        for rank, state in enumerate(states)
    ]


def of_the_report(broken: Broken) -> list[str]:
    """The patterns of `broken` that the report itself must match."""
    return [pattern for pattern in broken.reads if not FROM_THE_WATCH.match(pattern)]


@pytest.mark.parametrize("name", SNAPSHOTS)
def test_the_report_of_a_snapshot_says_what_the_learner_must_read(name: str) -> None:
    broken = CELLS[name]
    text = report(in_the_cell(SNAPSHOTS[name], broken))
    assert of_the_report(broken)
    for pattern in of_the_report(broken):
        assert re.search(pattern, text), f"{pattern!r} is not in\n{text}"


@pytest.mark.parametrize("name", OUT_OF_STEP)
def test_ranks_that_are_out_of_step_are_counted(name: str) -> None:
    states, made, last = OUT_OF_STEP[name]
    before = {rank: Counts({EVERYONE: Collectives(5)}) for rank in RANKS}
    after = {rank: Counts({EVERYONE: Collectives(5 + count, last=last)}) for rank, count in enumerate(made)}
    assert steps.out_of_step(before, after) and not steps.out_of_step(before, before)
    text = steps.report(in_the_cell(states, CELLS[name]), before, after)
    for pattern in of_the_report(CELLS[name]):
        assert re.search(pattern, text), f"{pattern!r} is not in\n{text}"
