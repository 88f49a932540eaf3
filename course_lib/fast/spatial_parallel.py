"""Spatial parallelism with a convolution that never copies its tile: `tile_model`, `SpatialConv`.

    y = conv(tile, zeros around it)  +  conv(ghosts, zeros between them)        a convolution is linear

The first term is the ordinary convolution, and runs while rows of ghosts are on their way; the second has
only a strip per side, and is added to the outputs that see the ghosts. Backward does the same twice: the
strips give the gradients of the ghosts, which return to their owners while the ordinary convolution goes
backward. What is saved for backward is the tile itself, which the layer before has saved anyhow, and the
ghosts. The plain form, `halo_exchange` and an ordinary convolution, gives the same numbers, and saves a
second, padded copy of the tile.
"""

from dataclasses import dataclass
from typing import Any

import torch
from mpi4py import MPI
from torch import nn
from torch.nn import functional as F

from course_lib.comm.halo import HALO_TAG, RETURN_TAG, Parts, own_parts, owned_ranges, shaped
from course_lib.parallel import spatial_parallel as plain
from course_lib.parallel.spatial_parallel import COLUMNS, ROWS, Tiles
from course_lib.theory.partition import even_ranges
from course_lib.theory.tiles import Halo, Window, halo_of, overlap
from course_lib.training.flat import as_bytes

# ---------------------------------------------------------------- layers and models


class SpatialConv(plain.SpatialConv):
    """A convolution of tiles: any kernel, stride, zero padding, dilation and groups."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """This tile (N, C, h, w) of an image to this tile of the result: (N, F, h', w')."""
        return _TileConvolution.apply(self.plan(x), x, self.weight, self.bias)

    def plan(self, x: torch.Tensor) -> "Plan":
        """Who exchanges what, for an image of which this rank has the tile `x`."""
        halos, outputs = [], []
        for (dim, comm), window in zip(self.tiles.axes, self.windows, strict=True):
            owned = owned_ranges(comm, x.shape[dim])
            results = even_ranges(window.outputs(owned[-1].stop), comm.size)
            halos.append(halo_of(owned, [window.needs(result) for result in results], comm.rank))
            outputs.append(len(results[comm.rank]))
        return Plan([comm for _, comm in self.tiles.axes], halos, self.windows, outputs, self.groups)


def tile_layer(tiles: Tiles, layer: nn.Module) -> nn.Module:
    """A layer that does with tiles what `layer` does with images; ValueError when there is none."""
    return SpatialConv(tiles, layer) if isinstance(layer, nn.Conv2d) else plain.tile_layer(tiles, layer)


def tile_model(tiles: Tiles, model: nn.Module) -> nn.Module:
    """A copy of `model` whose layers work on tiles: `tile_model` of the plain form, with this convolution."""
    return plain.tile_model(tiles, model, tile_layer)


# ---------------------------------------------------------------- the plan of a convolution


@dataclass(frozen=True, slots=True)
class Side:
    """Ghosts on one side: their pixels in what the tile needs, the outputs that see them, what those see."""

    index: int  # 0 top, 1 bottom, 2 left, 3 right
    dim: int
    ghosts: range
    outputs: range
    inputs: range


@dataclass(frozen=True, slots=True)
class Plan:
    """A convolution of one tile: along rows and columns the communicator, halo, window and outputs."""

    comms: list[MPI.Intracomm]
    halos: list[Halo]
    windows: tuple[Window, Window]
    outputs: list[int]
    groups: int

    @property
    def how(self) -> tuple[list[int], list[int]]:
        """Stride and dilation, as torch wants them."""
        return [window.stride for window in self.windows], [window.dilation for window in self.windows]

    def sides(self) -> list[Side]:
        """The sides on which ghosts of another tile are seen."""
        if not all(self.outputs):
            return []
        found = []
        for axis, (halo, window) in enumerate(zip(self.halos, self.windows, strict=True)):
            length = len(halo.needed)
            for end, ghosts in enumerate((range(halo.before), range(length - halo.after, length))):
                pixels = range(halo.needed.start + ghosts.start, halo.needed.start + ghosts.stop)
                in_image = any(overlap(pixels, other) for _, other in halo.receives)
                outputs = outputs_that_see(window, ghosts, self.outputs[axis])
                if in_image and outputs:
                    first, last = outputs.start * window.stride, (outputs.stop - 1) * window.stride
                    inputs = range(first, last + window.reach)
                    found.append(Side(2 * axis + end, ROWS + axis, ghosts, outputs, inputs))
        return found

    def zeros_around(self) -> tuple[list[int], list[int]]:
        """Zeros for the ordinary convolution: its `padding`, and those that only one end needs, for F.pad."""
        padding, more = [], []
        for halo, window, count in zip(self.halos, self.windows, self.outputs, strict=True):
            length = len(halo.kept) + 2 * halo.before
            fits = (length - window.reach) // window.stride + 1 == count
            padding.append(halo.before if fits else min(halo.before, halo.after))
            more.append([0, 0] if fits else [halo.before - padding[-1], halo.after - padding[-1]])
        return padding, [*more[1], *more[0]]  # F.pad begins with the last dim


def outputs_that_see(window: Window, pixels: range, count: int) -> range:
    """Which of `count` outputs see any of `pixels`, both counted from the first pixel needed."""
    if not pixels:
        return range(0)
    first = max(0, -((window.reach - 1 - pixels.start) // window.stride))
    return range(first, max(first, min(count, -(-pixels.stop // window.stride))))


# ---------------------------------------------------------------- messages under way while we compute


class Exchange:
    """Messages under way; their buffers are MPI's until `finish`, which has to be called."""

    def __init__(self, comm: MPI.Intracomm, send: Parts, receive: Parts, tag: int) -> None:
        self.received = [tensor for _, tensor in receive]
        self.sent = [(peer, tensor.contiguous()) for peer, tensor in send]
        self.requests = [comm.Irecv(as_bytes(tensor), peer, tag) for peer, tensor in receive]
        self.requests += [comm.Isend(as_bytes(tensor), peer, tag) for peer, tensor in self.sent]

    def finish(self) -> list[torch.Tensor]:
        """Wait; return what was received, in the order of `receive`."""
        MPI.Request.Waitall(self.requests)
        return self.received


