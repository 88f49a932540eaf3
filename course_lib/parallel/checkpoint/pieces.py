"""Which elements of which parameters a rank has, so that another number of ranks finds its own again.

row     [ a a a a a a | b b b | c c c ]        parameters a, b, c, flat, one after the other
rank 1            [ . . . . . . ]              its slice: a[4:6], b[0:3], c[0:1]

A file of a checkpoint holds pieces: the name of a parameter, the first of its elements, and their values.
Whoever needs a[2:6] takes it from the pieces of whatever ranks have them.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from course_lib.parallel.checkpoint.disk import CheckpointError
from course_lib.parallel.zero import Zero1, Zero2, Zero3
from course_lib.parallel.zero.stage0 import Zero0
from course_lib.theory.partition import even_range

AnyOptimizer = Optimizer | Zero0 | Zero1 | Zero2 | Zero3
Stored = list[tuple[str, int, torch.Tensor]]  # parameter, its first element here, values (n)


@dataclass(frozen=True, slots=True)
class Piece:
    """`count` elements of a flat parameter, from `start`; they are at `offset` of what holds them."""

    name: str
    start: int
    count: int
    offset: int


@dataclass(frozen=True, slots=True)
class Held:
    """A tensor that an optimizer updates, and the pieces it consists of; `everywhere` if on all ranks."""

    tensor: torch.Tensor
    pieces: tuple[Piece, ...]
    everywhere: bool


def held_by(model: nn.Module, optimizer: AnyOptimizer) -> list[Held]:
    """What this rank has of the parameters: its slices of what is sharded, all of what is not.

    Names are those of `named_parameters`: what is tied has one.
    """
    named = {parameter: name for name, parameter in model.named_parameters()}
    rows = rows_of(optimizer)
    in_rows = {parameter for row in rows for parameter in row.parameters}
    held = [held_row(row, named, everywhere=isinstance(optimizer, Zero0)) for row in rows] + [
        Held(parameter, (Piece(name, 0, parameter.numel(), 0),), everywhere=True)
        for parameter, name in named.items()
        if parameter not in in_rows
    ]
    tensors = {id(each.tensor) for each in held}
    if any(id(each) not in tensors for group in plain(optimizer).param_groups for each in group["params"]):
        raise TypeError(f"{type(optimizer).__name__} updates tensors that are no parameters of the model")
    return held


def held_row(row: Any, named: Mapping[nn.Parameter, str], *, everywhere: bool) -> Held:
    """Parameters in a flat row, of which this rank has a slice, or with `everywhere` all."""
    sizes = [part.numel() for part in row.parts]
    mine = range(sum(sizes)) if everywhere else even_range(sum(sizes), row.comm.size, row.comm.rank)
    names = [named[parameter] for parameter in row.parameters]
    return Held(row.master, tuple(pieces_in(names, sizes, mine)), everywhere)


def plain(optimizer: AnyOptimizer) -> Optimizer:
    """PyTorch's optimizer, whoever uses it."""
    return optimizer if isinstance(optimizer, Optimizer) else optimizer.optimizer


def rows_of(optimizer: AnyOptimizer) -> Sequence[Any]:
    """The flat rows of an engine of ours: `parameters`, their `parts`, and the `master` it updates."""
    if isinstance(optimizer, Optimizer):
        return []
    return optimizer.rows if isinstance(optimizer, Zero3) else optimizer.buckets


def pieces_in(names: Sequence[str], sizes: Sequence[int], part: range) -> Iterator[Piece]:
    """The pieces that `part` of a row of parameters cuts."""
    first = 0
    for name, size in zip(names, sizes, strict=True):
        start, stop = max(part.start, first), min(part.stop, first + size)
        if start < stop:
            yield Piece(name, start - first, stop - start, start - part.start)
        first += size


def stored(held: Held, values: torch.Tensor, rank: int, size: int) -> Stored:
    """What `rank` writes of `values`, shaped as `held.tensor`: its share of what all ranks have."""
    flat = values.detach().reshape(-1)
    share = even_range(flat.numel(), size, rank) if held.everywhere else range(flat.numel())
    return [
        (name, start, flat[offset : offset + count].clone())  # else the memory behind the view is saved
        for name, start, count, offset in cut(held.pieces, share)
    ]


def cut(pieces: Iterable[Piece], share: range) -> Iterator[tuple[str, int, int, int]]:
    """The parts of `pieces` that lie in `share` of what holds them: name, start, count, offset."""
    for piece in pieces:
        first, last = max(piece.offset, share.start), min(piece.offset + piece.count, share.stop)
        if first < last:
            yield piece.name, piece.start + first - piece.offset, last - first, first


class Pieces:
    """What all files together hold of one kind: the weights, or one of the optimizer's moments."""

    def __init__(self, files: Iterable[Stored]) -> None:
        self.of: dict[str, list[tuple[int, torch.Tensor]]] = {}
        for name, start, values in (each for file in files for each in file):
            self.of.setdefault(name, []).append((start, values))

    def dtype(self, names: Iterable[str]) -> torch.dtype | None:
        """Of the values of these parameters; None without any."""
        return next((self.of[name][0][1].dtype for name in names), None)

    @torch.no_grad()
    def fill(self, held: Held, into: torch.Tensor) -> None:
        """Write the elements of `held` to `into`, shaped alike; CheckpointError when some are missing."""
        flat = torch.empty(into.numel(), dtype=into.dtype)
        for piece in held.pieces:
            found = 0
            for start, values in self.of.get(piece.name, ()):
                first, last = max(start, piece.start), min(start + len(values), piece.start + piece.count)
                if first < last:
                    where = piece.offset + first - piece.start
                    flat[where : where + last - first] = values[first - start : last - start]
                    found += last - first
            if found != piece.count:
                raise CheckpointError(f"of {piece.name} the checkpoint has {found} of {piece.count} elements")
        into.copy_(flat.view(into.shape))


def check_shapes(model: Mapping[str, Sequence[int]], saved: Mapping[str, Sequence[int]]) -> None:
    """CheckpointError unless the checkpoint is of a model with the same parameters."""
    for name in [*model, *saved]:
        mine, theirs = (str(tuple(each[name])) if name in each else "none" for each in (model, saved))
        if mine != theirs:
            raise CheckpointError(
                f"{name} is {mine} in the model and {theirs} in the checkpoint; build that model"
            )
