"""Gradient compression: each rank sends a small part of its gradient and keeps the rest for the next step.

    residual + gradient ──→ compress ──→ sent to all ranks ──→ the sum that every rank updates with
      ↑                        │
      └───── residual ←────────┘ what was not sent

**Error feedback** is the arrow back: each rank adds its **residual**, what it did not send, to its next
gradient. Nothing is lost, only late: all that was sent and all residuals add up to all gradients. Without it,
an entry that is never large enough is never sent, and training stalls (Seide et al. 2014). After the last
step the residuals are dropped, and a checkpoint of model and optimizer does not contain them.

**Top-k** sends the k entries of the largest magnitude, each as its index and its value. Every rank picks its
own, so all receive k entries per rank (Aji & Heafield 2017; Stich, Cordonnier & Jaggi 2018). With n ranks and
float32, each rank sends fewer bytes than in a ring all-reduce only if k is less than 1/n of all entries.

**PowerSGD** sends two thin matrices whose product approximates a layer's gradient. Each is a product with the
gradient, so Allreduce can sum it over the ranks (Vogels, Karimireddy & Jaggi 2019):

    matrix (n, m)  ≈  left (n, r) · right (r, m)      (n + m) · r numbers instead of n · m

These are fewer numbers only if r < n · m / (n + m).

Use either instead of `GradientBucket.sum`: each leaves the sum over all ranks in the gradients of the model,
so the optimizer needs no change. On every rank the sum has the same bits: with top-k by construction; with
PowerSGD if QR and matrix products return the same bits on all ranks, as they do on equal CPUs with equal
thread counts.

Seide, Fu, Droppo, Li & Yu, "1-bit stochastic gradient descent" (2014); Aji & Heafield, "Sparse communication
for distributed gradient descent" (2017); Stich, Cordonnier & Jaggi, "Sparsified SGD with memory" (2018);
Vogels, Karimireddy & Jaggi, "PowerSGD: practical low-rank gradient compression" (2019).
"""

from collections.abc import Sequence
from math import ceil

import numpy as np
import torch
from mpi4py import MPI
from torch import nn

from course_lib.parallel.data_parallel import equal_trainable_parameters
from course_lib.training.flat import FlatGradients, check_unfrozen, copy_back, flatten
from course_lib.training.models import derived_seed


class TopK:
    """Sums the largest entries of each rank's gradient over `comm`; all ranks must construct it.

        top_k = TopK(comm, model, fraction=0.01)
        step = make_step(model, loss_fn, optimizer, top_k.sum)

    Each rank sends `fraction` of the entries of the whole model's gradient per step, at least one; 1 sends
    all. A layer with small gradients may wait many steps. A gradient that is None counts as
    zeros.

    ValueError on all ranks if `fraction` is not in (0, 1], or if ranks differ in parameters or `fraction`.
    """

    def __init__(self, comm: MPI.Intracomm, model: nn.Module, *, fraction: float) -> None:
        parameters = equal_trainable_parameters(comm, model, fraction=fraction)
        if not 0 < fraction <= 1:
            raise ValueError(f"`fraction` is {fraction}; it must be above 0 and at most 1")
        self.comm, self.model, self.gradients = comm, model, FlatGradients(parameters)
        self.residual = torch.zeros_like(self.gradients.flat)  # (N,) what this rank has not sent yet
        count = ceil(fraction * len(self.residual))
        entry = np.dtype([("index", np.int32), ("value", self.residual.numpy().dtype)])
        self.chosen = np.empty(count, entry)  # (k,)
        self.received = np.empty((comm.size, count), entry)  # (ranks, k)

    def sum(self) -> None:
        """Replace the gradients by the sum of the entries that all ranks send, with one Allgather.

        ValueError if a parameter was unfrozen or converted to another dtype since the construction.
        """
        check_unfrozen(self.model, self.gradients.parameters)
        self.gradients.collect()
        total, residual = self.gradients.flat.numpy(), self.residual.numpy()
        residual += total  # error feedback: what was not sent before is added to the new gradient
        indices = self.residual.abs().topk(len(self.chosen)).indices.numpy()
        self.chosen["index"], self.chosen["value"] = indices, residual[indices]
        residual[indices] = 0
        self.comm.Allgather(self.chosen.view(np.uint8), self.received.view(np.uint8))
        total[:] = 0
        for entries in self.received:  # in the order of the ranks, so that all get the same bits
            total[entries["index"]] += entries["value"]  # adds once per index: those of one rank are distinct


