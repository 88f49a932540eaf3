"""Thousands of light calls of the "mpi4py" backend: what goes wrong once in thousands.

The random test (test_differential.py) draws every dtype and layout and compares with Gloo: some calls per
second. Here are few forms, on new groups again and again, hundreds of calls per second: for the most part
coalesced gathers on the owner thread, while the thread that called sends and receives.
"""

import random
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
import torch.distributed as dist
from mpi4py import MPI

from packages.torch_mpi4py.tests.ranks.calls import KINDS, Side, Started, call_of, is_right, wait_for

CALLS, CALLS_PER_GROUP = 4000, 60
LENGTHS = [1, 7, 1000, 1025, 9000, 36_864, 65_536]  # around the sizes at which MPI sends in another way
LIGHT = ["uint8", "int32", "float32", "int64"]


pytestmark = pytest.mark.usefixtures("world")


def begin(group: Any, draw: random.Random, number: int) -> tuple[Started, object]:
    """Begin a random call, the same on all ranks."""
    rank, size = dist.get_rank(), dist.get_world_size()
    kinds = ["all_gather_coalesced"] * 3 + ["all_reduce_coalesced", "broadcast", "all_to_all_single"]
    kinds += ["isend_and_irecv"] * 2 if size > 1 else []
    kind, dtype, root, later = (
        draw.choice(kinds),
        draw.choice(LIGHT),
        draw.randrange(size),
        draw.random() < 0.8,
    )
    call = call_of(kind, size, 0, later=later, number=number, dtype=dtype, root=root)
    call = replace(call, lengths=tuple(draw.choices(LENGTHS, k=size)))
    started = KINDS[kind](Side(call, range(size), rank, group, plain=True))
    return started, started.begin()


def wrong_calls(group: Any, draw: random.Random, count: int) -> int:
    """Make `count` calls, up to five at a time; how many had wrong results here."""
    number = wrong = 0
    while number < count:
        begun = [begin(group, draw, number + more) for more in range(draw.randint(1, 5))]
        number += len(begun)
        for _, work in begun:
            wait_for(work)
        wrong += sum(not is_right(started) for started, _ in begun)
    return wrong


@pytest.mark.slow
@pytest.mark.deadline(900)
@pytest.mark.timeout(900)
def test_thousands_of_calls_on_new_groups_are_right(comm: MPI.Intracomm) -> None:
    draw, wrong = random.Random(0), 0
    for _ in range(CALLS // CALLS_PER_GROUP):
        group = dist.new_group(timeout=timedelta(seconds=100), backend="mpi4py")
        wrong += wrong_calls(group, draw, CALLS_PER_GROUP)
        dist.destroy_process_group(group)
    assert comm.allgather(wrong) == [0] * comm.size