class Ghosts:
    """The ghosts of one dimension under way; `own` are this rank's pixels that others need."""

    def __init__(self, comm: MPI.Intracomm, x: torch.Tensor, dim: int, halo: Halo, own: Parts) -> None:
        self.like, self.dim, self.halo = x, dim, halo
        room = [(peer, x.new_empty(shaped(x, dim, len(pixels)))) for peer, pixels in halo.receives]
        self.exchange = Exchange(comm, own, room, HALO_TAG)

    def finish(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The ghosts before the tile and those after it; zeros outside the image."""
        halo = self.halo
        before, after = (
            self.like.new_zeros(shaped(self.like, self.dim, length)) for length in (halo.before, halo.after)
        )
        for (_, pixels), tensor in zip(halo.receives, self.exchange.finish(), strict=True):
            block, start = side_of(halo, pixels, before, after)
            block.narrow(self.dim, start, len(pixels)).copy_(tensor)
        return before, after


def side_of(halo: Halo, pixels: range, before: torch.Tensor, after: torch.Tensor) -> tuple[torch.Tensor, int]:
    """The block of ghosts that has `pixels`, and where they begin in it."""
    if pixels.stop <= halo.kept.start:
        return before, pixels.start - halo.needed.start
    return after, pixels.start - halo.kept.stop


def start_return(
    comm: MPI.Intracomm, before: torch.Tensor, after: torch.Tensor, dim: int, halo: Halo
) -> Exchange:
    """Send the gradients of the ghosts to their owners; receive those of `halo.sends`, in its order."""
    send = []
    for peer, pixels in halo.receives:
        block, start = side_of(halo, pixels, before, after)
        send.append((peer, block.narrow(dim, start, len(pixels))))
    room = [(peer, before.new_empty(shaped(before, dim, len(pixels)))) for peer, pixels in halo.sends]
    return Exchange(comm, send, room, RETURN_TAG)


def add_returned(gradient: torch.Tensor, dim: int, halo: Halo, returned: list[torch.Tensor]) -> None:
    """Add the returned gradients to the gradient of the tile, in place."""
    for (_, own), tensor in zip(own_parts(gradient, dim, halo), returned, strict=True):
        own.add_(tensor)


# ---------------------------------------------------------------- forward and backward


class _TileConvolution(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, plan: Plan, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        ctx.plan, ctx.bias_sizes = plan, None if bias is None else list(bias.shape)
        left, right, under_way = start_ghosts(plan, x)
        y = ordinary(plan, x, weight, bias)
        rows = plan.halos[0]
        top, bottom = under_way.finish()
        ghosts = (top, bottom, *(side.narrow(ROWS, *rows.in_tile(rows.kept)) for side in (left, right)))
        stride, dilation = plan.how
        for side in plan.sides():
            seen = F.conv2d(strip(plan, side, ghosts), weight, None, stride, 0, dilation, plan.groups)
            y.narrow(side.dim, side.outputs.start, len(side.outputs)).add_(seen)
        ctx.save_for_backward(x, weight, *ghosts)
        return y

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        x, weight, *ghosts = ctx.saved_tensors
        wanted = ctx.needs_input_grad[1:]
        to_weight, to_ghosts = through_ghosts(ctx.plan, gradient, weight, tuple(ghosts), wanted)
        under_way = None
        if wanted[0]:
            top, bottom = to_ghosts[:2]
            under_way = start_return(ctx.plan.comms[0], top, bottom, ROWS, ctx.plan.halos[0])
        to_x, more, to_bias = through_ordinary(ctx.plan, gradient, x, weight, ctx.bias_sizes, wanted)
        if wanted[1]:
            to_weight += more
        if under_way:
            assert to_x is not None
            add_returned_ghosts(ctx.plan, to_x, to_ghosts, under_way.finish())
        return None, to_x, to_weight if wanted[1] else None, to_bias


# ---------------------------------------------------------------- the tile


def kept_part(plan: Plan, x: torch.Tensor) -> torch.Tensor:
    """What the tile itself needs of `x`; a view."""
    for dim, halo in zip((ROWS, COLUMNS), plan.halos, strict=True):
        x = x.narrow(dim, *halo.in_tile(halo.kept))
    return x


def core_of(plan: Plan, x: torch.Tensor) -> tuple[torch.Tensor, list[int], list[int]]:
    """What the ordinary convolution sees, its `padding`, and the zeros that F.pad has added before."""
    padding, more = plan.zeros_around()
    kept = kept_part(plan, x)
    return F.pad(kept, more) if any(more) else kept, padding, more


def ordinary(plan: Plan, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """The convolution of the tile, with zeros in place of ghosts."""
    if not all(plan.outputs):
        return x.new_zeros(len(x), len(weight), *plan.outputs)
    core, padding, _ = core_of(plan, x)
    stride, dilation = plan.how
    return F.conv2d(core, weight, bias, stride, padding, dilation, plan.groups)


def through_ordinary(
    plan: Plan,
    gradient: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias_sizes: list[int] | None,
    wanted: tuple[bool, bool, bool],
) -> tuple[torch.Tensor | None, torch.Tensor, torch.Tensor | None]:
    """The gradients of `ordinary`: of x, weight and bias."""
    if not all(plan.outputs):
        to_bias = x.new_zeros(bias_sizes) if bias_sizes else None
        return torch.zeros_like(x) if wanted[0] else None, torch.zeros_like(weight), to_bias
    core, padding, more = core_of(plan, x)
    to_core, to_weight, to_bias = conv_backward(plan, gradient, core, weight, padding, bias_sizes, wanted)
    if wanted[0] and any(more):
        to_core = F.pad(to_core, [-zeros for zeros in more])
    if wanted[0] and to_core.shape != x.shape:
        to_x = torch.zeros_like(x)
        kept_part(plan, to_x).copy_(to_core)
        to_core = to_x
    return to_core, to_weight, to_bias


def conv_backward(
    plan: Plan,
    gradient: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    padding: list[int],
    bias_sizes: list[int] | None,
    wanted: tuple[bool, bool, bool],
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Torch's own backward of a convolution."""
    stride, dilation = plan.how
    return torch.ops.aten.convolution_backward(
        gradient, x, weight, bias_sizes, stride, padding, dilation, False, [0, 0], plan.groups, wanted
    )


# ---------------------------------------------------------------- the ghosts


def start_ghosts(plan: Plan, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, Ghosts]:
    """Left and right ghosts of all rows of the tile; those above and below, and the corners, under way."""
    (rows, columns), (height, width) = plan.halos, plan.comms
    left, right = Ghosts(width, x, COLUMNS, columns, own_parts(x, COLUMNS, columns)).finish()
    middle = x.narrow(COLUMNS, *columns.in_tile(columns.kept))
    own = [
        (
            peer,
            torch.cat([part.narrow(ROWS, *rows.in_tile(pixels)) for part in (left, middle, right)], COLUMNS),
        )
        for peer, pixels in rows.sends
    ]
    no_rows = x.new_empty(*x.shape[:2], 0, len(columns.needed))
    return left, right, Ghosts(height, no_rows, ROWS, rows, own)


def strip(plan: Plan, side: Side, ghosts: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """What the outputs of a side see, with zeros wherever it is not the ghosts of that side."""
    block = ghosts[side.index]
    sizes = [len(halo.needed) for halo in plan.halos]
    sizes[side.dim - ROWS] = len(side.inputs)
    zeros = block.new_zeros(*block.shape[:2], *sizes)
    ghosts_in(plan, side, zeros).copy_(seen_part(side, block))
    return zeros


def ghosts_in(plan: Plan, side: Side, wide: torch.Tensor) -> torch.Tensor:
    """Where the ghosts of `side` lie in its strip; a view. Left and right ones have no corners."""
    seen = overlap(side.ghosts, side.inputs)
    view = wide.narrow(side.dim, seen.start - side.inputs.start, len(seen))
    rows = plan.halos[0]
    return view.narrow(ROWS, rows.before, len(rows.kept)) if side.dim == COLUMNS else view


def seen_part(side: Side, block: torch.Tensor) -> torch.Tensor:
    """The ghosts that any output sees: all, unless the stride is longer than the window."""
    seen = overlap(side.ghosts, side.inputs)
    return block.narrow(side.dim, seen.start - side.ghosts.start, len(seen))


def through_ghosts(
    plan: Plan,
    gradient: torch.Tensor,
    weight: torch.Tensor,
    ghosts: tuple[torch.Tensor, ...],
    wanted: tuple[bool, bool, bool],
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """The gradients of the strips' convolutions: of the weight, and of the ghosts of all sides."""
    to_weight, to_ghosts = torch.zeros_like(weight), [torch.zeros_like(block) for block in ghosts]
    for side in plan.sides():
        part = gradient.narrow(side.dim, side.outputs.start, len(side.outputs))
        wide = strip(plan, side, ghosts)
        to_strip, more, _ = conv_backward(plan, part, wide, weight, [0, 0], None, (*wanted[:2], False))
        if wanted[1]:
            to_weight += more
        if wanted[0]:
            seen_part(side, to_ghosts[side.index]).copy_(ghosts_in(plan, side, to_strip))
    return to_weight, to_ghosts


def add_returned_ghosts(
    plan: Plan, to_x: torch.Tensor, to_ghosts: list[torch.Tensor], returned_rows: list[torch.Tensor]
) -> None:
    """Add the returned gradients to that of the tile, in place: first of rows, then of columns."""
    rows, columns = plan.halos
    sides = []
    for block in to_ghosts[2:]:  # left and right: of the kept rows; from here on of all rows
        side = block.new_zeros(*to_x.shape[:3], block.shape[COLUMNS])
        side.narrow(ROWS, *rows.in_tile(rows.kept)).copy_(block)
        sides.append(side)
    left, right = sides
    widths = [columns.before, len(columns.kept), columns.after]
    parts = [piece.split(widths, COLUMNS) for piece in returned_rows]
    middle = to_x.narrow(COLUMNS, *columns.in_tile(columns.kept))
    for index, target in enumerate((left, middle, right)):
        add_returned(target, ROWS, rows, [part[index] for part in parts])
    returned = start_return(plan.comms[1], left, right, COLUMNS, columns).finish()
    add_returned(to_x, COLUMNS, columns, returned)
