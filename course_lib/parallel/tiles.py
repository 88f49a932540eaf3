"""Tiles of an image, one a rank: how images are cut and joined, and what layers of tiles have in common."""

from dataclasses import dataclass

import torch
from mpi4py import MPI
from torch import nn

from course_lib.comm.grid import make_grid
from course_lib.comm.regions import gather_from, scatter_to, shard_of

ROWS, COLUMNS = 2, 3  # dims of (N, C, H, W)


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


def split_tiles(tiles: Tiles, image: torch.Tensor) -> torch.Tensor:
    """This rank's tile of an `image` (N, C, H, W) that all ranks computed alike; gradients are joined."""
    return scatter_to(tiles.width, scatter_to(tiles.height, image, ROWS), COLUMNS)


def join_tiles(tiles: Tiles, tile: torch.Tensor) -> torch.Tensor:
    """The whole image on every rank, for layers that all ranks compute alike."""
    return gather_from(tiles.height, gather_from(tiles.width, tile, COLUMNS), ROWS)


class Tiled(nn.Module):
    """A layer whose parameters get the gradient of this rank's tile; `sum_over_tiles` adds the others'."""

    def __init__(self, tiles: Tiles) -> None:
        super().__init__()
        self.tiles = tiles


def all_sum(comm: MPI.Intracomm, x: torch.Tensor) -> torch.Tensor:
    """The sum over the ranks of `x`, in place."""
    comm.Allreduce(MPI.IN_PLACE, x.numpy())
    return x
