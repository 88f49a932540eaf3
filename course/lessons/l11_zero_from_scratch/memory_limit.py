"""A model that one rank cannot train under a memory limit, and four can, when stage 3 shards everything.

    limit 192 MiB per rank    1 rank                       16 layers of 16 MiB       no memory left
                              4 ranks, data parallelism    the same, four times      no memory left
                              4 ranks, stage 3             a quarter of each layer   trained a step

As in `lessons/shared/memory_limit.py`, where the ranks are stages of a pipeline, the limit holds in the
processes of jobs that are started for this (Linux only).

Source: Awan and others, OC-DNN, HiPC 2018 (out-of-core models); the way out is that of ZeRO, stage 3.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from course.lessons.shared.memory_limit import (
    LAYERS,
    MIB,
    WIDTH,
    Fit,
    out_of_memory,
    report,
    run_limited,
)

if TYPE_CHECKING:
    from mpi4py import MPI
    from torch import nn

LIMIT_MIB = 192


def fits(
    ranks: int, limit_mib: int = LIMIT_MIB, *, stage: int = 3, layers: int = LAYERS, timeout: float = 240.0
) -> Fit:
    """Try to train a step of a model of `layers` layers with this stage on `ranks` limited processes.

    Raises ValueError, OSError where memory cannot be limited, and RuntimeError as `memory_limit.fits` does.
    """
    if ranks < 1 or layers < 1 or limit_mib < 1:
        raise ValueError(
            f"{layers} layers on {ranks} ranks of {limit_mib} MiB cannot be tried; use at least 1 of each"
        )
    module = "course.lessons.l11_zero_from_scratch.memory_limit"
    return run_limited(module, ranks, [limit_mib, stage, layers], timeout)


def three_tries() -> dict[str, Fit]:
    """One rank, four that keep full copies, and four that shard, each under the limit; prints what happened.

    Where memory cannot be limited, it prints the reason and returns nothing.
    """
    tries = {}
    try:
        for name, ranks, stage in (
            ("1 rank", 1, 0),
            ("4 ranks, data parallelism", 4, 0),
            ("4 ranks, ZeRO", 4, 3),
        ):
            tries[name] = fits(ranks, stage=stage)
            print(f"{name:26} {tries[name].story}")
    except OSError as error:
        print(error)
        return {}
    return tries


# ---------------------------------------------------------------- in a process that is limited


def attempt(comm: MPI.Intracomm, limit_mib: int, stage: int, layers: int) -> Fit:
    """A step of a model whose layers are made one by one, in what this process may have."""
    import torch
    from torch import nn

    from course_lib.effects import memory_limit

    torch.set_num_threads(1)
    step(comm, [nn.Linear(8, 8)], stage)  # what torch and MPI allocate once and for all
    made: list[nn.Linear] = []
    try:
        with memory_limit(limit_mib * MIB):
            while len(made) < layers:
                made.append(nn.Linear(WIDTH, WIDTH))
            step(comm, made, stage)
    except RuntimeError as error:
        if not out_of_memory(error):
            raise
        when = "in training" if len(made) == layers else f"after {len(made)} of {layers} layers"
        report(Fit(comm.size, limit_mib, layers, False, f"rank {comm.rank} has no memory left {when}"))
        comm.Abort(1)  # the others wait for this rank
    return Fit(comm.size, limit_mib, layers, True, "trained a step")


def step(comm: MPI.Intracomm, made: Sequence[nn.Linear], stage: int) -> None:
    """A step of training with `made`, one after the other."""
    import torch
    from torch import nn

    from course.lessons.l11_zero_from_scratch.runs import start

    model = nn.Sequential(*made)
    zero = start(
        comm, model, stage, lambda shards: torch.optim.Adam(shards, lr=1e-4, foreach=False), layers=model
    )
    model(torch.ones(8, made[0].in_features)).square().sum().backward()
    zero.step()


def main(arguments: Sequence[str]) -> None:
    """A rank of the job: LIMIT in MiB, STAGE, LAYERS."""
    from mpi4py import MPI

    limit_mib, stage, layers = map(int, arguments)
    found = attempt(MPI.COMM_WORLD, limit_mib, stage, layers)
    if MPI.COMM_WORLD.rank == 0:
        report(found)


if __name__ == "__main__":
    main(sys.argv[1:])
