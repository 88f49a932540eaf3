"""ZeRO from scratch: data parallelism that shards, stage by stage, what every rank would keep a copy of.

    stage   every rank keeps all          and its shard of            it sends
    0       weights, gradients, state                                 2Ψ   all-reduce of the gradients
    1       weights, gradients            state                       2Ψ   reduce-scatter, all-gather
    2       weights                       gradients, state            2Ψ   the same, during backward
    3                                     weights, gradients, state   3Ψ   weights once more for backward

What it sends: numbers per step, times (n - 1)/n for n ranks; Ψ is the number of parameters.

Parameters lie in flat buffers, and every flat buffer is cut into shards, one per rank; the rank is the
shard's owner. Computation is not sharded: every rank runs the whole model on its own part of the batch. The
caller divides the loss by the global batch size; summing gradients over ranks then gives one process's
gradient, up to rounding.

    zero = Zero2(comm, model, lambda shards: AdamW(shards, lr=1e-3))
    loss.backward(); zero.step(); zero.zero_grad()

Call `zero_grad` between every `step` and the next backward: `step` leaves sums over ranks, to which backward
would add one rank's gradients. A parameter without a gradient has one of zeros, so momentum and weight decay
act on it all the same. Convert, freeze and add parameters before: `step` raises ValueError after a change.

The file goes from shards and their two collectives through stages 0, 1, 2 and 3 to what is used with any of
them: clipping, loss scaling, state in files, tiles. `fast/zero.py` has a stage 3 that gathers ahead.

Source: Rajbhandari, Rasley, Ruwase and He, ZeRO: Memory Optimizations Toward Training Trillion Parameter
Models, SC 2020, https://arxiv.org/abs/1910.02054
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from mpi4py import MPI
from torch import nn
from torch.optim import Adam, AdamW, Optimizer
from torch.utils._pytree import tree_leaves

from course_lib.theory.partition import even_ranges, fused_ranges
from course_lib.training.flat import FlatGradients, FlatWeights, flatten

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

    `shard` is a view of the weights; `master` is what the optimizer updates: the shard itself, or for 16-bit
    weights that train a float32 copy of it. `gradient_shard`: this rank's shard of the summed gradients.
    """

    gradient_shard: torch.Tensor

    def __init__(self, comm: MPI.Intracomm, parameters: Sequence[nn.Parameter]) -> None:
        self.comm, self.parameters = comm, list(parameters)
        self.weights = FlatWeights(self.parameters)
        broadcast(comm, [self.weights.flat])  # all replicas start equal
        self.weights.attach()
        self.shard = self.owned(self.weights.flat)
        self.trains = self.parameters[0].requires_grad
        self.master = master_of(self.shard, trains=self.trains)

    def owned(self, flat: torch.Tensor) -> torch.Tensor:
        """The part of a flat buffer that this rank owns, as a view."""
        return shards_of(flat, self.comm.size)[self.comm.rank]

    def attach_full_gradients(self) -> None:
        """Keep the full gradients in a flat buffer, to which backward adds: stages 0 and 1."""
        # After the weights are attached, so that both buffers have the same order of elements.
        self.gradients = FlatGradients(self.parameters)
        self.gradient_shard = self.owned(self.gradients.flat)

    @torch.no_grad()
    def round_master(self) -> None:
        """Bring a 16-bit shard in line with its float32 master."""
        if self.shard.dtype != self.master.dtype:
            self.shard.copy_(self.master)


def master_of(shard: torch.Tensor, *, trains: bool) -> nn.Parameter:
    """What the optimizer updates: `shard` itself, or a float32 copy of a 16-bit one that trains."""
    master = shard.float() if trains and shard.dtype in SIXTEEN_BIT else shard
    return nn.Parameter(master, requires_grad=trains)  # integers cannot require a gradient


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
    """`parameters`, grouped by dtype and by whether they are trained."""
    groups: dict[tuple[torch.dtype, bool], list[nn.Parameter]] = {}
    for parameter in parameters:
        groups.setdefault((parameter.dtype, parameter.requires_grad), []).append(parameter)
    return list(groups.values())


