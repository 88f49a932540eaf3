"""Effects caused on purpose: results stay, times come as asked for, computing overlaps with messages.

Times are those of the test's own clock, which only `sleep` moves, so they are exact.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from mpi4py import MPI

from course_lib import effects
from course_lib.comm.collectives import ring_allreduce
from course_lib.effects import (
    STATUS,
    memory_limit,
    run_slowly,
    slow_collectives,
    slow_messages,
    straggler,
)

DELAY = 0.5
Work = Callable[[MPI.Intracomm], object]


class Clock:
    """The time of this rank: it passes only in `sleep`."""

    def __init__(self) -> None:
        self.now = 100.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(effects, "monotonic", lambda: made.now)
    monkeypatch.setattr(effects, "sleep", made.sleep)
    return made


def neighbours(comm: MPI.Intracomm) -> tuple[int, int]:
    return (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size


def numbers(comm: MPI.Intracomm) -> np.ndarray:
    return np.arange(6.0) + comm.rank


def shift(comm: MPI.Intracomm) -> np.ndarray:
    right, left = neighbours(comm)
    got = np.zeros(6)
    comm.Sendrecv(numbers(comm), right, recvbuf=got, source=left)
    return got


def chain(comm: MPI.Intracomm) -> np.ndarray:
    """A message from rank to rank, by Send and Recv."""
    buffer = np.zeros(6)
    if comm.rank == 0:
        buffer = numbers(comm)
    else:
        status = MPI.Status()
        comm.Recv(buffer, MPI.ANY_SOURCE, MPI.ANY_TAG, status)
        assert (status.source, status.tag) == (comm.rank - 1, 7)
    if comm.rank + 1 < comm.size:
        comm.Send(buffer, comm.rank + 1, 7)
    return buffer


def ring(comm: MPI.Intracomm) -> np.ndarray:
    buffer = numbers(comm)
    ring_allreduce(comm, buffer)
    return buffer


def collectives(comm: MPI.Intracomm) -> np.ndarray:
    total, largest, first = np.zeros(6), np.zeros(6), numbers(comm)
    comm.Allreduce(numbers(comm), total)
    comm.Reduce(numbers(comm), largest, MPI.MAX, comm.size - 1)
    comm.Bcast(first, comm.size - 1)
    return np.concatenate([total, largest, first])


WORKS = [shift, chain, ring, collectives]


@pytest.mark.parametrize("work", WORKS, ids=[work.__name__ for work in WORKS])
def test_results_are_those_of_the_plain_communicator(comm: MPI.Intracomm, clock: Clock, work: Work) -> None:
    slow = slow_messages(comm.Dup(), DELAY, gbit_per_s=1e-3)
    same = comm.allgather(np.array_equal(work(slow), work(comm)))
    slow.Free()
    assert all(same)


def seconds_of(comm: MPI.Intracomm, clock: Clock, work: Work) -> list[float]:
    """What the work takes on each rank by the test's clock."""
    start = clock.now
    work(comm)
    return [round(seconds, 9) for seconds in comm.allgather(clock.now - start)]


def test_messages_that_follow_each_other_add_their_delays(comm: MPI.Intracomm, clock: Clock) -> None:
    slow, n = slow_messages(comm, DELAY), comm.size
    assert seconds_of(slow, clock, ring) == [2 * (n - 1) * DELAY] * n
    hops = [DELAY * min(rank + 1, n - 1) for rank in range(n)]  # all but the last also wait for their Send
    assert seconds_of(slow, clock, chain) == hops
    assert seconds_of(comm, clock, ring) == [0.0] * n  # the plain one: what the two checks above must refuse


