"""ZeRO from scratch: data parallelism that shards, stage by stage, what every rank would keep a copy of.

    stage   every rank keeps all          and its shard of            it sends
    0       weights, gradients, state                                 2Ψ   all-reduce of the gradients
    1       weights, gradients            state                       2Ψ   reduce-scatter, all-gather
    2       weights                       gradients, state            2Ψ   the same, during backward
    3                                     weights, gradients, state   3Ψ   weights once more for backward

It sends: numbers per step of one backward, times (n - 1)/n for n ranks; Ψ: the parameters.
`plain_zero.py` has stages 1 to 3 in their shortest form.

Parameters lie in flat buffers, and every flat buffer is cut into shards, one per rank; the rank is the
shard's owner. Computation is not sharded: every rank runs the whole model on its own part of the batch. The
caller divides the loss by the global batch size; summing gradients over ranks then gives one process's
gradient, up to rounding.

    zero = Zero2(comm, model, lambda shards: AdamW(shards, lr=1e-3))
    loss.backward(); zero.step(); zero.zero_grad()

Call `zero_grad` between every `step` and the next backward: the shards of stages 2 and 3 hold the sums of the
last step, and their `step` raises ValueError if these were not cleared. A parameter without a gradient has
one of zeros, so momentum and weight decay act on it all the same. Convert, freeze and add parameters before
you construct the stage: `step` raises ValueError after a change.

This file is stages 0, 1 and 2. `zero_shards.py` has what they are made of: `reduce_scatter`, `all_gather`,
buckets, the constructor and `update`, which steps the optimizer of this rank's shards. `zero3.py` is stage 3.

Source: Rajbhandari, Rasley, Ruwase and He, ZeRO: Memory Optimizations Toward Training Trillion Parameter
Models, SC 2020, https://arxiv.org/abs/1910.02054
"""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
from mpi4py import MPI
from torch.optim import Adam, AdamW, Optimizer

from course_lib.parallel.zero_shards import (
    Bucket,
    BucketedOptimizer,
    FullGradients,
    ReplicatedBucket,
    all_gather,
    reduce_scatter,
)
from course_lib.training.flat import flatten

# ------------------------------------------------------------------ stage 0: data parallelism


class Zero0(FullGradients):
    """Stage 0, to compare with: every rank keeps everything, and makes the same update."""

    bucket_type = ReplicatedBucket  # its `shard` is the whole buffer, so `update` updates all weights

    def step(self) -> float | None:
        """Sum the gradients, and update all weights on every rank; returns what `update` returns."""
        self.check_parameters()  # before any message: a step that is refused changes nothing
        for bucket in self.buckets:
            bucket.gradients.collect()  # into the flat buffer, where a `.grad` has been replaced
            reduce_scatter(self.comm, bucket.gradients.flat)  # both in place: an all-reduce
            all_gather(self.comm, bucket.gradients.flat)
        return self.update(MPI.COMM_SELF)  # with all gradients here, a norm over comm counts each n times


# ------------------------------------------------------------------ stage 1: the optimizer's state is sharded


class Zero1(FullGradients):
    """Stage 1: every rank keeps all weights and gradients, and the optimizer state of its own shards."""

    def step(self) -> float | None:
        """Sum the gradients, update this rank's shards, gather the weights; returns what `update` returns."""
        self.check_parameters()
        for bucket in self.buckets:
            bucket.gradients.collect()
            reduce_scatter(self.comm, bucket.gradients.flat)
        norm = self.update(self.comm)
        self.gather_weights()
        return norm


# ------------------------------------------------------------------ stage 2: so are the gradients


