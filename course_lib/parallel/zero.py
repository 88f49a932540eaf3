"""ZeRO from scratch: data parallelism in which no two ranks keep the same bytes.

    stage   every rank keeps all          and its shard of            it moves, for Ψ parameters
    0       weights, gradients, state                                 2Ψ   all-reduce of the gradients
    1       weights, gradients            state                       2Ψ   reduce-scatter, all-gather
    2       weights                       gradients, state            2Ψ   the same, during backward
    3                                     weights, gradients, state   3Ψ   weights once more for backward

Parameters lie in flat buffers, and every flat buffer is cut into one shard per rank, its owner. Computation
is not sharded: every rank runs the whole model on its own part of the batch. Losses are divided by the global
batch, so that gradients are summed over the ranks.

    zero = Zero2(comm, model, lambda shards: AdamW(shards, lr=1e-3))
    loss.backward(); zero.step(); zero.zero_grad()

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
from course_lib.training.flat import FlatBuffer, flatten

BUCKET_BYTES = 4 * 2**20
SHORT = (torch.float16, torch.bfloat16)
TAG = 11
MakeOptimizer = Callable[[list[torch.Tensor]], Optimizer]

# ------------------------------------------------------------------ shards, and their two collectives
#
# flat buffer   [ w w w w w w w | b b | w w w ]     parameters, one after the other
# shards        [ rank 0 | rank 1 | rank 2    ]     as even as can be; a shard may begin inside a parameter
#
# reduce_scatter   every rank has a full buffer of gradients  →  its owner has the sum of each shard
# all_gather       each rank has its own shard                →  every rank has the full buffer


def shards_of(flat: torch.Tensor, size: int) -> list[torch.Tensor]:
    """The shards of `flat` (n,), one per rank, as views; their lengths differ by at most one."""
    return [flat[part.start : part.stop] for part in even_ranges(flat.numel(), size)]


@torch.no_grad()
def reduce_scatter(comm: MPI.Intracomm, flat: torch.Tensor) -> torch.Tensor:
    """Sum this rank's shard of `flat` over `comm`, in place, and return it; the rest stays as it is.

    Pairwise exchange: n - 1 messages of one shard each. 16-bit numbers are summed in float32.
    """
    shards = shards_of(flat, comm.size)
    mine = shards[comm.rank]
    total = mine.float() if flat.dtype in SHORT else mine
    received = torch.empty_like(mine)
    for distance in range(1, comm.size):
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
    """What MPI's all-gather of `flat` receives: memory, recvcounts, displacements, datatype."""
    counts = [shard.nbytes for shard in shards_of(flat, comm.size)]
    return [memory_of(flat), counts, [sum(counts[:rank]) for rank in range(comm.size)], MPI.BYTE]


def memory_of(tensor: torch.Tensor) -> MPI.memory:
    """The bytes of a contiguous tensor, which MPI moves whatever their type.

    Not by way of NumPy: torch cannot resize a tensor's memory once NumPy has seen it, and stage 3 does.
    """
    return MPI.memory.fromaddress(tensor.data_ptr(), tensor.nbytes)


class Bucket:
    """Parameters whose weights are one flat buffer, and the shard of it that this rank owns and updates.

    `shard` is a view of the weights; `master` is what the optimizer updates: the shard itself, or for 16-bit
    weights a float32 copy of it. `gradient_shard`: this rank's shard of the summed gradients.
    """

    gradient_shard: torch.Tensor

    def __init__(self, comm: MPI.Intracomm, parameters: Sequence[nn.Parameter]) -> None:
        self.comm, self.parameters = comm, list(parameters)
        self.weights = FlatBuffer(self.parameters)
        comm.Bcast(memory_of(self.weights.flat), root=0)  # all replicas start equal
        self.weights.keep_weights()
        self.shard = self.owned(self.weights.flat)
        self.master = master_of(self.shard)

    def owned(self, flat: torch.Tensor) -> torch.Tensor:
        """The part of a flat buffer that this rank owns, as a view."""
        return shards_of(flat, self.comm.size)[self.comm.rank]

    def keep_all_gradients(self) -> None:
        """Keep the full gradients in a flat buffer, to which backward adds: stages 0 and 1."""
        self.gradients = FlatBuffer(self.parameters, zeros=True)
        self.gradients.keep_gradients()
        self.gradient_shard = self.owned(self.gradients.flat)

    @torch.no_grad()
    def round_master(self) -> None:
        """Bring a 16-bit shard in line with its float32 master."""
        if self.shard.dtype != self.master.dtype:
            self.shard.copy_(self.master)


