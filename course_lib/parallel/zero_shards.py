"""What the stages of ZeRO share: shards of flat buffers, their two collectives, and who updates what.

Parameters lie in flat buffers, and every flat buffer is cut into shards, one per rank; the rank is the
shard's owner. `zero.py` makes stages 0, 1 and 2 of these parts, and `zero3.py` stage 3.

The file goes from shards and the two collectives through a bucket of parameters to the optimizer of what a
rank owns, and clipping, which works with any stage.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence

import torch
from mpi4py import MPI
from torch import nn
from torch.optim import AdamW, Optimizer

from course_lib.theory.partition import even_ranges, fused_ranges
from course_lib.training.flat import FlatGradients, FlatWeights

BUCKET_BYTES = 4 * 2**20
SIXTEEN_BIT = (torch.float16, torch.bfloat16)
TAG = 11  # any number: keeps our messages apart from others of the same communicator
MakeOptimizer = Callable[[list[torch.Tensor]], Optimizer]

# ------------------------------------------------------------------ shards, and their two collectives
#
# flat buffer   [ w w w w w w w | b b | w w w ]     parameters, one after the other
# shards        [ rank 0 | rank 1 | rank 2    ]     as even as can be; a shard may begin inside a parameter
#
# reduce_scatter   every rank has a full buffer   →  each shard's owner has that shard's sum over ranks
# all_gather       each rank has its own shard    →  every rank has the full buffer


def shards_of(flat: torch.Tensor, size: int) -> list[torch.Tensor]:
    """The shards of `flat` (n,), one per rank, as views; their lengths differ by at most one."""
    # even_ranges(10, 3) is [range(0, 4), range(4, 7), range(7, 10)]
    return [flat[part.start : part.stop] for part in even_ranges(flat.numel(), size)]


@torch.no_grad()
def reduce_scatter(comm: MPI.Intracomm, flat: torch.Tensor) -> torch.Tensor:
    """Sum this rank's shard of `flat` over `comm`, in place, and return it; the rest stays as it is.

    Pairwise exchange: n - 1 messages of one shard each. 16-bit numbers are summed in float32.
    """
    shards = shards_of(flat, comm.size)
    mine = shards[comm.rank]
    total = mine.float() if flat.dtype in SIXTEEN_BIT else mine
    received = torch.empty_like(mine)
    for distance in range(1, comm.size):
        # a cyclic shift: Sendrecv receives while it sends, so every message has a rank that takes it
        to, source = (comm.rank + distance) % comm.size, (comm.rank - distance) % comm.size
        comm.Sendrecv(memory_of(shards[to]), to, TAG, memory_of(received), source, TAG)
        total += received
    if total is not mine:
        mine.copy_(total)  # rounds
    return mine


def all_gather(comm: MPI.Intracomm, flat: torch.Tensor) -> None:
    """Fill `flat` (n,) with the shards of all ranks; each rank's own is in place."""
    comm.Allgatherv(MPI.IN_PLACE, gather_spec(comm, flat))


def gather_spec(comm: MPI.Intracomm, flat: torch.Tensor) -> list[object]:
    """What MPI's all-gather of `flat` receives: memory, recvcounts, displacements, datatype.

    A function of its own for `fast/zero.py`, whose all-gather is non-blocking.
    """
    counts = [shard.nbytes for shard in shards_of(flat, comm.size)]
    return [memory_of(flat), counts, [sum(counts[:rank]) for rank in range(comm.size)], MPI.BYTE]


def memory_of(tensor: torch.Tensor) -> MPI.memory:
    """The bytes of a contiguous tensor, which MPI moves whatever their type.

    Not by way of NumPy: torch cannot resize a tensor's memory once NumPy has seen it, and stage 3 does.
    """
    return MPI.memory.fromaddress(tensor.data_ptr(), tensor.nbytes)


@torch.no_grad()
def broadcast(comm: MPI.Intracomm, tensors: Iterable[torch.Tensor]) -> None:
    """Overwrite `tensors` on all ranks with those of rank 0."""
    for tensor in tensors:
        values = tensor.contiguous()
        comm.Bcast(memory_of(values), root=0)
        tensor.copy_(values)


