"""Data parallelism by hand: every rank has the whole model and a part of every batch.

    0  init                mpi4py does it when it is imported               Init, Comm_rank, Comm_size
    1  broadcast_weights   all replicas start equal                         Bcast
    2  shard               each rank takes its part of every global batch
    3  forward              |
    4  backward             |  the step of one process, unchanged
    5  GradientBucket.sum   |  … but for this line                          Allreduce
    6  update               |
    7  barrier             nobody is done before the last is                Barrier
    8  gather_metrics      rank 0 hears how everyone did                    Gather
    9  finalize            mpi4py does it when the process ends             Finalize

The phases are those of Jakovac & Pichler, "MPI in Distributed Training" (2025), with one change: their
phase 5 sums and then divides; here the loss was divided by the global batch before, so a sum is all.
Equal start, equal sum and equal update keep the replicas equal. Batch norm sees one shard at a time, and
dropout draws on each rank for itself: with these it is not the training of one process.
"""

import hashlib
import math
from collections.abc import Iterable, Iterator

import numpy as np
import torch
from mpi4py import MPI
from numpy.typing import NDArray
from torch import nn
from torch.nn import Module, Parameter
from torch.optim import Optimizer

from course_lib.data.dataset import Dataset
from course_lib.training.flat import FlatGradients, check_unfrozen
from course_lib.training.loop import (
    EVALUATION_BATCH,
    Batch,
    Epoch,
    evaluate,
    fit,
    image_batch,
    image_batches,
    make_step,
    shuffled_batches,
    summed_cross_entropy,
)
from course_lib.training.metrics import Report, Score

Images = NDArray[np.uint8]
Labels = NDArray[np.integer]

# ---------------------------------------------------------------- phase 1

# `numbers` is for tensors without gaps in their memory, in any layout, such as channels-last, which must be
# the same on all ranks: the array has the numbers in the order of the memory. NumPy has no bfloat16.


def numbers(tensor: torch.Tensor) -> np.ndarray:
    """A dense CPU tensor's memory as a flat array for MPI, whatever its layout: no copy."""
    return tensor.detach().as_strided((tensor.numel(),), (1,)).numpy()


def broadcast_weights(comm: MPI.Intracomm, model: nn.Module) -> None:
    """Overwrite all weights and buffers (numbers that no gradient changes) with those of rank 0."""
    for tensor in (*model.parameters(), *model.buffers()):
        comm.Bcast(numbers(tensor), root=0)


def broadcast_buffers(comm: MPI.Intracomm, model: nn.Module) -> None:
    """Give every rank the buffers of rank 0, such as batch-norm's running statistics, in place.

    Each rank's have seen its own shards only, so they differ; those of rank 0 are as good as any. A model
    without buffers sends nothing.
    """
    for buffer in model.buffers():
        comm.Bcast(numbers(buffer), root=0)


# ---------------------------------------------------------------- phase 2


def shard(comm: MPI.Intracomm, indices: NDArray[np.int64]) -> NDArray[np.int64]:
    """Phase 2: this rank's part of `indices`, the same on all ranks; empty when there are too few."""
    return np.array_split(indices, comm.size)[comm.rank]


def shard_batches(
    comm: MPI.Intracomm,
    images: Images,
    labels: Labels,
    batches: Iterable[NDArray[np.int64]],
) -> Iterator[Batch]:
    """This rank's shard of each of the global `batches`, which must be the same on all ranks."""
    return (image_batch(images, labels, shard(comm, batch), len(batch)) for batch in batches)


# ---------------------------------------------------------------- phase 5

# `sum_gradients` is the simple way, with one Allreduce per parameter; `GradientBucket` does the same in one.


def sum_gradients(comm: MPI.Intracomm, model: nn.Module) -> None:
    """Sum the gradients over all ranks, in place; a parameter that a rank did not use counts as zeros."""
    for parameter in model.parameters():
        if parameter.requires_grad:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            comm.Allreduce(MPI.IN_PLACE, numbers(parameter.grad))