def master_of(shard: torch.Tensor) -> nn.Parameter:
    """What the optimizer updates: `shard` itself, or a float32 copy of a 16-bit one."""
    return nn.Parameter(shard.float() if shard.dtype in SHORT else shard)


def buckets_of(parameters: Iterable[nn.Parameter], bucket_bytes: int) -> list[list[nn.Parameter]]:
    """The trainable `parameters`, last first as backward reaches them, in buckets of up to `bucket_bytes`.

    A larger parameter gets a bucket of its own. ValueError when nothing is trainable.
    """
    last_first = [parameter for parameter in parameters if parameter.requires_grad][::-1]
    if not last_first:
        raise ValueError("there is nothing to train: no parameter requires a gradient")
    fused = fused_ranges([parameter.nbytes for parameter in last_first], bucket_bytes)
    return [last_first[part.start : part.stop] for part in fused]


class ShardedOptimizer:
    """What all stages share: an optimizer of the parts of the weights that this rank owns.

    `make_optimizer` gets one flat tensor per bucket. The optimizer must treat every element alike: SGD, Adam
    and AdamW do, one that looks at whole matrices does not.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        buckets: Sequence[Bucket],
        make_optimizer: MakeOptimizer,
        max_norm: float | None,
    ) -> None:
        self.comm, self.buckets, self.max_norm = comm, list(buckets), max_norm
        self.masters = [bucket.master for bucket in self.trained]
        self.optimizer = make_optimizer(list(self.masters))

    @property
    def trained(self) -> list[Any]:
        """The buckets that the optimizer updates."""
        return self.buckets

    def update(self, owners: MPI.Intracomm) -> float | None:
        """Update what this rank owns. Returns the norm of the gradients if there is a `max_norm`.

        `owners`: the ranks that together hold every gradient once.
        """
        for bucket in self.trained:
            bucket.master.grad = bucket.gradient_shard.to(bucket.master.dtype)
        norm = self.max_norm and clip_gradients(owners, self.masters, self.max_norm)
        self.optimizer.step()
        for bucket in self.trained:
            bucket.master.grad = None
            bucket.round_master()
        return norm

    def zero_grad(self) -> None:
        """Clear this rank's shards of the gradients."""
        for bucket in self.trained:
            bucket.gradient_shard.zero_()


class BucketedOptimizer(ShardedOptimizer):
    """What stages 0 to 2 share: buckets of neighbouring parameters, of up to `bucket_bytes`.

    All ranks of `comm` make it and step together. `max_norm` clips by the norm of all gradients.
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
        super().__init__(comm, [self.bucket_type(comm, each) for each in groups], make_optimizer, max_norm)
        self.keep_gradients()

    def keep_gradients(self) -> None:
        """Keep the full gradients, to which backward adds."""
        for bucket in self.buckets:
            bucket.keep_all_gradients()


# ------------------------------------------------------------------ stage 0: data parallelism


class ReplicatedBucket(Bucket):
    """A bucket that every rank owns in full."""

    def owned(self, flat: torch.Tensor) -> torch.Tensor:
        """All of it."""
        return flat


class Zero0(BucketedOptimizer):
    """Stage 0, to compare with: every rank keeps everything, and makes the same update."""

    bucket_type = ReplicatedBucket

    def step(self) -> float | None:
        """Sum the gradients on all ranks, update all weights on each; the norm if there is a `max_norm`."""
        for bucket in self.buckets:
            bucket.gradients.check_gradients()
            reduce_scatter(self.comm, bucket.gradients.flat)  # the two halves of an all-reduce
            all_gather(self.comm, bucket.gradients.flat)
        return self.update(MPI.COMM_SELF)


# ------------------------------------------------------------------ stage 1: the optimizer's state is sharded


class Zero1(BucketedOptimizer):
    """Stage 1: every rank keeps all weights and gradients, and the optimizer state of its own shards."""

    def step(self) -> float | None:
        """Sum the gradients, update this rank's shards, gather all; the norm if there is a `max_norm`."""
        for bucket in self.buckets:
            bucket.gradients.check_gradients()
            reduce_scatter(self.comm, bucket.gradients.flat)
        norm = self.update(self.comm)
        for bucket in self.buckets:
            all_gather(self.comm, bucket.weights.flat)
        return norm

    def zero_grad(self) -> None:
        """Clear the full gradients, where they are."""
        for bucket in self.buckets:
            bucket.gradients.flat.zero_()


