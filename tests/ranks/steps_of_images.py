"""What the tests of data parallelism on images train on, with, and leave behind."""

from dataclasses import dataclass

import numpy as np
import torch
from mpi4py import MPI
from torch import nn

from course_lib.training.loop import Batch

# Three steps: divisible by no number of ranks above 1, then fewer than four samples, then a single one.
STEPS = [np.arange(11), np.arange(11, 14), np.arange(14, 15)]


@dataclass(frozen=True)
class Trace:
    """What training leaves behind: the gradients of each step, then the weights and the outputs."""

    gradients: list[torch.Tensor]
    weights: torch.Tensor
    outputs: torch.Tensor


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=1e-3)


def convert(batch: Batch, dtype: torch.dtype = torch.float64) -> Batch:
    return Batch(batch.inputs.to(dtype), batch.targets, batch.global_size)


def differences(ours: Trace, theirs: Trace) -> list[float]:
    """How far each gradient, the weights and the outputs are apart, relative to the oracle's norm."""
    pairs = [*zip(ours.gradients, theirs.gradients, strict=True)]
    pairs += [(ours.weights, theirs.weights), (ours.outputs, theirs.outputs)]
    return [float((a - b).norm() / b.norm()) for a, b in pairs]


def worst(comm: MPI.Intracomm, ours: Trace, theirs: Trace) -> float:
    """The largest difference on any rank."""
    return comm.allreduce(max(differences(ours, theirs)), op=MPI.MAX)
