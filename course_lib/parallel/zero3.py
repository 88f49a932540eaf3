"""Stage 3 of ZeRO: the weights, too, are sharded. A layer is gathered just before it runs, and freed after.

    forward    gather 0 │ run 0 │ free 0   gather 1 │ run 1 │ free 1   …
    backward   …   gather 1 │ backward 1 │ sum its gradients, free 1   gather 0 │ …

PyTorch calls this a hook before and a hook after each layer's forward; backward has no such moments, so they
are found by gradients: it begins with the gradient of the layer's outputs (`before_backward`), and has ended
when all trained weights have theirs (`reached`). `Zero3.watch` registers these four hooks, and `mark_inputs`
one more for frozen layers; each of them gathers, frees or sums a `LayerBucket`.

`zero.py` has stages 0 to 2, `zero_shards.py` what all stages share; `fast/zero.py` gathers ahead.

Source: Rajbhandari, Rasley, Ruwase and He, ZeRO: Memory Optimizations Toward Training Trillion Parameter
Models, SC 2020, https://arxiv.org/abs/1910.02054
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from mpi4py import MPI
from torch import nn
from torch.optim import AdamW
from torch.utils._pytree import tree_leaves

from course_lib.parallel.zero_shards import (
    Bucket,
    LossScaler,
    MakeOptimizer,
    ShardedOptimizer,
    alike,
    all_gather,
    broadcast,
    reduce_scatter,
)
from course_lib.theory.partition import even_ranges
from course_lib.training.flat import FlatGradients


class LayerBucket(Bucket):
    """A layer's parameters: gathered while the layer runs; at other times this rank keeps its shard only.

    Freeing empties the *memory* of the flat buffer. What autograd keeps for backward are views of it, which
    show the weights again as soon as they are gathered again. Autograd refuses a saved tensor that torch has
    written to since, which it sees by its version counter. Ours does not rise: `resize_` acts on the storage,
    MPI writes to the address, and `allocate` writes through `.data`.
    """

    def __init__(self, comm: MPI.Intracomm, parameters: Sequence[nn.Parameter]) -> None:
        super().__init__(comm, parameters)
        self.nbytes = self.weights.flat.nbytes
        if self.trains:
            self.gradient_shard = torch.zeros_like(self.shard)
        self.full_gradients: FlatGradients | None = None  # all of them, while backward fills them
        self.missing: set[object] = set()  # what has no gradient yet: parameters; if frozen, inputs
        self.backward_pass = -1  # the last one that reached the layer
        self.gathered, self.pinned = True, False  # pinned: not to be freed
        self.free()

    def own_shard(self) -> torch.Tensor:
        """A copy of the shard of the weights that this rank owns: the flat buffer will be freed."""
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
        if self.backward_pass != backward_pass():  # else it has reached the layer, by another output
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
        # `model` first, then `layers` as they were given, each with its buckets
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
        """Gather the weights of layer `index`, which runs now; `fast/zero.py` adds the next one."""
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
            for bucket in self.buckets:
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
