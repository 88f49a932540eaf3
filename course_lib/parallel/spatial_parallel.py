"""Spatial parallelism: every rank has a tile of each image and of what is computed from it, and all weights.

    ┌────┬────┐     convolution, pooling    pixels of the neighbours: a halo       course_lib/comm/halo.py
    │ 0  │ 1  │     batch-norm              statistics of all tiles
    ├────┼────┤     weights                 a gradient a tile: their SUM
    │ 2  │ 3  │     fully connected         tiles joined; from there on every rank has the same
    └────┴────┘

Layers are made from whole ones and give the same numbers: `tile_model`. A loss is divided once, by the global
batch; tiles of an image are parts of one sample, so nothing is divided by their number. Dryden et al. (2019),
"Improving Strong-Scaling of CNN Training by Exploiting Finer-Grained Parallelism".
"""

import copy
from collections.abc import Iterable, Sequence
from typing import cast

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parameters_to_vector

from course_lib.comm.halo import halo_exchange, owned_ranges
from course_lib.comm.regions import reduce_from
from course_lib.parallel.tile_batch_norm import SpatialBatchNorm
from course_lib.parallel.tile_convolution import Plan, convolve_tile
from course_lib.parallel.tiles import (
    COLUMNS,
    ROWS,
    Tiled,
    Tiles,
    all_sum,
    join_tiles,
    make_tiles,
    split_tiles,
    tile_of,
)
from course_lib.theory.partition import even_ranges
from course_lib.theory.tiles import Window, halo_of

__all__ = [
    "POINTWISE",
    "SpatialBatchNorm",
    "SpatialConv",
    "SpatialMean",
    "SpatialPool",
    "Tiled",
    "Tiles",
    "all_sum",
    "join_tiles",
    "make_tiles",
    "padded_tile",
    "split_tiles",
    "sum_over_tiles",
    "tile_layer",
    "tile_model",
    "tile_of",
    "windows_of",
]

# ---------------------------------------------------------------- layers


