"""Seconds of the library's own exchanges, calls of Python and copies included, by the bytes that they move.

    table = call_seconds(comm)          all pairs of ranks at once
    table["tensor all-reduce"]          {"nbytes": […], "seconds": […]}

What an exchange takes beyond its messages is what the planner (`planner/machine.py` of lesson 16) adds
to the ring's formula. With more ranks than cores the pairs share cores, and an exchange waits for them, too.
"""

from collections.abc import Callable
from typing import Any

import torch
from mpi4py import MPI

from course_lib.comm.regions import all_gathered, all_reduced, reduce_scattered
from course_lib.measure import timed
from course_lib.parallel.pipeline import Neighbours
from course_lib.parallel.zero_shards import all_gather, reduce_scatter
from course_lib.theory.schedules import Action

NUMBERS = tuple(4**power for power in range(3, 11))  # 64 to a million, in 32 bits
WIDTH = 16  # numbers per token
Work = Callable[[], object]


def call_seconds(comm: MPI.Intracomm, repetitions: int = 7) -> dict[str, dict[str, list[float]]]:
    """Seconds of each exchange of two ranks, the slowest pair, when all pairs do the same.

    An odd rank out exchanges nothing. Raises ValueError on all ranks if there is only one.
    """
    if comm.size < 2:
        raise ValueError(f"{comm.size} rank has nobody to exchange with; use 2 ranks or more")
    pair = comm.Split(comm.rank // 2, comm.rank)
    found: dict[str, dict[str, list[float]]] = {}
    for numbers in NUMBERS:
        for name, (nbytes, work) in exchanges(pair, numbers).items():
            active = work if pair.size == 2 else do_nothing
            active()
            seconds = timed(comm, active, repetitions)
            table = found.setdefault(name, {"nbytes": [], "seconds": []})
            table["nbytes"].append(nbytes)
            table["seconds"].append(seconds)
    pair.Free()
    return found


def do_nothing() -> None:
    """What a rank without a partner does."""


def exchanges(pair: Any, numbers: int) -> dict[str, tuple[int, Work]]:
    """By name the bytes and the work of each exchange; bytes of the full array, or of one message."""
    flat = torch.ones(numbers)
    tokens = torch.ones(1, numbers // WIDTH, WIDTH)
    shard = tokens[:, : numbers // WIDTH // 2].contiguous()
    nbytes = flat.nbytes
    return {
        "tensor all-reduce": (nbytes, lambda: all_reduced(pair, flat)),
        "tensor all-gather": (nbytes, lambda: all_gathered(pair, shard, 1)),
        "tensor reduce-scatter": (nbytes, lambda: reduce_scattered(pair, tokens, 1)),
        "data reduce-scatter": (nbytes, lambda: reduce_scatter(pair, flat)),
        "data all-gather": (nbytes, lambda: all_gather(pair, flat)),
        "pipeline message": (nbytes, lambda: pass_on(pair, flat)),
    }


def pass_on(pair: MPI.Intracomm, tensor: torch.Tensor) -> None:
    """A micro-batch to the next stage, and its gradient back."""
    neighbours = Neighbours(pair, {(0, 0): 0, (0, 1): 1})
    if pair.rank == 0:
        neighbours.send(Action("F", 0, 0), 1, tensor)
        neighbours.receive(Action("B", 0, 0), 1)
    else:
        neighbours.receive(Action("F", 1, 0), 0)
        neighbours.send(Action("B", 1, 0), 0, tensor)
    neighbours.wait()
