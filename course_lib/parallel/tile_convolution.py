"""The convolution of a tile, without a copy of the tile.

    y = conv(tile, zeros around it)  +  conv(ghosts, zeros between them)        a convolution is linear

The first term is the ordinary convolution, and runs while rows of ghosts are on their way; the second has
only a strip a side, and is added where the ghosts are seen. Backward the same twice: the strips give the
gradients of the ghosts, which are on their way home while the ordinary convolution goes backward. What is
kept until then is the tile itself, which the layer before has kept anyhow, and the ghosts. `halo_exchange`
and an ordinary convolution give the same numbers, and keep the tile twice.
"""

from dataclasses import dataclass
from typing import Any

import torch
from mpi4py import MPI
from torch.nn import functional as F

from course_lib.comm.halo import Ghosts, add_returned, own_pieces, start_return
from course_lib.parallel.tiles import COLUMNS, ROWS
from course_lib.theory.tiles import Halo, Window, overlap

Sides = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]  # top, bottom, left, right


@dataclass(frozen=True, slots=True)
class Side:
    """Ghosts on one side: their places in what the tile needs, the outputs that see them, what those see."""

    index: int  # in Sides
    dim: int
    ghosts: range
    outputs: range
    inputs: range


@dataclass(frozen=True, slots=True)
class Plan:
    """A convolution of one tile: along rows and columns the communicator, halo, window and outputs."""

    comms: tuple[MPI.Intracomm, MPI.Intracomm]
    halos: tuple[Halo, Halo]
    windows: tuple[Window, Window]
    outputs: tuple[int, int]
    groups: int

    @property
    def how(self) -> tuple[list[int], list[int]]:
        """Stride and dilation, as torch wants them."""
        return [window.stride for window in self.windows], [window.dilation for window in self.windows]

    def sides(self) -> list[Side]:
        """The sides on which ghosts of another tile are seen."""
        found = []
        for axis, (halo, window, count) in enumerate(
            zip(self.halos, self.windows, self.outputs, strict=True)
        ):
            length = len(halo.needed)
            for end, ghosts in enumerate((range(halo.before), range(length - halo.after, length))):
                places = range(halo.needed.start + ghosts.start, halo.needed.start + ghosts.stop)
                outputs = outputs_that_see(window, ghosts, count)
                if all(self.outputs) and outputs and any(overlap(places, got) for _, got in halo.gets):
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


def outputs_that_see(window: Window, places: range, count: int) -> range:
    """Which of `count` outputs see any of `places`, both counted from the first thing needed."""
    if not places:
        return range(0)
    first = max(0, -((window.reach - 1 - places.start) // window.stride))
    return range(first, max(first, min(count, -(-places.stop // window.stride))))


def convolve_tile(
    plan: Plan, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """This tile of the convolution of the whole image; weight and bias get its part of their gradients."""
    return _TileConvolution.apply(plan, x, weight, bias)


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
        ghosts = (top, bottom, *(side.narrow(ROWS, *rows.of_own(rows.kept)) for side in (left, right)))
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
        under_way = start_rows_home(ctx.plan, to_ghosts) if wanted[0] else None
        to_x, more, to_bias = through_ordinary(ctx.plan, gradient, x, weight, ctx.bias_sizes, wanted)
        if wanted[1]:
            to_weight += more
        if under_way:
            assert to_x is not None
            add_homecomers(ctx.plan, to_x, to_ghosts, under_way.finish())
        return None, to_x, to_weight if wanted[1] else None, to_bias


# ---------------------------------------------------------------- the tile


def kept_part(plan: Plan, x: torch.Tensor) -> torch.Tensor:
    """What the tile itself needs of `x`; a view."""
    for dim, halo in zip((ROWS, COLUMNS), plan.halos, strict=True):
        x = x.narrow(dim, *halo.of_own(halo.kept))
    return x


def ordinary(plan: Plan, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """The convolution of the tile, with zeros in place of ghosts."""
    if not all(plan.outputs):
        return x.new_zeros(len(x), len(weight), *plan.outputs)
    padding, more = plan.zeros_around()
    core = F.pad(kept_part(plan, x), more) if any(more) else kept_part(plan, x)
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
    padding, more = plan.zeros_around()
    core = F.pad(kept_part(plan, x), more) if any(more) else kept_part(plan, x)
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
    left, right = Ghosts(width, x, COLUMNS, columns, own_pieces(x, COLUMNS, columns)).finish()
    middle = x.narrow(COLUMNS, *columns.of_own(columns.kept))
    gives = [
        (
            peer,
            torch.cat([part.narrow(ROWS, *rows.of_own(places)) for part in (left, middle, right)], COLUMNS),
        )
        for peer, places in rows.gives
    ]
    no_rows = x.new_empty(*x.shape[:2], 0, len(columns.needed))
    return left, right, Ghosts(height, no_rows, ROWS, rows, gives)


def strip(plan: Plan, side: Side, ghosts: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """What the outputs of a side see, with zeros wherever it is not the ghosts of that side."""
    block = ghosts[side.index]
    sizes = [len(halo.needed) for halo in plan.halos]
    sizes[side.dim - ROWS] = len(side.inputs)
    zeros = block.new_zeros(*block.shape[:2], *sizes)
    place_of(plan, side, zeros).copy_(seen_part(side, block))
    return zeros


def place_of(plan: Plan, side: Side, wide: torch.Tensor) -> torch.Tensor:
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
            seen_part(side, to_ghosts[side.index]).copy_(place_of(plan, side, to_strip))
    return to_weight, to_ghosts


def start_rows_home(plan: Plan, to_ghosts: list[torch.Tensor]) -> Any:
    """The gradients of the ghosts above and below, on their way to the rows that they are of."""
    return start_return(plan.comms[0], to_ghosts[0], to_ghosts[1], ROWS, plan.halos[0])


def add_homecomers(
    plan: Plan, to_x: torch.Tensor, to_ghosts: list[torch.Tensor], rows_home: list[torch.Tensor]
) -> None:
    """Add what came home to the gradient of the tile, in place: rows first, then columns, as they came in."""
    rows, columns = plan.halos
    sides = []
    for block in to_ghosts[2:]:  # left and right: of the kept rows; from here on of all rows
        side = block.new_zeros(*to_x.shape[:3], block.shape[COLUMNS])
        side.narrow(ROWS, *rows.of_own(rows.kept)).copy_(block)
        sides.append(side)
    left, right = sides
    widths = [columns.before, len(columns.kept), columns.after]
    parts = [piece.split(widths, COLUMNS) for piece in rows_home]
    middle = to_x.narrow(COLUMNS, *columns.of_own(columns.kept))
    for index, target in enumerate((left, middle, right)):
        add_returned(target, ROWS, rows, [part[index] for part in parts])
    home = start_return(plan.comms[1], left, right, COLUMNS, columns).finish()
    add_returned(to_x, COLUMNS, columns, home)