class PowerSGD:
    """Sums a low-rank approximation of the gradients over `comm`; all ranks must construct it.

        power = PowerSGD(comm, model, matrix_rank=4)
        step = make_step(model, loss_fn, optimizer, power.sum)

    The gradient of a weight (out, …) counts as a matrix (out, product of the rest), transposed if that is
    taller than wide, and is approximated by a matrix of rank `matrix_rank`. At full rank, which is also the
    most that is used, the sum is exact up to rounding. Biases and other vectors are sent as they are.

    Each call is one step of the power method and starts where the last one ended, so the approximation
    improves while gradients change slowly. The first start (`right`) is the same on all ranks; after a
    gradient of zero, the method starts there again.

    A gradient that is None counts as zeros. One that is not finite makes the residuals of its layer NaN on
    all ranks, also in all later steps.

    ValueError on all ranks if `matrix_rank` is below 1, or if ranks differ in parameters or `matrix_rank`.
    """

    def __init__(self, comm: MPI.Intracomm, model: nn.Module, *, matrix_rank: int) -> None:
        parameters = equal_trainable_parameters(comm, model, matrix_rank=matrix_rank)
        if matrix_rank < 1:
            raise ValueError(f"`matrix_rank` is {matrix_rank}; it must be at least 1")
        self.comm, self.model, self.gradients = comm, model, FlatGradients(parameters)
        self.vectors = [view for view in self.gradients.views if view.ndim < 2]
        self.matrices = [view for view in self.gradients.views if view.ndim >= 2]
        self.residuals = [torch.zeros_like(_wide(view)) for view in self.matrices]  # (n, m) each, n <= m
        generator = torch.Generator().manual_seed(derived_seed(0, "PowerSGD"))
        self.starts = [
            torch.randn(
                matrix.shape[1], min(matrix_rank, len(matrix)), generator=generator, dtype=matrix.dtype
            )
            for matrix in self.residuals
        ]  # (m, r) each
        self.rights = self.starts

    def sum(self) -> None:
        """Replace the gradients by the sum of the approximations of all ranks, with two Allreduces.

        ValueError if a parameter was unfrozen or converted to another dtype since the construction.
        """
        check_unfrozen(self.model, self.gradients.parameters)
        self.gradients.collect()
        wanted = [
            _wide(view) + residual for view, residual in zip(self.matrices, self.residuals, strict=True)
        ]  # (n, m)
        rights = [  # the power method cannot leave a column of zeros, which a gradient of zero leaves behind
            torch.where(right.any(0), right, start)
            for right, start in zip(self.rights, self.starts, strict=True)
        ]
        lefts = [matrix @ right for matrix, right in zip(wanted, rights, strict=True)]  # (n, r)
        self._allreduce([*self.vectors, *lefts])
        lefts = [torch.linalg.qr(left).Q for left in lefts]  # orthonormal columns, the same on all ranks
        self.rights = [matrix.T @ left for matrix, left in zip(wanted, lefts, strict=True)]  # (m, r)
        # Before the rights are summed: the residual is what this rank's own approximation lacks of its own
        # matrix. Over all ranks, residuals and total then add up to the wanted sum.
        self.residuals = [
            matrix - left @ right.T for matrix, left, right in zip(wanted, lefts, self.rights, strict=True)
        ]
        self._allreduce(self.rights)
        for view, left, right in zip(self.matrices, lefts, self.rights, strict=True):
            view.copy_(_unwide(left @ right.T, view.shape))

    def _allreduce(self, tensors: Sequence[torch.Tensor]) -> None:
        """Sum all `tensors` over the ranks, in place, in one Allreduce."""
        if tensors:
            message = flatten(tensors)
            self.comm.Allreduce(MPI.IN_PLACE, message.numpy())
            copy_back(message, tensors)


def _wide(gradient: torch.Tensor) -> torch.Tensor:
    """The `gradient` (out, …) as a matrix (n, m) with n <= m, so that n columns span all of it."""
    matrix = gradient.flatten(1)
    return matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T


def _unwide(matrix: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """The reverse of `_wide`: the gradient of this `shape`; a square one was not transposed."""
    return (matrix if len(matrix) == shape[0] else matrix.T).reshape(shape)
