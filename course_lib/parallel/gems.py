"""GEMS: two replicas of a model on the same ranks, in opposite directions.

    rank            0        1        2        3
    replica 0    stage 0  stage 1  stage 2  stage 3    forward →
    replica 1    stage 3  stage 2  stage 1  stage 0    ← forward

While replica 0 goes backward, from rank 3 to rank 0, the ranks that are done with it go forward with replica
1, in the memory that replica 0 has freed. The schedules are `gems_basic`, `gems_mast` and `gems_master` of
`theory/schedules.py`; `pipeline.run_schedule` executes them. Before the update the gradients of the two
replicas are summed: each pair of ranks exchanges those of two stages. Jain et al. (2020), "GEMS: GPU-Enabled
Memory-Aware Model-Parallelism System for Distributed DNN Training".
"""

import copy
from collections.abc import Mapping, Sequence

import torch
from mpi4py import MPI
from torch import nn

GEMS_TAG = 5101


def place_replicas(comm: MPI.Intracomm, stages: Sequence[nn.Module]) -> dict[tuple[int, int], nn.Module]:
    """Copy this rank's modules, by (replica, stage): stage r for replica 0 and p-1-r for replica 1.

    Raises ValueError unless there is one stage per rank.
    """
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
    """Replace the gradients of both replicas of every stage by their sum, in place.

    `modules` by (replica, stage), as from `place_replicas`. Ranks r and p-1-r have the same two stages and
    exchange them in the same order; in different orders they would wait for each other forever. With an odd
    number of ranks, the middle one has both replicas of its stage and adds them itself.
    """
    partner = comm.size - 1 - comm.rank
    in_order = sorted(modules.items(), key=lambda item: item[0][1])  # by stage
    if partner == comm.rank:
        (_, first), (_, second) = in_order
        for one, other in zip(trained(first), trained(second), strict=True):
            total = gradient(one) + gradient(other)
            one.grad, other.grad = total, total.clone()
        return
    for (_, stage), module in in_order:
        for parameter in trained(module):
            mine = gradient(parameter)
            theirs, tag = torch.empty_like(mine), GEMS_TAG + stage
            comm.Sendrecv(mine.numpy(), partner, tag, theirs.numpy(), partner, tag)
            parameter.grad = mine + theirs  # a + b has the same bits as b + a: the replicas stay equal


def trained(module: nn.Module) -> list[nn.Parameter]:
    """The parameters of `module` that require a gradient."""
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


def gradient(parameter: nn.Parameter) -> torch.Tensor:
    """The gradient of `parameter`, contiguous for MPI; zeros if it has none."""
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.contiguous()