# ------------------------------------------------------------------ stage 2: so are the gradients


class Zero2(BucketedOptimizer):
    """Stage 2: of the gradients, too, a rank keeps its shards only.

    A bucket is summed and freed as soon as backward has filled it. For several backward passes per step, the
    shards add up. Parameters that backward did not reach have a gradient of zero. All ranks must reach the
    same buckets in the same order.
    """

    def keep_gradients(self) -> None:
        """Keep this rank's shards of them; hooks tell when backward has a gradient."""
        for bucket in self.buckets:
            bucket.gradient_shard = torch.zeros_like(bucket.shard)
            for parameter in bucket.parameters:
                parameter.register_post_accumulate_grad_hook(self.ready)
        self.start_pass()

    def start_pass(self) -> None:
        """Expect all gradients anew."""
        self.missing = [set(bucket.parameters) for bucket in self.buckets]
        self.reduced = 0  # how many buckets are summed in this pass, in their order

    def ready(self, parameter: torch.Tensor) -> None:
        """Backward has a gradient: sum the buckets that are full, in the order that all ranks keep."""
        for missing in self.missing:
            missing.discard(parameter)
        while self.reduced < len(self.buckets) and not self.missing[self.reduced]:
            self.reduce(self.buckets[self.reduced])
            self.reduced += 1
        if self.reduced == len(self.buckets):
            self.start_pass()

    @torch.no_grad()
    def reduce(self, bucket: Bucket) -> None:
        """Add the sum of the bucket's gradients to this rank's shard, and free them."""
        flat = flatten([torch.zeros_like(p) if p.grad is None else p.grad for p in bucket.parameters])
        for parameter in bucket.parameters:
            parameter.grad = None
        bucket.gradient_shard += reduce_scatter(self.comm, flat)

    def step(self) -> float | None:
        """Update this rank's shards and gather all; the norm of the gradients if there is a `max_norm`."""
        if self.reduced or any(p.grad is not None for bucket in self.buckets for p in bucket.parameters):
            for bucket in self.buckets[self.reduced :]:  # backward did not reach all of their parameters
                self.reduce(bucket)
        self.start_pass()
        norm = self.update(self.comm)
        for bucket in self.buckets:
            all_gather(self.comm, bucket.weights.flat)
        return norm


# ------------------------------------------------------------------ stage 3: so are the weights
#
# forward    gather 0 │ run 0 │ free 0   gather 1 │ run 1 │ free 1   …
# backward   …   gather 1 │ backward 1 │ sum its gradients, free 1   gather 0 │ …


