"""What two ranks of this machine need to move, add and copy bytes: what the cost model is fitted to.

    one way    rank 0 ──m──▶ rank 1, and back: half of the round trip
    exchange   both send m bytes and receive m bytes at the same time, as the ring does
    sum        what an exchange takes longer when both add what they received
    copy       what it takes longer when both copy it

Bytes that the other rank has read cost more to change than one's own: so a sum and a copy are measured
within an exchange, and taken for no less than alone.

Each is measured as collectives are, and as the OSU benchmarks do: warm-up, a barrier before each run, the
slowest rank, the median. Nothing here runs a collective: what the model says of one is a prediction.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from mpi4py import MPI

from course_lib.comm.buffers import Array
from course_lib.measure import timed
from course_lib.theory.hockney import MeasuredMachine, fit_piecewise

SIZES = tuple(2**power for power in range(2, 27))  # 4 B to 64 MiB
PING, PONG, EXCHANGE = range(4401, 4404)
ENOUGH_SECONDS, MOST_RUNS = 1e-3, 50  # a repetition is so long, or so many runs


@dataclass(frozen=True, slots=True)
class PingPong:
    """Seconds of each thing for messages of `nbytes`, on the slower of two ranks."""

    nbytes: tuple[int, ...]
    one_way_seconds: tuple[float, ...]
    exchange_seconds: tuple[float, ...]
    sum_seconds: tuple[float, ...]
    copy_seconds: tuple[float, ...]

    def machine(self, regimes: int = 4) -> MeasuredMachine:
        """Up to `regimes` lines for each thing."""
        measured = self.one_way_seconds, self.exchange_seconds, self.sum_seconds, self.copy_seconds
        return MeasuredMachine(*(fit_piecewise(self.nbytes, seconds, regimes) for seconds in measured))


def measure_ping_pong(
    comm: MPI.Comm, sizes: Sequence[int] = SIZES, *, repetitions: int = 7, piece_nbytes: int | None = None
) -> PingPong | None:
    """Measure ranks 0 and 1 of `comm`; both get the result, and the others None, at once.

    `sizes` are bytes, in fours. A sum is timed as the plain collectives make it, of a whole message; with
    `piece_nbytes` as the fast ones make it, in pieces. Raises ValueError on all ranks when there is only one.
    """
    if comm.size < 2 or any(size < 4 or size % 4 for size in sizes):
        raise ValueError(
            f"{comm.size} ranks and sizes {sizes}; use 2 ranks or more, and multiples of 4 bytes"
        )
    two = comm.Split(0 if comm.rank < 2 else MPI.UNDEFINED, comm.rank)
    if two == MPI.COMM_NULL:
        return None
    try:
        rows = [_measure(two, size, repetitions, piece_nbytes or size) for size in sizes]
    finally:
        two.Free()
    return PingPong(tuple(sizes), *zip(*rows, strict=True))


def _measure(two: MPI.Comm, nbytes: int, repetitions: int, piece_nbytes: int) -> tuple[float, ...]:
    """Seconds one way, of an exchange, of a sum and of a copy, with `nbytes` each."""
    first, second = np.ones(nbytes // 4, np.float32), np.zeros(nbytes // 4, np.float32)
    swapped = [first, second]
    other = 1 - two.rank

    def ping_pong() -> None:
        if two.rank == 0:
            two.Send(first, 1, PING)
            two.Recv(first, 1, PONG)
        else:
            two.Recv(first, 0, PING)
            two.Send(first, 0, PONG)

    def exchange() -> None:
        swapped.reverse()  # what came last goes next, as in a ring: it lies in this rank's caches
        two.Sendrecv(swapped[0], other, EXCHANGE, swapped[1], other, EXCHANGE)

    def exchange_and_add() -> None:
        swapped.reverse()
        exchange_and_sum(two, swapped[0], swapped[1], piece_nbytes)

    def copy() -> None:
        swapped[0][...] = swapped[1]

    def exchange_and_copy() -> None:
        exchange()
        copy()

    def add() -> None:
        np.add(first, second, out=first)

    def seconds(work: Callable[[], None]) -> float:
        return seconds_of(two, work, repetitions)

    both = seconds(exchange)
    added = max(seconds(exchange_and_add) - both, seconds(add))  # noise may hide it, but no less than alone
    copied = max(seconds(exchange_and_copy) - both, seconds(copy))
    return seconds(ping_pong) / 2, both, added, copied


def exchange_and_sum(two: MPI.Comm, outgoing: Array, into: Array, piece_nbytes: int) -> None:
    """A step of the ring between two ranks: add to `into` what the other one sends, piece by piece."""
    length = max(1, piece_nbytes // into.itemsize)
    for start in range(0, into.size, length):
        mine = into[start : start + length]
        incoming = np.empty_like(mine)
        two.Sendrecv(
            outgoing[start : start + length], 1 - two.rank, EXCHANGE, incoming, 1 - two.rank, EXCHANGE
        )
        mine += incoming


def seconds_of(comm: MPI.Comm, work: Callable[[], object], repetitions: int) -> float:
    """Seconds of one `work()` on the slowest rank: the median of `repetitions`, of more when it is short."""
    work()
    first = timed(comm, work, 3)
    times = repetitions * max(1, min(MOST_RUNS, round(ENOUGH_SECONDS / first)))
    return timed(comm, work, times)