class GradientBucket(FlatGradients):
    """One flat buffer that holds all gradients of a model, so that one message carries them."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        super().__init__([parameter for parameter in model.parameters() if parameter.requires_grad])

    def sum(self, comm: MPI.Intracomm) -> None:
        """Phase 5: sum the gradients over `comm`, in place, in one Allreduce.

        Backward adds to the buffer as long as `.grad` is its view. `optimizer.zero_grad()` cuts that tie:
        then the new gradients are copied into it, and a missing one counts as zeros.
        """
        check_unfrozen(self.model, self.parameters)
        self.collect()
        comm.Allreduce(MPI.IN_PLACE, self.flat.numpy())


# ---------------------------------------------------------------- phase 8


def gather_metrics(comm: MPI.Intracomm, epoch: Epoch, score: Score) -> Report | None:
    """Phase 8: what all ranks measured, put together on rank 0; None on the others."""
    rows = comm.gather((epoch, score), root=0)
    if rows is None:
        return None
    epochs, scores = [row[0] for row in rows], [row[1] for row in rows]
    losses = np.sum([one.losses for one in epochs], axis=0)  # shards' parts add up to the batch's loss
    samples, seconds = sum(one.samples for one in epochs), max(one.seconds for one in epochs)
    return Report(comm.size, tuple(losses.tolist()), samples, seconds, sum(scores, Score()))


# ---------------------------------------------------------------- all ten


def evaluate_shard(comm: MPI.Intracomm, model: nn.Module, images: Images, labels: Labels) -> Score:
    """The score of `model` on this rank's part of a test set: all parts add up to the whole."""
    mine = shard(comm, np.arange(len(labels)))
    batches = np.array_split(mine, max(1, math.ceil(len(mine) / EVALUATION_BATCH)))
    return evaluate(model, summed_cross_entropy, image_batches(images, labels, batches))


def train_epoch(
    comm: MPI.Intracomm, model: Module, optimizer: Optimizer, data: Dataset, *, batch_size: int, seed: int
) -> Report | None:
    """Train for one epoch of global batches of `batch_size` on all ranks of `comm`: a report on rank 0."""
    broadcast_weights(comm, model)  # 1
    order = shuffled_batches(len(data.train_labels), batch_size, seed=seed)  # one seed: no rank sends indices
    batches = shard_batches(comm, data.train_images, data.train_labels, order)  # 2
    bucket = GradientBucket(model)
    step = make_step(model, summed_cross_entropy, optimizer, lambda: bucket.sum(comm))
    epoch = fit(step, batches)  # 3 to 6, for every batch
    comm.Barrier()  # 7, to show the phase: the collectives that follow wait anyway
    broadcast_buffers(comm, model)  # if it has any: the replicas are to agree on them, too
    score = evaluate_shard(comm, model, data.test_images, data.test_labels)
    return gather_metrics(comm, epoch, score)  # 8


# ---------------------------------------------------------------- checks


def weight_hash(model: nn.Module) -> str:
    """Sixteen hexadecimal digits that depend on every bit of the `state_dict()` of `model`."""
    digest = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        digest.update(name.encode())
        digest.update(tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


def replicas_agree(comm: MPI.Intracomm, model: nn.Module) -> bool:
    """Whether all ranks hold the same weights, to the last bit; the same answer on every rank."""
    return len(set(comm.allgather(weight_hash(model)))) == 1


def equal_trainable_parameters(comm: MPI.Intracomm, model: nn.Module, **settings: object) -> list[Parameter]:
    """Check that all ranks have the same trainable parameters and `settings`; return those parameters.

    For trainers that send many of them in one buffer, such as `GradientBuckets` and `LocalSGD`.
    ValueError on all ranks if ranks differ in a setting, or in the name, shape, memory layout or dtype of a
    parameter; if there is no parameter; and unless all are float32 or all float64, which MPI can sum.
    """
    named = {name: one for name, one in model.named_parameters() if one.requires_grad}
    described = [(name, tuple(one.shape), one.stride(), str(one.dtype)) for name, one in named.items()]
    everyone = comm.allgather((described, settings))
    different = [rank for rank, theirs in enumerate(everyone) if theirs != everyone[0]]
    if different:
        raise ValueError(
            f"ranks {different} differ from rank 0 in {' or '.join(['trainable parameters', *settings])}; "
            "build the same model with the same settings on all ranks"
        )
    if not named:
        raise ValueError("the model has no trainable parameters")
    dtypes = {parameter.dtype for parameter in named.values()}
    if dtypes not in ({torch.float32}, {torch.float64}):
        found = ", ".join(sorted(map(str, dtypes)))
        raise ValueError(
            f"trainable parameters of {found}; use float32 or float64 for all of them, and "
            "torch.autocast to compute in 16 bits"
        )
    return list(named.values())
