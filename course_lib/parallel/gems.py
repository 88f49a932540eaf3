"""GEMS: two replicas of a model on the same ranks, in opposite directions.

    rank            0        1        2        3
    replica 0    stage 0  stage 1  stage 2  stage 3    forward →
    replica 1    stage 3  stage 2  stage 1  stage 0    ← forward

While replica 0 goes backward, from rank 3 to rank 0, the ranks that it has left go forward with replica 1,
in the memory that was freed. The schedules are `gems_mast` and `gems_master`; `run_schedule` executes them.
Before the update the gradients of the replicas are summed, each pair of ranks exchanging two stages. Jain et
al. (2020), "GEMS: GPU-Enabled Memory-Aware Model-Parallelism System for Distributed DNN Training".
"""

import copy
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from mpi4py import MPI
from torch import nn
from torch.nn.utils import parameters_to_vector

GEMS_TAG = 5101


def place_replicas(comm: MPI.Intracomm, stages: Sequence[nn.Module]) -> dict[tuple[int, int], nn.Module]:
    """This rank's modules by (replica, stage): copies of stage r for replica 0 and p-1-r for replica 1."""
    if len(stages) != comm.size:
        raise ValueError(
            f"{len(stages)} stages cannot be placed on {comm.size} ranks; cut the model into those"
        )
    mirrored = comm.size - 1 - comm.rank
    return {
        (0, comm.rank): copy.deepcopy(stages[comm.rank]),
        (1, mirrored): copy.deepcopy(stages[mirrored]),
    }


def sum_replicas(comm: MPI.Intracomm, modules: Mapping[tuple[int, int], nn.Module]) -> None:
    """Make the gradients of both replicas of every stage their sum, in place.

    Ranks r and p-1-r have the same two stages, and go through them in the same order: with another order on
    one of them they would wait for each other for ever. With an odd number the middle rank adds its own two.
    """
    partner = comm.size - 1 - comm.rank
    if partner == comm.rank:
        first, second = (flat_gradient(module) for module in modules.values())
        for module in modules.values():
            write_gradient(module, first + second)
        return
    for (_, stage), module in sorted(modules.items(), key=lambda item: item[0][1]):
        mine = flat_gradient(module)
        theirs = torch.empty_like(mine)
        tag = GEMS_TAG + stage
        comm.Sendrecv(mine.numpy(), partner, tag, theirs.numpy(), partner, tag)
        write_gradient(module, mine + theirs)  # a + b has the same bits as b + a


def flat_gradient(module: nn.Module) -> torch.Tensor:
    """All gradients of `module` in one vector; zeros where there is none."""
    found = [p.grad if p.grad is not None else torch.zeros_like(p) for p in module.parameters()]
    return parameters_to_vector(found) if found else torch.empty(0)


def write_gradient(module: nn.Module, flat: torch.Tensor) -> None:
    """The reverse of `flat_gradient`."""
    sizes = np.cumsum([p.numel() for p in module.parameters()])[:-1].tolist()
    for parameter, part in zip(module.parameters(), flat.tensor_split(sizes), strict=False):
        parameter.grad = part.view_as(parameter).clone()
