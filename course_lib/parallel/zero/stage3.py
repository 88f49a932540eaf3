"""Stage 3: weights are sharded too. A layer's weights are gathered just before it runs, and freed after.

    forward    gather 0 │ run 0 │ free 0   gather 1 │ run 1 │ free 1   …
    backward   …   gather 1 │ backward 1 │ sum its gradients, free 1   gather 0 │ …

With `prefetch`, the next layer is gathered while this one runs: two layers are whole at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from mpi4py import MPI
from torch import nn
from torch.optim import AdamW
from torch.utils._pytree import tree_leaves

from course_lib.comm.polling import wait_for
from course_lib.parallel.zero.slices import clip_gradients, gather_spec, raw, reduce_scatter, slices_of
from course_lib.parallel.zero.stage1 import MakeOptimizer, state_of
from course_lib.training.flat import flatten, parts_of

PATIENCE_SECONDS = 60.0
in_backward = torch._C._current_graph_task_id


class Row:
    """Parameters in one flat row: whole while their layer runs, else only this rank's slice `mine`.

    Freeing empties the *memory* of the row. What autograd keeps for backward are views of it, which see the
    weights again when the row is filled again: the same values, so autograd is not told (`data`).
    """

    def __init__(self, comm: MPI.Intracomm, parameters: Sequence[nn.Parameter]) -> None:
        self.comm, self.parameters = comm, list(parameters)
        self.weights = flatten(self.parameters)
        self.nbytes = self.weights.nbytes
        comm.Bcast(raw(self.weights), root=0)  # all replicas start equal
        self.parts = parts_of(self.weights, self.parameters)
        self.mine = slices_of(self.weights, comm.size)[comm.rank].clone()
        self.trains = self.parameters[0].requires_grad
        self.master = nn.Parameter(self.mine if self.mine.element_size() >= 4 else self.mine.float())
        self.slice = torch.zeros_like(self.mine) if self.trains else None  # of the gradients
        self.gradients: torch.Tensor | None = None  # of all, while backward fills them
        self.missing: set[nn.Parameter] = set()
        self.request = MPI.REQUEST_NULL
        self.whole = True
        self.free()

    def start(self) -> None:
        """Begin to gather the weights."""
        if self.whole or self.request != MPI.REQUEST_NULL:
            return
        self.weights.untyped_storage().resize_(self.nbytes)
        slices_of(self.weights, self.comm.size)[self.comm.rank].data.copy_(self.mine)
        self.request = self.comm.Iallgatherv(MPI.IN_PLACE, gather_spec(self.comm, self.weights))

    def gather(self) -> None:
        """Have the weights whole."""
        self.start()
        if not self.whole:
            wait_for(self.request, PATIENCE_SECONDS, "a layer's weights")
            for parameter, part in zip(self.parameters, self.parts, strict=True):
                parameter.data = part
            self.whole = True

    def free(self) -> None:
        """Have this rank's slice only."""
        if self.whole:
            for parameter in self.parameters:
                parameter.data = parameter.data.new_empty(0)  # reading a freed weight is empty, not a crash
            self.weights.untyped_storage().resize_(0)
            self.whole = False

    def expect(self) -> None:
        """Backward reaches the layer: give it a row to add gradients to."""
        if self.trains and self.gradients is None:
            self.gradients, self.missing = torch.zeros_like(self.weights), set(self.parameters)
            for parameter, part in zip(
                self.parameters, parts_of(self.gradients, self.parameters), strict=True
            ):
                parameter.grad = part

    @torch.no_grad()
    def reduce(self) -> None:
        """Add the sum of the gradients to this rank's slice of them; free the rest."""
        if self.gradients is None or self.slice is None:
            return
        self.slice += reduce_scatter(self.comm, self.gradients)
        for parameter in self.parameters:
            parameter.grad = None
        self.gradients = None
        self.missing.clear()


