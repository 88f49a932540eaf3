"""Stage 0, to compare with: data parallelism, every rank keeps everything; with the methods of the others."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from mpi4py import MPI
from torch import nn
from torch.nn.utils import clip_grad_norm_
from torch.optim import AdamW

from course_lib.parallel.zero.slices import BUCKET_BYTES, all_gather, buckets_of, raw, reduce_scatter
from course_lib.parallel.zero.stage1 import MakeOptimizer, state_of
from course_lib.training.flat import flatten, parts_of


class Row:
    """Parameters and their gradients in two flat rows; `master` is what the optimizer updates."""

    def __init__(self, comm: MPI.Intracomm, parameters: list[nn.Parameter]) -> None:
        self.parameters, self.mine = parameters, flatten(parameters)  # all of it
        comm.Bcast(raw(self.mine), root=0)  # all replicas start equal
        self.gradients = torch.zeros_like(self.mine)
        self.parts = parts_of(self.mine, parameters)
        parts = zip(self.parts, parts_of(self.gradients, parameters), strict=True)
        for parameter, (weights, gradient) in zip(parameters, parts, strict=True):
            parameter.data, parameter.grad = weights, gradient  # backward adds to it
        wide = self.mine.element_size() >= 4
        self.master = nn.Parameter(self.mine if wide else self.mine.float())


class Zero0:
    """An optimizer of `model`, the same on all ranks of `comm`; settings as for `Zero1`."""

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
        self.buckets = [Row(comm, each) for each in buckets_of(model.parameters(), bucket_bytes)]
        self.masters = [bucket.master for bucket in self.buckets]
        self.optimizer = make_optimizer(list(self.masters))

    @torch.no_grad()
    def step(self) -> float | None:
        """Sum the gradients on all ranks (both halves of an all-reduce), and update all weights on each."""
        for bucket in self.buckets:
            reduce_scatter(self.comm, bucket.gradients)
            all_gather(self.comm, bucket.gradients)
            bucket.master.grad = bucket.gradients.to(bucket.master.dtype, copy=self.max_norm is not None)
        norm = self.max_norm and float(clip_grad_norm_(self.masters, self.max_norm))
        self.optimizer.step()
        for bucket in self.buckets:
            bucket.master.grad = None
            if bucket.mine.dtype != bucket.master.dtype:
                bucket.mine.copy_(bucket.master)  # rounds
        return norm

    def zero_grad(self) -> None:
        """Clear the gradients where they are."""
        for bucket in self.buckets:
            bucket.gradients.zero_()

    def held(self) -> dict[str, Iterable[torch.Tensor | None]]:
        """What a rank keeps between two steps: weights, gradients, optimizer state."""
        return {
            "weights": [bucket.mine for bucket in self.buckets],
            "gradients": [bucket.gradients for bucket in self.buckets],
            "optimizer": state_of(self.optimizer, self.buckets),
        }