class ShardedOptimizer:
    """What all stages share: an optimizer of the parts of the weights that this rank owns.

    `make_optimizer` gets one flat tensor per bucket. The optimizer must treat every element alike: SGD, Adam
    and AdamW do, one that looks at whole matrices does not.
    """

    buckets: Sequence[Bucket]

    def __init__(
        self,
        comm: MPI.Intracomm,
        model: nn.Module,
        buckets: Sequence[Bucket],
        make_optimizer: MakeOptimizer,
        max_norm: float | None,
        scaler: LossScaler | None,
    ) -> None:
        self.comm, self.buckets, self.max_norm, self.scaler = comm, buckets, max_norm, scaler
        self.model, self.cleared = model, True
        self.masters = [bucket.master for bucket in self.trained]
        self.optimizer = make_optimizer(list(self.masters))

    @property
    def trained(self) -> Sequence[Bucket]:
        """The buckets that the optimizer updates."""
        return self.buckets

    def update(self, owners: MPI.Intracomm) -> float | None:
        """Update what this rank owns, unless the `scaler` finds an overflow.

        Returns the gradients' norm if `max_norm` is set, else None; None, too, when the update is skipped.
        `owners`: the ranks that together hold every gradient once.
        """
        self.check_parameters()
        norm, self.cleared = None, False
        gradients = [bucket.gradient_shard.to(bucket.master.dtype) for bucket in self.trained]
        for master, gradient in zip(self.masters, gradients, strict=True):
            master.grad = gradient
        if self.scaler is None or self.scaler.unscale(owners, gradients):
            if self.max_norm is not None:
                norm = clip_gradients(owners, self.masters, self.max_norm)
            self.optimizer.step()
        for bucket in self.trained:
            bucket.master.grad = None
            bucket.round_master()
        return norm

    def check_parameters(self) -> None:
        """ValueError unless the model trains the parameters that it trained when this was made."""
        known = {parameter for bucket in self.trained for parameter in bucket.parameters}
        if known != {parameter for parameter in self.model.parameters() if parameter.requires_grad}:
            raise ValueError(
                f"{type(self).__name__} was made for {len(known)} trainable parameters, and the model trains "
                "others now; make it anew after you freeze, unfreeze or add parameters"
            )

    def check_cleared(self) -> None:
        """ValueError if this is the second step without a `zero_grad` of ours between."""
        if not self.cleared:
            raise ValueError(
                "the shards still hold the gradients of the last step, and this step's were added; call "
                f"zero_grad() of {type(self).__name__}: that of the model does not reach the shards"
            )

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear this rank's shards of the gradients; torch's `set_to_none` makes no difference here."""
        for bucket in self.trained:
            bucket.gradient_shard.zero_()
        self.cleared = True


class BucketedOptimizer(ShardedOptimizer):
    """What stages 0 to 2 share: buckets of neighbouring parameters, of up to `bucket_bytes`.

    All ranks of `comm` construct it and step together. `max_norm` clips by the norm of all gradients;
    `scaler` is for float16, see `LossScaler`.
    """

    bucket_type = Bucket

    def __init__(
        self,
        comm: MPI.Intracomm,
        model: nn.Module,
        make_optimizer: MakeOptimizer = AdamW,
        *,
        max_norm: float | None = None,
        scaler: LossScaler | None = None,
        bucket_bytes: int = BUCKET_BYTES,
    ) -> None:
        groups = buckets_of(model.parameters(), bucket_bytes)
        broadcast(comm, [*(p for p in model.parameters() if not p.requires_grad), *model.buffers()])
        buckets = [self.bucket_type(comm, each) for each in groups]
        super().__init__(comm, model, buckets, make_optimizer, max_norm, scaler)
        self.prepare_gradients()

    def check_parameters(self) -> None:
        """ValueError, too, if a weight has left its flat buffer."""
        super().check_parameters()
        for bucket in self.buckets:
            bucket.weights.check()

    def prepare_gradients(self) -> None:
        """Keep the full gradients, to which backward adds."""
        for bucket in self.buckets:
            bucket.attach_full_gradients()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the full gradients, where they are."""
        for bucket in self.buckets:
            bucket.gradients.clear()