class Bucket:
    """Parameters whose weights are one flat buffer, and the shard of it that this rank owns and updates.

    `shard` is a view of the weights, in stage 3 a copy; `master` is what the optimizer updates: the shard
    itself, or for 16-bit weights a float32 copy of it. `gradient_shard`: this rank's shard of the
    summed gradients.
    """

    gradient_shard: torch.Tensor

    def __init__(self, comm: MPI.Intracomm, parameters: Sequence[nn.Parameter]) -> None:
        self.comm, self.parameters = comm, list(parameters)
        self.weights = FlatWeights(self.parameters)
        broadcast(comm, [self.weights.flat])  # all replicas start equal
        self.weights.attach()
        self.shard = self.own_shard()
        self.master = nn.Parameter(self.shard.float() if self.shard.dtype in SIXTEEN_BIT else self.shard)

    def owned(self, flat: torch.Tensor) -> torch.Tensor:
        """The part of a flat buffer that this rank owns, as a view."""
        return shards_of(flat, self.comm.size)[self.comm.rank]

    def own_shard(self) -> torch.Tensor:
        """The shard of the weights that this rank owns: a view of them."""
        return self.owned(self.weights.flat)

    def attach_full_gradients(self) -> None:
        """Keep the full gradients as views of a flat buffer, to which backward adds: stages 0 and 1."""
        # After the weights are attached, so that both buffers have the same order of elements.
        self.gradients = FlatGradients(self.parameters)
        self.gradient_shard = self.owned(self.gradients.flat)

    @torch.no_grad()
    def round_master(self) -> None:
        """Bring a 16-bit shard in line with its float32 master."""
        if self.shard.dtype != self.master.dtype:
            self.shard.copy_(self.master)


class ReplicatedBucket(Bucket):
    """A bucket that every rank owns in full: `shard` and `gradient_shard` are the whole buffers."""

    def owned(self, flat: torch.Tensor) -> torch.Tensor:
        """All of it."""
        return flat


def buckets_of(parameters: Iterable[nn.Parameter], bucket_bytes: int) -> list[list[nn.Parameter]]:
    """The trainable `parameters`, last first as backward reaches them, in buckets of up to `bucket_bytes`.

    A bucket has one dtype. A larger parameter gets one of its own. ValueError when nothing is trainable.
    """
    last_first = [parameter for parameter in parameters if parameter.requires_grad][::-1]
    if not last_first:
        raise ValueError("there is nothing to train: no parameter requires a gradient")
    return [
        group[part.start : part.stop]
        for group in alike(last_first)
        # neighbours together while their sum is at most the limit:
        # fused_ranges([4, 3, 9, 1], 8) is [range(0, 2), range(2, 3), range(3, 4)]
        for part in fused_ranges([parameter.nbytes for parameter in group], bucket_bytes)
    ]


def alike(parameters: Sequence[nn.Parameter]) -> list[list[nn.Parameter]]:
    """`parameters`, grouped by dtype."""
    groups: dict[torch.dtype, list[nn.Parameter]] = {}
    for parameter in parameters:
        groups.setdefault(parameter.dtype, []).append(parameter)
    return list(groups.values())


def frozen_parameters(model: nn.Module) -> list[nn.Parameter]:
    """The parameters that are not trained; no stage shards them."""
    return [parameter for parameter in model.parameters() if not parameter.requires_grad]


