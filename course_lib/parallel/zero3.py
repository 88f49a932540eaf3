"""Stage 3 of ZeRO: the weights, too, are sharded. A layer is gathered just before it runs, and freed after.

    forward    gather 0 │ run 0 │ free 0   gather 1 │ run 1 │ free 1   …
    backward   …   gather 1 │ backward 1 │ sum its gradients, free 1   gather 0 │ …

`LayerHooks` finds these moments with four of PyTorch's hooks. Two run before and after a layer's forward.
Two wait for gradients, because a layer's backward begins when the first of its outputs has its gradient, and
has ended when all its trained weights have theirs. The hooks gather, sum and free the layer's `LayerBucket`s.

`zero.py` has stages 0 to 2, `zero_shards.py` what all stages share, `training/flat.py` the flat buffers;
`fast/zero.py` gathers ahead. From these files:

    bucket.owned(flat)           this rank's shard of it, a view; lengths differ by ≤ 1
    weights.attach()             makes every parameter a view of the flat buffer `weights.flat`
    FlatGradients(parameters)    makes every `.grad` a view of a new flat buffer, `gradients.flat`, of zeros
    gradients.collect()          copies into that buffer every `.grad` that is no view of it any more

Source: Rajbhandari, Rasley, Ruwase and He, ZeRO: Memory Optimizations Toward Training Trillion Parameter
Models, SC 2020, https://arxiv.org/abs/1910.02054
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from mpi4py import MPI
from torch import nn
from torch.optim import AdamW
from torch.utils._pytree import tree_leaves

from course_lib.parallel.zero_shards import (
    Bucket,
    MakeOptimizer,
    ShardedOptimizer,
    alike,
    all_gather,
    broadcast,
    frozen_parameters,
    reduce_scatter,
)
from course_lib.theory.partition import even_ranges
from course_lib.training.flat import FlatGradients

SHARDED = "sharded_by_zero3"  # a parameter has an attribute of this name when a `LayerBucket` shards it
NEW_MODEL = "build a new model and, inside full_weights(), call new.load_state_dict(model.state_dict())"


class LayerBucket(Bucket):
    """A layer's parameters: gathered while the layer runs; at other times this rank keeps its shard only.

    Freeing empties the *memory* of the flat buffer. The tensors that autograd saves for backward are the
    parameters, or views of the buffer, so they show the weights again after the next gather. Autograd refuses
    a saved tensor whose version counter has risen. Gathering does not raise it: the flat buffer has a counter
    of its own, and `parameter.data = …` leaves the parameter's as it is.
    """

    def __init__(self, comm: MPI.Intracomm, parameters: Sequence[nn.Parameter]) -> None:
        super().__init__(comm, parameters)
        self.nbytes = self.weights.flat.nbytes
        self.gradient_shard = torch.zeros_like(self.shard)
        self.full_gradients: FlatGradients | None = None  # from the layer's backward until `reduce`
        self.gathered, self.pinned = True, False  # pinned: not to be freed
        for parameter in self.parameters:
            setattr(parameter, SHARDED, True)
        self.free()

    def own_shard(self) -> torch.Tensor:
        """This rank's shard, copied as the buffer is freed; `master` is the same memory unless 16-bit."""
        return super().own_shard().clone()

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
        self.owned(self.weights.flat).copy_(self.shard)

    def free(self) -> None:
        """Free the full weights; this rank's shard stays."""
        if self.gathered and not self.pinned:
            for parameter in self.parameters:
                parameter.data = parameter.data.new_empty(0)  # a freed weight reads as empty, without a crash
            self.weights.flat.untyped_storage().resize_(0)
            self.gathered = False

    def expect_gradients(self) -> None:
        """Make every gradient a view of one flat buffer of zeros, to which backward adds."""
        if self.full_gradients is None:
            # Only while the weights are gathered: a freed parameter, and so its gradient, has no elements.
            self.full_gradients = FlatGradients(self.parameters)

    def reduce(self) -> None:
        """Sum the full gradients over ranks, add this rank's shard to `gradient_shard`, and free the rest."""
        if self.full_gradients is not None:
            self.full_gradients.collect()  # the weights may be freed: gradients have a buffer of their own
            self.gradient_shard += reduce_scatter(self.comm, self.full_gradients.flat)
            for parameter in self.parameters:
                parameter.grad = None
            self.full_gradients = None

    def keep_written(self) -> None:
        """Copy this rank's shard of the full weights to `shard` and, where it was changed, to `master`."""
        written = self.owned(self.weights.flat)
        changed = written != self.shard  # elsewhere a float32 master keeps the digits that 16 bits lack
        self.master.data[changed] = written[changed].to(self.master.dtype)
        self.shard.copy_(written)


