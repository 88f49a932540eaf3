"""Stage 1: every rank keeps all weights and gradients, but the optimizer state of its own slices only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import torch
from mpi4py import MPI
from torch import nn
from torch.optim import AdamW, Optimizer

from course_lib.parallel.zero.slices import (
    BUCKET_BYTES,
    all_gather,
    buckets_of,
    clip_gradients,
    raw,
    reduce_scatter,
    slices_of,
)
from course_lib.training.flat import flatten, parts_of

MakeOptimizer = Callable[[list[torch.Tensor]], Optimizer]


class Bucket:
    """Parameters that live in one flat row, of which this rank updates a slice.

    `weights` is the row, `mine` this rank's slice of it (a view), `master` what the optimizer updates: `mine`
    itself, or for 16-bit weights a float32 copy.
    """

    def __init__(self, comm: MPI.Intracomm, parameters: Sequence[nn.Parameter]) -> None:
        self.comm, self.parameters = comm, list(parameters)
        self.weights = flatten(self.parameters)
        self.parts = parts_of(self.weights, self.parameters)
        for parameter, part in zip(self.parameters, self.parts, strict=True):
            parameter.data = part
        comm.Bcast(raw(self.weights), root=0)  # all replicas start equal
        self.mine = slices_of(self.weights, comm.size)[comm.rank]
        wide = self.mine.element_size() >= 4
        self.master = nn.Parameter(self.mine if wide else self.mine.float())

    @torch.no_grad()
    def update(self) -> None:
        """Everyone's new slices, in the weights of all ranks."""
        if self.mine.dtype != self.master.dtype:
            self.mine.copy_(self.master)  # rounds
        all_gather(self.comm, self.weights)


class Sharded:
    """What stages 1 and 2 share: buckets, an optimizer of this rank's slices of them, and the update."""

    def __init__(
        self,
        comm: MPI.Intracomm,
        model: nn.Module,
        make_optimizer: MakeOptimizer = AdamW,
        *,
        max_norm: float | None = None,
        bucket_bytes: int = BUCKET_BYTES,
    ) -> None:
        self.comm, self.max_norm = comm, max_norm
        self.buckets = [Bucket(comm, each) for each in buckets_of(model.parameters(), bucket_bytes)]
        self.masters = [bucket.master for bucket in self.buckets]
        self.optimizer = make_optimizer(list(self.masters))
        self.gradients: list[torch.Tensor] = []  # those that a rank keeps, a row for each bucket

    def update(self, slices: Iterable[torch.Tensor]) -> float | None:
        """Update this rank's slices with their gradients, share them; the norm if there is a `max_norm`."""
        for master, gradient in zip(self.masters, slices, strict=True):
            master.grad = gradient.to(master.dtype)
        norm = self.max_norm and clip_gradients(self.comm, self.masters, self.max_norm)
        self.optimizer.step()
        for bucket in self.buckets:
            bucket.update()
            bucket.master.grad = None
        return norm

    def zero_grad(self) -> None:
        """Clear the gradients where they are."""
        for gradient in self.gradients:
            gradient.zero_()

    def held(self) -> dict[str, Iterable[torch.Tensor | None]]:
        """What this rank keeps between two steps: weights, gradients, optimizer state."""
        return {
            "weights": [bucket.weights for bucket in self.buckets],
            "gradients": self.gradients,
            "optimizer": state_of(self.optimizer, self.buckets),
        }


class Zero1(Sharded):
    """An optimizer of `model` whose state is sharded over `comm`; all ranks make it and step together.

        optimizer = Zero1(comm, model, lambda slices: AdamW(slices, lr=1e-3))
        loss.backward(); optimizer.step(); optimizer.zero_grad()

    Losses are divided by the global batch: gradients are summed over the ranks. `max_norm` clips by the norm
    of all gradients. `make_optimizer` gets this rank's slices, one a bucket: it must treat every element
    alike (SGD, Adam, AdamW do; one that looks at whole matrices does not).
    """

    def __init__(
        self, comm: MPI.Intracomm, model: nn.Module, make_optimizer: MakeOptimizer = AdamW, **settings: Any
    ) -> None:
        super().__init__(comm, model, make_optimizer, **settings)
        self.gradients = [torch.zeros_like(bucket.weights) for bucket in self.buckets]
        for bucket, gradient in zip(self.buckets, self.gradients, strict=True):
            for parameter, part in zip(bucket.parameters, parts_of(gradient, bucket.parameters), strict=True):
                parameter.grad = part  # backward adds to it

    def step(self) -> float | None:
        """Sum the gradients, update this rank's slices, and share them; the norm if there is a `max_norm`."""
        return self.update([reduce_scatter(self.comm, gradient) for gradient in self.gradients])


class HasMaster(Protocol):
    """A slice of weights, and what the optimizer updates: the slice itself or a float32 copy."""

    mine: torch.Tensor
    master: nn.Parameter


def state_of(optimizer: Optimizer, buckets: Sequence[HasMaster]) -> list[torch.Tensor]:
    """The tensors that `optimizer` keeps for every element, and the float32 masters if there are any."""
    kept = [
        value
        for state in optimizer.state.values()
        for value in state.values()
        if torch.is_tensor(value) and value.dim()  # not the number of steps
    ]
    return kept + [bucket.master for bucket in buckets if bucket.master.dtype != bucket.mine.dtype]