def test_bytes_take_their_time_too(comm: MPI.Intracomm, clock: Clock) -> None:
    slow = slow_messages(comm, DELAY, gbit_per_s=48e-9)  # 48 bytes are 384 bits, 8 s
    expected = DELAY + 8 if comm.size > 1 else 0.0
    assert seconds_of(slow, clock, shift) == [expected] * comm.size
    buffer = np.zeros(6)
    assert (
        seconds_of(slow, clock, lambda c: c.Allreduce(MPI.IN_PLACE, [buffer, 3, MPI.DOUBLE]))
        == [DELAY + 4 if comm.size > 1 else 0.0] * comm.size
    )


@pytest.mark.parametrize("computing, waited", [(0.3, 0.2), (2.0, 0.0)])
def test_computing_overlaps_with_a_message(
    comm: MPI.Intracomm, clock: Clock, computing: float, waited: float
) -> None:
    slow, total = slow_messages(comm, DELAY), np.zeros(6)
    request = slow.Iallreduce(numbers(comm), total)
    clock.sleep(computing)
    before = clock.now
    request.Wait()
    took = comm.allgather(round(clock.now - before, 9))
    assert took == [waited if comm.size > 1 else 0.0] * comm.size
    assert np.array_equal(total, comm.size * np.arange(6.0) + sum(range(comm.size)))


def test_a_request_is_done_when_its_message_has_arrived(comm: MPI.Intracomm, clock: Clock) -> None:
    slow, got = slow_messages(comm, DELAY), np.zeros(6)
    right, left = neighbours(comm)
    requests = [slow.Irecv(got, left), slow.Isend(numbers(comm), right)]
    with pytest.raises(TypeError):
        MPI.Request.Waitall(requests)  # it would not wait for the delay
    for request in requests:
        request.data.Wait()
    early = comm.allgather([request.Test() for request in requests])
    clock.sleep(DELAY)
    done = comm.allgather([request.Test() for request in requests])
    for request in requests:
        request.Wait()  # again: it neither sleeps nor asks for a second note
    assert early == [[comm.size == 1] * 2] * comm.size and done == [[True] * 2] * comm.size
    assert comm.allgather(clock.now) == [100 + DELAY] * comm.size


@pytest.mark.parametrize("tested", [True, False])
def test_a_wait_after_a_test_fills_its_status_all_the_same(
    comm: MPI.Intracomm, clock: Clock, tested: bool
) -> None:
    slow, got, status = slow_messages(comm, DELAY), np.zeros(9), MPI.Status()
    right, left = neighbours(comm)
    receiving, sending = slow.Irecv(got, left), slow.Isend(numbers(comm), right, 7)
    while tested and not receiving.known:
        receiving.Test()
    receiving.Wait(status)
    sending.Wait()
    assert comm.allgather((status.source, status.tag, status.Get_count(MPI.DOUBLE))) == [
        ((rank - 1) % comm.size, 7, 6) for rank in range(comm.size)
    ]


def test_two_slow_communicators_for_one_share_its_messages(comm: MPI.Intracomm, clock: Clock) -> None:
    mine = comm.Dup()
    slow = slow_messages(mine, DELAY)
    slower = slow_messages(cast(MPI.Intracomm, slow), 3 * DELAY)
    right, left = neighbours(comm)
    got = np.zeros(6)
    sending = slower.Isend(numbers(comm), right)
    slow.Recv(got, left)
    sending.Wait()
    times = comm.allgather(clock.now)
    slower.Free()
    assert np.array_equal(got, np.arange(6.0) + left)
    assert times == [100.0 + 3 * DELAY * (comm.size > 1)] * comm.size


def test_a_rank_sends_one_message_at_a_time(comm: MPI.Intracomm, clock: Clock) -> None:
    slow, n = slow_messages(comm, DELAY), comm.size
    right, left = neighbours(comm)
    got = np.zeros((2, 6))
    requests = [slow.Irecv(each, left) for each in got] + [slow.Isend(numbers(comm), right) for _ in got]
    assert seconds_of(slow, clock, lambda _: requests[0].Wait()) == [DELAY * (n > 1)] * n
    assert seconds_of(slow, clock, lambda _: requests[1].Wait()) == [DELAY * (n > 1)] * n
    for request in requests[2:]:
        request.Wait()