class Zero3(ShardedOptimizer):
    """Stage 3: once constructed, a rank keeps only its shards of weights, gradients and optimizer state.

        zero = Zero3(comm, model, lambda shards: AdamW(shards, lr=1e-3), layers=model.blocks)

    `layers` are modules of `model` that are gathered one at a time. Parameters in none of them, or in two,
    stay gathered while the model runs; frozen ones stay whole on every rank. Between steps all others are
    empty; inside `with zero.full_weights():` they can be read and written. Gradients are summed over ranks:
    divide the loss by `comm.size` for their mean. A parameter without a gradient has one of zeros, so
    momentum and weight decay act on it, too.

    Gathering is collective: all ranks must run the same layers, forward and backward, in the same order, and
    reach the same parameters. Nothing checks this: ranks that differ wait forever or gather wrong weights.

    A layer's backward begins with the gradient of its outputs, so a loss must be made of outputs, not of
    tensors that a layer stored inside. It ends when all trained weights of the layer have their gradients, so
    its `forward` must not use a trained weight's `detach()`, which backward may need even later. The hooks
    find outputs in lists, tuples and dicts, not in dataclasses. A checkpoint with `use_reentrant=True` must
    not use weights that the layer also uses outside of it. Otherwise backward reads freed memory: a
    RuntimeError about a size of 0, or a segmentation fault.
    """

    buckets: Sequence[LayerBucket]
    layer_bucket: type[LayerBucket] = LayerBucket  # `fast/zero.py` has its own
    remedy = f"{ShardedOptimizer.remedy}. The weights of this model stay sharded, so first {NEW_MODEL}"

    def __init__(
        self,
        comm: MPI.Intracomm,
        model: nn.Module,
        make_optimizer: MakeOptimizer = AdamW,
        *,
        layers: Iterable[nn.Module] = (),
        max_norm: float | None = None,
    ) -> None:
        if not any(parameter.requires_grad for parameter in model.parameters()):
            raise ValueError("there is nothing to train: no parameter requires a gradient")
        if any(hasattr(parameter, SHARDED) for parameter in model.parameters()):
            raise ValueError(f"the weights of this model are sharded already; {NEW_MODEL}")
        # `model`, then `layers` as given; those without a bucket are left out
        self.layers: Sequence[tuple[nn.Module, Sequence[LayerBucket]]] = [
            (module, [self.layer_bucket(comm, each) for each in alike(parameters)])
            for module, parameters in layers_with_parameters(model, list(layers))
        ]
        buckets = [bucket for _, in_layer in self.layers for bucket in in_layer]
        broadcast(comm, [*frozen_parameters(model), *model.buffers()])
        super().__init__(comm, model, buckets, make_optimizer, max_norm)
        for index, (module, in_layer) in enumerate(self.layers):
            LayerHooks(module, in_layer, partial(self.gather, index))

    def gather(self, index: int) -> None:
        """Gather the weights of layer `index`; `fast/zero.py` then starts to gather the layer after it."""
        for bucket in self.layers[index][1]:
            bucket.gather()

    def step(self) -> float | None:
        """Update this rank's shards; returns the gradients' norm if `max_norm` is set, else None.

        ValueError inside `full_weights()`, without `zero_grad` since the last step, or when the trainable
        parameters have changed since construction.
        """
        if any(bucket.pinned for bucket in self.buckets):
            raise ValueError("full_weights() would undo this step when it ends; call step() after it")
        self.check_cleared()
        self.check_parameters()
        finish(self.buckets)  # where backward did not reach all parameters
        return self.update(self.comm)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear this rank's shards of the gradients; all ranks together, like `step`."""
        finish(self.buckets)  # if `step` was skipped: what is not summed yet goes, too
        super().zero_grad()

    @contextmanager
    def full_weights(self) -> Iterator[None]:
        """Gather all parameters, on all ranks together; what is written to them in place is kept.

        Each rank keeps its own shard of what it wrote, so all ranks must write the same values. The model may
        run inside, but not step. 16-bit weights that are only read keep their float32 masters. ValueError if
        it is open already, and at its end if `parameter.data = …` replaced a weight, which is not in place.
        """
        if any(bucket.pinned for bucket in self.buckets):
            raise ValueError("full_weights() is open already")
        for index, (_, in_layer) in enumerate(self.layers):
            self.gather(index)
            for bucket in in_layer:
                bucket.pinned = True
        try:
            yield
            for bucket in self.buckets:
                bucket.weights.check()
        finally:
            for bucket in self.buckets:
                bucket.keep_written()
                bucket.pinned = False
                bucket.free()


