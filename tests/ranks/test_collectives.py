"""Collectives by hand, plain and fast, held to MPI's own on as many ranks as this session has; fast to plain.

The numbers are whole, so that every order of adding gives the same sum in every dtype. Known-wrong variants
are kept, and the same comparison has to reject them.
"""

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from course_lib.comm import collectives
from course_lib.comm.buffers import Array
from course_lib.comm.collectives import (
    gather,
    hierarchical_allreduce,
    recursive_doubling_allreduce,
    ring_allgather,
    ring_allreduce,
    ring_reduce_scatter,
    scatter,
    tree_broadcast,
    tree_reduce,
)
from course_lib.fast import collectives as fast
from course_lib.fast.collectives import PIECE_BYTES

DTYPES = ("float32", "int64", "complex128")
LONG = 2 * PIECE_BYTES // 8 * 3 + 5  # of float64: several pieces for each of 1, 2 or 3 ranks
LENGTHS = (0, 1, 3, 100_003)

InPlace = Callable[[MPI.Comm, Array], None]
Rooted = Callable[[MPI.Comm, Array, int], None]


# ---------------------------------------------------------------- data and oracle


def numbers(rank: int, length: int, dtype: str = "float64") -> Array:
    """Whole numbers that differ from rank to rank and from place to place."""
    draw = np.random.default_rng([7, rank, length]).integers
    made = draw(-1000, 1000, length).astype(dtype)
    if made.dtype.kind == "c":
        made += 1j * draw(-1000, 1000, length)
    return made


def split(comm: MPI.Comm, whole: Array) -> list[Array]:
    return np.array_split(whole, comm.size)


def counts(comm: MPI.Comm, whole: Array) -> list[int]:
    return [len(part) for part in split(comm, whole)]


def allreduce_is_mpis(comm: MPI.Comm, ours: InPlace, length: int, dtype: str) -> bool:
    mine = numbers(comm.rank, length, dtype)
    theirs = mine.copy()
    ours(comm, mine)
    comm.Allreduce(MPI.IN_PLACE, theirs)
    return np.array_equal(mine, theirs)


def broadcast_is_mpis(comm: MPI.Comm, ours: Rooted, length: int, dtype: str) -> bool:
    right = []
    for root in range(comm.size):
        mine = numbers(comm.rank, length, dtype)
        theirs = mine.copy()
        ours(comm, mine, root)
        comm.Bcast(theirs, root)
        right.append(np.array_equal(mine, theirs))
    return all(right)


def reduce_is_mpis(comm: MPI.Comm, ours: Rooted, length: int, dtype: str) -> bool:
    """The root has the sum, and the others have what they had."""
    right = []
    for root in range(comm.size):
        mine = numbers(comm.rank, length, dtype)
        theirs = mine.copy()
        ours(comm, mine, root)
        if comm.rank == root:
            comm.Reduce(MPI.IN_PLACE, theirs, root=root)
        else:
            comm.Reduce(theirs, None, root=root)
        right.append(np.array_equal(mine, theirs))
    return all(right)


def reduce_scatter_is_mpis(comm: MPI.Comm, ours: Any, length: int, dtype: str) -> bool:
    mine = numbers(comm.rank, length, dtype)
    before, out = mine.copy(), np.full_like(split(comm, mine)[comm.rank], 77)
    theirs = out.copy()
    ours(comm, mine, out)
    comm.Reduce_scatter(before, theirs, counts(comm, before))
    return np.array_equal(out, theirs) and np.array_equal(mine, before)


def allgather_is_mpis(comm: MPI.Comm, ours: Any, length: int, dtype: str) -> bool:
    whole = numbers(9, length, dtype)
    shard, out = split(comm, whole)[comm.rank].copy(), np.full_like(whole, 77)
    before, theirs = shard.copy(), out.copy()
    ours(comm, shard, out)
    comm.Allgatherv(before, [theirs, counts(comm, theirs)])
    return np.array_equal(out, theirs) and np.array_equal(shard, before)


