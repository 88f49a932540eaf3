"""A model that one rank cannot hold and several can: every rank may use only so much memory for its stage.

    limit 192 MiB per rank    1 rank     16 layers of 16 MiB     no memory left after some of them
                              2 ranks     8 layers each          trained a step

The limit holds in processes of a job that is started for it, never in the one that asks: what a limit has
refused may leave a process in pieces. Linux counts the memory of a process's data (RLIMIT_DATA); elsewhere
the limit cannot be set, and `fits` says so.
"""

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from course_lib.theory.partition import even_range
from mpi_classroom.job_output import marked_lines
from mpi_classroom.launch import run_ranks

if TYPE_CHECKING:
    from mpi4py import MPI
    from torch import nn
    from torch.optim import Optimizer

MIB = 2**20
WIDTH = 1024  # numbers between two layers: a layer's weights are 4 MiB, with gradient and Adam's state 16
LAYERS = 16
STATUS = Path("/proc/self/status")
MARK = "memory limit: "
# A freed tensor goes back at once. Left to itself, glibc keeps a part of what was freed, each time another.
TENSORS_APART = {"MALLOC_MMAP_THRESHOLD_": str(MIB // 4), "MALLOC_ARENA_MAX": "1"}


@dataclass(frozen=True, slots=True)
class Fit:
    """Whether the model could be trained on so many ranks with that limit, and in words what happened."""

    ranks: int
    limit_mib: int
    layers: int
    trained: bool
    story: str


def layer_bytes(width: int = WIDTH) -> int:
    """What a layer occupies in training: weights, their gradient and Adam's two averages, in float32."""
    return 4 * 4 * (width * width + width)


def fits(ranks: int, limit_mib: int, *, layers: int = LAYERS, timeout: float = 60.0) -> Fit:
    """Try to train one step of a model of `layers` layers, a stage on each of `ranks` limited processes."""
    if not 1 <= ranks <= layers or limit_mib < 1:
        raise ValueError(
            f"{layers} layers on {ranks} ranks of {limit_mib} MiB cannot be tried; "
            f"use 1 to {layers} ranks and at least 1 MiB"
        )
    return run_limited("course.lessons.shared.memory_limit", ranks, [limit_mib, layers], timeout)


def run_limited(module: str, ranks: int, arguments: Sequence[int], timeout: float) -> Fit:
    """Run `python -m module *arguments` on `ranks` ranks, and read what one of them prints."""
    if not STATUS.exists():
        raise OSError(f"{STATUS} is missing: a process's memory can be limited on Linux only; go on without")
    environment = os.environ | TENSORS_APART
    job = run_ranks(ranks, ["-m", module, *map(str, arguments)], timeout=timeout, environment=environment)
    fits_found = marked_lines(job.stdout, MARK)
    if not fits_found:
        raise RuntimeError(f"the job of {ranks} ranks ended without a word:\n{job.stdout}\n{job.stderr}")
    return Fit(**fits_found[-1])


# ---------------------------------------------------------------- in a process that is limited


def attempt(limit_mib: int, layers: int) -> Fit:
    """Build this rank's stage, with all that training needs, in what it may have; then train a step."""
    import torch
    from mpi4py import MPI

    from course_lib.effects import memory_limit

    comm = MPI.COMM_WORLD
    torch.set_num_threads(1)
    build(1)  # what torch allocates once and for all
    with memory_limit(limit_mib * MIB):
        return train_limited(comm, limit_mib, layers)


def train_limited(comm: "MPI.Intracomm", limit_mib: int, layers: int) -> Fit:
    """Build and train within the limit; ends the job where a rank runs out of memory in training."""
    mine = even_range(layers, comm.size, comm.rank)
    built = build(len(mine))
    for rank, got in enumerate(comm.allgather(len(built))):
        wanted = len(even_range(layers, comm.size, rank))
        if got < wanted:
            story = f"rank {rank} has no memory left after {got} of its {wanted} layers"
            return Fit(comm.size, limit_mib, layers, False, story)
    try:
        train(comm, built)
    except RuntimeError as error:
        if not out_of_memory(error):
            raise
        report(Fit(comm.size, limit_mib, layers, False, f"rank {comm.rank} has no memory left in training"))
        comm.Abort(1)  # the others wait for this rank's messages
    return Fit(comm.size, limit_mib, layers, True, "trained a step")


def build(count: int) -> "list[tuple[nn.Module, Optimizer]]":
    """Up to `count` layers with gradients and Adam's state: as many as there is memory for."""
    import torch

    built: list[tuple[nn.Module, Optimizer]] = []
    try:
        for _ in range(count):
            layer = torch.nn.Linear(WIDTH, WIDTH)
            optimizer = torch.optim.Adam(layer.parameters(), lr=1e-4, foreach=False)
            layer(torch.zeros(2, WIDTH)).sum().backward()
            optimizer.step()  # makes its state
            built.append((layer, optimizer))
    except RuntimeError as error:
        if not out_of_memory(error):
            raise
    return built


def train(comm: "MPI.Intracomm", built: "list[tuple[nn.Module, Optimizer]]") -> None:
    """One step of the pipeline."""
    import torch

    from course_lib.parallel.pipeline import run_schedule, split_batch
    from course_lib.theory.schedules import one_f_one_b
    from course_lib.training.loop import Batch

    batch = Batch(torch.ones(8, WIDTH), torch.zeros(8), 8)
    stage = {(0, comm.rank): torch.nn.Sequential(*(layer for layer, _ in built))}
    for _, optimizer in built:
        optimizer.zero_grad()
    run_schedule(
        comm, one_f_one_b(comm.size, 4), stage, lambda out, _: out.square().sum(), split_batch(batch, 4)
    )
    for _, optimizer in built:
        optimizer.step()


def out_of_memory(error: RuntimeError) -> bool:
    """Whether this is how torch says that there is no memory."""
    return "allocate memory" in str(error) or "not enough memory" in str(error)


def report(found: Fit) -> None:
    print(MARK + json.dumps(asdict(found)), flush=True)


def main(arguments: Sequence[str]) -> None:
    """A rank of the job: LIMIT in MiB, LAYERS."""
    found = attempt(int(arguments[0]), int(arguments[1]))
    from mpi4py import MPI

    if MPI.COMM_WORLD.rank == 0:
        report(found)


if __name__ == "__main__":
    main(sys.argv[1:])