class LayerHooks:
    """Gathers a layer just before it runs, forward and backward, and frees it just after.

    Each node of autograd's graph that uses a weight also sends it a gradient, so when all weights have
    theirs, no node needs them any more.
    """

    def __init__(self, module: nn.Module, buckets: Sequence[LayerBucket], gather: Callable[[], None]) -> None:
        self.buckets, self.gather = buckets, gather
        self.parameters = [parameter for bucket in buckets for parameter in bucket.parameters]
        self.last_pass = -1  # the last backward pass that reached the layer
        self.missing: set[torch.Tensor] = set()  # the weights that have no gradient yet in that pass
        module.register_forward_pre_hook(lambda _module, _inputs: self.gather())
        module.register_forward_hook(lambda _module, _inputs, outputs: self.after_forward(outputs))
        for parameter in self.parameters:
            parameter.register_post_accumulate_grad_hook(self.reached)

    def after_forward(self, outputs: Any) -> None:
        """Free the weights; the first of `outputs` that backward reaches gathers them again."""
        for tensor in needing_gradients(outputs):
            tensor.register_hook(self.before_backward)
        # Activation checkpointing runs this forward inside backward, which needs the weights right after.
        if not in_backward():
            for bucket in self.buckets:
                bucket.free()

    def before_backward(self, _gradient: torch.Tensor) -> None:
        """Gather the weights, and expect their gradients."""
        if self.last_pass != backward_pass():
            self.last_pass = backward_pass()
            self.missing = set(self.parameters)  # the last pass may have left some
        elif not self.missing:
            return  # the layer's backward is over: this output is one of its inputs, unchanged
        self.gather()
        for bucket in self.buckets:
            bucket.expect_gradients()

    def reached(self, parameter: torch.Tensor) -> None:
        """A weight has its gradient: after the last one, sum and free."""
        self.missing.discard(parameter)
        if not self.missing:
            finish(self.buckets)


def finish(buckets: Iterable[LayerBucket]) -> None:
    """Sum the gradients of these buckets over ranks, and free the full ones and the full weights."""
    for bucket in buckets:
        bucket.reduce()
        bucket.free()


def in_backward() -> bool:
    """Whether autograd runs a backward pass at the moment."""
    return backward_pass() >= 0


def backward_pass() -> int:
    """The number of the backward pass that autograd runs at the moment; -1 outside of one."""
    return torch._C._current_graph_task_id()


def needing_gradients(tensors: Any) -> list[torch.Tensor]:
    """Those of `tensors`, which may be nested lists, tuples and dicts, that need a gradient."""
    return [each for each in tree_leaves(tensors) if torch.is_tensor(each) and each.requires_grad]


def layers_with_parameters(
    model: nn.Module, layers: list[nn.Module]
) -> list[tuple[nn.Module, list[nn.Parameter]]]:
    """Each layer with the trained parameters that it alone uses; `model`, first, with all the others.

    ValueError when a parameter of a layer is not in the model.
    """
    users: dict[nn.Parameter, set[int]] = {parameter: set() for parameter in model.parameters()}
    everywhere = list(model.named_modules(remove_duplicate=False))  # a module of a layer may be outside, too
    paths = tuple(f"{name}." for name, module in everywhere if module in set(layers))
    for name, module in everywhere:
        if not f"{name}.".startswith(paths):
            for parameter in module.parameters(recurse=False):
                users[parameter].add(0)
    for number, layer in enumerate(layers, start=1):
        for parameter in layer.parameters():
            if parameter not in users:
                raise ValueError("a layer has a parameter that is not in the model")
            users[parameter].add(number)
    own: list[list[nn.Parameter]] = [[] for _ in (model, *layers)]
    for parameter, numbers in ((each, by) for each, by in users.items() if each.requires_grad):
        own[numbers.pop() if len(numbers) == 1 else 0].append(parameter)
    return [(module, each) for module, each in zip((model, *layers), own, strict=True) if each]


# ------------------------------------------------------------------ a layer in tiles
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