class Zero2(BucketedOptimizer):
    """Stage 2: of the gradients, too, a rank keeps its shards only.

    As soon as backward has filled a bucket, its gradients are summed over ranks and the full ones freed. With
    several backward passes per step, the shards add up.

    MPI pairs the sums of different ranks by their order alone, so every rank sums every bucket once per pass,
    in list order; a full bucket waits for those before it. A pass ends at a parameter's second gradient,
    `step` or `zero_grad`. So all ranks must make the same passes, which reach the same parameters, or they
    hang. Only with exactly one pass per `step` may a rank reach fewer, or none: `step` sums the rest.
    """

    def prepare_gradients(self) -> None:
        """Allocate this rank's shards of the gradients; backward calls `reached` for each parameter."""
        for bucket in self.buckets:
            bucket.gradient_shard = torch.zeros_like(bucket.shard)
            for parameter in bucket.parameters:
                parameter.register_post_accumulate_grad_hook(self.reached)
        self.addresses = {parameter.data_ptr() for bucket in self.buckets for parameter in bucket.parameters}
        self.start_pass()

    def start_pass(self) -> None:
        """Expect all gradients anew."""
        self.missing = [set(bucket.parameters) for bucket in self.buckets]
        self.n_reduced = 0  # how many buckets are summed in this pass, in their order

    def reached(self, parameter: torch.Tensor) -> None:
        """Backward has added to `parameter.grad`: sum the buckets that are full, in list order."""
        if parameter.data_ptr() not in self.addresses:
            return  # a stage that was made later for the same model has this parameter now
        if self.stepped:
            parameter.grad = None  # as `zero_grad`, which is due now, would; without it `step` raises
            return
        if not any(parameter in missing for missing in self.missing):
            # Its second gradient: a new pass has begun. If its bucket had to wait, `.grad` holds the sum of
            # both passes' gradients; `finish_pass` takes it all; the new pass adds zeros.
            self.finish_pass()
        for missing in self.missing:
            missing.discard(parameter)
        while self.n_reduced < len(self.buckets) and not self.missing[self.n_reduced]:
            self.reduce(self.buckets[self.n_reduced])
            self.n_reduced += 1

    def finish_pass(self) -> None:
        """Sum the buckets that this pass has not filled, and begin the next pass."""
        for bucket in self.buckets[self.n_reduced :]:
            self.reduce(bucket)
        self.start_pass()

    @torch.no_grad()
    def reduce(self, bucket: Bucket) -> None:
        """Free the bucket's gradients, and add their sum over ranks to this rank's shard."""
        # in the order of weights.flat, which `flatten` made, too; to_dense() changes only sparse gradients
        flat = flatten(
            [torch.zeros_like(p) if p.grad is None else p.grad.to_dense() for p in bucket.parameters]
        )
        for parameter in bucket.parameters:
            parameter.grad = None
        bucket.gradient_shard += reduce_scatter(self.comm, flat)

    def step(self) -> float | None:
        """Sum what is left, update this rank's shards, gather the weights; returns what `update` returns."""
        self.check_cleared()
        self.check_parameters()
        self.finish_pass()
        norm = self.update(self.comm)
        self.gather_weights()
        return norm

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear this rank's shards of the gradients and, if `step` was skipped, what is not summed yet.

        If `step` was skipped, all ranks must call it: it sums the rest of the pass before it clears, because
        another rank may be waiting in one of these sums.
        """
        if not self.stepped:
            self.finish_pass()
        super().zero_grad()


# ------------------------------------------------------------------ with any stage: optimizer state in files
#
# Ren and others, ZeRO-Offload, USENIX ATC 2021; Rajbhandari and others, ZeRO-Infinity, SC 2021: they move the
# state from the GPU to the CPU's memory and to NVMe drives.

MOMENTS = ("exp_avg", "exp_avg_sq")


def offload_state(optimizer: Optimizer, folder: Path, rank: int) -> int:
    """Keep the two moments of an Adam or AdamW in files of `folder`; returns the bytes of the files.

    The files are memory-mapped; the operating system caches what fits. Call it before the first step.
    Raises TypeError for other optimizers and for amsgrad, ValueError after the first step and OSError, with
    the numbers, when `folder` has no room for this rank's files; the other ranks' files are not counted.
    """
    if not isinstance(optimizer, Adam | AdamW):
        raise TypeError(f"{type(optimizer).__name__} has other state than Adam's two moments")
    if any(group["amsgrad"] for group in optimizer.param_groups):
        raise TypeError("amsgrad keeps a third moment; use amsgrad=False")
    if optimizer.state:
        raise ValueError("the optimizer has stepped already: offload its state before the first step")
    shards = [p for group in optimizer.param_groups for p in group["params"]]
    needed = sum(shard.nbytes for shard in shards) * len(MOMENTS)
    folder.mkdir(parents=True, exist_ok=True)
    free_bytes = shutil.disk_usage(folder).free
    if needed > free_bytes:
        raise OSError(f"{folder} has {free_bytes} bytes free, rank {rank}'s optimizer state needs {needed}")
    for index, shard in enumerate(shards):
        state = optimizer.state[shard]
        state["step"] = torch.tensor(0.0)
        for name in MOMENTS:
            state[name] = in_file(folder / f"rank{rank}-{index}-{name}.bin", shard)
    return needed


def in_file(path: Path, like: torch.Tensor) -> torch.Tensor:
    """A tensor of zeros with the shape and dtype of `like`, in a new file."""
    path.unlink(missing_ok=True)
    flat = torch.from_file(str(path), shared=True, size=like.numel(), dtype=like.dtype)
    return flat.zero_().view(like.shape)