def scatter_is_mpis(comm: MPI.Comm, ours: Any, length: int, dtype: str) -> bool:
    right, whole = [], numbers(9, length, dtype)
    for root in range(comm.size):
        given = whole.copy() if comm.rank == root else None
        mine = np.full_like(split(comm, whole)[comm.rank], 77)
        theirs = mine.copy()
        ours(comm, given, mine, root)
        comm.Scatterv([whole, counts(comm, whole)] if comm.rank == root else None, theirs, root)
        right.append(np.array_equal(mine, theirs))
        right.append(given is None or np.array_equal(given, whole))
    return all(right)


def gather_is_mpis(comm: MPI.Comm, ours: Any, length: int, dtype: str) -> bool:
    right, whole = [], numbers(9, length, dtype)
    for root in range(comm.size):
        shard = split(comm, whole)[comm.rank].copy()
        before = shard.copy()
        mine = np.full_like(whole, 77) if comm.rank == root else None
        theirs = np.full_like(whole, 77)
        ours(comm, shard, mine, root)
        comm.Gatherv(before, [theirs, counts(comm, whole)] if comm.rank == root else None, root)
        right.append(mine is None or np.array_equal(mine, theirs))
        right.append(np.array_equal(shard, before))
    return all(right)


CHECKS: list[tuple[Callable[..., None], Callable[..., bool]]] = [
    (ring_allreduce, allreduce_is_mpis),
    (recursive_doubling_allreduce, allreduce_is_mpis),
    (tree_broadcast, broadcast_is_mpis),
    (tree_reduce, reduce_is_mpis),
    (ring_reduce_scatter, reduce_scatter_is_mpis),
    (ring_allgather, allgather_is_mpis),
    (scatter, scatter_is_mpis),
    (gather, gather_is_mpis),
    (fast.ring_allreduce, allreduce_is_mpis),
    (fast.recursive_doubling_allreduce, allreduce_is_mpis),
    (fast.ring_reduce_scatter, reduce_scatter_is_mpis),
]


def named(ours: Callable[..., None]) -> str:
    """`ring_allreduce`, and `fast.ring_allreduce` for its fast form."""
    return f"{'fast.' if ours.__module__ == fast.__name__ else ''}{ours.__name__}"


ALL = pytest.mark.parametrize(("ours", "is_mpis"), CHECKS, ids=[named(ours) for ours, _ in CHECKS])
ALLREDUCES = [ours for ours, is_mpis in CHECKS if is_mpis is allreduce_is_mpis]


def everywhere(comm: MPI.Comm, verdict: bool) -> bool:
    return comm.allreduce(verdict, op=MPI.LAND)


# ---------------------------------------------------------------- the same as MPI's


@ALL
@pytest.mark.parametrize("dtype", DTYPES)
def test_it_does_what_mpi_does_for_every_length(
    comm: MPI.Comm, ours: Any, is_mpis: Callable[..., bool], dtype: str
) -> None:
    wrong = [length for length in LENGTHS if not is_mpis(comm, ours, length, dtype)]
    assert not wrong


@ALL
def test_it_does_so_in_many_pieces(comm: MPI.Comm, ours: Any, is_mpis: Callable[..., bool]) -> None:
    assert is_mpis(comm, ours, LONG, "float64")


@pytest.mark.parametrize("dtype", ["int8", "float16", "longdouble"])
@pytest.mark.parametrize("ours", ALLREDUCES, ids=named)
def test_other_dtypes_are_summed_too(comm: MPI.Comm, ours: InPlace, dtype: str) -> None:
    """Their oracle is NumPy: Open MPI has no float16 everywhere, and sums that leave int8 it clips."""
    expected = sum(np.arange(11) + rank for rank in range(comm.size))
    mine = (np.arange(11) + comm.rank).astype(dtype)
    ours(comm, mine)
    assert mine.tolist() == expected.tolist()
    assert mine.dtype == dtype


