"""Spatial parallelism: each rank holds all weights, but only one tile of each image and each feature map.

    ┌────┬────┐     convolution, pooling    pixels of the neighbours: a halo       course_lib/comm/halo.py
    │ 0  │ 1  │     batch-norm              statistics over all tiles
    ├────┼────┤     weights                 a gradient per tile: their SUM
    │ 2  │ 3  │     fully connected         tiles joined; from there on every rank computes the same
    └────┴────┘

`tile_model` makes the tiled layers from those of an ordinary model; they compute the same numbers. Divide the
loss once, by the global batch. Tiles are parts of one sample, so nothing is divided by their number.

All ranks must run the same layers: a rank that is missing leaves the others waiting in their exchange. So a
layer that cannot be tiled, or does not fit the image, is a ValueError on all ranks.
Dryden et al. (2019), "Improving Strong-Scaling of CNN Training by Exploiting Finer-Grained Parallelism".
"""

import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, cast

import torch
from mpi4py import MPI
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parameters_to_vector

from course_lib.comm.grid import make_grid
from course_lib.comm.halo import halo_exchange, owned_ranges
from course_lib.comm.regions import copy_to, gather_from, reduce_from, shard_of
from course_lib.theory.partition import even_ranges
from course_lib.theory.tiles import Window
from course_lib.training.flat import check_unshared

ROWS, COLUMNS = 2, 3  # dims of (N, C, H, W)

# ---------------------------------------------------------------- tiles of an image


@dataclass(frozen=True, slots=True)
class Tiles:
    """The communicators of an image's tiles: one for all of them, and two along which halos travel."""

    comm: MPI.Intracomm  # all tiles, row by row
    height: MPI.Intracomm  # the tiles in this rank's column, from top to bottom
    width: MPI.Intracomm  # the tiles in this rank's row, from left to right

    @property
    def axes(self) -> tuple[tuple[int, MPI.Intracomm], tuple[int, MPI.Intracomm]]:
        """The two dims of an image (N, C, H, W), and the communicator that cuts each."""
        return (ROWS, self.height), (COLUMNS, self.width)


def make_tiles(comm: MPI.Intracomm, rows: int, columns: int) -> Tiles:
    """`rows` × `columns` tiles on the ranks of `comm`; strips have one row or one column."""
    grid = make_grid(comm, height=rows, width=columns)
    return Tiles(comm, grid["height"], grid["width"])


def tile_of(tiles: Tiles, image: torch.Tensor) -> torch.Tensor:
    """This rank's tile of `image` (…, H, W), which every rank has: a view."""
    return shard_of(tiles.width, shard_of(tiles.height, image, -2), -1)


def join_tiles(tiles: Tiles, tile: torch.Tensor) -> torch.Tensor:
    """The full image on every rank, for layers that all ranks compute alike.

    Then all ranks have the same gradient of the image, and each keeps its tile of it: no message in backward.
    """
    return gather_from(tiles.height, gather_from(tiles.width, tile, COLUMNS), ROWS)


# ---------------------------------------------------------------- what a layer sees


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


def padded_tile(
    tiles: Tiles, x: torch.Tensor, windows: tuple[Window, Window], fill: float = 0.0
) -> tuple[torch.Tensor, tuple[int, int]]:
    """This tile with its halo and padding, and how many rows and columns of outputs it has.

    The columns come first. Then the rows are sent with their ghost columns, so the corners come along.
    """
    x, columns = padded_along(tiles.width, x, COLUMNS, windows[1], fill)
    x, rows = padded_along(tiles.height, x, ROWS, windows[0], fill)
    return x, (rows, columns)


