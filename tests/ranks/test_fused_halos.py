"""Several layers with one exchange, held to the whole image in one process; borders and counts included."""

from collections.abc import Iterable

import pytest
import torch
from mpi4py import MPI
from torch import nn

from course_lib.comm.counting import counted
from course_lib.fast.fused_halos import FusedHalos
from course_lib.parallel.spatial_parallel import Tiles, make_tiles, sum_over_tiles, tile_model, tile_of
from tests.ranks.tiled import shapes, trains_alike


def three(middle: nn.Module | None = None) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(2, 3, 3, padding=1),
        nn.Sigmoid(),  # makes a half of the zeros outside
        middle or nn.Conv2d(3, 3, 5, padding=2, dilation=1),
        nn.Conv2d(3, 2, (3, 1), padding=(1, 0)),
        nn.Tanh(),
    )


NETS = {
    "same": three(),
    "strided": three(nn.Conv2d(3, 3, 3, stride=2, padding=1)),
    "pooled": three(nn.MaxPool2d(2)),
    "dilated": three(nn.Conv2d(3, 3, 3, padding=2, dilation=2)),
}


def all_layers(tiles: Tiles, modules: Iterable[nn.Module]) -> None:
    for module in modules:
        sum_over_tiles(tiles, [module])


@pytest.mark.parametrize("name", NETS)
def test_fused_layers_train_like_the_whole_image(comm: MPI.Intracomm, name: str) -> None:
    for shape in shapes(comm.size):
        tiles = make_tiles(comm, *shape)
        assert trains_alike(tiles, NETS[name], (26, 23), make=FusedHalos, combine=all_layers)  # type: ignore[arg-type]


def messages(tiles: Tiles, model: nn.Module, image: torch.Tensor) -> tuple[int, int]:
    """How many messages of pixels this rank sends forward, and how many bytes."""
    height = counted(tiles.height)
    for layer in model.modules():
        if hasattr(layer, "tiles"):
            layer.tiles = Tiles(tiles.comm, height, tiles.width)
    with torch.no_grad():
        model(tile_of(tiles, image))
    return height.sent.messages, height.sent.nbytes


def test_one_exchange_in_place_of_three(comm: MPI.Intracomm) -> None:
    tiles = make_tiles(comm, comm.size, 1)
    layers = nn.Sequential(*(nn.Conv2d(2, 2, 3, padding=1) for _ in range(3)))
    image = torch.zeros(1, 2, 8 * comm.size, 5)
    fused, separate = FusedHalos(tiles, layers), tile_model(tiles, layers)
    neighbours = (comm.rank > 0) + (comm.rank + 1 < comm.size)
    assert messages(tiles, fused, image)[0] == neighbours
    assert messages(tiles, separate, image)[0] == 3 * neighbours


def test_what_cannot_be_fused_is_refused(comm: MPI.Intracomm) -> None:
    tiles = make_tiles(comm, 1, comm.size)
    for layer in (
        nn.BatchNorm2d(2),
        nn.MaxPool2d(3, padding=1),
        nn.Conv2d(1, 1, 3, padding=1, padding_mode="circular"),
    ):
        with pytest.raises(ValueError, match="cannot be fused"):
            FusedHalos(tiles, nn.Sequential(layer))
    few = FusedHalos(tiles, nn.Sequential(nn.Conv2d(1, 1, 3)))
    if comm.size > 1:
        with pytest.raises(ValueError, match="too few"):
            few(tile_of(tiles, torch.zeros(1, 1, 3, 3)))
