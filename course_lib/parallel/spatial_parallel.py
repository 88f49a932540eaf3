"""Spatial parallelism: every rank has a tile of each image and of what is computed from it, and all weights.

    ┌────┬────┐     convolution, pooling    pixels of the neighbours: a halo       course_lib/comm/halo.py
    │ 0  │ 1  │     batch-norm              statistics over all tiles
    ├────┼────┤     weights                 a gradient per tile: their SUM
    │ 2  │ 3  │     fully connected         tiles joined; from there on every rank computes the same
    └────┴────┘

Layers are made from those of an ordinary model and give the same numbers: `tile_model`. A loss is divided
once, by the global batch; tiles of an image are parts of one sample, so nothing is divided by their number.
Dryden et al. (2019), "Improving Strong-Scaling of CNN Training by Exploiting Finer-Grained Parallelism".
"""

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import cast

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

ROWS, COLUMNS = 2, 3  # dims of (N, C, H, W)

# ---------------------------------------------------------------- tiles of an image


@dataclass(frozen=True, slots=True)
class Tiles:
    """A communicator whose ranks have the tiles of an image, row by row, and those of my column and row."""

    comm: MPI.Intracomm
    height: MPI.Intracomm  # the tiles above and below each other, this one among them
    width: MPI.Intracomm  # the tiles beside each other

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
    """The full image on every rank, for layers that all ranks compute alike."""
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
    tiles: Tiles, x: torch.Tensor, windows: Sequence[Window], fill: float = 0.0
) -> tuple[torch.Tensor, list[int]]:
    """This tile with halo and padding, all that its outputs need, and how many outputs it has in both dims.

    Columns first, then rows with the ghosts of the columns: so the corners come along. The outputs of the
    full image are distributed evenly over the tiles.
    """
    outputs = []
    for (dim, comm), window in reversed(list(zip(tiles.axes, windows, strict=True))):
        owned = owned_ranges(comm, x.shape[dim])
        results = even_ranges(window.outputs(owned[-1].stop), comm.size)
        needed = [window.needs(result) for result in results]
        x = halo_exchange(comm, x, dim, needed, owned=owned, fill=fill)
        outputs.append(len(results[comm.rank]))
    return x, outputs[::-1]


def no_pixels(x: torch.Tensor, channels: int, outputs: Sequence[int]) -> torch.Tensor:
    """An empty tile (N, channels, *outputs) whose gradient still reaches `x`: the neighbours wait for it."""
    return x.flatten(2)[:, :, :0].reshape(len(x), channels, *outputs)


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
        if layer.padding_mode != "zeros" or layer.transposed:
            raise ValueError(f"{layer} cannot be tiled; use an ordinary one with padding_mode='zeros'")
        self.windows, self.groups = windows_of(layer), layer.groups
        self.weight = nn.Parameter(layer.weight.detach().clone())
        self.bias = None if layer.bias is None else nn.Parameter(layer.bias.detach().clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """This tile (N, C, h, w) of an image to this tile of the result: (N, F, h', w')."""
        x, outputs = padded_tile(self.tiles, x, self.windows)
        if not all(outputs):
            return no_pixels(x, len(self.weight), outputs)
        stride, dilation = ([getattr(w, name) for w in self.windows] for name in ("stride", "dilation"))
        return F.conv2d(x, self.weight, self.bias, stride, 0, dilation, self.groups)


class SpatialPool(Tiled):
    """Max- or average-pooling of tiles; outside the image a maximum sees nothing, and an average zeros."""

    def __init__(self, tiles: Tiles, layer: nn.MaxPool2d | nn.AvgPool2d) -> None:
        super().__init__(tiles)
        if layer.ceil_mode or getattr(layer, "return_indices", False):
            raise ValueError(f"{layer} cannot be tiled; use ceil_mode=False and return_indices=False")
        if getattr(layer, "divisor_override", None) or not getattr(layer, "count_include_pad", True):
            raise ValueError(f"{layer} cannot be tiled; use count_include_pad=True and no divisor_override")
        self.windows, self.largest = windows_of(layer), isinstance(layer, nn.MaxPool2d)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """This tile (N, C, h, w) of an image to this tile of the result."""
        x, outputs = padded_tile(self.tiles, x, self.windows, fill=-torch.inf if self.largest else 0.0)
        if not all(outputs):
            return no_pixels(x, x.shape[1], outputs)
        kernel, stride, dilation = zip(*((w.kernel, w.stride, w.dilation) for w in self.windows), strict=True)
        if self.largest:
            return F.max_pool2d(x, kernel, stride, 0, dilation)
        return F.avg_pool2d(x, kernel, stride)


class SpatialMean(Tiled):
    """Global average pooling: tiles (N, C, h, w) to the means of full images (N, C, 1, 1), on every rank."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The sums of all tiles, over the pixels of all."""
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
        for name in ("weight", "bias"):
            parameter = getattr(layer, name)
            mine = None if parameter is None else nn.Parameter(parameter.detach().clone())
            self.register_parameter(name, mine)
        for name in ("running_mean", "running_var", "num_batches_tracked"):
            buffer = getattr(layer, name)
            self.register_buffer(name, None if buffer is None else buffer.clone())

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
        """The sum of each channel of `x` over all tiles; its gradient is summed, too, as all tiles use it."""
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


MakeLayer = Callable[[Tiles, nn.Module], nn.Module]


def tile_model(tiles: Tiles, model: nn.Module, layer: MakeLayer = tile_layer) -> nn.Module:
    """A copy of `model` whose layers work on tiles; all else that its `forward` does is pixel by pixel.

    `layer` makes a layer of tiles from one of images, and raises ValueError where there is none.
    """
    if not list(model.children()):
        return layer(tiles, model).train(model.training)
    tiled = copy.copy(model)
    tiled._parameters, tiled._buffers = model._parameters.copy(), model._buffers.copy()
    tiled._modules = {
        name: None if child is None else tile_model(tiles, child, layer)
        for name, child in model._modules.items()
    }
    return tiled


def sum_over_tiles(tiles: Tiles, modules: Iterable[nn.Module]) -> None:
    """Make the gradients of all tiled layers in `modules` their sum over the tiles, in place, in one message.

    Layers behind `join_tiles` are computed alike on every rank, so their gradients are complete already.
    """
    layers = [layer for module in modules for layer in module.modules() if isinstance(layer, Tiled)]
    parameters = list({id(p): p for layer in layers for p in layer.parameters() if p.requires_grad}.values())
    if not parameters:
        return
    flat = parameters_to_vector([torch.zeros_like(p) if p.grad is None else p.grad for p in parameters])
    all_sum(tiles.comm, flat)
    for parameter, part in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
        parameter.grad = part.view_as(parameter)


def all_sum(comm: MPI.Intracomm, x: torch.Tensor) -> torch.Tensor:
    """The sum of `x` over the ranks, in place."""
    comm.Allreduce(MPI.IN_PLACE, x.numpy())
    return x
