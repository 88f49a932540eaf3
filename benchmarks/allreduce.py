"""Collectives by hand beside MPI's own, Gloo and memcpy; and the cost model beside what was measured.

All contenders of a size alternate on one buffer of float32, many times in a row when one is short, as the
OSU benchmarks do. `memcpy` is each rank copying as many bytes: nothing that moves data is faster. The model
is fitted to a ping-pong alone, and predicts the collectives at sizes between those of the ping-pong. Four
ranks on two cores are oversubscribed: their rows say so, and the model does not account for it.

    python -m benchmarks.allreduce [--quick] [--json FILE]
"""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.harness import Row, Timing, main, on_ranks, row
from course_lib.comm.collectives import ring_allgather, tree_broadcast
from course_lib.comm.ping_pong import SIZES as FITTED
from course_lib.comm.ping_pong import measure_ping_pong
from course_lib.fast.collectives import (
    PIECE_BYTES,
    recursive_doubling_allreduce,
    ring_allreduce,
    ring_reduce_scatter,
)
from course_lib.measure import timed
from course_lib.network import loopback
from course_lib.theory.cost_model import (
    Cost,
    predict_seconds,
    recursive_doubling_allreduce_cost,
    ring_allgather_cost,
    ring_allreduce_cost,
    ring_reduce_scatter_cost,
    tree_broadcast_cost,
)
from mpi_classroom.launch import available_cores

if TYPE_CHECKING:
    from mpi4py import MPI

RANKS = (2, 4)
SIZES = tuple(4**power for power in range(1, 14))  # 4 B to 64 MiB
BETWEEN = tuple(
    12 * 4**power for power in range(12)
)  # 12 B to 48 MiB; neither they nor their parts are fitted
SHARED_FROM = 1024  # smaller buffers are not cut into shards
KIB, MIB = 2**10, 2**20
ACCURACY = 35.0  # percent that the median prediction may be off

Work = Callable[[], object]
Arrays = tuple[np.ndarray, np.ndarray, np.ndarray]
Timings = dict[str, tuple[float, float]]  # median and spread in seconds of each contender

# Ours, the peer that does the same, and what to call both.
PAIRS = (
    ("ring", "MPI_Allreduce", "all-reduce, ring", "MPI_Allreduce, in place"),
    ("doubling", "MPI_Allreduce", "all-reduce, recursive doubling", "MPI_Allreduce, in place"),
    ("ring", "Gloo", "all-reduce, ring", "Gloo's all_reduce"),
    ("ring", "memcpy", "all-reduce, ring", "memcpy of as many bytes (the limit)"),
    ("tree", "MPI_Bcast", "broadcast, tree", "MPI_Bcast"),
    ("gather", "MPI_Allgather", "all-gather, ring", "MPI_Allgather"),
    ("reduce", "MPI_Reduce_scatter_block", "reduce-scatter, ring", "MPI_Reduce_scatter_block"),
)
COSTS: Mapping[str, tuple[str, Callable[[int, float], Cost]]] = {
    "ring": ("all-reduce, ring", partial(ring_allreduce_cost, piece_nbytes=PIECE_BYTES)),
    "doubling": (
        "all-reduce, recursive doubling",
        partial(recursive_doubling_allreduce_cost, piece_nbytes=PIECE_BYTES),
    ),
    "tree": ("broadcast, tree", tree_broadcast_cost),
    "gather": ("all-gather, ring", ring_allgather_cost),
    "reduce": ("reduce-scatter, ring", partial(ring_reduce_scatter_cost, piece_nbytes=PIECE_BYTES)),
}


# ---------------------------------------------------------------- on the ranks


def ours(comm: MPI.Comm, arrays: Arrays) -> dict[str, Work]:
    """Our collectives, those that add in fast form: on a full buffer, a shard to send, one to receive."""
    buffer, shard, out = arrays
    works: dict[str, Work] = {
        "ring": lambda: ring_allreduce(comm, buffer),
        "doubling": lambda: recursive_doubling_allreduce(comm, buffer),
        "tree": lambda: tree_broadcast(comm, buffer),
    }
    if buffer.nbytes >= SHARED_FROM:
        works["gather"] = lambda: ring_allgather(comm, shard, buffer)
        works["reduce"] = lambda: ring_reduce_scatter(comm, buffer, out)
    return works


def peers(comm: MPI.Comm, arrays: Arrays) -> dict[str, Work]:
    """What MPI and Gloo have for it, and a copy."""
    import torch
    from mpi4py import MPI
    from torch import distributed

    buffer, shard, out = arrays
    tensor, copy = torch.from_numpy(buffer), np.zeros_like(buffer)
    works: dict[str, Work] = {
        "MPI_Allreduce": lambda: comm.Allreduce(MPI.IN_PLACE, buffer),
        "Gloo": lambda: distributed.all_reduce(tensor),
        "memcpy": lambda: np.copyto(copy, buffer),
        "MPI_Bcast": lambda: comm.Bcast(buffer),
    }
    if buffer.nbytes >= SHARED_FROM:
        works["MPI_Allgather"] = lambda: comm.Allgather(shard, buffer)
        works["MPI_Reduce_scatter_block"] = lambda: comm.Reduce_scatter_block(buffer, out)
    return works


