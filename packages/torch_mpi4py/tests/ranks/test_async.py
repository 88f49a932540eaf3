"""Asynchronous works, threads, and a thousand collectives at once, against a serial oracle."""

import contextlib
import ctypes
import functools
import gc
import logging
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import numpy as np
import psutil
import pytest
import torch
import torch.distributed as dist
from mpi4py import MPI

import torch_mpi4py
from torch_mpi4py import collectives
from torch_mpi4py.channel import Call, Channel
from torch_mpi4py.collectives import barrier

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int32, torch.int64, torch.bool, torch.complex64]
ROUNDS, COLLECTIVES = 10, 100


@pytest.fixture(autouse=True)
def world(comm: MPI.Intracomm) -> Iterator[None]:
    torch_mpi4py.init_process_group(comm, timeout=timedelta(seconds=50))
    yield
    dist.destroy_process_group()


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


def test_messages_have_futures_too() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    if size == 1:
        return
    got = torch.empty(2)
    work = dist.irecv(got, (rank - 1) % size)
    future = work.get_future()
    dist.isend(torch.full((2,), float(rank)), (rank + 1) % size)
    future.wait()
    assert work.is_completed() and got.tolist() == [(rank - 1) % size] * 2


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


def random_collective(
    random: np.random.Generator, members: list[int]
) -> tuple[Callable[..., Any], list[torch.Tensor], list[list[torch.Tensor]]]:
    """A call for one of `members`, the tensors each gives, and what each must have afterwards.

    Every rank draws the same. `call(index, tensor, group, later)` starts it and returns its results.
    """
    dtype = DTYPES[random.integers(len(DTYPES))]
    shape = tuple(random.integers(0, 6, random.integers(0, 4)))
    if random.random() < 0.05:
        shape = (70_000,)
    n = len(members)
    given = [torch.from_numpy(random.integers(0, 3, shape)).reshape(shape).to(dtype) for _ in range(n)]
    root = int(random.integers(n))
    total = functools.reduce(torch.logical_or if dtype == torch.bool else torch.add, given)
    kind = ["all_reduce", "broadcast", "reduce", "all_gather", "gather", "all_to_all", "barrier"][
        random.integers(7)
    ]

    def call(index: int, tensor: torch.Tensor, group: Any, later: bool) -> tuple[Any, list[torch.Tensor]]:
        places = [torch.empty_like(tensor) for _ in range(n)]
        wait = {"group": group, "async_op": later}
        if kind == "all_reduce":
            return dist.all_reduce(tensor, **wait), [tensor]
        if kind == "broadcast":
            return dist.broadcast(tensor, src=members[root], **wait), [tensor]
        if kind == "reduce":
            return dist.reduce(tensor, dst=members[root], **wait), [tensor]
        if kind == "all_gather":
            return dist.all_gather(places, tensor, **wait), places
        if kind == "gather":
            at_root = index == root
            return dist.gather(
                tensor, places if at_root else None, dst=members[root], **wait
            ), places if at_root else []
        if kind == "all_to_all":
            return dist.all_to_all(places, [tensor.clone() for _ in range(n)], **wait), places
        return dist.barrier(**wait), []

    expected = {
        "all_reduce": [[total]] * n,
        "broadcast": [[given[root]]] * n,
        "reduce": [[total] if index == root else [given[index]] for index in range(n)],
        "all_gather": [given] * n,
        "gather": [given if index == root else [] for index in range(n)],
        "all_to_all": [given] * n,
        "barrier": [[]] * n,
    }[kind]
    return call, given, expected


def stress(seed: int, groups: list[tuple[list[int], Any]], count: int) -> int:
    """`count` random collectives, half of them asynchronous, in random groups; how many went wrong here."""
    random, rank, open_works, wrong = np.random.default_rng(seed), dist.get_rank(), [], 0
    for number in range(count):
        members, group = groups[random.integers(len(groups))]
        call, given, expected = random_collective(random, members)
        later = bool(random.random() < 0.5)
        if rank not in members:
            continue
        index = members.index(rank)
        strided = torch.stack([given[index]] * 2, dim=-1)[..., 0] if number % 3 == 0 else given[index].clone()
        work, results = call(index, strided, group, later)
        open_works.append((work, results, expected[index]))
        if len(open_works) > 8 or not later:
            wrong += wrong_works(open_works)
    return wrong + wrong_works(open_works)


def wrong_works(works: list[tuple[Any, list[torch.Tensor], list[torch.Tensor]]]) -> int:
    """Wait for all and forget them; how many differ from what is expected."""
    for work, _, _ in works:
        if work is not None:
            work.wait()
    wrong = sum(
        not all(torch.equal(result, value) for result, value in zip(results, expected, strict=True))
        for _, results, expected in works
    )
    works.clear()
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


def test_the_stress_notices_a_broadcast_that_does_nothing(
    comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
) -> None:
    if dist.get_world_size() == 1:
        return

    def nothing(channel: Channel, tensors: list[torch.Tensor], root: int) -> Call:
        return barrier(channel)

    monkeypatch.setattr(collectives, "broadcast", nothing)
    assert comm.allreduce(stress(0, new_groups(comm.size)[:1], 60)) > 0