class SpatialConv(Tiled):
    """A convolution of tiles: any kernel, stride, zero padding, dilation and groups."""

    def __init__(self, tiles: Tiles, whole: nn.Conv2d) -> None:
        super().__init__(tiles)
        if whole.padding_mode != "zeros" or whole.transposed:
            raise ValueError(f"{whole} cannot be tiled; use an ordinary one with padding_mode='zeros'")
        self.windows, self.groups = windows_of(whole), whole.groups
        self.weight = nn.Parameter(whole.weight.detach().clone())
        self.bias = None if whole.bias is None else nn.Parameter(whole.bias.detach().clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """This tile (N, C, h, w) of an image to that of the result, dealt evenly: (N, F, h', w')."""
        return convolve_tile(self.plan(x), x, self.weight, self.bias)

    def plan(self, x: torch.Tensor) -> Plan:
        """Who exchanges what, for an image of which this rank has the tile `x`."""
        halos, outputs = [], []
        for (dim, comm), window in zip(self.tiles.axes, self.windows, strict=True):
            owned = owned_ranges(comm, x.shape[dim])
            results = even_ranges(window.outputs(owned[-1].stop), comm.size)
            halos.append(halo_of(owned, [window.needs(result) for result in results], comm.rank))
            outputs.append(len(results[comm.rank]))
        comms = (self.tiles.height, self.tiles.width)
        return Plan(comms, (halos[0], halos[1]), self.windows, (outputs[0], outputs[1]), self.groups)


def padded_tile(
    tiles: Tiles, x: torch.Tensor, windows: Sequence[Window], fill: float = 0.0
) -> tuple[torch.Tensor, list[int]]:
    """This tile with halo and padding, all that its outputs need, and the outputs along both dimensions.

    Columns first, then rows with the ghosts of the columns: so the corners come along.
    """
    outputs = []
    for (dim, comm), window in reversed(list(zip(tiles.axes, windows, strict=True))):
        owned = owned_ranges(comm, x.shape[dim])
        results = even_ranges(window.outputs(owned[-1].stop), comm.size)
        needed = [window.needs(result) for result in results]
        x = halo_exchange(comm, x, dim, needed, owned=owned, fill=fill)
        outputs.append(len(results[comm.rank]))
    return x, outputs[::-1]


class SpatialPool(Tiled):
    """Max- or average-pooling of tiles; outside the image a maximum sees nothing, and an average zeros."""

    def __init__(self, tiles: Tiles, whole: nn.MaxPool2d | nn.AvgPool2d) -> None:
        super().__init__(tiles)
        if whole.ceil_mode or getattr(whole, "return_indices", False):
            raise ValueError(f"{whole} cannot be tiled; use ceil_mode=False and return_indices=False")
        if getattr(whole, "divisor_override", None) or not getattr(whole, "count_include_pad", True):
            raise ValueError(f"{whole} cannot be tiled; use count_include_pad=True and no divisor_override")
        self.windows, self.largest = windows_of(whole), isinstance(whole, nn.MaxPool2d)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """This tile (N, C, h, w) of an image to that of the result, dealt evenly."""
        x, outputs = padded_tile(self.tiles, x, self.windows, fill=-torch.inf if self.largest else 0.0)
        if not all(outputs):
            return no_pixels(x, outputs)
        kernel, stride, dilation = zip(*((w.kernel, w.stride, w.dilation) for w in self.windows), strict=True)
        if self.largest:
            return F.max_pool2d(x, kernel, stride, 0, dilation)
        return F.avg_pool2d(x, kernel, stride)


def no_pixels(x: torch.Tensor, outputs: Sequence[int]) -> torch.Tensor:
    """An empty tile (N, C, *outputs) whose gradient still reaches `x`: the neighbours wait for it."""
    return x.flatten(2)[:, :, :0].reshape(*x.shape[:2], *outputs)


class SpatialMean(Tiled):
    """Global average pooling: tiles (N, C, h, w) to the means of whole images (N, C, 1, 1), on every rank."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The sums of all tiles, over the pixels of all."""
        pixels = self.tiles.comm.allreduce(x.shape[ROWS] * x.shape[COLUMNS])
        return reduce_from(self.tiles.comm, x.sum(dim=(ROWS, COLUMNS), keepdim=True)) / pixels


# ---------------------------------------------------------------- whole models


def windows_of(layer: nn.Conv2d | nn.MaxPool2d | nn.AvgPool2d) -> tuple[Window, Window]:
    """How `layer` looks along rows and along columns."""
    kernel, stride = both(layer.kernel_size), both(layer.stride)
    dilation = both(getattr(layer, "dilation", 1))
    if layer.padding == "same":
        pads = [divmod(d * (k - 1), 2) for k, d in zip(kernel, dilation, strict=True)]
        ends = [(half, half + odd) for half, odd in pads]
    else:
        ends = [(p, p) for p in both(0 if layer.padding == "valid" else cast(int, layer.padding))]
    rows, columns = (
        Window(k, s, *end, d) for k, s, end, d in zip(kernel, stride, ends, dilation, strict=True)
    )
    return rows, columns


def both(size: int | tuple[int, ...]) -> tuple[int, int]:
    """One size for both dimensions, or one for each, as torch writes it."""
    return (size, size) if isinstance(size, int) else (size[0], size[-1])


POINTWISE = (
    nn.ReLU,
    nn.ReLU6,
    nn.LeakyReLU,
    nn.ELU,
    nn.GELU,
    nn.SiLU,
    nn.Tanh,
    nn.Sigmoid,
    nn.Softplus,
    nn.Identity,
)


def tile_layer(tiles: Tiles, layer: nn.Module) -> nn.Module:
    """What does with tiles what `layer` does with images; ValueError when nothing here does."""
    if isinstance(layer, nn.Conv2d):
        return SpatialConv(tiles, layer)
    if isinstance(layer, nn.MaxPool2d | nn.AvgPool2d):
        return SpatialPool(tiles, layer)
    if isinstance(layer, nn.BatchNorm2d):
        return SpatialBatchNorm(tiles, layer)
    if isinstance(layer, nn.AdaptiveAvgPool2d) and layer.output_size in (1, (1, 1)):
        return SpatialMean(tiles)
    if isinstance(layer, POINTWISE):
        return copy.deepcopy(layer)
    raise ValueError(f"{layer} does not work on tiles; join them before it")


def tile_model(tiles: Tiles, whole: nn.Module) -> nn.Module:
    """A copy of `whole` whose layers work on tiles; all else that its `forward` does is pixel by pixel."""
    if not list(whole.children()):
        return tile_layer(tiles, whole).train(whole.training)
    tiled = copy.copy(whole)
    tiled._parameters, tiled._buffers = whole._parameters.copy(), whole._buffers.copy()
    tiled._modules = {
        name: None if child is None else tile_model(tiles, child) for name, child in whole._modules.items()
    }
    return tiled


def sum_over_tiles(tiles: Tiles, modules: Iterable[nn.Module]) -> None:
    """Make the gradients of all tiled layers in `modules` their sum over the tiles, in place, in one message.

    Layers behind `join_tiles` are computed alike on every rank, so their gradients are whole already.
    """
    layers = [layer for module in modules for layer in module.modules() if isinstance(layer, Tiled)]
    parameters = list({id(p): p for layer in layers for p in layer.parameters() if p.requires_grad}.values())
    if not parameters:
        return
    flat = parameters_to_vector([torch.zeros_like(p) if p.grad is None else p.grad for p in parameters])
    all_sum(tiles.comm, flat)
    for parameter, part in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
        parameter.grad = part.view_as(parameter)
