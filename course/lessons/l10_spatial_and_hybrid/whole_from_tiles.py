"""The judge of `distant_marks` on whole images, trained by ranks that hold one tile of each image.

rank 0 tile ─ features with halos ─ sum of my pixels ─┐
rank 1 tile ─ features with halos ─ sum of my pixels ─┼─ all-reduce ─ head, the same on every rank
"""

import copy

import torch
from mpi4py import MPI
from torch import nn
from torch.nn import functional as F

from course_lib.comm.regions import reduce_from
from course_lib.parallel.spatial_parallel import Tiles, make_tiles, sum_over_tiles, tile_model, tile_of
from course_lib.training.distant_marks import SIDE, TileJudge, distant_marks
from course_lib.training.models import seeded


class JudgeOnTiles(nn.Module):
    """`judge` of a whole image, when this rank has one tile of it."""

    def __init__(self, tiles: Tiles, judge: TileJudge) -> None:
        super().__init__()
        self.tiles, self.head = tiles, copy.deepcopy(judge.head)
        self.features = tile_model(tiles, judge.features)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Logits (N, 2) of images (N, 1, H, W), the same on every rank."""
        sums = self.features(tile_of(self.tiles, images)).sum(dim=(2, 3))
        return self.head(reduce_from(self.tiles.comm, sums) / 16)


def accuracy_on_tiles(comm: MPI.Intracomm, *, images: int, epochs: int, seed: int = 0) -> float:
    """The accuracy from 0 to 1, as `accuracy_with_tiles` of whole images, trained on tiles with halos."""
    rows = 2 if comm.size % 2 == 0 else 1
    tiles = make_tiles(comm, rows, comm.size // rows)
    pixels, labels = distant_marks(images, seed=seed)
    unseen, expected = distant_marks(512, seed=seed + 1)
    net = JudgeOnTiles(tiles, seeded(lambda: TileJudge(SIDE), seed=seed, name="tile judge"))
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        for batch in torch.randperm(images, generator=generator).split(64):
            optimizer.zero_grad()
            F.cross_entropy(net(pixels[batch]), labels[batch]).backward()
            sum_over_tiles(tiles, [net.features])
            optimizer.step()
    with torch.no_grad():
        return (net(unseen).argmax(dim=1) == expected).double().mean().item()
