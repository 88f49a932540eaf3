"""Thousands of light calls of the "mpi4py" backend: what goes wrong once in thousands.

The random test (test_differential.py) draws every dtype and layout and compares with Gloo: some calls per
second. Here are few forms, on new groups again and again, hundreds of calls per second: for the most part
coalesced gathers on the owner thread, while the thread that called sends and receives.
"""

import random
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from mpi4py import MPI

import torch_mpi4py

CALLS, CALLS_PER_GROUP = 4000, 60
LENGTHS = [1, 7, 1000, 1025, 9000, 36_864, 65_536]  # around the sizes at which MPI sends in another way
DTYPES = [torch.uint8, torch.int32, torch.float32, torch.int64]
Begun = tuple[list[Any], Callable[[], bool]]  # works, and whether the results are right when they are done


@pytest.fixture(autouse=True)
def world(comm: MPI.Intracomm) -> Iterator[None]:
    torch_mpi4py.init_process_group(comm, timeout=timedelta(seconds=100))
    yield
    dist.destroy_process_group()


class Caller:
    """Begins random calls on one group, the same on all ranks."""

    def __init__(self, group: Any, draw: random.Random) -> None:
        self.group, self.draw = group, draw
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.calls = 0

    def begin(self) -> Begun:
        self.calls += 1
        self.dtype, self.start = self.draw.choice(DTYPES), self.draw.randrange(50)
        kinds = [self.gather_coalesced] * 3 + [self.reduce_coalesced, self.broadcast, self.all_to_all]
        if self.size > 1:
            kinds += [self.ring, self.ring]
        return self.draw.choice(kinds)(self.draw.random() < 0.8)

    def values(self, rank: int, length: int) -> torch.Tensor:
        return torch.full((length,), self.start + rank, dtype=self.dtype)

    def everyones(self, length: int) -> torch.Tensor:
        return torch.cat([self.values(rank, length) for rank in range(self.size)])

    def gather_coalesced(self, later: bool) -> Begun:
        lengths = self.draw.choices(LENGTHS, k=3)
        outputs = [torch.zeros(self.size * length, dtype=self.dtype) for length in lengths]
        with dist._coalescing_manager(self.group, async_ops=later) as works:
            for output, length in zip(outputs, lengths, strict=True):
                dist.all_gather_single(output, self.values(self.rank, length), group=self.group)
        right = [self.everyones(length) for length in lengths]
        return [works] * later, lambda: all(map(torch.equal, outputs, right))

    def reduce_coalesced(self, later: bool) -> Begun:
        tensors = [torch.ones(length, dtype=self.dtype) for length in self.draw.choices(LENGTHS, k=2)]
        with dist._coalescing_manager(self.group, async_ops=later) as works:
            for tensor in tensors:
                dist.all_reduce(tensor, group=self.group)
        return [works] * later, lambda: all(bool((tensor == self.size).all()) for tensor in tensors)

    def broadcast(self, later: bool) -> Begun:
        root, length = self.draw.randrange(self.size), self.draw.choice(LENGTHS)
        tensor, right = self.values(self.rank, length), self.values(root, length)
        work = dist.broadcast(tensor, root, self.group, async_op=later)
        return [work] * later, lambda: torch.equal(tensor, right)

    def all_to_all(self, later: bool) -> Begun:
        length = self.draw.choice(LENGTHS)
        output, right = torch.zeros(self.size * length, dtype=self.dtype), self.everyones(length)
        given = self.values(self.rank, self.size * length)
        work = dist.all_to_all_single(output, given, group=self.group, async_op=later)
        return [work] * later, lambda: torch.equal(output, right)

    def ring(self, _later: bool) -> Begun:
        length, left = self.draw.choice(LENGTHS), (self.rank - 1) % self.size
        output, right = torch.zeros(length, dtype=self.dtype), self.values(left, length)
        receive = dist.irecv(output, left, self.group, tag=self.calls)
        given = self.values(self.rank, length)
        send = dist.isend(given, (self.rank + 1) % self.size, self.group, tag=self.calls)
        return [send, receive], lambda: torch.equal(output, right)


def wrong_calls(caller: Caller, count: int) -> int:
    """Make `count` calls, up to five at a time; how many had wrong results here."""
    wrong = 0
    while caller.calls < count:
        begun = [caller.begin() for _ in range(caller.draw.randint(1, 5))]
        for works, _ in begun:
            for work in works:
                work.wait()
        wrong += sum(not is_right() for _, is_right in begun)
    return wrong


@pytest.mark.slow
@pytest.mark.deadline(900)
@pytest.mark.timeout(900)
def test_thousands_of_calls_on_new_groups_are_right(comm: MPI.Intracomm) -> None:
    draw, wrong = random.Random(0), 0
    for _ in range(CALLS // CALLS_PER_GROUP):
        group = dist.new_group(timeout=timedelta(seconds=100), backend="mpi4py")
        wrong += wrong_calls(Caller(group, draw), CALLS_PER_GROUP)
        dist.destroy_process_group(group)
    assert comm.allgather(wrong) == [0] * comm.size
