"""What the collectives send, counted, is what the formulas say; on as many ranks as this session has."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from course_lib.comm import collectives
from course_lib.comm.buffers import Array
from course_lib.comm.counting import CountedComm, counted
from course_lib.fast import collectives as fast
from course_lib.fast.collectives import PIECE_BYTES
from course_lib.theory import cost_model
from course_lib.theory.cost_model import Cost, Traffic

Work = Callable[[MPI.Comm, Array], None]


def part_of(comm: MPI.Comm, buffer: Array) -> Array:
    return np.array_split(buffer, comm.size)[comm.rank].copy()


def reduce_scatter(comm: MPI.Comm, buffer: Array) -> None:
    collectives.ring_reduce_scatter(comm, buffer, part_of(comm, buffer))


def allgather(comm: MPI.Comm, buffer: Array) -> None:
    collectives.ring_allgather(comm, part_of(comm, buffer), buffer)


def last(comm: MPI.Comm) -> int:
    return comm.size - 1


def tree_broadcast(comm: MPI.Comm, buffer: Array) -> None:
    collectives.tree_broadcast(comm, buffer, last(comm))


def tree_reduce(comm: MPI.Comm, buffer: Array) -> None:
    collectives.tree_reduce(comm, buffer, last(comm))


def scatter(comm: MPI.Comm, buffer: Array) -> None:
    collectives.scatter(comm, buffer, part_of(comm, buffer), last(comm))


def gather(comm: MPI.Comm, buffer: Array) -> None:
    collectives.gather(comm, part_of(comm, buffer), buffer, last(comm))


def fast_reduce_scatter(comm: MPI.Comm, buffer: Array) -> None:
    fast.ring_reduce_scatter(comm, buffer, part_of(comm, buffer))


# What only these tests predict: no lesson and no benchmark asks what these collectives cost.


def whole(ranks: int, nbytes: float) -> Cost:
    """A tree backwards: each other rank sends everything once."""
    once = Traffic(min(1, ranks - 1), nbytes * min(1, ranks - 1))
    return Cost((), once, Traffic(ranks - 1, (ranks - 1) * nbytes))


def scattered(ranks: int, nbytes: float) -> Cost:
    """The root sends each other rank its part."""
    sent = Traffic(ranks - 1, (ranks - 1) * nbytes / ranks)
    return Cost((), sent, sent)


def gathered(ranks: int, nbytes: float) -> Cost:
    """Each other rank sends its part."""
    busiest = Traffic(1, nbytes / ranks) if ranks > 1 else Traffic()
    return Cost((), busiest, scattered(ranks, nbytes).total)


def in_pieces(cost: Callable[..., Cost]) -> Callable[[int, float], Cost]:
    return partial(cost, piece_nbytes=PIECE_BYTES)


FORMULAS: list[tuple[Work, Callable[[int, float], Cost]]] = [
    (collectives.ring_allreduce, cost_model.ring_allreduce_cost),
    (collectives.recursive_doubling_allreduce, cost_model.recursive_doubling_allreduce_cost),
    (reduce_scatter, cost_model.ring_reduce_scatter_cost),
    (allgather, cost_model.ring_allgather_cost),
    (tree_broadcast, cost_model.tree_broadcast_cost),
    (tree_reduce, whole),
    (scatter, scattered),
    (gather, gathered),
    (fast.ring_allreduce, in_pieces(cost_model.ring_allreduce_cost)),
    (fast.recursive_doubling_allreduce, in_pieces(cost_model.recursive_doubling_allreduce_cost)),
    (fast_reduce_scatter, in_pieces(cost_model.ring_reduce_scatter_cost)),
]
IDS = [f"{work.__module__.split('.')[-2]}.{work.__name__}" for work, _ in FORMULAS]


def sent_by_all(comm: MPI.Intracomm, work: Work, items: int) -> list[Traffic]:
    """What each rank sent when `work` was done on `items` numbers of 8 bytes."""
    counting = counted(comm)
    work(counting, np.ones(items))
    return comm.allgather(counting.sent)


@pytest.mark.parametrize(("work", "cost"), FORMULAS, ids=IDS)
@pytest.mark.parametrize("items", [0, 1000, 2 * PIECE_BYTES // 8])
def test_what_is_counted_is_what_the_formula_says(
    comm: MPI.Intracomm, work: Work, cost: Callable[[int, float], Cost], items: int
) -> None:
    items *= comm.size  # equal parts
    sent, expected = sent_by_all(comm, work, items), cost(comm.size, 8 * items)
    assert sum(sent, Traffic()) == expected.total
    assert max(each.messages for each in sent) == expected.busiest.messages
    assert max(each.nbytes for each in sent) == expected.busiest.nbytes


def test_what_is_sent_is_counted_by_destination(comm: MPI.Intracomm) -> None:
    counting = counted(comm)
    collectives.scatter(counting, np.ones(3 * comm.size) if comm.rank == 0 else None, np.empty(3))
    others = range(1, comm.size) if comm.rank == 0 else ()
    assert counting.sent_to == dict.fromkeys(others, Traffic(1, 24))


@pytest.mark.parametrize("placement", [[0, 1, 1, 1], [0, 1, 0, 1], [0, 1, 2, 3]], ids=str)
def test_between_nodes_only_the_ring_of_their_leaders_sends(
    comm: MPI.Intracomm, placement: list[int]
) -> None:
    inside: Any = comm.Split(placement[comm.rank], comm.rank)
    between: Any = comm.Split(0 if inside.rank == 0 else MPI.UNDEFINED, comm.rank)
    within = counted(inside)
    across = counted(between) if inside.rank == 0 else None
    nodes = len(set(placement[: comm.size]))
    collectives.hierarchical_allreduce(within, across or MPI.COMM_NULL, np.ones(5 * nodes))
    crossed = comm.allreduce(across.sent if across else Traffic())
    stayed = comm.allreduce(within.sent)
    assert crossed == cost_model.ring_allreduce_cost(nodes, 40 * nodes).total
    assert stayed.messages == 2 * (comm.size - nodes)  # each rank that is no leader sends once, receives once
    if across:
        across.reset()
    nbytes = 8 * 3 * fast.EAGER_BYTES
    fast.hierarchical_allreduce(within, across or MPI.COMM_NULL, np.ones(nbytes // 8))
    crossed = comm.allreduce(across.sent if across else Traffic())
    assert crossed.nbytes == cost_model.ring_allreduce_cost(nodes, nbytes).total.nbytes
    inside.Free()
    if across:
        between.Free()


def test_a_wasteful_allreduce_is_found_out(comm: MPI.Intracomm) -> None:
    """Known wrong: everyone sends everything to everyone. The sum is right, and the count is not."""

    def everything_to_everyone(comm: MPI.Comm, buffer: Array) -> None:
        mine, incoming = buffer.copy(), np.empty_like(buffer)
        for distance in range(1, comm.size):
            to, source = (comm.rank + distance) % comm.size, (comm.rank - distance) % comm.size
            comm.Sendrecv(mine, to, 1, incoming, source, 1)
            buffer += incoming

    if comm.size < 3:
        pytest.skip("on two ranks an exchange of everything is what doubling does")
    total = sum(sent_by_all(comm, everything_to_everyone, 120), Traffic())
    costs = cost_model.ring_allreduce_cost, cost_model.recursive_doubling_allreduce_cost
    assert total.nbytes not in [cost(comm.size, 960).total.nbytes for cost in costs]


def test_every_way_of_sending_is_counted(comm: MPI.Intracomm) -> None:
    counting, me, data = counted(comm), comm.rank, np.arange(5.0)
    into = np.empty_like(data)
    requests = [counting.Isend(data, me), counting.Issend([data, MPI.DOUBLE], dest=me)]
    requests += [counting.Isend([data, 3, MPI.DOUBLE], me), counting.isend("a word", dest=me)]
    for _ in range(3):
        comm.Recv(into, me)
    assert comm.recv(source=me) == "a word"
    MPI.Request.Waitall(requests)
    counting.Sendrecv(data, dest=me, recvbuf=into, source=me)
    counting.Sendrecv_replace(data, me, source=me)
    assert counting.sendrecv(None, me, source=me) is None
    words = len(MPI.pickle.dumps("a word")) + len(MPI.pickle.dumps(None))
    assert counting.sent == Traffic(7, 40 + 40 + 24 + 40 + 40 + words)
    counting.Send(data, MPI.PROC_NULL)
    assert counting.sent.messages == 7
    assert counting.sent_to == {me: counting.sent}
    counting.reset()
    assert counting.sent == Traffic(0, 0)


def test_a_counted_communicator_is_the_same_communicator(comm: MPI.Intracomm) -> None:
    counting = counted(comm)
    assert counting == comm and (counting.rank, counting.size) == (comm.rank, comm.size)
    assert isinstance(counting, CountedComm) and counting.sent == Traffic()
    other = counted(comm)
    collectives.ring_allreduce(counting, np.ones(12))
    assert other.sent == Traffic()
