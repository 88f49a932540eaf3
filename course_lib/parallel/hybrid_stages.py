"""What one rank has of a stage that has tiles, tensor shards, or both: each layer cut both ways.

    conv, relu, conv    x ─ copy_to ─→ [ F/2 channels of my tile ] ─ relu ─→ [ C/2 in ] ─ reduce_from ─→ y

The tile axis moves halos, the tensor axis sums: neither knows of the other. From the first fully connected
layer on, the tiles are joined, and their ranks compute the same.
"""

import copy
from dataclasses import dataclass

import torch
from mpi4py import MPI
from torch import nn

from course_lib.comm.regions import copy_to, reduce_from
from course_lib.parallel.spatial_parallel import POINTWISE, SpatialConv, Tiled, Tiles, join_tiles, tile_layer
from course_lib.parallel.tensor_parallel import ColumnLinear, RowLinear
from course_lib.theory.partition import even_range


@dataclass(frozen=True, slots=True)
class StageGroup:
    """The ranks of a stage: its tiles, and those that share this rank's tile as tensor shards."""

    stage: int
    tiles: Tiles
    tensor: MPI.Intracomm


class Join(nn.Module):
    """Tiles (N, C, h, w) to the whole (N, C, H, W) on every rank."""

    def __init__(self, tiles: Tiles) -> None:
        super().__init__()
        self.whole_of = tiles

    def forward(self, tile: torch.Tensor) -> torch.Tensor:
        """The whole."""
        return join_tiles(self.whole_of, tile)


class ShardedConvs(Tiled):
    """Two convolutions of tiles, the first cut by its outputs, the second by its inputs."""

    def __init__(self, group: StageGroup, first: nn.Conv2d, between: nn.Module, second: nn.Conv2d) -> None:
        super().__init__(group.tiles)
        if first.groups != 1 or second.groups != 1:
            raise ValueError(f"{first} and {second} cannot be cut by channels; use groups=1")
        self.tensor, self.between = group.tensor, copy.deepcopy(between)
        mine = even_range(first.out_channels, group.tensor.size, group.tensor.rank)
        part = slice(mine.start, mine.stop)
        bias = None if first.bias is None else first.bias[part]
        self.first = SpatialConv(group.tiles, convolution_like(first, first.weight[part], bias))
        self.second = SpatialConv(group.tiles, convolution_like(second, second.weight[:, part], None))
        self.bias = None if second.bias is None else nn.Parameter(second.bias.detach().clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """This tile of all channels to this tile of all channels."""
        hidden = self.between(self.first(copy_to(self.tensor, x)))
        y = reduce_from(self.tensor, self.second(hidden))
        return y if self.bias is None else y + self.bias[:, None, None]


def convolution_like(whole: nn.Conv2d, weight: torch.Tensor, bias: torch.Tensor | None) -> nn.Conv2d:
    """A convolution with these weights that is in all else like `whole`."""
    made = copy.copy(whole)
    made._parameters = {
        "weight": nn.Parameter(weight.detach().clone()),
        "bias": None if bias is None else nn.Parameter(bias.detach().clone()),
    }
    return made


def build_stage(group: StageGroup, stage: nn.Module) -> nn.Sequential:
    """This rank's part of `stage`, a (nested) `nn.Sequential`: tiled, sharded where a pair can be, joined."""
    layers, built = leaves(stage), list[nn.Module]()
    whole = group.tiles.comm.size == 1
    while layers:
        nothing = nn.Identity()
        first, between, second = [*layers, nothing, nothing][:3]
        sharded = group.tensor.size > 1 and isinstance(between, POINTWISE)
        if not whole and isinstance(first, nn.Flatten | nn.Linear):
            built.append(Join(group.tiles))
            whole = True
        if sharded and isinstance(first, nn.Conv2d) and isinstance(second, nn.Conv2d):
            built.append(ShardedConvs(group, first, between, second))
        elif sharded and isinstance(first, nn.Linear) and isinstance(second, nn.Linear):
            column, row = ColumnLinear(group.tensor, first), RowLinear(group.tensor, second)
            built.append(nn.Sequential(column, copy.deepcopy(between), row))
        else:
            built.append(copy.deepcopy(first) if whole else tile_layer(group.tiles, first))
            layers = layers[1:]
            continue
        layers = layers[3:]
    return nn.Sequential(*built)


def leaves(module: nn.Module) -> list[nn.Module]:
    """The layers of nested `nn.Sequential`s, in order."""
    if not isinstance(module, nn.Sequential):
        return [module]
    return [layer for child in module for layer in leaves(child)]
