"""Several ways at once: data × replica × pipeline × tile, on one grid of ranks.

    8 ranks = 2 data × 4 positions of a model of three stages, whose first has 2 tiles

    position      0         1         2         3
    replica 0   tile 0    tile 1    stage 1   stage 2
    replica 1   stage 2   stage 1   tile 1    tile 0        … the other way round, on the same ranks (GEMS)

Every stage of the pipeline has some tiles, each on a rank of its own. With two replicas, position q also
holds what the mirrored position holds of the first one. `pipeline.run_actions`
executes the schedule with `TileNeighbours`, because a stage has several ranks: between two stages, each tile
goes to the same tile, or the tiles are joined or cut. Gradients are summed over the tiles of a stage, over
the replicas, and over the data axis; nothing is averaged, because the loss is divided once, by the global
batch. Jain et al. (2022), "Hy-Fi: Hybrid Five-Dimensional Parallel DNN Training on High-Performance GPU
Clusters".
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from mpi4py import MPI
from torch import nn

from course_lib.comm.grid import make_grid
from course_lib.parallel.data_parallel import sum_gradients
from course_lib.parallel.gems import sum_replicas
from course_lib.parallel.pipeline import Modules, Neighbours, check_schedule, run_actions, split_batch
from course_lib.parallel.spatial_parallel import (
    Tiles,
    join_tiles,
    make_tiles,
    sum_over_tiles,
    tile_layer,
    tile_of,
)
from course_lib.theory.hybrid import Coordinates, HybridShape, StageShape, hybrid_schedule
from course_lib.theory.partition import even_ranges
from course_lib.theory.schedules import Action, Schedule, microbatch_count
from course_lib.training.flat import check_unshared
from course_lib.training.loop import Batch, SummedLoss

# ---------------------------------------------------------------- what one rank holds of a stage


@dataclass(frozen=True, slots=True)
class StageGroup:
    """A stage, and the ranks of its tiles."""

    stage: int
    tiles: Tiles


def build_stage(group: StageGroup, stage: nn.Module) -> nn.Sequential:
    """This rank's part of `stage`, a (nested) `nn.Sequential`.

    Layers are tiled up to the first fully connected one. There the tiles are joined, and from there on the
    ranks of all tiles compute the same.
    """
    built, joined = list[nn.Module](), group.tiles.comm.size == 1
    for layer in leaves(stage):
        if not joined and isinstance(layer, nn.Flatten | nn.Linear):
            built.append(Join(group.tiles))
            joined = True
        made = copy.deepcopy(layer) if joined else tile_layer(group.tiles, layer)
        built.append(made.train(layer.training))
    return nn.Sequential(*built)


def leaves(module: nn.Module) -> list[nn.Module]:
    """The layers of nested `nn.Sequential`s, in order."""
    if not isinstance(module, nn.Sequential):
        return [module]
    return [layer for child in module for layer in leaves(child)]


class Join(nn.Module):
    """From tiles (N, C, h, w) to the full (N, C, H, W), on every rank."""

    def __init__(self, tiles: Tiles) -> None:
        super().__init__()
        self.tiles = tiles

    def forward(self, tile: torch.Tensor) -> torch.Tensor:
        """The full image."""
        return join_tiles(self.tiles, tile)


# ---------------------------------------------------------------- the model on its ranks


class Hybrid:
    """A model on the ranks of `comm`, given as its full `stages`; `build_stage` makes this rank's parts.

    A stage of several tiles receives its tile (N, C, h, w) and returns one. The last stage returns what all
    of its ranks computed alike. All ranks make it together. Raises ValueError on all ranks if `shape` does
    not fit them or the stages, or if two layers share a parameter.
    """

    def __init__(self, comm: MPI.Intracomm, shape: HybridShape, stages: Sequence[nn.Module]) -> None:
        shape.check(comm.size)
        if len(stages) != len(shape.stages):
            raise ValueError(
                f"{len(stages)} stages were given for a shape of {len(shape.stages)}; give as many"
            )
        layers = enumerate(layer for stage in stages for layer in leaves(stage))
        check_unshared(
            (f"{i}.{name}", each) for i, layer in layers for name, each in layer.named_parameters()
        )
        self.shape = shape
        grid = make_grid(comm, data=shape.data, model=shape.positions)
        self.data, self.model = grid["data"], grid["model"]
        replicas = range(shape.replicas)
        self.coordinates = {replica: shape.coordinates(replica, self.model.rank) for replica in replicas}
        self.groups = {replica: self.make_group(replica) for replica in replicas}
        self.modules = {
            replica: build_stage(group, stages[group.stage]) for replica, group in self.groups.items()
        }
        self.schedules: dict[int, Schedule] = {}  # by micro-batches; checked

    def make_group(self, replica: int) -> StageGroup:
        """The communicators of this rank's stage in `replica`."""
        mine = self.coordinates[replica]
        stage = self.shape.stages[mine.stage]
        ranks = cast(MPI.Intracomm, self.model.Split(mine.stage, mine.tile))
        return StageGroup(mine.stage, make_tiles(ranks, stage.rows, stage.columns))

    def parameters(self) -> list[nn.Parameter]:
        """All parameters that this rank updates."""
        return [parameter for module in self.modules.values() for parameter in module.parameters()]

    def step(self, batch: Batch, loss_fn: SummedLoss, *, microbatches: int = 1) -> float:
        """Add the gradients of the global `batch` to the parameters' .grad; return its loss, on every rank.

        Each data rank works on a shard of the batch, cut into replicas × `microbatches` micro-batches. Raises
        ValueError on all ranks if the shards are too small for that.
        """
        parts = self.shape.replicas * microbatches
        fewest = len(batch.targets) // self.data.size
        if fewest < parts:
            raise ValueError(f"{fewest} samples of a data rank cannot make {parts} micro-batches; use fewer")
        mine = even_ranges(len(batch.targets), self.data.size)[self.data.rank]
        shard = slice(mine.start, mine.stop)
        pieces = split_batch(Batch(batch.inputs[shard], batch.targets[shard], batch.global_size), parts)
        actions = self.schedule(microbatches)[self.model.rank]
        result = run_actions(TileNeighbours(self), actions, self.by_stage(), loss_fn, pieces)
        self.sum_gradients()
        copies = self.shape.stages[-1].tiles  # of the loss: all ranks of the last stage compute the same
        return self.data.allreduce(self.model.allreduce(result.loss)) / copies

    def schedule(self, microbatches: int) -> Schedule:
        """The schedule of every position. All ranks check it together when they ask for it first."""
        if microbatches not in self.schedules:
            made = hybrid_schedule(self.shape, microbatches)
            check_schedule(self.model, made, self.by_stage(), microbatch_count(made))
            self.schedules[microbatches] = made
        return self.schedules[microbatches]

    def by_stage(self) -> Modules:
        """The modules by (replica, stage), for `run_actions`; a tiled first stage begins with a `Cut`."""
        found: dict[tuple[int, int], nn.Module] = {}
        for replica, module in self.modules.items():
            stage, tiles = self.coordinates[replica].stage, self.groups[replica].tiles
            first = stage == 0 and tiles.comm.size > 1
            found[replica, stage] = nn.Sequential(Cut(tiles), module) if first else module
        return found

    def sum_gradients(self) -> None:
        """Sum over the tiles of a stage, the replicas and the data axis; all ranks in the same order."""
        for replica, module in sorted(self.modules.items()):
            sum_over_tiles(self.groups[replica].tiles, [module])
        if self.shape.replicas == 2:
            last, position = self.model.size - 1, self.model.rank
            sum_replicas(self.model, {(0, position): self.modules[0], (1, last - position): self.modules[1]})
        for module in self.modules.values():
            sum_gradients(self.data, module)