@pytest.mark.parametrize("ours", ALLREDUCES, ids=named)
def test_a_sum_has_the_same_bits_on_every_rank(comm: MPI.Comm, ours: InPlace) -> None:
    everyones = [np.random.default_rng(rank).normal(size=10_001) for rank in range(comm.size)]
    mine = everyones[comm.rank].copy()
    ours(comm, mine)
    assert len(set(comm.allgather(mine.tobytes()))) == 1
    np.testing.assert_allclose(mine, np.sum(everyones, axis=0), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("length", [7, LONG])
@pytest.mark.parametrize("ours", ALLREDUCES[2:], ids=named)
def test_the_fast_sum_has_the_bits_of_the_plain_one(comm: MPI.Comm, ours: InPlace, length: int) -> None:
    mine = np.random.default_rng(comm.rank).normal(size=length)
    plain = mine.copy()
    ours(comm, mine)
    getattr(collectives, ours.__name__)(comm, plain)
    assert mine.tobytes() == plain.tobytes()


def test_one_after_another_without_a_barrier_they_do_not_mix_up_messages(comm: MPI.Comm) -> None:
    order, pause = random.Random(3), random.Random(comm.rank)
    for _ in range(60):
        ours, is_mpis = order.choice(CHECKS)
        length = order.choice([0, 1, 7, 1000, 20_000])
        time.sleep(pause.choice([0, 0, 0.002]))
        assert is_mpis(comm, ours, length, "float64"), (named(ours), length)


# ---------------------------------------------------------------- nodes


# the node of each rank: one node, a node per rank, uneven nodes, ranks of a node that are not neighbours
PLACEMENTS = (
    [0, 0, 0, 0],
    [0, 1, 2, 3],
    [0, 1, 1, 1],
    [0, 1, 0, 1],
)
Nodes = tuple[MPI.Comm, MPI.Comm]


@contextmanager
def nodes_of(comm: MPI.Intracomm, placement: Sequence[int]) -> Iterator[Nodes]:
    """The communicator inside this rank's node, and that of the leaders: COMM_NULL on the others."""
    inside = comm.Split(placement[comm.rank], comm.rank)
    between = comm.Split(0 if inside.rank == 0 else MPI.UNDEFINED, comm.rank)
    yield inside, between
    inside.Free()
    if between != MPI.COMM_NULL:
        between.Free()


HIERARCHICAL = pytest.mark.parametrize(
    "hierarchical", [hierarchical_allreduce, fast.hierarchical_allreduce], ids=["plain", "fast"]
)


@HIERARCHICAL
@pytest.mark.parametrize("placement", PLACEMENTS, ids=str)
def test_a_hierarchical_sum_is_mpis_on_nodes_of_any_size(
    comm: MPI.Intracomm, placement: Sequence[int], hierarchical: Callable[..., None]
) -> None:
    with nodes_of(comm, placement) as (inside, between):

        def ours(comm: MPI.Comm, buffer: Array) -> None:
            hierarchical(inside, between, buffer)

        right = [allreduce_is_mpis(comm, ours, length, dtype) for length in LENGTHS for dtype in DTYPES]
        matrix = np.full((3, 5), comm.rank + 1.0)
        ours(comm, matrix)
        drawn = np.random.default_rng(comm.rank).normal(size=1001)
        ours(comm, drawn)
    assert all(right) and (matrix == sum(range(comm.size + 1))).all()
    assert len(set(comm.allgather(drawn.tobytes()))) == 1  # the same bits on every rank


def test_a_hierarchical_sum_that_stays_on_the_leaders_is_rejected(comm: MPI.Intracomm) -> None:
    """Known wrong: the last step is left out, so only the leaders have the sum."""

    def unfinished(comm: MPI.Comm, buffer: Array) -> None:
        tree_reduce(inside, buffer)
        if inside.rank == 0:
            ring_allreduce(between, buffer)

    with nodes_of(comm, [0, 0, 1, 1]) as (inside, between):
        right = everywhere(comm, allreduce_is_mpis(comm, unfinished, 1000, "float64"))
    assert right == (comm.size == 1)


@pytest.mark.parametrize("placement", PLACEMENTS, ids=str)
def test_a_hierarchical_sum_in_many_pieces_has_the_bits_of_the_plain_one(
    comm: MPI.Intracomm, placement: Sequence[int]
) -> None:
    piece = fast.EAGER_BYTES // 8
    drawn = np.random.default_rng(comm.rank).normal(size=20 * piece + 5)
    with nodes_of(comm, placement) as (inside, between):
        for length in (drawn.size, 4 * piece, piece + 1, piece, 2049):
            quick, plain = drawn[:length].copy(), drawn[:length].copy()
            fast.hierarchical_allreduce(inside, between, quick)
            hierarchical_allreduce(inside, between, plain)
            assert np.array_equal(quick, plain)


@HIERARCHICAL
def test_a_hierarchical_sum_refuses_a_wrong_buffer_before_it_sends(
    comm: MPI.Intracomm, hierarchical: Callable[..., None]
) -> None:
    with nodes_of(comm, [0, 0, 1, 1]) as (inside, between):
        for wrong in (frozen(np.zeros(3)), np.zeros((4, 6))[:, ::2], [1.0]):
            with pytest.raises(ValueError, match=r"is read-only|not contiguous|is of type list"):
                hierarchical(inside, between, wrong)


# ---------------------------------------------------------------- shapes, strides, arguments


def test_sums_and_broadcasts_take_any_shape(comm: MPI.Comm) -> None:
    for shape in [(), (5, 3), (1, 7), (0, 4), (2, 0, 3)]:
        mine = np.full(shape, comm.rank + 1.0)
        for ours in ALLREDUCES:
            mine = np.full(shape, comm.rank + 1.0)
            ours(comm, mine)
            assert (mine == sum(range(comm.size + 1))).all()
        for rooted in (tree_broadcast, tree_reduce):
            mine = np.full(shape, comm.rank + 1.0)
            rooted(comm, mine, 0)
            assert mine.shape == shape


def test_parts_of_a_matrix_are_its_rows(comm: MPI.Comm) -> None:
    whole = np.arange(21.0).reshape(7, 3)
    mine = split(comm, whole)[comm.rank]
    gathered, summed, dealt = np.empty((7, 3)), np.empty(mine.shape), np.empty(mine.shape)
    ring_allgather(comm, mine, gathered)
    assert (gathered == whole).all()
    for form in (collectives, fast):
        summed[:] = 0
        form.ring_reduce_scatter(comm, whole, summed)
        assert (summed == comm.size * mine).all()
    scatter(comm, whole, dealt)
    assert (dealt == mine).all()
    gathered[:] = 0
    gather(comm, mine, gathered)
    assert (gathered == (whole if comm.rank == 0 else 0)).all()


def test_a_shard_may_lie_in_the_whole_that_it_is_gathered_into(comm: MPI.Comm) -> None:
    whole = numbers(3, 29)
    out = np.zeros(29)
    split(comm, out)[comm.rank][:] = split(comm, whole)[comm.rank]
    ring_allgather(comm, split(comm, out)[comm.rank], out)
    assert (out == whole).all()


def frozen(array: Array) -> Array:
    array.flags.writeable = False
    return array


def test_the_root_of_a_broadcast_may_pass_a_read_only_array(comm: MPI.Comm) -> None:
    for root in range(comm.size):
        mine = np.full(7, float(comm.rank))
        tree_broadcast(comm, frozen(mine) if comm.rank == root else mine, root)
        assert (mine == root).all()


TEN = np.zeros(10)
REFUSED: list[tuple[str, Callable[[MPI.Comm], None]]] = [
    ("not contiguous", lambda comm: ring_allreduce(comm, np.zeros((4, 6))[:, ::2])),
    ("not contiguous", lambda comm: recursive_doubling_allreduce(comm, np.zeros((4, 6)).T)),
    ("not contiguous", lambda comm: tree_broadcast(comm, np.zeros(9)[::-1])),
    ("not contiguous", lambda comm: tree_reduce(comm, np.zeros(9)[::2])),
    ("not contiguous", lambda comm: ring_allgather(comm, np.zeros(2), np.zeros(4 * comm.size)[::2])),
    ("not contiguous", lambda comm: scatter(comm, np.zeros(comm.size), np.zeros((2, 2))[:, 0])),
    ("not contiguous", lambda comm: gather(comm, np.zeros((2, 2))[:, 0], np.zeros(2 * comm.size))),
    ("is read-only", lambda comm: ring_allreduce(comm, frozen(np.zeros(3)))),
    ("is read-only", lambda comm: ring_allgather(comm, np.zeros(1), frozen(np.zeros(comm.size)))),
    (r"out is \(9,\) float64 and must be", lambda comm: ring_reduce_scatter(comm, TEN, np.zeros(9))),
    (r"shard is \(3, 3\) float64 and must be", lambda comm: ring_allgather(comm, np.zeros((3, 3)), TEN)),
    (r"int32 and must be", lambda comm: ring_reduce_scatter(comm, np.zeros(comm.size), np.zeros(1, "i"))),
    ("root -1 is not one of", lambda comm: tree_broadcast(comm, TEN, -1)),
    ("root 99 is not one of", lambda comm: scatter(comm, TEN, TEN, 99)),
    ("root 99 is not one of", lambda comm: gather(comm, TEN, TEN, 99)),
    ("share memory", lambda comm: ring_reduce_scatter(comm, TEN, split(comm, TEN)[comm.rank])),
    ("is of type list", lambda comm: ring_allreduce(comm, [1.0, 2.0])),
    ("holds object", lambda comm: ring_allreduce(comm, np.array([1, None]))),
    ("holds bool", lambda comm: recursive_doubling_allreduce(comm, np.array([True]))),
    ("holds >f8", lambda comm: ring_allreduce(comm, np.zeros(3, ">f8"))),
    ("is a single number", lambda comm: ring_allgather(comm, np.zeros(1), np.array(1.0))),
    ("not contiguous", lambda comm: fast.ring_allreduce(comm, np.zeros((4, 6))[:, ::2])),
    ("is read-only", lambda comm: fast.recursive_doubling_allreduce(comm, frozen(np.zeros(3)))),
    ("is read-only", lambda comm: fast.ring_reduce_scatter(comm, np.zeros(comm.size), frozen(np.zeros(1)))),
    ("share memory", lambda comm: fast.ring_reduce_scatter(comm, TEN, split(comm, TEN)[comm.rank])),
]


@pytest.mark.parametrize(("says", "call"), REFUSED, ids=[str(i) for i in range(len(REFUSED))])
def test_what_cannot_be_right_is_refused_on_all_ranks_before_the_first_message(
    comm: MPI.Comm, says: str, call: Callable[[MPI.Comm], None]
) -> None:
    with pytest.raises(ValueError, match=says):
        call(comm)
    assert not comm.Iprobe()


def test_a_shard_that_is_too_long_is_told_where_the_message_comes(comm: MPI.Comm) -> None:
    if comm.rank == 0:
        scatter(comm, np.zeros(2 * comm.size), np.empty(2))
        return
    with pytest.raises(ValueError, match="shard has 24 bytes, but rank 0 sent 16"):
        scatter(comm, None, np.empty(3))


def test_a_broadcast_shorter_than_the_buffer_is_refused(comm: MPI.Comm) -> None:
    if comm.size > 2:
        comm = comm.Split(0 if comm.rank < 2 else MPI.UNDEFINED)
    if comm == MPI.COMM_NULL or comm.size == 1:
        return
    if comm.rank == 0:
        tree_broadcast(comm, np.empty(2))
    else:
        with pytest.raises(ValueError, match="buffer has 24 bytes, but rank 0 sent 16"):
            tree_broadcast(comm, np.empty(3))


class Tagged:
    """A communicator that notes the tags of what is sent and received."""

    def __init__(self, comm: MPI.Comm) -> None:
        self.comm, self.tags = comm, set[int]()

    def __getattr__(self, name: str) -> Any:
        call = getattr(self.comm, name)
        places = {"Send": [2], "Recv": [2], "Sendrecv": [2, 5]}.get(name)
        if places is None:
            return call

        def noting(*args: Any) -> None:
            self.tags |= {args[place] for place in places}
            call(*args)

        return noting


def test_no_two_collectives_share_a_tag(comm: MPI.Comm) -> None:
    """Ranks that call different ones must not take each other's messages and return with mixed data."""
    a, part = np.zeros(comm.size), np.zeros(1)
    calls: list[tuple[Callable[..., None], tuple[Any, ...]]] = [
        (ring_allreduce, (a,)),
        (recursive_doubling_allreduce, (a,)),
        (ring_reduce_scatter, (a, part)),
        (ring_allgather, (part, a)),
        (tree_broadcast, (a,)),
        (tree_reduce, (a,)),
        (scatter, (a, part)),
        (gather, (part, a)),
    ]
    used_by: dict[int, str] = {}
    for collective, arguments in calls:
        forms = (collective, getattr(fast, collective.__name__, collective))
        for form in dict.fromkeys(forms):  # a set would have an order of its own on each rank
            form(tagged := Tagged(comm), *arguments)
            assert tagged.tags or comm.size == 1
            for tag in tagged.tags:
                assert used_by.setdefault(tag, collective.__name__) == collective.__name__


# ---------------------------------------------------------------- known-wrong variants


def one_rank_keeps_its_own(comm: MPI.Comm, buffer: Array) -> None:
    recursive_doubling_allreduce(comm, buffer)
    if comm.rank == comm.size - 1:
        buffer[:] = numbers(comm.rank, len(buffer), str(buffer.dtype))


def always_from_rank_0(comm: MPI.Comm, buffer: Array, root: int) -> None:
    tree_broadcast(comm, buffer, 0)


def sums_on_the_way(comm: MPI.Comm, buffer: Array, root: int) -> None:
    """A reduction that leaves sums in the buffers of others."""
    ring_allreduce(comm, buffer)


def sums_in_the_input(comm: MPI.Comm, buffer: Array, out: Array) -> None:
    ring_allreduce(comm, buffer)
    out[:] = split(comm, buffer)[comm.rank]


def forgets_its_own_shard(comm: MPI.Comm, shard: Array, out: Array) -> None:
    ring_allgather(comm, shard, out)
    split(comm, out)[comm.rank][:] = 0


MISTAKES: list[tuple[Callable[..., None], Callable[..., bool]]] = [
    (one_rank_keeps_its_own, allreduce_is_mpis),
    (always_from_rank_0, broadcast_is_mpis),
    (sums_on_the_way, reduce_is_mpis),
    (sums_in_the_input, reduce_scatter_is_mpis),
    (forgets_its_own_shard, allgather_is_mpis),
]


@pytest.mark.parametrize(("mistake", "is_mpis"), MISTAKES)
def test_a_mistake_is_told_from_the_truth(
    comm: MPI.Comm, mistake: Callable[..., None], is_mpis: Callable[..., bool]
) -> None:
    if comm.size == 1:
        pytest.skip("it is no mistake on one rank")
    length = 7 if comm.size != 7 else 8
    assert not everywhere(comm, is_mpis(comm, mistake, length, "float64"))
