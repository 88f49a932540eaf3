"""A recorded communicator does what MPI's own does, and what it makes is recorded too."""

import numpy as np
import pytest
from mpi4py import MPI

from mpi_classroom.recording import mailbox, record, recorder
from mpi_classroom.recording.calls import COLLECTIVES
from mpi_classroom.recording.recorder import RecordedCart, RecordedComm, RecordedFile, RecordedWin
from mpi_classroom.recording.requests import RecordedPrequest, RecordedRequest


@pytest.fixture
def both(comm):
    """MPI's own communicator and a recorded one, with the same ranks."""
    recorded = RecordedComm(comm.Dup())
    record.known[id(recorded)] = recorded
    yield comm, recorded
    recorded.Free()


def neighbours(comm):
    return (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size


def mine(comm, n=3):
    return np.arange(n, dtype="d") + 10 * comm.rank


# -------------------------------------------------------------------- each call: comm → what it gives here
# Some of each kind: all calls of a kind have one wrapper. With arguments by position and by name.


def send_round(send, receive):
    """A message to the right, in an order that never hangs: the last rank receives first."""

    def exchange(comm):
        right, left = neighbours(comm)
        if comm.size == 1:
            return None
        if comm.rank == comm.size - 1:
            got = receive(comm, left)
            send(comm, right)
            return got
        send(comm, right)
        return receive(comm, left)

    return exchange


def receive_object(comm, left):
    return comm.recv(source=left, tag=4)


def receive_buffer(comm, left):
    buffer = np.zeros(3)
    comm.Recv(buffer, left, tag=4)
    return buffer


def receive_probed(comm, left):
    comm.Probe(left, 4)
    return comm.recv(None, left, 4)


def receive_matched(comm, left):
    buffer = np.zeros(3)
    comm.Mprobe(left, 4).Recv(buffer)
    return buffer


def bsend_object(comm, right):
    MPI.Attach_buffer(bytearray(4096))
    comm.bsend({"from": comm.rank}, dest=right, tag=4)
    MPI.Detach_buffer()


def filled(call, shape=3):
    """The receive buffer after an upper-case collective."""

    def run(comm):
        buffer = np.zeros(shape(comm) if callable(shape) else shape)
        call(comm, buffer)
        return buffer

    return run


def last(comm):
    return comm.size - 1


def everyone(comm):
    return 3 * comm.size


def one_each(comm):
    return np.arange(comm.size, dtype="d") + 100 * comm.rank


def replaced(comm):
    right, left = neighbours(comm)
    buffer = mine(comm)
    comm.Sendrecv_replace(buffer, right, 6, left, recvtag=6)
    return buffer


def alltoallw(comm):
    out, into = one_each(comm), np.zeros(comm.size)
    counts, offsets, types = [1] * comm.size, [8 * i for i in range(comm.size)], [MPI.DOUBLE] * comm.size
    comm.Alltoallw([out, (counts, offsets), types], [into, (counts, offsets), types])
    return into


EXCHANGES = {
    "Ssend": send_round(lambda c, to: c.Ssend(mine(c), dest=to, tag=4), receive_buffer),
    "send": send_round(lambda c, to: c.send([c.rank, "x"], to, tag=4), receive_object),
    "bsend": send_round(bsend_object, receive_object),
    "Probe": send_round(lambda c, to: c.send(c.rank, to, 4), receive_probed),
    "Mprobe": send_round(lambda c, to: c.Send(mine(c), to, 4), receive_matched),
    "Sendrecv": filled(lambda c, b: c.Sendrecv(mine(c), neighbours(c)[0], 1, b, neighbours(c)[1], 1)),
    "sendrecv": lambda c: c.sendrecv(c.rank, dest=neighbours(c)[0], source=neighbours(c)[1]),
    "Sendrecv_replace": replaced,
    "Barrier": lambda c: c.Barrier(),
    "Allreduce": filled(lambda c, b: c.Allreduce(mine(c), b, op=MPI.MAX)),
    "allreduce": lambda c: c.allreduce(c.rank, MPI.PROD),
    "Allgatherv": filled(lambda c, b: c.Allgatherv(mine(c), [b, [3] * c.size]), everyone),
    "Alltoallw": alltoallw,
    "alltoall": lambda c: c.alltoall([(c.rank, to) for to in range(c.size)]),
    "Scan": filled(lambda c, b: c.Scan(mine(c), b)),
    "bcast": lambda c: c.bcast({"from": c.rank}, last(c)),
    "Scatterv": filled(lambda c, b: c.Scatterv([one_each(c), [1] * c.size], b, root=last(c)), 1),
    "Gatherv": filled(lambda c, b: c.Gatherv(mine(c), [b, [3] * c.size]), everyone),
    "Reduce": filled(lambda c, b: c.Reduce(mine(c), b, MPI.SUM, last(c))),
}


@pytest.mark.parametrize("name", sorted(EXCHANGES))
def test_a_recorded_call_gives_what_mpis_own_gives(both, name):
    plain, recorded = (EXCHANGES[name](comm) for comm in both)
    assert type(plain) is type(recorded)
    np.testing.assert_equal(recorded, plain)
    if name in COLLECTIVES:
        assert both[0].allgather(both[1]._turn) == [1] * both[0].size  # all ranks count the same


# -------------------------------------------------------------------- what a recorded communicator makes

MADE = {
    "Split": lambda c: c.Split(c.rank % 2, c.rank),
    "Split_type": lambda c: c.Split_type(MPI.COMM_TYPE_SHARED),
    "Dup": lambda c: c.Dup(),
    "Dup_with_info": lambda c: c.Dup_with_info(MPI.INFO_NULL),
    "Clone": lambda c: c.Clone(),
    "Create": lambda c: c.Create(c.Get_group()),
    "Create_group": lambda c: c.Create_group(c.Get_group().Incl([c.rank])),
    "Create_cart": lambda c: c.Create_cart([c.size], periods=[True]),
    "Sub": lambda c: c.Create_cart([c.size]).Sub([True]),
}


@pytest.mark.parametrize("name", sorted(MADE))
def test_what_a_recorded_communicator_makes_is_recorded_and_has_the_same_ranks(both, name):
    plain, recorded = (MADE[name](comm) for comm in both)
    assert isinstance(recorded, RecordedCart if isinstance(plain, MPI.Cartcomm) else RecordedComm)
    assert MPI.Comm.Compare(plain, recorded) in (MPI.CONGRUENT, MPI.IDENT)
    assert recorded.allreduce(1) == plain.size
    plain.Free()
    recorded.Free()


def test_a_rank_left_out_gets_mpis_null_communicator(both):
    comm, recorded = both
    made = recorded.Split(MPI.UNDEFINED if comm.rank == 0 else 0)
    assert (made == MPI.COMM_NULL) == (comm.rank == 0)
    cart = recorded.Create_cart([1])
    assert (cart == MPI.COMM_NULL) == (comm.rank > 0)
    assert recorded.allreduce(1) == comm.size


def test_a_recorded_grid_keeps_its_coordinates(both):
    grid = both[1].Create_cart([both[1].size], periods=[True])
    assert grid.coords == [grid.rank]
    left, right = grid.Shift(0, 1)
    assert grid.sendrecv(grid.rank, dest=right, source=left) == left


def test_ranks_of_a_part_are_known_by_their_place_in_the_world(both):
    comm, recorded = both
    backwards = recorded.Split(0, key=-comm.rank)
    backwards.Barrier()
    world = [MPI.COMM_WORLD.size - 1 - rank for rank in range(comm.size)]
    assert [backwards._ranks[rank] for rank in range(comm.size)] == world


def test_all_members_know_a_communicator_by_the_same_number(both):
    comm, recorded = both
    numbers = []
    for _ in range(2):
        half = recorded.Split(comm.rank % 2)
        quarter = half.Dup()
        numbers.append((half._context, quarter._context))
    assert comm.allgather(numbers) == [numbers] * comm.size
    assert len({number for pair in numbers for number in pair}) == 4


def test_a_group_that_some_ranks_make_does_not_upset_the_count_of_the_others(both):
    comm, recorded = both
    if comm.rank == 0:
        recorded.Create_group(recorded.Get_group().Incl([0]))
    recorded.Barrier()
    assert comm.allgather(recorded._turn) == [1] * comm.size


def test_the_world_of_a_lesson_is_recorded_after_install(comm, tmp_path, monkeypatch):
    folder = type(tmp_path)(comm.bcast(str(tmp_path)))
    monkeypatch.setattr(MPI, "COMM_WORLD", MPI.COMM_WORLD)
    monkeypatch.setattr(MPI, "Finalize", MPI.Finalize)
    for name in ("Request", "Prequest", "Win", "File"):
        monkeypatch.setattr(MPI, name, getattr(MPI, name))
    monkeypatch.setattr(record.note, "memory", record.note.memory)
    monkeypatch.setattr(record.note, "words", record.note.words)
    monkeypatch.setattr(recorder, "_stacks", [])
    monkeypatch.setattr(recorder.os, "register_at_fork", lambda **hooks: None)
    monkeypatch.setattr(recorder.faulthandler, "register", lambda *args, **kwargs: None)
    facts = comm.allgather(recorder.install(folder))
    assert [fact[:2] for fact in facts] == [(rank, comm.size) for rank in range(comm.size)]
    assert isinstance(MPI.COMM_WORLD, RecordedComm)
    assert comm.allgather(recorder.install(folder)) == facts, "a second time changes nothing"
    with pytest.raises(RuntimeError, match="mpi4py calls it by itself"):
        MPI.Finalize()
    again = MPI.COMM_WORLD.Recv_init(np.zeros(1), source=comm.rank)
    assert isinstance(again, MPI.Prequest) and type(again) is RecordedPrequest
    again.Start()
    MPI.COMM_WORLD.Send(np.ones(1), dest=comm.rank)
    assert MPI.Request.Waitall([again]) is True
    MPI.COMM_WORLD.Barrier()
    for rank in range(comm.size):
        assert record.call_file(folder, rank).stat().st_size > 0
    comm.Barrier()


# -------------------------------------------------------------------- requests, windows, files


def test_waiting_for_requests_gives_what_mpis_own_gives(both):
    for comm in both:
        right, left = neighbours(comm)
        into, other = np.zeros(3), np.zeros(3)
        requests = [comm.Irecv(into, left, 1), comm.Irecv(other, left, 2)]
        requests += [comm.Isend(mine(comm), right, 1), comm.Isend(mine(comm) + 1, right, 2)]
        wait = RecordedRequest if comm is both[1] else MPI.Request
        statuses = []
        assert wait.Waitall(requests, statuses) is True
        assert [status.source for status in statuses[:2]] == [left, left]
        assert [status.tag for status in statuses[:2]] == [1, 2]
        assert np.all(into == np.arange(3.0) + 10 * left) and np.all(other == into + 1)
        assert all(request == MPI.REQUEST_NULL for request in requests)
        assert wait.waitall([comm.irecv(source=left), comm.isend("x", dest=right)]) == ["x", None]


def test_a_collective_that_is_waited_for_later_gives_the_right_result(both):
    _, recorded = both
    total = np.zeros(3)
    request = recorded.Iallreduce(mine(recorded), total)
    assert isinstance(request, RecordedRequest)
    request.Wait()
    assert np.all(total == sum(np.arange(3.0) + 10 * rank for rank in range(recorded.size)))
    assert recorded._turn == 1


def test_a_window_is_recorded_and_all_count_the_same_calls(both):
    comm, recorded = both
    window = RecordedWin.Allocate(8, comm=recorded)
    assert type(window) is RecordedWin and window._context == comm.bcast(window._context)
    there = np.zeros(1)
    window.Fence()
    window.Put(np.full(1, 7.0 + comm.rank), neighbours(comm)[0])
    window.Fence()
    window.Lock(comm.rank)
    window.Get(there, comm.rank)
    window.Unlock(comm.rank)
    assert there[0] == 7.0 + neighbours(comm)[1]
    assert comm.allgather(window._turn) == [2] * comm.size
    window.Free()


def test_a_file_is_recorded(both, tmp_path):
    comm, recorded = both
    path = comm.bcast(str(tmp_path / "shared"))
    file = RecordedFile.Open(recorded, path, MPI.MODE_CREATE | MPI.MODE_RDWR)
    assert type(file) is RecordedFile
    file.Write_at_all(8 * comm.rank, np.full(1, float(comm.rank)))
    file.Sync()
    comm.Barrier()  # a collective write may return before the others have written
    file.Sync()
    everything = np.zeros(comm.size)
    file.Read_at_all(0, everything)
    file.Close()
    assert everything.tolist() == list(range(comm.size))


# -------------------------------------------------------------------- messages that nobody received


def test_a_message_that_nobody_received_is_found_and_can_be_taken_away(both):
    comm, recorded = both
    part = recorded.Split(0)
    right, left = neighbours(comm)
    recorded.isend("old", dest=right, tag=3)
    part.Isend(np.zeros(2), right, 5)
    comm.Barrier()
    ours = {(m.source, m.dest, m.tag, m.nbytes > 8) for m in mailbox.unreceived()}
    world = MPI.COMM_WORLD.rank
    base = world - comm.rank
    expected = {(base + left, world, 3, True), (base + left, world, 5, True)}
    assert expected <= ours
    mailbox.receive_all()
    assert not expected & {(m.source, m.dest, m.tag, m.nbytes > 8) for m in mailbox.unreceived()}
    comm.Barrier()
    assert recorded.sendrecv(comm.rank, dest=right, source=left) == left


def test_a_large_message_is_found_too_and_its_send_completes_when_it_is_taken(both):
    comm, recorded = both
    request = recorded.Isend(np.zeros(10**6), neighbours(comm)[0], 8)
    comm.Barrier()
    assert (8, 8 * 10**6) in {(m.tag, m.nbytes) for m in mailbox.unreceived()}
    mailbox.receive_all()
    request.Wait()
