"""Fused halos: one wide exchange for several layers, in place of one for each.

    layer by layer   exchange 1 │ conv │ exchange 1 │ conv │ exchange 1 │ conv        six messages per strip
    fused            exchange 3 │ conv │ mask │ conv │ mask │ conv                    two; a few rows twice

Every layer uses up a part of the halo; the rest of it both neighbours compute. What lies outside the image
must be zero again before the next layer, as its padding is: a convolution makes something else of it.
Gradients need nothing new, as the exchange returns those of all ghosts. The plain form is `tile_model`,
layer by layer. Jain et al. (2022), "Hy-Fi".
"""

import copy
from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional as F

from course_lib.comm.halo import halo_exchange, owned_ranges
from course_lib.parallel.spatial_parallel import COLUMNS, POINTWISE, ROWS, Tiled, Tiles, windows_of
from course_lib.theory.partition import even_ranges
from course_lib.theory.tiles import Window, fused_needs, overlap


class FusedHalos(Tiled):
    """Convolutions, poolings without padding and pointwise layers, on tiles with one exchange a dimension.

    The outputs are distributed evenly over the tiles, as layer by layer.
    """

    def __init__(self, tiles: Tiles, model: nn.Sequential) -> None:
        super().__init__(tiles)
        self.layers = nn.ModuleList(fusible(layer) for layer in model)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """This tile (N, C, h, w) of an image to that of the result."""
        windows = [windows_of(layer) for layer in self.layers if looks_around(layer)]  # type: ignore[arg-type]
        sizes: list[list[int]] = [[], []]  # of the image before each window, and after the last
        needs: list[list[range]] = [[], []]  # what this tile has there
        for axis, (dim, comm) in reversed(list(enumerate(self.tiles.axes))):
            along = [window[axis] for window in windows]
            owned = owned_ranges(comm, x.shape[dim])
            sizes[axis] = lengths(along, owned[-1].stop)
            chains = [fused_needs(along, part) for part in even_ranges(sizes[axis][-1], comm.size)]
            if not all(chain[-1] for chain in chains):
                raise ValueError(
                    f"{sizes[axis][-1]} pixels are too few for {comm.size} tiles; use fewer tiles"
                )
            needs[axis] = chains[comm.rank]
            x = halo_exchange(comm, x, dim, [chain[0] for chain in chains], owned=owned)
        done = 0
        for layer in self.layers:
            if looks_around(layer):
                pixels = [(needs[axis][done], sizes[axis][done]) for axis in (0, 1)]
                x = without_padding(layer, zero_outside(x, *pixels) if done else x)
                done += 1
            else:
                x = layer(x)
        return x


def lengths(windows: Sequence[Window], length: int) -> list[int]:
    """Pixels of the full image before each of `windows`, and after the last."""
    found = [length]
    for window in windows:
        found.append(window.outputs(found[-1]))
    return found


def zero_outside(x: torch.Tensor, rows: tuple[range, int], columns: tuple[range, int]) -> torch.Tensor:
    """`x` with zeros outside the image: for each dim, the pixels that `x` has, and how many the image has."""
    for dim, (pixels, length) in ((ROWS, rows), (COLUMNS, columns)):
        inside = overlap(pixels, range(length))
        if inside != pixels:
            shape = [1, 1, 1, 1]
            shape[dim] = len(pixels)
            mask = x.new_zeros(len(pixels))
            mask[inside.start - pixels.start : inside.stop - pixels.start] = 1
            x = x * mask.view(shape)
    return x


def looks_around(layer: nn.Module) -> bool:
    """Whether an output of `layer` sees more than one pixel."""
    return isinstance(layer, nn.Conv2d | nn.MaxPool2d | nn.AvgPool2d)


def fusible(layer: nn.Module) -> nn.Module:
    """A copy of `layer`; ValueError when it cannot be fused."""
    pads = looks_around(layer) and any(w.before or w.after for w in windows_of(layer))  # type: ignore[arg-type]
    if isinstance(layer, nn.MaxPool2d | nn.AvgPool2d) and not pads and not layer.ceil_mode:
        return copy.deepcopy(layer)
    if isinstance(layer, POINTWISE) or (isinstance(layer, nn.Conv2d) and layer.padding_mode == "zeros"):
        return copy.deepcopy(layer)
    raise ValueError(f"{layer} cannot be fused; end the fused layers before it")


def without_padding(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """What `layer` makes of `x`, which has the padding already."""
    if isinstance(layer, nn.Conv2d):
        return F.conv2d(x, layer.weight, layer.bias, layer.stride, 0, layer.dilation, layer.groups)
    return layer(x)