# ------------------------------------------------------------------ stage 0: data parallelism


class ReplicatedBucket(Bucket):
    """A bucket that every rank owns in full: `shard` and `gradient_shard` are the whole buffers."""

    def owned(self, flat: torch.Tensor) -> torch.Tensor:
        """All of it."""
        return flat


class Zero0(BucketedOptimizer):
    """Stage 0, to compare with: every rank keeps everything, and makes the same update."""

    bucket_type = ReplicatedBucket

    def step(self) -> float | None:
        """Sum the gradients on all ranks, and update all weights on each.

        Returns the gradients' norm if `max_norm` is set, else None.
        """
        for bucket in self.buckets:
            bucket.gradients.collect()
            reduce_scatter(self.comm, bucket.gradients.flat)  # the two halves of an all-reduce
            all_gather(self.comm, bucket.gradients.flat)
        return self.update(MPI.COMM_SELF)  # every rank has all gradients: over comm each would count n times


# ------------------------------------------------------------------ stage 1: the optimizer's state is sharded


class Zero1(BucketedOptimizer):
    """Stage 1: every rank keeps all weights and gradients, and the optimizer state of its own shards."""

    def step(self) -> float | None:
        """Sum the gradients, update this rank's shards, and gather all.

        Returns the gradients' norm if `max_norm` is set, else None.
        """
        for bucket in self.buckets:
            bucket.gradients.collect()
            reduce_scatter(self.comm, bucket.gradients.flat)
        norm = self.update(self.comm)
        for bucket in self.buckets:
            all_gather(self.comm, bucket.weights.flat)
        return norm


# ------------------------------------------------------------------ stage 2: so are the gradients


class Zero2(BucketedOptimizer):
    """Stage 2: of the gradients, too, a rank keeps its shards only.

    A bucket's gradients are summed, and the full ones freed, as soon as backward has filled it. For several
    backward passes per step, the shards add up. Parameters that backward did not reach have a gradient of
    zero. Buckets are summed in list order on every rank. All ranks must make the same backward passes, which
    reach the same parameters; only in a single pass before `step` may a rank reach fewer, or none.
    """

    def prepare_gradients(self) -> None:
        """Allocate this rank's shards of them; a hook per parameter reports its gradient."""
        for bucket in self.buckets:
            bucket.gradient_shard = torch.zeros_like(bucket.shard)
            for parameter in bucket.parameters:
                parameter.register_post_accumulate_grad_hook(self.ready)
        self.start_pass()

    def start_pass(self) -> None:
        """Expect all gradients anew."""
        self.missing = [set(bucket.parameters) for bucket in self.buckets]
        self.n_reduced = 0  # how many buckets are summed in this pass, in their order

    def finish_pass(self) -> None:
        """Sum the buckets that this pass has not filled, so that every rank sums every bucket once a pass."""
        for bucket in self.buckets[self.n_reduced :]:
            self.reduce(bucket)
        self.start_pass()

    def ready(self, parameter: torch.Tensor) -> None:
        """Backward has a gradient: sum the buckets that are full, in the order that all ranks keep."""
        if not any(parameter in missing for missing in self.missing):
            # Its second gradient, so another pass has begun. `finish_pass` may sum gradients of both at once;
            # they are None afterwards, so none counts twice.
            self.finish_pass()
        for missing in self.missing:
            missing.discard(parameter)
        while self.n_reduced < len(self.buckets) and not self.missing[self.n_reduced]:
            self.reduce(self.buckets[self.n_reduced])
            self.n_reduced += 1

    @torch.no_grad()
    def reduce(self, bucket: Bucket) -> None:
        """Add the sum of the bucket's gradients to this rank's shard, and free them."""
        flat = flatten([torch.zeros_like(p) if p.grad is None else p.grad for p in bucket.parameters])
        for parameter in bucket.parameters:
            parameter.grad = None
        bucket.gradient_shard += reduce_scatter(self.comm, flat)

    def step(self) -> float | None:
        """Update this rank's shards and gather all.

        Returns the gradients' norm if `max_norm` is set, else None.
        """
        self.check_cleared()
        self.finish_pass()
        norm = self.update(self.comm)
        for bucket in self.buckets:
            all_gather(self.comm, bucket.weights.flat)
        return norm

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear this rank's shards of the gradients and, if `step` was skipped, what is not summed yet."""
        if sum(map(len, self.missing)) < sum(len(bucket.parameters) for bucket in self.buckets):
            self.finish_pass()
        ShardedOptimizer.zero_grad(self)