def padded_along(
    comm: MPI.Intracomm, x: torch.Tensor, dim: int, window: Window, fill: float
) -> tuple[torch.Tensor, int]:
    """What this tile's outputs need along `dim`, and how many outputs it has there.

    The outputs of the full image are distributed evenly over the tiles. Each rank works out what every tile
    needs, so nobody has to ask for pixels. A tile without outputs gets one window of `fill`, and its layer
    drops the output: so the layer runs on every rank, and backward exchanges the same messages on all.
    """
    owned = owned_ranges(comm, x.shape[dim])
    length = owned[-1].stop
    outside = range(length + window.after, length + window.after + window.reach)
    outputs = even_ranges(window.outputs(length), comm.size)
    needed = [window.needs(mine) if mine else outside for mine in outputs]
    return halo_exchange(comm, x, dim, needed, owned=owned, fill=fill), len(outputs[comm.rank])


# ---------------------------------------------------------------- layers


class Tiled(nn.Module):
    """A layer whose parameters get the gradient of this rank's tile; `sum_over_tiles` adds the others'."""

    def __init__(self, tiles: Tiles) -> None:
        super().__init__()
        self.tiles = tiles


class SpatialConv(Tiled):
    """A convolution of tiles: any kernel, stride, zero padding, dilation and groups."""

    def __init__(self, tiles: Tiles, layer: nn.Conv2d) -> None:
        super().__init__(tiles)
        if layer.padding_mode != "zeros":
            raise ValueError(f"{layer} cannot be tiled; use padding_mode='zeros'")
        self.windows = windows_of(layer)
        self.stride, self.dilation, self.groups = layer.stride, layer.dilation, layer.groups
        self.weight, self.bias = copy.deepcopy(layer.weight), copy.deepcopy(layer.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """This tile (N, C, h, w) of an image to this tile of the result: (N, F, h', w')."""
        x, (rows, columns) = padded_tile(self.tiles, x, self.windows)
        y = F.conv2d(x, self.weight, self.bias, self.stride, 0, self.dilation, self.groups)
        return y[:, :, :rows, :columns]


class SpatialPool(Tiled):
    """Max- or average-pooling of tiles; outside the image a maximum sees nothing, and an average zeros."""

    def __init__(self, tiles: Tiles, layer: nn.MaxPool2d | nn.AvgPool2d) -> None:
        super().__init__(tiles)
        if layer.ceil_mode or getattr(layer, "return_indices", False):
            raise ValueError(f"{layer} cannot be tiled; use ceil_mode=False and return_indices=False")
        if getattr(layer, "divisor_override", None) or not getattr(layer, "count_include_pad", True):
            raise ValueError(f"{layer} cannot be tiled; use count_include_pad=True and no divisor_override")
        self.windows, self.fill = windows_of(layer), -torch.inf if isinstance(layer, nn.MaxPool2d) else 0.0
        self.pool = copy.deepcopy(layer)
        self.pool.padding = 0  # `padded_tile` pads

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """This tile (N, C, h, w) of an image to this tile of the result."""
        x, (rows, columns) = padded_tile(self.tiles, x, self.windows, self.fill)
        return self.pool(x)[:, :, :rows, :columns]


class SpatialMean(Tiled):
    """Global average pooling: tiles (N, C, h, w) to the means of full images (N, C, 1, 1), on every rank."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The sums over all tiles, divided by the pixels of all tiles."""
        pixels = self.tiles.comm.allreduce(x.shape[ROWS] * x.shape[COLUMNS])
        return reduce_from(self.tiles.comm, x.sum(dim=(ROWS, COLUMNS), keepdim=True)) / pixels


class SpatialBatchNorm(Tiled):
    """Batch-norm with the statistics of the full images: with those of a tile it would be another layer."""

    weight: nn.Parameter | None
    bias: nn.Parameter | None
    running_mean: torch.Tensor | None
    running_var: torch.Tensor | None
    num_batches_tracked: torch.Tensor | None

    def __init__(self, tiles: Tiles, layer: nn.BatchNorm2d) -> None:
        super().__init__(tiles)
        self.eps, self.momentum = layer.eps, layer.momentum
        self.weight, self.bias = copy.deepcopy(layer.weight), copy.deepcopy(layer.bias)
        for name in ("running_mean", "running_var", "num_batches_tracked"):
            self.register_buffer(name, copy.deepcopy(getattr(layer, name)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """This tile (N, C, h, w), normalised. ValueError when a channel has a single number."""
        if not self.training and self.running_mean is not None:
            return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)
        count = self.tiles.comm.allreduce(x.numel() // x.shape[1])
        if count < 2:
            raise ValueError(f"{count} number per channel has no variance; use more samples or larger images")
        mean = self.total(x) / count
        centred = x - mean[:, None, None]
        variance = self.total(centred.square()) / count
        if self.training and self.running_mean is not None:
            self.track(mean.detach(), variance.detach() * count / (count - 1))
        scale = (variance + self.eps).rsqrt()
        y = centred * (scale if self.weight is None else scale * self.weight)[:, None, None]
        return y if self.bias is None else y + self.bias[:, None, None]

    def total(self, x: torch.Tensor) -> torch.Tensor:
        """The sum of each channel of `x` over all tiles.

        Each tile uses it for its own pixels, so `copy_to` sums its gradient over the tiles, too.
        """
        return copy_to(self.tiles.comm, reduce_from(self.tiles.comm, x.sum(dim=(0, ROWS, COLUMNS))))

    def track(self, mean: torch.Tensor, variance: torch.Tensor) -> None:
        """Move the running statistics towards these, as torch does."""
        assert self.running_mean is not None and self.running_var is not None
        assert self.num_batches_tracked is not None
        self.num_batches_tracked += 1
        share = 1 / self.num_batches_tracked.item() if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean, share)
        self.running_var.lerp_(variance, share)


# ---------------------------------------------------------------- full models

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
    """A layer that does with tiles what `layer` does with images; ValueError when there is none."""
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


def tile_model(
    tiles: Tiles, model: nn.Module, make_layer: Callable[[Tiles, nn.Module], nn.Module] = tile_layer
) -> nn.Module:
    """A copy of `model` in which `make_layer` has replaced every layer: every module without children.

    Whatever else `forward` does with a tile must work pixel by pixel, as `maps + shortcut` does. Raises
    ValueError if a module with children has parameters of its own, whose gradients nobody would sum, or if
    two layers share a parameter.
    """
    replaced: dict[int, Any] = {}  # by id, where `deepcopy` looks: a layer that is used twice stays one layer
    check_unshared(
        (f"{path}.{name}", parameter)
        for path, module in model.named_modules()
        for name, parameter in module.named_parameters(recurse=False)
    )
    for module in model.modules():
        if not list(module.children()) and not isinstance(module, nn.Sequential):  # an empty one does nothing
            replaced[id(module)] = make_layer(tiles, module).train(module.training)
        elif list(module.parameters(recurse=False)):
            raise ValueError(
                f"{type(module).__name__} has parameters and layers, and only layers are tiled; "
                "move the parameters into a layer"
            )
    return copy.deepcopy(model, replaced)


def sum_over_tiles(tiles: Tiles, modules: Iterable[nn.Module]) -> None:
    """Replace the gradients of all tiled layers in `modules` by their sums over the tiles, in one Allreduce.

    Layers behind `join_tiles` are computed alike on every rank, so their gradients are complete already.
    """
    layers = [layer for module in modules for layer in module.modules() if isinstance(layer, Tiled)]
    found = [p for layer in layers for p in layer.parameters() if p.requires_grad]
    parameters = list(dict.fromkeys(found))  # each once: a `Tiled` may contain others
    if not parameters:
        return
    flat = parameters_to_vector([torch.zeros_like(p) if p.grad is None else p.grad for p in parameters])
    tiles.comm.Allreduce(MPI.IN_PLACE, flat.numpy())
    for parameter, part in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
        parameter.grad = part.view_as(parameter)