def test_a_collective_begins_when_the_last_rank_is_there(comm: MPI.Intracomm, clock: Clock) -> None:
    slow, total = slow_messages(comm, DELAY), np.zeros(6)
    straggler(comm, rank=0, seconds=3.0)
    assert comm.allgather(clock.now) == [103.0] + [100.0] * (comm.size - 1)
    slow.Allreduce(numbers(comm), total)
    assert comm.allgather(clock.now) == [103.0 + DELAY * (comm.size > 1)] * comm.size


def test_duplicates_and_parts_are_slow_too(comm: MPI.Intracomm, clock: Clock) -> None:
    slow, n = slow_messages(comm, DELAY), comm.size
    copy, part = slow.Dup(), slow.Split(0 if comm.rank else MPI.UNDEFINED)
    assert seconds_of(copy, clock, shift) == [DELAY * (n > 1)] * n
    if comm.rank:
        assert seconds_of(part, clock, shift) == [DELAY * (n > 2)] * (n - 1)
        part.Free()
    copy.Free()
    assert (part == MPI.COMM_NULL) == (comm.rank == 0)


def test_nobody_is_a_neighbour_without_delay(comm: MPI.Intracomm, clock: Clock) -> None:
    slow, got = slow_messages(comm, DELAY), np.full(6, -1.0)
    slow.Sendrecv(numbers(comm), MPI.PROC_NULL, recvbuf=got, source=MPI.PROC_NULL)
    assert clock.now == 100.0 and (got == -1).all()


def test_wrong_delays_and_several_machines_are_refused(
    comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seconds, rate in ((-1, None), (0, 0), (0, -1)):
        with pytest.raises(ValueError, match="use at least 0 s"):
            slow_messages(comm, seconds, rate)
    monkeypatch.setattr(MPI, "Get_processor_name", lambda: f"host{comm.rank % 2}")
    if comm.size > 1:
        with pytest.raises(ValueError, match="the ranks are on 2 machines"):
            slow_messages(comm, 0.1)


@pytest.mark.skipif(not STATUS.exists(), reason="memory can be limited on Linux only")
def test_more_memory_than_the_limit_is_refused_and_later_allowed() -> None:
    with memory_limit(256 * 2**20):
        np.ones(16 * 2**20)  # 128 MiB
        with pytest.raises(MemoryError):
            np.empty(64 * 2**20)
    np.empty(64 * 2**20)


def test_a_whole_program_runs_with_slow_messages(
    comm: MPI.Intracomm, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import sys\nimport numpy as np\nfrom mpi4py import MPI\n"
        "if __name__ == '__main__' and sys.argv[1:] == ['now']:\n"
        "    MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, np.zeros(125))\n"
    )
    monkeypatch.setattr(MPI, "COMM_WORLD", comm)
    monkeypatch.setattr(sys, "argv", sys.argv)
    run_slowly("0.5", "0.001", str(program), "now")
    assert clock.now == pytest.approx(100.0 + (0.508 if comm.size > 1 else 0))  # 1,000 bytes at 1 Mbit/s


def test_torch_s_collectives_take_the_time_of_their_bytes_and_are_counted(
    comm: MPI.Intracomm, clock: Clock
) -> None:
    import torch
    import torch.distributed as dist

    import torch_mpi4py

    torch_mpi4py.init_process_group(comm)
    ones = torch.ones(1000)
    with slow_collectives(mb_per_s=0.004) as sent:
        dist.all_reduce(ones)
        dist.broadcast(ones, 0)
    dist.broadcast(ones, 0)
    dist.destroy_process_group()
    assert sent == {"all_reduce": 2000, "broadcast": 1000}
    assert clock.now == pytest.approx(100.0 + 3.0)
    assert (ones == comm.size).all()