# ------------------------------------------------------------------ stage 3: so are the weights
#
# forward    gather 0 │ run 0 │ free 0   gather 1 │ run 1 │ free 1   …
# backward   …   gather 1 │ backward 1 │ sum its gradients, free 1   gather 0 │ …


class LayerBucket(Bucket):
    """A layer's parameters: gathered while the layer runs; at other times this rank keeps its shard only.

    Freeing empties the *memory* of the flat buffer. What autograd keeps for backward are views of it, which
    show the weights again as soon as they are gathered again. Autograd refuses a saved tensor that torch has
    written to since, which it sees by its version counter. Ours does not rise: `resize_` acts on the storage,
    MPI writes to the address, and `allocate` writes through `.data`.
    """

    def __init__(self, comm: MPI.Intracomm, parameters: Sequence[nn.Parameter]) -> None:
        super().__init__(comm, parameters)
        self.shard = self.shard.clone()  # memory of its own: the flat buffer will be freed
        self.master = master_of(self.shard, trains=self.trains)
        self.nbytes = self.weights.flat.nbytes
        if self.trains:
            self.gradient_shard = torch.zeros_like(self.shard)
        self.full_gradients: FlatGradients | None = None  # all of them, while backward fills them
        self.missing: set[object] = set()  # what has no gradient yet: parameters; if frozen, inputs
        self.backward_pass = -1  # the last one that reached the layer
        self.gathered, self.pinned = True, False  # pinned: not to be freed
        self.free()

    def gather(self) -> None:
        """Gather the full weights."""
        if not self.gathered:
            self.allocate()
            all_gather(self.comm, self.weights.flat)
            self.weights.attach()
            self.gathered = True

    def allocate(self) -> None:
        """Give the flat buffer memory again, with this rank's shard in place."""
        self.weights.flat.untyped_storage().resize_(self.nbytes)
        self.owned(self.weights.flat).data.copy_(self.shard)  # .data: the version counter does not rise

    def free(self) -> None:
        """Free the full weights; this rank's shard stays."""
        if self.gathered and not self.pinned:
            for parameter in self.parameters:
                parameter.data = parameter.data.new_empty(0)  # a freed weight reads as empty, without a crash
            self.weights.flat.untyped_storage().resize_(0)
            self.gathered = False

    def expect_gradients(self, inputs: set[object]) -> None:
        """Backward reaches the layer: expect all gradients, in a flat buffer to which it adds them.

        A frozen bucket expects those of `inputs` instead, marks of one call of the layer.
        """
        if self.backward_pass != backward_pass():  # else this pass came from another output of the layer
            self.backward_pass = backward_pass()
            # Anew, also if the pass before left some without a gradient.
            self.missing = set(self.parameters) if self.trains else set()
            if self.trains and self.full_gradients is None:
                # While the weights are gathered, so that both buffers have the same order of elements.
                self.full_gradients = FlatGradients(self.parameters)
        if not self.trains:
            self.missing |= inputs

    @torch.no_grad()
    def reduce(self) -> None:
        """Add the sum of the gradients to this rank's shard of them; free the rest."""
        if self.full_gradients is not None:
            self.full_gradients.collect()
            self.gradient_shard += reduce_scatter(self.comm, self.full_gradients.flat)
            for parameter in self.parameters:
                parameter.grad = None
            self.full_gradients = None
        self.missing.clear()

    @torch.no_grad()
    def keep_written(self) -> None:
        """Bring shard and master in line with the full weights, where these were changed."""
        written = self.owned(self.weights.flat)
        changed = written != self.shard
        self.master.data[changed] = written[changed].to(self.master.dtype)
        self.shard.copy_(written)


