"""What one process computes for two layers, whether all ranks agree, and how often they meet."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from mpi4py import MPI

Array = np.ndarray[Any, Any]


def by_autograd(x: Array, A: Array, B: Array, target: Array) -> tuple[Array, ...]:
    """y = relu(x @ A) @ B and, by autograd, the gradients of half the mean squared error: of x, A and B."""
    inputs = [torch.tensor(array, requires_grad=True) for array in (x, A, B)]
    y = torch.relu(inputs[0] @ inputs[1]) @ inputs[2]
    loss = (y - torch.tensor(target)).square().sum() / (2 * len(x))
    return tuple(tensor.detach().numpy() for tensor in (y, *torch.autograd.grad(loss, inputs)))


def all_equal(comm: MPI.Intracomm, got: Sequence[Array], expected: Sequence[Array]) -> list[bool]:
    """For each array, whether it is the expected one, to 1e-12, on every rank of `comm`."""
    here = [
        np.shape(a) == b.shape and np.allclose(a, b, rtol=0, atol=1e-12)
        for a, b in zip(got, expected, strict=True)
    ]
    return [bool(equal) for equal in np.all(comm.allgather(here), axis=0)]


class Counting(MPI.Intracomm):
    """A communicator that counts its all-reduces."""

    count = 0

    def Allreduce(self, *arguments: Any, **options: Any) -> None:
        self.count += 1
        super().Allreduce(*arguments, **options)