class LayerBucket(Bucket):
    """A layer's parameters: gathered while the layer runs; at other times this rank keeps its shard only.

    Freeing empties the *memory* of the flat buffer. What autograd keeps for backward are views of it, which
    show the weights again as soon as they are gathered again: the same values, so autograd need not know.
    """

    def __init__(self, comm: MPI.Intracomm, parameters: Sequence[nn.Parameter]) -> None:
        super().__init__(comm, parameters)
        self.shard = self.shard.clone()  # memory of its own: the flat buffer will be freed
        self.master = master_of(self.shard)
        self.nbytes = self.weights.flat.nbytes
        self.trains = self.parameters[0].requires_grad
        if self.trains:
            self.gradient_shard = torch.zeros_like(self.shard)
        self.full_gradients: FlatBuffer | None = None  # all of them, while backward fills them
        self.missing: set[nn.Parameter] = set()  # whose gradients backward has not finished
        self.gathered = True
        self.free()

    def gather(self) -> None:
        """Gather the full weights."""
        if not self.gathered:
            self.allocate()
            all_gather(self.comm, self.weights.flat)
            self.weights.keep_weights()
            self.gathered = True

    def allocate(self) -> None:
        """Give the flat buffer memory again, with this rank's shard in place."""
        self.weights.flat.untyped_storage().resize_(self.nbytes)
        self.owned(self.weights.flat).data.copy_(self.shard)

    def free(self) -> None:
        """Free the full weights; this rank's shard stays."""
        if self.gathered:
            for parameter in self.parameters:
                parameter.data = parameter.data.new_empty(0)  # a freed weight reads as empty, without a crash
            self.weights.flat.untyped_storage().resize_(0)
            self.gathered = False

    def expect_gradients(self) -> None:
        """Backward reaches the layer: make a flat buffer to which it adds the gradients."""
        if self.trains and self.full_gradients is None:
            self.full_gradients, self.missing = FlatBuffer(self.parameters, zeros=True), set(self.parameters)
            self.full_gradients.keep_gradients()

    @torch.no_grad()
    def reduce(self) -> None:
        """Add the sum of the gradients to this rank's shard of them; free the rest."""
        if self.full_gradients is not None:
            self.gradient_shard += reduce_scatter(self.comm, self.full_gradients.flat)
            for parameter in self.parameters:
                parameter.grad = None
            self.full_gradients = None
            self.missing.clear()


class Zero3(ShardedOptimizer):
    """Stage 3: of weights, gradients and optimizer state a rank keeps its shards only.

        zero = Zero3(comm, model, lambda shards: AdamW(shards, lr=1e-3), layers=model.blocks)

    `layers` are modules of `model` that are gathered one at a time. Parameters in none of them, or in two,
    stay gathered while the model runs. Between steps parameters are empty; inside `with zero.full_weights():`
    they can be read and written.
    """

    layer_bucket = LayerBucket

    def __init__(
        self,
        comm: MPI.Intracomm,
        model: nn.Module,
        make_optimizer: MakeOptimizer = AdamW,
        *,
        layers: Iterable[nn.Module] = (),
        max_norm: float | None = None,
    ) -> None:
        self.layers: list[tuple[nn.Module, list[Any]]] = [  # modules as they run, each with its buckets
            (module, [self.layer_bucket(comm, each) for each in alike(parameters)])
            for module, parameters in layers_with_parameters(model, list(layers))
        ]
        buckets = [bucket for _, in_layer in self.layers for bucket in in_layer]
        if not any(bucket.trains for bucket in buckets):
            raise ValueError("there is nothing to train: no parameter requires a gradient")
        super().__init__(comm, buckets, make_optimizer, max_norm)
        for index, (module, in_layer) in enumerate(self.layers):
            self.watch(index, module, in_layer)

    @property
    def trained(self) -> list[Any]:
        """The buckets that are not frozen."""
        return [bucket for bucket in self.buckets if bucket.trains]  # type: ignore[attr-defined]

    def gather(self, index: int) -> None:
        """Gather the weights of layer `index`, which runs now."""
        for bucket in self.layers[index][1]:
            bucket.gather()

    def watch(self, index: int, module: nn.Module, buckets: list[LayerBucket]) -> None:
        """Gather the layer just before it runs, forward and backward, and free it just after."""

        def before(_module: nn.Module, inputs: Any) -> None:
            self.gather(index)
            if not any(bucket.trains for bucket in buckets):  # no gradient says that backward is past it
                when_reached(inputs, lambda: free(buckets))

        def after(_module: nn.Module, _inputs: Any, outputs: Any) -> None:
            when_reached(outputs, before_backward)
            if not in_backward():  # in backward it is recomputed, and its backward follows at once
                free(buckets)

        def before_backward() -> None:
            self.gather(index)
            for bucket in buckets:
                bucket.expect_gradients()

        def ready(parameter: torch.Tensor) -> None:
            for bucket in buckets:
                bucket.missing.discard(parameter)
            if not any(bucket.missing for bucket in buckets):
                for bucket in buckets:
                    bucket.reduce()
                free(buckets)

        module.register_forward_pre_hook(before)
        module.register_forward_hook(after)
        for parameter in (p for bucket in buckets if bucket.trains for p in bucket.parameters):
            parameter.register_post_accumulate_grad_hook(ready)

    def step(self) -> float | None:
        """Update this rank's shards; the norm of the gradients if there is a `max_norm`."""
        for bucket in self.trained:
            bucket.reduce()  # where backward did not reach all parameters
        free(self.buckets)
        return self.update(self.comm)

    @contextmanager
    @torch.no_grad()
    def full_weights(self) -> Iterator[None]:
        """Gather all parameters, on all ranks together; what is written to them is kept."""
        for index in range(len(self.layers)):
            self.gather(index)
        yield
        for bucket in self.buckets:
            bucket.shard.copy_(bucket.owned(bucket.weights.flat))
            if bucket.master.dtype != bucket.shard.dtype:
                bucket.master.data.copy_(bucket.shard)
        free(self.buckets)