class Zero3(ShardedOptimizer):
    """Stage 3: of weights, gradients and optimizer state a rank keeps its shards only.

        zero = Zero3(comm, model, lambda shards: AdamW(shards, lr=1e-3), layers=model.blocks)

    `layers` are modules of `model` that are gathered one at a time. Parameters in none of them, or in two,
    stay gathered while the model runs. Between steps parameters are empty; inside `with zero.full_weights():`
    they can be read and written. Gathering is collective: all ranks must run the same layers, forward and
    backward, in the same order, and reach the same parameters.

    A layer's backward begins with the gradient of its outputs, so a loss must be made of outputs, not of
    tensors that a layer stored inside. It ends when all trained weights of the layer have their gradients, so
    its `forward` must not use a trained weight's `detach()`, which backward may need even later.
    """

    buckets: Sequence[LayerBucket]
    layer_bucket: type[LayerBucket] = LayerBucket

    def __init__(
        self,
        comm: MPI.Intracomm,
        model: nn.Module,
        make_optimizer: MakeOptimizer = AdamW,
        *,
        layers: Iterable[nn.Module] = (),
        max_norm: float | None = None,
        scaler: LossScaler | None = None,
    ) -> None:
        # modules as they run, each with its buckets
        self.layers: Sequence[tuple[nn.Module, Sequence[LayerBucket]]] = [
            (module, [self.layer_bucket(comm, each) for each in alike(parameters)])
            for module, parameters in layers_with_parameters(model, list(layers))
        ]
        buckets = [bucket for _, in_layer in self.layers for bucket in in_layer]
        if not any(bucket.trains for bucket in buckets):
            raise ValueError("there is nothing to train: no parameter requires a gradient")
        broadcast(comm, model.buffers())
        super().__init__(comm, model, buckets, make_optimizer, max_norm, scaler)
        for index, (module, in_layer) in enumerate(self.layers):
            self.watch(index, module, in_layer)

    @property
    def trained(self) -> Sequence[LayerBucket]:
        """The buckets that are not frozen."""
        return [bucket for bucket in self.buckets if bucket.trains]

    def gather(self, index: int) -> None:
        """Gather the weights of layer `index`, which runs now."""
        for bucket in self.layers[index][1]:
            bucket.gather()

    def watch(self, index: int, module: nn.Module, buckets: Sequence[LayerBucket]) -> None:
        """Gather the layer just before it runs, forward and backward, and free it just after.

        Each node of autograd's graph that uses a trained weight also sends a gradient to it, and the weight's
        gradient is complete when all of them have run. So when all trained weights have theirs, backward
        needs none of them any more. For frozen weights see `mark_inputs`.
        """
        inputs: set[object] = set()  # of the call that runs now

        def before(_module: nn.Module, *arguments: Any) -> None:
            nonlocal inputs
            self.gather(index)
            inputs = mark_inputs(buckets, arguments)

        def after(_module: nn.Module, _inputs: Any, outputs: Any) -> None:
            for tensor in needing_gradients(outputs):
                tensor.register_hook(lambda _gradient, inputs=inputs: before_backward(inputs))
            # Activation checkpointing runs this forward inside backward, which needs the weights right after.
            if not in_backward():
                free(buckets)

        def before_backward(inputs: set[object]) -> None:
            self.gather(index)
            for bucket in buckets:
                bucket.expect_gradients(inputs)

        module.register_forward_pre_hook(before, with_kwargs=True)
        module.register_forward_hook(after)
        for parameter in (p for bucket in buckets if bucket.trains for p in bucket.parameters):
            parameter.register_post_accumulate_grad_hook(lambda what: reached(buckets, what))

    def step(self) -> float | None:
        """Update this rank's shards; returns the gradients' norm if `max_norm` is set, else None."""
        self.check_cleared()
        finish(self.buckets)  # where backward did not reach all parameters
        return self.update(self.comm)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear this rank's shards of the gradients and, if `step` was skipped, what is not summed yet."""
        finish(self.buckets)
        super().zero_grad()

    @contextmanager
    @torch.no_grad()
    def full_weights(self) -> Iterator[None]:
        """Gather all parameters, on all ranks together; what is written to them is kept.

        Each rank keeps its own shard of what it wrote, so all ranks must write the same values. The model may
        run inside, but not step. 16-bit weights that are only read keep their float32 masters.
        """
        for index, (_, in_layer) in enumerate(self.layers):
            self.gather(index)
            for bucket in in_layer:
                bucket.pinned = True
        try:
            yield
        finally:
            for bucket in (bucket for _, in_layer in self.layers for bucket in in_layer):
                bucket.keep_written()
                bucket.pinned = False
                bucket.free()