class Zero3:
    """Shards `model` and its optimizer over `comm`; all ranks make it and call it together.

        zero = Zero3(comm, model, lambda slices: AdamW(slices, lr=1e-3), layers=model.blocks)
        loss_of(model(x)).backward(); zero.step(); zero.zero_grad()

    `layers` are modules of `model` that are whole one at a time; what is in none of them, or in two, belongs
    to `model` itself and is whole while the model runs. Losses are divided by the global batch. Between steps
    parameters are empty; inside `with zero.whole():` they can be read and written.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        model: nn.Module,
        make_optimizer: MakeOptimizer = AdamW,
        *,
        layers: Iterable[nn.Module] = (),
        max_norm: float | None = None,
        prefetch: bool = False,
    ) -> None:
        self.comm, self.max_norm, self.prefetch = comm, max_norm, prefetch
        self.layers = [
            (module, [Row(comm, each) for each in alike(parameters)])
            for module, parameters in owners(model, list(layers))
        ]
        self.rows = [row for _, rows in self.layers for row in rows]
        for index, (module, rows) in enumerate(self.layers):
            self.watch(index, module, rows)
        self.trained = [row for row in self.rows if row.trains]
        if not self.trained:
            raise ValueError("there is nothing to train: no parameter requires a gradient")
        self.masters = [row.master for row in self.trained]
        self.optimizer = make_optimizer(list(self.masters))

    def watch(self, index: int, module: nn.Module, rows: list[Row]) -> None:
        """Gather before the layer runs, free after; the same in backward."""

        def before(_module: nn.Module, inputs: Any) -> None:
            for row in rows:
                row.gather()
            self.fetch(index - 1 if in_backward() >= 0 else index + 1)
            if not any(row.trains for row in rows):  # no gradient of its own tells that backward is past it
                when_reached(inputs, lambda: free(rows))

        def after(_module: nn.Module, _inputs: Any, outputs: Any) -> None:
            when_reached(outputs, before_backward)
            if in_backward() < 0:  # else it is recomputed, for a backward that follows at once
                free(rows)

        def before_backward() -> None:
            for row in rows:
                row.gather()
                row.expect()
            self.fetch(index - 1)

        def ready(parameter: torch.Tensor) -> None:
            for row in rows:
                row.missing.discard(parameter)
            if not any(row.missing for row in rows):
                for row in rows:
                    row.reduce()
                free(rows)

        module.register_forward_pre_hook(before)
        module.register_forward_hook(after)
        for parameter in (p for row in rows if row.trains for p in row.parameters):
            parameter.register_post_accumulate_grad_hook(ready)

    def fetch(self, index: int) -> None:
        """Begin to gather the layer that runs next, if there is one."""
        if self.prefetch and 0 <= index < len(self.layers):
            for row in self.layers[index][1]:
                row.start()

    def step(self) -> float | None:
        """Update this rank's slices; the norm of the gradients if there is a `max_norm`."""
        for row in self.rows:
            row.reduce()  # where backward did not reach all parameters
        free(self.rows)
        for row in self.trained:
            row.master.grad = row.slice.to(row.master.dtype)  # type: ignore[union-attr]
        norm = self.max_norm and clip_gradients(self.comm, self.masters, self.max_norm)
        self.optimizer.step()
        for row in self.trained:
            keep(row)
        return norm

    def zero_grad(self) -> None:
        """Clear this rank's slices of the gradients."""
        for row in self.trained:
            row.slice.zero_()  # type: ignore[union-attr]

    @contextmanager
    @torch.no_grad()
    def whole(self) -> Iterator[None]:
        """All parameters whole, on all ranks together; what is written to them is kept."""
        for row in self.rows:
            row.gather()
        yield
        for row in self.rows:
            row.mine.copy_(slices_of(row.weights, self.comm.size)[self.comm.rank])
            if row.master.dtype != row.mine.dtype:
                row.master.data.copy_(row.mine)
        free(self.rows)

    def held(self) -> dict[str, Iterable[torch.Tensor | None]]:
        """What this rank keeps between two steps: weights, gradients, optimizer state."""
        return {
            "weights": [tensor for row in self.rows for tensor in (row.mine, row.weights)],
            "gradients": [row.slice for row in self.trained],
            "optimizer": state_of(self.optimizer, self.trained),
        }


@torch.no_grad()
def keep(row: Row) -> None:
    """After an update: the 16-bit slice from its master; no gradient."""
    row.master.grad = None
    if row.mine.dtype != row.master.dtype:
        row.mine.copy_(row.master)


def free(rows: Iterable[Row]) -> None:
    for row in rows:
        if row.request != MPI.REQUEST_NULL:
            row.gather()  # fetched, and not used after all
        row.free()


def when_reached(tensors: Any, do: Callable[[], None]) -> None:
    """Call `do` when backward has the gradient of any of `tensors` (nested as you like)."""
    for tensor in tree_leaves(tensors):
        if torch.is_tensor(tensor) and tensor.requires_grad:
            tensor.register_hook(lambda _gradient: do())


def owners(model: nn.Module, layers: list[nn.Module]) -> list[tuple[nn.Module, list[nn.Parameter]]]:
    """The layers with the parameters that are their own, as they run; `model`, the first, has the rest."""
    users: dict[nn.Parameter, set[int]] = {}
    for index, layer in enumerate(layers):
        for parameter in layer.parameters():
            users.setdefault(parameter, set()).add(index)
    kept = set(model.parameters())
    for parameter in users:
        if parameter not in kept:
            raise ValueError("a layer has a parameter that is not in the model")
    outside = tied_outside(model, layers)
    own: list[list[nn.Parameter]] = [[] for _ in layers]
    rest = []
    for parameter in model.parameters():
        indices = users.get(parameter, set())
        if len(indices) == 1 and parameter not in outside:
            own[next(iter(indices))].append(parameter)
        else:
            rest.append(parameter)
    pairs = [(model, rest), *zip(layers, own, strict=True)]
    return [(module, parameters) for module, parameters in pairs if parameters]


def tied_outside(model: nn.Module, layers: list[nn.Module]) -> set[nn.Parameter]:
    """Parameters that modules outside of all `layers` have, too."""
    inside = {module for layer in layers for module in layer.modules()}
    return {
        parameter
        for module in model.modules()
        if module not in inside
        for parameter in module.parameters(recurse=False)
    }


def alike(parameters: Sequence[nn.Parameter]) -> list[list[nn.Parameter]]:
    """`parameters` by dtype and by whether they are trained."""
    groups: dict[tuple[torch.dtype, bool], list[nn.Parameter]] = {}
    for parameter in parameters:
        groups.setdefault((parameter.dtype, parameter.requires_grad), []).append(parameter)
    return list(groups.values())