class Cut(nn.Module):
    """From images (N, C, H, W), the same on all ranks, to this rank's tile."""

    def __init__(self, tiles: Tiles) -> None:
        super().__init__()
        self.tiles = tiles

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """The tile (N, C, h, w)."""
        return tile_of(self.tiles, images)


# ---------------------------------------------------------------- messages between stages of several ranks


class TileNeighbours(Neighbours):
    """The previous and the next stages of this rank's stages, each on several ranks.

    Ranks whose tiles share pixels exchange them.
    """

    def __init__(self, hybrid: Hybrid) -> None:
        self.shape, self.coordinates = hybrid.shape, hybrid.coordinates
        first_rank = {
            (replica, stage): self.shape.position(replica, Coordinates(stage, 0))
            for replica in range(self.shape.replicas)
            for stage in range(len(self.shape.stages))
        }
        super().__init__(hybrid.model, first_rank)

    def send(self, action: Action, other_stage: int, tensor: torch.Tensor, rank: int | None = None) -> None:
        """Start to send `tensor`, or tiles of it, to those ranks of `other_stage` that receive from here."""
        here, there = self.coordinates[action.replica], self.shape.stages[other_stage]
        mine = self.shape.stages[here.stage]
        cut = there.tiles > 1 and mine.tiles == 1
        for tile in shared_tiles(mine, here.tile, there):
            part = block_of(tensor, there, tile) if cut else tensor
            to = self.shape.position(action.replica, Coordinates(other_stage, tile))
            super().send(action, other_stage, part, to)

    def receive(self, action: Action, other_stage: int, rank: int | None = None) -> torch.Tensor:
        """Receive from `other_stage`, and join what comes in tiles."""
        here, there = self.coordinates[action.replica], self.shape.stages[other_stage]
        parts = []
        for tile in shared_tiles(self.shape.stages[here.stage], here.tile, there):
            source = self.shape.position(action.replica, Coordinates(other_stage, tile))
            parts.append(super().receive(action, other_stage, source))
        if len(parts) == 1:
            return parts[0]
        rows = [parts[start : start + there.columns] for start in range(0, len(parts), there.columns)]
        return torch.cat([torch.cat(row, dim=-1) for row in rows], dim=-2)


def shared_tiles(mine: StageShape, tile: int, other: StageShape) -> list[int]:
    """The tiles of the stage `other` that share pixels with `tile` of the stage `mine`."""
    if mine.tiles > 1 and other.tiles > 1:
        return [tile]  # both stages have the same tiles
    return list(range(other.tiles))


def block_of(tensor: torch.Tensor, shape: StageShape, tile: int) -> torch.Tensor:
    """The `tile` of `tensor` (…, H, W) that is cut into `shape`."""
    row, column = divmod(tile, shape.columns)
    rows = even_ranges(tensor.shape[-2], shape.rows)[row]
    columns = even_ranges(tensor.shape[-1], shape.columns)[column]
    return tensor[..., rows.start : rows.stop, columns.start : columns.stop]