def zeros(comm: MPI.Comm, nbytes: int) -> Arrays:
    """A full buffer, a shard to send and a shard to receive, all of zeros: sums of zeros never overflow."""
    full = np.full(nbytes // 4, 0, np.float32)
    shard = np.full(max(1, full.size // comm.size), 0, np.float32)
    return full, shard, np.full_like(shard, 0)


def race(comm: MPI.Intracomm, sizes: list[int], repetitions: int) -> dict[str, Timings]:
    """Seconds of every contender for every size."""
    result: dict[str, Timings] = {}
    with gloo(comm):
        for nbytes in sizes:
            arrays = zeros(comm, nbytes)
            works = ours(comm, arrays) | peers(comm, arrays)
            result[str(nbytes)] = in_turn(comm, works, nbytes, repetitions)
    return result


def in_turn(comm: MPI.Intracomm, works: Mapping[str, Work], nbytes: int, repetitions: int) -> Timings:
    """Seconds of one run of each, in turn; short ones run often enough for the clock."""
    times = max(3, min(200 if comm.size <= available_cores() else 5, MIB // nbytes))
    medians: dict[str, list[float]] = {name: [] for name in works}
    for work in works.values():
        work()
    for _ in range(repetitions):
        for name, work in works.items():
            medians[name].append(timed(comm, work, times))
    timings = {name: Timing.of(values) for name, values in medians.items()}
    return {name: (timing.median, timing.spread) for name, timing in timings.items()}


@contextmanager
def gloo(comm: MPI.Intracomm) -> Iterator[None]:
    """torch.distributed over Gloo among the ranks of `comm`."""
    from torch import distributed

    os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback())
    with tempfile.TemporaryDirectory() as own:
        store = distributed.FileStore(comm.bcast(f"{own}/store"), comm.size)
        minute = timedelta(seconds=60)
        distributed.init_process_group(
            "gloo", store=store, rank=comm.rank, world_size=comm.size, timeout=minute
        )
        try:
            yield
        finally:
            comm.Barrier()  # rank 0 removes the store's folder
            distributed.destroy_process_group()


def model(
    comm: MPI.Intracomm, fitted: list[int], between: list[int], repetitions: int
) -> dict[str, dict[str, Any]]:
    """For each size that was not fitted and each of our collectives: measured median, spread, predicted."""
    from mpi4py import MPI

    samples = measure_ping_pong(comm, fitted, repetitions=repetitions, piece_nbytes=PIECE_BYTES)
    calls = in_turn(comm, ours(MPI.COMM_SELF, zeros(MPI.COMM_SELF, SHARED_FROM)), SHARED_FROM, repetitions)
    machine = samples.machine() if samples else None
    result: dict[str, dict[str, Any]] = {}
    for nbytes in between:
        timings = in_turn(comm, ours(comm, zeros(comm, nbytes)), nbytes, repetitions)
        if machine:
            result[str(nbytes)] = {
                name: (*timing, predict_seconds(COSTS[name][1](comm.size, nbytes), machine, calls[name][0]))
                for name, timing in timings.items()
            }
    return result


# ---------------------------------------------------------------- rows


def measure(quick: bool) -> list[Row]:
    """Ours beside the peers, then the model beside ours, on two ranks and on four."""
    sizes = [4, 4 * KIB, 256 * KIB, 4 * MIB] if quick else list(SIZES)
    between = [3 * KIB, 192 * KIB] if quick else list(BETWEEN)
    fitted = [size for size in FITTED if size <= MIB] if quick else list(FITTED)
    repetitions = 3 if quick else 15
    rows: list[Row] = []
    for ranks in RANKS:
        raced = on_ranks(ranks, race, timeout=900, sizes=sizes, repetitions=repetitions)
        for nbytes in sizes:
            rows += size_rows(ranks, nbytes, raced[str(nbytes)])
    for ranks in RANKS:
        modelled = on_ranks(
            ranks, model, timeout=900, fitted=fitted, between=between, repetitions=repetitions
        )
        rows += model_rows(ranks, modelled)
    return rows


def size_rows(ranks: int, nbytes: int, timings: Timings) -> list[Row]:
    """A row for each pair that this size was measured for."""
    us = {name: Timing(*timing).times(1e6) for name, timing in timings.items()}
    return [
        row(label(what, ranks, nbytes), ranks, us[mine], us[theirs], name, unit="us")
        for mine, theirs, what, name in PAIRS
        if mine in us
    ]


def model_rows(ranks: int, predicted: Mapping[str, Mapping[str, tuple[float, float, float]]]) -> list[Row]:
    """A row for each prediction, and one for the median of what they miss by."""
    rows, misses = [], []
    for nbytes, collectives in predicted.items():
        for name, (median, spread, seconds) in collectives.items():
            case = label(f"model: {COSTS[name][0]}", ranks, int(nbytes))
            measured, said = Timing(median, spread).times(1e6), Timing(seconds, 0).times(1e6)
            rows.append(row(case, ranks, measured, said, "the model's prediction", unit="us"))
            misses.append(100 * abs(seconds / median - 1))
    off = statistics.median(misses)
    case = label("model: median of what it is off by", ranks)
    spread = max(misses) - min(misses)
    name = "what it may be off by"
    rows.append(Row(case, ranks, off, ACCURACY, name, ACCURACY / off, "%", "lower", spread, 0.0))
    return rows


def label(what: str, ranks: int, nbytes: int | None = None) -> str:
    """The case's name: what, how much, and whether the ranks share cores."""
    size = "" if nbytes is None else f", {say_bytes(nbytes)}"
    return f"{what}{size}{', oversubscribed' if ranks > available_cores() else ''}"


def say_bytes(nbytes: int) -> str:
    for unit, name in ((MIB, "MiB"), (KIB, "KiB")):
        if nbytes >= unit:
            return f"{nbytes / unit:g} {name}"
    return f"{nbytes} B"


if __name__ == "__main__":
    main("Collectives by hand beside MPI's, Gloo's and memcpy; the cost model beside the measured", measure)
