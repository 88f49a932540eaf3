"""Gradient compression: send a small part of every gradient, and keep the rest for the next step.

    kept + gradient ──→ compress ──→ sent to all ranks ──→ the sum that every rank updates with
      ↑                    │
      └──── kept ←─────────┘ what was not sent

**Error feedback** is the arrow back: each rank adds what it did not send to its next gradient. Nothing is
lost, only late: all that was sent and all that is still kept add up to all gradients. Without it, an entry
that is never large enough is never sent, and training stops short (Seide et al. 2014).

*Top-k* sends the k entries of the largest size, each as its place and its value. Every rank picks its own, so
all receive k entries per rank (Aji & Heafield 2017; Stich, Cordonnier & Jaggi 2018).

*PowerSGD* sends two thin matrices whose product is near the gradient of a layer, and MPI can sum both
(Vogels, Karimireddy & Jaggi 2019):

    matrix (n, m)  ≈  left (n, r) · right (r, m)      (n + m) · r numbers instead of n · m

Both take the place of `GradientBucket.sum`: they leave a sum over all ranks in the gradients of the model,
the same bits on every rank, and the optimizer does not know. Clear the gradients in place.

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
from course_lib.training.flat import FlatBuffer, copy_back, flatten
from course_lib.training.models import derived_seed


class TopK:
    """Sums the largest entries of each rank's gradient over `comm`; all ranks make it together.

        top_k = TopK(comm, model, fraction=0.01)
        step = make_step(model, loss_fn, optimizer, top_k.sum)

    Each rank sends `fraction` of the entries of the model's gradient per step, rounded up; 1 sends all. The
    gradients live in one flat buffer: clear them in place (`set_to_none=False`).

    ValueError on all ranks for a fraction of 0 or less, for one above 1, and unless all ranks have the same
    parameters and fraction.
    """

    def __init__(self, comm: MPI.Intracomm, model: nn.Module, *, fraction: float) -> None:
        parameters = equal_trainable_parameters(comm, model, fraction=fraction)
        if not 0 < fraction <= 1:
            raise ValueError(
                f"a fraction of {fraction} of the entries cannot be sent; give more than 0, at most 1"
            )
        self.comm, self.gradients = comm, FlatBuffer(parameters, zeros=True)
        self.gradients.attach_gradients()
        self.kept = torch.zeros_like(self.gradients.flat)  # (N,) what this rank has not sent yet
        count = ceil(fraction * len(self.kept))
        entry = np.dtype([("place", np.int32), ("value", self.kept.numpy().dtype)])
        self.chosen = np.empty(count, entry)  # (k,)
        self.received = np.empty((comm.size, count), entry)  # (ranks, k)

    def sum(self) -> None:
        """Replace the gradients by the sum of what all ranks send, in one Allgather; keep the rest."""
        self.gradients.check_gradients()
        total, kept = self.gradients.flat.numpy(), self.kept.numpy()
        kept += total  # error feedback: what was not sent before comes with the new gradient
        places = self.kept.abs().topk(len(self.chosen)).indices.numpy()
        self.chosen["place"], self.chosen["value"] = places, kept[places]
        kept[places] = 0
        self.comm.Allgather(self.chosen.view(np.uint8), self.received.view(np.uint8))
        total[:] = 0
        for entries in self.received:  # in the order of the ranks, so that all get the same bits
            total[entries["place"]] += entries["value"]  # no place comes twice from one rank

    @property
    def nbytes(self) -> int:
        """Bytes of this rank's message per step; each other rank receives it."""
        return self.chosen.nbytes


class PowerSGD:
    """Sums a low-rank approximation of the gradients over `comm`; all ranks make it together.

        power = PowerSGD(comm, model, matrix_rank=4)
        step = make_step(model, loss_fn, optimizer, power.sum)

    The gradient of a weight (out, …) counts as a matrix, and is approximated by one of rank `matrix_rank`; at
    its full rank the sum is exact. Biases and other vectors are sent as they are. Each call is one step of
    the power method and starts where the last one ended, so the approximation improves while gradients
    change slowly. `seed` sets the first start, a random matrix that must be the same on all ranks.

    The gradients live in one flat buffer: clear them in place (`set_to_none=False`). ValueError on all ranks
    for a rank below 1, and unless all have the same parameters, rank and seed.
    """

    def __init__(self, comm: MPI.Intracomm, model: nn.Module, *, matrix_rank: int, seed: int = 0) -> None:
        parameters = equal_trainable_parameters(comm, model, matrix_rank=matrix_rank, seed=seed)
        if matrix_rank < 1:
            raise ValueError(f"a matrix of rank {matrix_rank} cannot be sent; give a rank of at least 1")
        self.comm, self.gradients = comm, FlatBuffer(parameters, zeros=True)
        self.gradients.attach_gradients()
        self.vectors = [view for view in self.gradients.views if view.ndim < 2]
        self.matrices = [view for view in self.gradients.views if view.ndim >= 2]
        self.kept = [torch.zeros_like(_wide(view)) for view in self.matrices]  # (n, m) each, n <= m
        generator = torch.Generator().manual_seed(derived_seed(seed, "PowerSGD"))
        self.starts = [
            torch.randn(kept.shape[1], min(matrix_rank, len(kept)), generator=generator, dtype=kept.dtype)
            for kept in self.kept
        ]  # (m, r) each
        self.rights = self.starts

    def sum(self) -> None:
        """Replace the gradients by the sum of what all ranks send, in two Allreduces; keep the rest."""
        self.gradients.check_gradients()
        wanted = [_wide(view) + kept for view, kept in zip(self.matrices, self.kept, strict=True)]  # (n, m)
        rights = [  # the power method cannot leave a column of zeros, which a gradient of zero leaves behind
            torch.where(right.any(0), right, start)
            for right, start in zip(self.rights, self.starts, strict=True)
        ]
        lefts = [matrix @ right for matrix, right in zip(wanted, rights, strict=True)]  # (n, r)
        self._allreduce([*self.vectors, *lefts])
        lefts = [torch.linalg.qr(left).Q for left in lefts]  # orthonormal columns, the same on all ranks
        self.rights = [matrix.T @ left for matrix, left in zip(wanted, lefts, strict=True)]  # (m, r)
        self.kept = [
            matrix - left @ right.T  # of this rank's own matrix: its rights are not summed yet
            for matrix, left, right in zip(wanted, lefts, self.rights, strict=True)
        ]
        self._allreduce(self.rights)
        for view, left, right in zip(self.matrices, lefts, self.rights, strict=True):
            total = left @ right.T
            view.copy_((total if len(total) == len(view) else total.T).reshape(view.shape))

    def _allreduce(self, tensors: Sequence[torch.Tensor]) -> None:
        """Sum all `tensors` over the ranks, in place, in one message."""
        if tensors:
            message = flatten(tensors)
            self.comm.Allreduce(MPI.IN_PLACE, message.numpy())
            copy_back(message, tensors)

    @property
    def nbytes(self) -> int:
        """Bytes that this rank contributes to the two sums per step."""
        sides = [sum(kept.shape) * right.shape[1] for kept, right in zip(self.kept, self.rights, strict=True)]
        numbers = sum(sides) + sum(view.numel() for view in self.vectors)
        return numbers * self.gradients.flat.element_size()


def _wide(gradient: torch.Tensor) -> torch.Tensor:
    """The `gradient` (out, …) as a matrix (n, m) with n <= m, so that n columns span all of it."""
    matrix = gradient.flatten(1)
    return matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
