"""Stage 2: gradients are sharded too. A bucket is summed and freed as soon as backward has filled it."""

from __future__ import annotations

from typing import Any

import torch
from mpi4py import MPI
from torch import nn
from torch.optim import AdamW

from course_lib.parallel.zero.slices import reduce_scatter
from course_lib.parallel.zero.stage1 import MakeOptimizer, Sharded
from course_lib.training.flat import flatten


class Zero2(Sharded):
    """As `Zero1`, and of the gradients a rank keeps its `slices` only.

    Every backward pass sums its gradients: for several passes a step, the slices add up. Parameters that
    backward did not reach have a gradient of zero. All ranks must reach the same buckets in the same order.
    """

    def __init__(
        self, comm: MPI.Intracomm, model: nn.Module, make_optimizer: MakeOptimizer = AdamW, **settings: Any
    ) -> None:
        super().__init__(comm, model, make_optimizer, **settings)
        self.slices = self.gradients = [torch.zeros_like(bucket.mine) for bucket in self.buckets]
        self.bucket_of = {p: index for index, bucket in enumerate(self.buckets) for p in bucket.parameters}
        self.missing = [set(bucket.parameters) for bucket in self.buckets]
        for parameter in self.bucket_of:
            parameter.register_post_accumulate_grad_hook(self.ready)
        self.left = 0  # the buckets that have left in this pass, in their order

    def ready(self, parameter: torch.Tensor) -> None:
        """A gradient is there: reduce its bucket when it was the last, in the order that all ranks keep."""
        self.missing[self.bucket_of[parameter]].discard(parameter)  # type: ignore[index]
        while self.left < len(self.buckets) and not self.missing[self.left]:
            self.reduce(self.left)
            self.left += 1
        if self.left == len(self.buckets):
            self.begin()

    @torch.no_grad()
    def reduce(self, index: int) -> None:
        """Add the sum of a bucket's gradients to this rank's slice, and free them."""
        parameters = self.buckets[index].parameters
        flat = flatten([torch.zeros_like(p) if p.grad is None else p.grad for p in parameters])
        for parameter in parameters:
            parameter.grad = None
        self.slices[index] += reduce_scatter(self.comm, flat)

    def begin(self) -> None:
        """The next backward pass fills the buckets anew."""
        self.left = 0
        self.missing = [set(bucket.parameters) for bucket in self.buckets]

    def step(self) -> float | None:
        """Update this rank's slices and share them; the norm of the gradients if there is a `max_norm`."""
        if self.left or any(p.grad is not None for p in self.bucket_of):
            for index in range(self.left, len(self.buckets)):  # backward did not reach all parameters
                self.reduce(index)
        self.begin()
        return self.update(self.slices)
