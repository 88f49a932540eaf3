"""After a cell, the collectives of each communicator are compared among its members: errors are found and
right programs raise no alarm."""

import time

import numpy as np
import pytest
from mpi4py import MPI

from mpi_classroom import steps
from mpi_classroom.recording import record
from mpi_classroom.recording.calls import decode, read_record
from mpi_classroom.recording.recorder import RecordedComm, RecordedWin
from mpi_classroom.recording.requests import RecordedRequest
from mpi_classroom.snapshot import RankState
from tests.ranks import shared_folder as folders

shared_folder = folders.shared_folder


@pytest.fixture
def compared(comm, shared_folder, monkeypatch):
    """A function that runs a program on recorded ranks: the report of what differs, or ""."""
    monkeypatch.setattr(record.note, "memory", record.note.memory)  # as it was, afterwards
    monkeypatch.setattr(record.note, "words", record.note.words)
    record.attach(shared_folder, comm.rank, comm.size)
    monkeypatch.setattr(record, "_everyone", record.Tally(0, 0))
    monkeypatch.setattr(record, "_tallies", {})

    def counts():
        """What all ranks have written; no rank goes on before all have read it."""
        own = decode(read_record(shared_folder, comm.rank), time.monotonic())
        return dict(enumerate(comm.allgather(own.counts)))

    def run(program):
        world = RecordedComm(comm.Dup())  # not freed: its ranks may be out of step
        before = counts()
        program(world)
        after = counts()
        states = [RankState(rank, "finished") for rank in after]
        if steps.out_of_step(before, after) or steps.operators_differ(before, after):
            return steps.report(states, before, after)
        return ""

    return run


# -------------------------------------------------------------------- right programs


def rows_and_columns(comm):
    """Rows that call different things, and a prime number of ranks, of which one row is all."""
    grid = comm.Create_cart(MPI.Compute_dims(comm.size, 2))
    row, column = grid.Sub([False, True]), grid.Sub([True, False])
    where = grid.Get_coords(grid.rank)[0]
    for _ in range(1 + where):
        row.bcast(row.rank, root=where % row.size)
    row.allreduce(1, op=MPI.MAX if where else MPI.SUM)
    column.Allgather(np.ones(1), np.empty(column.size))
    row.Split(row.rank % 2).Barrier()


def two_duplicates_in_another_order_on_each_rank(comm):
    half = comm.Split(comm.rank % 2)
    for parent in (comm, half):
        one, other = parent.Dup(), parent.Dup()
        starts = [lambda one=one: one.Iallreduce(np.ones(1), np.empty(1)), other.Ibarrier, parent.Ibarrier]
        if comm.rank // 2 % 2:
            starts.reverse()
        RecordedRequest.Waitall([start() for start in starts])


def free_and_create_again(comm):
    for n in range(40):
        half = comm.Split(comm.rank % 2)
        half.bcast(n)
        half.Free()
    half = comm.Split_type(MPI.COMM_TYPE_SHARED)
    half.Barrier()
    half.Free()


def groups_that_each_rank_makes_in_another_order(comm):
    """Rank r makes the pairs (0, r), (1, r), …, in which the others come at other moments."""
    group = comm.Get_group()
    for one in range(comm.size):
        for other in range(one + 1, comm.size):
            if comm.rank in (one, other):
                pair = comm.Create_group(group.Incl([one, other]), tag=one)
                pair.bcast(one, root=one % 2)
                twin = pair.Clone() if comm.rank == one else pair.Dup()
                twin.Barrier() if comm.rank == one else twin.barrier()


def persistent_ones_that_each_rank_starts_in_another_order(comm):
    half = comm.Split(comm.rank % 2)
    buffers = np.zeros((2, 1))
    requests = [half.Bcast_init(buffers[0]), half.Allreduce_init(np.ones(1), buffers[1])]
    for _ in range(2):
        order = requests[:: 1 if half.rank else -1]
        for request in order:
            request.Start()
        for request in requests:
            request.Wait()
        half.Barrier()


def some_ranks_only(comm):
    """Ranks that are left over get COMM_NULL and call nothing; one rank alone calls what it likes."""
    some = comm.Split(0 if comm.rank < max(1, comm.size - 1) else MPI.UNDEFINED)
    if some != MPI.COMM_NULL:
        some.Barrier()
    alone = comm.Split(comm.rank)
    for _ in range(comm.rank):
        alone.Barrier()


def a_duplicate_that_is_not_waited_for(comm):
    half = comm.Split(comm.rank % 2)
    twin, request = half.Idup()
    half.bcast(1)
    request.Wait()
    twin.bcast(2)


def windows(comm):
    """Some have one more than the others; what is allocated on MPI's own communicator is not compared."""
    half = comm.Split(comm.rank % 2)
    for _ in range(1 + comm.rank % 2):
        window = RecordedWin.Allocate(8, comm=half)
        window.Fence()
        window.Fence()
        window.Free()
    own = RecordedWin.Allocate(8, comm=MPI.Intracomm(half))
    own.Lock_all()
    own.Unlock_all()
    own.Free()


RIGHT = (
    windows,
    rows_and_columns,
    two_duplicates_in_another_order_on_each_rank,
    free_and_create_again,
    groups_that_each_rank_makes_in_another_order,
    persistent_ones_that_each_rank_starts_in_another_order,
    some_ranks_only,
    a_duplicate_that_is_not_waited_for,
)


@pytest.mark.parametrize("program", RIGHT)
def test_a_right_program_raises_no_alarm(compared, program):
    assert compared(program) == ""


# -------------------------------------------------------------------- wrong programs


def halves(comm):
    return comm.Split(comm.rank % 2)


def every_rank_is_the_root(comm):
    half = halves(comm)
    half.bcast(half.rank, root=half.rank)


def an_object_beside_a_buffer(comm):
    half = halves(comm)
    if half.rank == 0:
        half.bcast(1.0)
    else:
        half.Bcast(np.zeros(1))


def a_root_that_skips(comm):
    half = halves(comm)
    if half.rank:
        half.Reduce(np.ones(1), None, root=0)


def another_operator(comm):
    half = halves(comm)
    half.Allreduce(np.ones(1), np.empty(1), op=MPI.SUM if half.rank else MPI.MAX)
    comm.Barrier()


@pytest.mark.parametrize(
    ("program", "title", "call"),
    [
        (every_rank_is_the_root, "The ranks made different collective calls", ", the last bcast(root=2)"),
        (an_object_beside_a_buffer, "The ranks made different collective calls", ", the last Bcast(root=0)"),
        (a_root_that_skips, "Some ranks made a collective call", ", the last Reduce(op=SUM, root=0)"),
        (another_operator, "The ranks reduced with different operators", ", the last Allreduce(op=SUM)"),
    ],
)
def test_a_difference_on_a_communicator_of_some_ranks_is_found(comm, compared, program, title, call):
    report = compared(program)
    if comm.size < 3:
        assert report == ""  # each half is one rank alone
        return
    among = ", ".join(map(str, range(0, comm.size, 2)))
    among = " and ".join(among.rsplit(", ", 1))
    assert report.startswith(f"{title} on the communicator of ranks {among}")
    assert f"rank 2  finished  after 1 collective call{call}\n" in report
    assert "rank 1  finished  not a member\n" in report
    others = "The calls on the communicator of ranks 1 and 3 differ too."
    assert report.endswith(others) is (comm.size in (4, 5))
