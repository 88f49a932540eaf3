"""Asynchronous works, threads, and a thousand collectives at once, against a serial oracle."""

import contextlib
import ctypes
import gc
import logging
import threading
from typing import Any

import numpy as np
import psutil
import pytest
import torch
import torch.distributed as dist
from mpi4py import MPI

from packages.torch_mpi4py.tests.ranks.calls import (
    DTYPES,
    KINDS,
    Call,
    Side,
    Started,
    call_of,
    is_right,
    wait_for,
)

ROUNDS, COLLECTIVES = 10, 100


pytestmark = pytest.mark.usefixtures("world")


def test_a_work_is_not_done_before_the_others_come(comm: MPI.Intracomm) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    tensor = torch.ones(3)
    if rank == 0:
        work = dist.all_reduce(tensor, async_op=True)
        told: list[Any] = []
        future = work.get_future().then(lambda done: told.append(done.value()))
        assert size == 1 or not (work.is_completed() or told or future.done())
        comm.Barrier()  # the others begin only now: a blocking start would hang
        future.wait()
        assert work.is_completed() and work.is_success() and told[0][0] is not None
        assert work.wait() and work.result()[0].tolist() == [size] * 3
    else:
        comm.Barrier()
        dist.all_reduce(tensor)
    assert tensor.tolist() == [size] * 3


@pytest.mark.parametrize("length", [2, 5000])
def test_messages_have_futures_too(length: int) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    if size == 1:
        return
    got = torch.empty(length)
    work = dist.irecv(got, (rank - 1) % size)
    future = work.get_future()
    dist.isend(torch.full((length,), float(rank)), (rank + 1) % size)
    future.wait()
    assert work.is_completed() and bool((got == (rank - 1) % size).all())


def test_blocking_collectives_keep_their_place_behind_asynchronous_ones() -> None:
    size = dist.get_world_size()
    tensor, works = torch.ones(1), []
    for _ in range(5):
        works.append(dist.all_reduce(tensor, async_op=True))
        dist.all_reduce(tensor)
    assert all(work.is_completed() for work in works)
    assert tensor.item() == float(size) ** 10


def test_a_callback_may_start_a_collective() -> None:
    size = dist.get_world_size()

    def again(done: Any) -> Any:
        (tensor,) = done.value()
        dist.all_reduce(tensor, async_op=True).wait()
        return tensor

    tensor = dist.all_reduce(torch.ones(1), async_op=True).get_future().then(again).wait()
    assert tensor.item() == size * size


def test_an_error_reaches_the_future() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    if size == 1:
        return
    future = dist.all_reduce(torch.ones(rank + 1), async_op=True).get_future()
    with pytest.raises(RuntimeError, match="do not ask for the same collective"):
        future.wait()


def random_call(random: np.random.Generator, size: int, number: int) -> Call:
    """A call of a group of `size` ranks; every rank draws the same."""
    kinds = ["all_reduce", "broadcast", "reduce", "all_gather", "gather", "all_to_all", "barrier"]
    return call_of(
        kinds[random.integers(len(kinds))],
        size,
        70_000 if random.random() < 0.05 else int(random.integers(0, 200)),
        later=bool(random.random() < 0.5),
        number=number,
        dtype=DTYPES[random.integers(len(DTYPES))],
        layout="contiguous" if number % 3 else "strided",
        root=int(random.integers(size)),
    )


def stress(seed: int, groups: list[tuple[list[int], Any]], count: int) -> int:
    """`count` random collectives, half of them asynchronous, in random groups; how many went wrong here."""
    random, rank, wrong = np.random.default_rng(seed), dist.get_rank(), 0
    begun: list[tuple[Started, object]] = []
    for number in range(count):
        members, group = groups[random.integers(len(groups))]
        call = random_call(random, len(members), number)
        if rank not in members:
            continue
        started = KINDS[call.kind](Side(call, members, members.index(rank), group, plain=False))
        begun.append((started, started.begin()))
        if len(begun) > 8 or not call.later:
            wrong += wrong_works(begun)
    return wrong + wrong_works(begun)


def wrong_works(begun: list[tuple[Started, object]]) -> int:
    """Wait for all and forget them; how many differ from what is expected."""
    for _, work in begun:
        wait_for(work)
    wrong = sum(not is_right(started) for started, _ in begun)
    begun.clear()
    return wrong


def new_groups(size: int) -> list[tuple[list[int], Any]]:
    """The world again, its halves, and neighbours that overlap; a thread gets groups of its own."""
    lists = [
        list(range(size)),
        list(range(size))[: size // 2 + 1],
        *([r, (r + 1) % size] for r in range(size - 1)),
    ]
    lists = [sorted(set(members)) for members in lists]
    return [(members, dist.new_group(members)) for members in lists]


@pytest.mark.deadline(280)
def test_a_thousand_random_collectives_from_two_threads_equal_the_oracle() -> None:
    groups = [new_groups(dist.get_world_size()) for _ in range(2)]
    for repeat in range(ROUNDS):
        from_two_threads([2 * repeat, 2 * repeat + 1], groups)


@pytest.mark.slow
@pytest.mark.deadline(280)
def test_memory_becomes_flat_for_ten_rounds(comm: MPI.Intracomm) -> None:
    """The heaps of threads grow at first, for more rounds after many tests; a leak would never end."""
    groups = [new_groups(dist.get_world_size()) for _ in range(2)]
    logging.disable()  # pytest keeps every record of torch's
    memory, objects, flat = [], [], False
    try:
        while not flat and len(memory) < 5 * ROUNDS:
            from_two_threads([0, 1], groups)
            gc.collect()
            give_back()
            memory.append(psutil.Process().memory_info().rss)
            objects.append(len(gc.get_objects()))
            last = slice(-ROUNDS, None)
            still = max(memory[last]) - min(memory[last]) < 8 * 2**20
            flat = comm.allreduce(still and len(memory) >= ROUNDS, MPI.LAND)
    finally:
        logging.disable(logging.NOTSET)
    assert flat, f"resident bytes after each round: {memory}"
    assert max(objects[last]) - objects[-ROUNDS] < 100, f"objects after each round: {objects}"


def give_back() -> None:
    """Have glibc return what is free: after a thousand other tests, its heaps have holes that come and go."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def from_two_threads(seeds: list[int], groups: list[list[tuple[list[int], Any]]]) -> None:
    """COLLECTIVES random ones, half of them from each thread, in groups of the thread's own."""
    wrong: list[Any] = []

    def run(seed: int, own: list[tuple[list[int], Any]]) -> None:
        try:
            wrong.append(stress(seed, own, COLLECTIVES // 2))
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=run, args=pair) for pair in zip(seeds, groups, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == [0, 0]