def mark_inputs(buckets: Sequence[LayerBucket], arguments: Any) -> set[object]:
    """A mark for each input of a layer that needs a gradient; none unless a bucket of the layer is frozen.

    A frozen weight gets no gradient: backward may need it until the layer's inputs have theirs. A mark stands
    for an input in `missing` and does not keep the tensor alive.
    """
    marks = set[object]()
    if any(not bucket.trains for bucket in buckets):
        for tensor in needing_gradients(arguments):
            marks.add(mark := object())
            tensor.register_hook(lambda _gradient, mark=mark: reached(buckets, mark))
    return marks


def reached(buckets: Sequence[LayerBucket], what: object) -> None:
    """Backward has a gradient, of a parameter or a marked input: finish the layer after the last one."""
    for bucket in buckets:
        bucket.missing.discard(what)
    if not any(bucket.missing for bucket in buckets):
        finish(buckets)


def finish(buckets: Sequence[LayerBucket]) -> None:
    """Sum the gradients of these buckets, and free the full ones and the full weights."""
    for bucket in buckets:
        bucket.reduce()
    free(buckets)


def free(buckets: Iterable[LayerBucket]) -> None:
    """Free the full weights of these buckets."""
    for bucket in buckets:
        bucket.free()


def in_backward() -> bool:
    """Whether autograd runs a backward pass at the moment."""
    return backward_pass() >= 0


def backward_pass() -> int:
    """The number of the backward pass that autograd runs at the moment; -1 outside of one."""
    return torch._C._current_graph_task_id()


def needing_gradients(tensors: Any) -> list[torch.Tensor]:
    """Those of `tensors` (nested as you like) for which backward computes a gradient."""
    return [each for each in tree_leaves(tensors) if torch.is_tensor(each) and each.requires_grad]


def layers_with_parameters(
    model: nn.Module, layers: list[nn.Module]
) -> list[tuple[nn.Module, list[nn.Parameter]]]:
    """Each layer with the parameters that no other module has; `model`, first, with all the others.

    ValueError when a parameter of a layer is not in the model.
    """
    users: dict[nn.Parameter, set[int]] = {}
    for index, layer in enumerate(layers):
        for parameter in layer.parameters():
            users.setdefault(parameter, set()).add(index)
    if not users.keys() <= set(model.parameters()):
        raise ValueError("a layer has a parameter that is not in the model")
    inside = {module for layer in layers for module in layer.modules()}
    outside = {
        parameter
        for module in model.modules()
        if module not in inside
        for parameter in module.parameters(recurse=False)
    }
    own: list[list[nn.Parameter]] = [[] for _ in layers]
    others = []
    for parameter in model.parameters():
        indices = users.get(parameter, set())
        if len(indices) == 1 and parameter not in outside:
            own[next(iter(indices))].append(parameter)
        else:
            others.append(parameter)
    pairs = [(model, others), *zip(layers, own, strict=True)]
    return [(module, parameters) for module, parameters in pairs if parameters]


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