class ShardedOptimizer:
    """What all stages share: an optimizer of the parts of the weights that this rank owns.

    `make_optimizer` gets one flat tensor per bucket. The optimizer must treat every element alike: SGD, Adam
    and AdamW do, one that looks at whole matrices does not.
    """

    buckets: Sequence[Bucket]
    remedy = "make it anew after you freeze, unfreeze or add parameters"  # stage 3 adds how

    def __init__(
        self,
        comm: MPI.Intracomm,
        model: nn.Module,
        buckets: Sequence[Bucket],
        make_optimizer: MakeOptimizer,
        max_norm: float | None,
    ) -> None:
        self.comm, self.buckets, self.max_norm = comm, buckets, max_norm
        self.model, self.stepped = model, False  # stepped since zero_grad; only stages 2 and 3 read it
        self.masters = [bucket.master for bucket in buckets]
        self.optimizer = make_optimizer(list(self.masters))

    def update(self, owners: MPI.Intracomm) -> float | None:
        """Update what this rank owns; returns the gradients' norm if `max_norm` is set, else None.

        `owners`: the ranks whose `gradient_shard`s together are every gradient once. Each `step` calls
        `check_parameters` before its first message.
        """
        norm, self.stepped = None, True
        for bucket in self.buckets:
            # In float32 `to` makes no copy: what is clipped then is gradient_shard itself.
            bucket.master.grad = bucket.gradient_shard.to(bucket.master.dtype)
        if self.max_norm is not None:
            norm = clip_gradients(owners, self.masters, self.max_norm)
        self.optimizer.step()
        for bucket in self.buckets:
            bucket.master.grad = None
            bucket.round_master()
        return norm

    def check_parameters(self) -> None:
        """ValueError unless the model trains the parameters that it trained when this was made."""
        known = {parameter for bucket in self.buckets for parameter in bucket.parameters}
        if known != {parameter for parameter in self.model.parameters() if parameter.requires_grad}:
            raise ValueError(
                f"{type(self).__name__} was made for {len(known)} trainable parameters, and the model trains "
                f"others now; {self.remedy}"
            )

    def check_cleared(self) -> None:
        """ValueError if there was a step, and no `zero_grad` of ours since."""
        if self.stepped:
            raise ValueError(
                "the shards still hold the gradients of the last step; before the next backward, call "
                f"zero_grad() of {type(self).__name__}: that of the model does not reach the shards"
            )

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear this rank's shards of the gradients; torch's `set_to_none` makes no difference here."""
        for bucket in self.buckets:
            bucket.gradient_shard.zero_()
        self.stepped = False

    def gather_weights(self) -> None:
        """Gather the full weights from the shards; nothing to do in stage 3, which does it layer by layer."""


class BucketedOptimizer(ShardedOptimizer, ABC):
    """What stages 0 to 2 share: buckets of neighbouring parameters, of up to `bucket_bytes`.

    All ranks of `comm` construct it and step together. `max_norm` clips by the norm of all gradients.
    """

    bucket_type = Bucket

    def __init__(
        self,
        comm: MPI.Intracomm,
        model: nn.Module,
        make_optimizer: MakeOptimizer = AdamW,
        *,
        max_norm: float | None = None,
        bucket_bytes: int = BUCKET_BYTES,
    ) -> None:
        groups = buckets_of(model.parameters(), bucket_bytes)
        broadcast(comm, [*frozen_parameters(model), *model.buffers()])
        buckets = [self.bucket_type(comm, each) for each in groups]
        super().__init__(comm, model, buckets, make_optimizer, max_norm)
        self.prepare_gradients()

    def check_parameters(self) -> None:
        """ValueError, too, if a weight has left its flat buffer."""
        super().check_parameters()
        for bucket in self.buckets:
            bucket.weights.check()

    @abstractmethod
    def prepare_gradients(self) -> None:
        """Make room for what this rank keeps of the gradients."""

    def gather_weights(self) -> None:
        """Gather the full weights from the shards of all ranks."""
        for bucket in self.buckets:
            all_gather(self.comm, bucket.weights.flat)


class FullGradients(BucketedOptimizer):
    """What stages 0 and 1 share: every rank keeps the full gradients, to which backward adds."""

    def prepare_gradients(self) -> None:
        """Make every gradient a view of its bucket's buffer."""
        for bucket in self.buckets:
            bucket.attach_full_gradients()

    def update(self, owners: MPI.Intracomm) -> float | None:
        """Update, and leave no `.grad`, so that a backward before `zero_grad` does not add to these sums."""
        norm = super().update(owners)
        for parameter in (parameter for bucket in self.buckets for parameter in bucket.parameters):
            parameter.grad = None
        return norm

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the full gradients, and make them views of the buffers again."""
        for bucket in self.buckets:
            bucket.gradients.clear()


# ------------------------------------------------------------------ with any stage: clipping


@torch.no_grad()
def clip_gradients(comm: MPI.Intracomm, shards: Sequence[torch.Tensor], max_norm: float) -> float:
    """Scale the gradients of this rank's `shards` so that the norm of *all* gradients is at most `max_norm`.

    Returns that norm before clipping: the same on all ranks, which scale by the same factor. The norm of a
    rank's own shards would be smaller, and different on every rank.
    """
    gradients = [shard.grad for shard in shards if shard.grad is not None]
    squares = sum(float(gradient.double().square().sum()) for gradient in gradients)
    norm = math.sqrt(comm.allreduce(squares))
    factor = max_norm / (norm + 1e-6)  # as torch.nn.utils.clip_grad_norm_
    if factor < 1:
        for gradient in gradients:
            gradient *= factor
    return norm
