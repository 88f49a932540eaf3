"""The pipeline on one screen equals one process, on as many ranks as this session has."""

import copy
from itertools import pairwise
from typing import Any

import pytest
import torch
from mpi4py import MPI
from torch import nn
from torch.nn import functional as F

from course_lib.parallel.stages import run_stage
from course_lib.theory.schedules import gpipe, one_f_one_b

WIDTH = 6


def parts_of(m: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Micro-batches of 1 to m samples."""
    torch.manual_seed(2)
    return [(torch.randn(n, 5), torch.randn(n, 3)) for n in range(1, m + 1)]


def summed(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.mse_loss(outputs, targets, reduction="sum")


def gradients(comm: MPI.Intracomm, schedule: Any, m: int, parts: Any) -> tuple[float, float]:
    """How far loss and gradients are from those of one process, the largest over all ranks."""
    torch.manual_seed(1)
    sizes = [5, *[WIDTH] * comm.size, 3]
    layers = nn.Sequential(*(nn.Sequential(nn.Linear(a, b), nn.Tanh()) for a, b in pairwise(sizes)))
    ends = [comm.rank, comm.rank + 1 + (comm.rank == comm.size - 1)]  # the last rank has two layers
    stage = copy.deepcopy(layers[ends[0] : ends[1]])
    todo = [(action.kind, action.microbatch) for action in schedule(comm.size, m)[comm.rank]]
    loss = comm.allreduce(run_stage(comm, stage, todo, parts, summed, WIDTH))
    expected = torch.stack([summed(layers(x), y) for x, y in parts_of(m)]).sum()
    expected.backward()
    pairs = zip(stage.parameters(), layers[ends[0] : ends[1]].parameters(), strict=True)
    far = max((one.grad - other.grad).abs().max().item() for one, other in pairs)
    return abs(loss - expected.item()), comm.allreduce(far, op=MPI.MAX)


@pytest.mark.parametrize("m", [1, 2, 7])
@pytest.mark.parametrize("schedule", [gpipe, one_f_one_b])
def test_stages_equal_one_process(comm: MPI.Intracomm, schedule: Any, m: int) -> None:
    torch.set_default_dtype(torch.float64)
    try:
        assert max(gradients(comm, schedule, m, parts_of(m))) < 1e-10
        wrong = [*parts_of(m)[:-1], (parts_of(m)[-1][0] + 1, parts_of(m)[-1][1])]
        assert min(gradients(comm, schedule, m, wrong)) > 1e-3
    finally:
        torch.set_default_dtype(torch.float32)