# ------------------------------------------------------------------ with any stage: loss scaling


class LossScaler:
    """The factor of a float16 loss; the same on all ranks.

        scaler = LossScaler()
        zero = Zero2(comm, model, make_optimizer, scaler=scaler)
        scaler.scale(loss).backward(); zero.step(); zero.zero_grad()

    float16 loses gradients below 6e-8, so the loss is multiplied, and they with it. In every stage `step`
    sums them, converts the sums to the masters' float32, and calls `unscale` there. When a sum overflows on
    any rank, all ranks skip the update, `step` returns None, and the factor halves; after `steps_to_double`
    updates without overflow it doubles. bfloat16 has the range of float32 and needs none of this.

    Source: Micikevicius and others, Mixed Precision Training, ICLR 2018, https://arxiv.org/abs/1710.03740
    """

    def __init__(self, factor: float = 2.0**16, steps_to_double: int = 2000) -> None:
        self.factor, self.steps_to_double, self.good = factor, steps_to_double, 0

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        """The loss to call backward on."""
        return loss * self.factor

    @torch.no_grad()
    def unscale(self, comm: MPI.Intracomm, gradients: Sequence[torch.Tensor]) -> bool:
        """Divide the summed `gradients` (float32) by the factor; False if any rank's overflowed."""
        finite = all(bool(torch.isfinite(gradient).all()) for gradient in gradients)
        if not comm.allreduce(finite, MPI.LAND):
            self.factor, self.good = self.factor / 2, 0
            return False
        for gradient in gradients:
            gradient /= self.factor
        self.good += 1
        if self.good == self.steps_to_double:
            self.factor, self.good = self.factor * 2, 0
        return True


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


# ------------------------------------------------------------------ with stage 3: a layer in tiles
#
# y = [ W₀ ]  x      each tile a layer of its own: gather W₀, run, free; gather W₁, …
#     [ W₁ ]
#
# Rajbhandari and others, ZeRO-Infinity, SC 2021, section 5.1.3: memory-centric tiling.


class TiledLinear(nn.Module):
    """A linear layer (…, features_in) → (…, features_out) in `tiles` parts of its outputs; equal to `linear`.

    Pass `layers=[*tiled.tiles]` to `Zero3`. Raises ValueError for more tiles than outputs.
    """

    def __init__(self, linear: nn.Linear, tiles: int) -> None:
        super().__init__()
        if not 1 <= tiles <= linear.out_features:
            raise ValueError(
                f"{linear.out_features} outputs make 1 to {linear.out_features} tiles, not {tiles}"
            )
        self.tiles = nn.ModuleList(tile_of(linear, part) for part in even_ranges(linear.out_features, tiles))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(…, features_in) → (…, features_out), tile after tile."""
        return torch.cat([tile(x) for tile in self.tiles], dim=-1)


@torch.no_grad()
def tile_of(linear: nn.Linear, outputs: range) -> nn.Linear:
    """A linear layer with some of the outputs of `linear`."""
    part = slice(outputs.start, outputs.stop)
    tile = nn.Linear(linear.in_features, len(outputs), linear.bias is not None, dtype=linear.weight.dtype)
    tile.weight.copy_(linear.weight[part]).requires_grad_(linear.weight.requires_grad)
    if linear.bias is not None:
        tile.bias.copy_(linear.bias[part]).requires_grad_(linear.bias.requires_grad)
    return tile