def free(buckets: Iterable[Any]) -> None:
    """Free the full weights of these buckets."""
    for bucket in buckets:
        bucket.free()


def in_backward() -> bool:
    """Whether autograd runs a backward pass at the moment."""
    return torch._C._current_graph_task_id() >= 0


def when_reached(tensors: Any, do: Callable[[], None]) -> None:
    """Call `do` when backward has the gradient of any of `tensors` (nested as you like)."""
    for tensor in tree_leaves(tensors):
        if torch.is_tensor(tensor) and tensor.requires_grad:
            tensor.register_hook(lambda _gradient: do())


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


def alike(parameters: Sequence[nn.Parameter]) -> list[list[nn.Parameter]]:
    """`parameters`, grouped by dtype and by whether they are trained."""
    groups: dict[tuple[torch.dtype, bool], list[nn.Parameter]] = {}
    for parameter in parameters:
        groups.setdefault((parameter.dtype, parameter.requires_grad), []).append(parameter)
    return list(groups.values())


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

        scaler.scale(loss).backward()
        if scaler.unscale(comm, gradients):
            … update …

    float16 loses gradients below 6e-8, so the loss is multiplied, and they with it. When a gradient overflows
    on any rank, all ranks skip the update and halve the factor; after `steps_to_double` updates without
    overflow it doubles. bfloat16 has the range of float32 and needs none of this.

    Source: Micikevicius and others, Mixed Precision Training, ICLR 2018, https://arxiv.org/abs/1710.03740
    """

    def __init__(self, factor: float = 2.0**16, steps_to_double: int = 2000) -> None:
        self.factor, self.steps_to_double, self.good = factor, steps_to_double, 0

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        """The loss to call backward on."""
        return loss * self.factor

    @torch.no_grad()
    def unscale(self, comm: MPI.Intracomm, gradients: Sequence[torch.Tensor]) -> bool:
        """Divide `gradients` by the factor; False when any rank's are not finite: then skip the update."""
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

    The system keeps in memory what it has room for. Call it before the first step. Raises TypeError for other
    optimizers, ValueError after the first step and OSError, with the numbers, when `folder` has no room.
    """
    if not isinstance(optimizer, Adam | AdamW):
        raise TypeError(f"{type(optimizer).__name__} has other state than Adam's two moments")
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
    tile.weight.copy_(linear.weight[part])
    if linear.bias is not None:
        tile.bias.copy_(linear.bias[part])
    return tile
