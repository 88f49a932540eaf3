"""Tiles in all shapes that these ranks can make, held to the full image in one process, and fast to plain.

Known-wrong variants are kept and have to be told from it.
"""

import copy
from typing import Any

import pytest
import torch
from mpi4py import MPI
from torch import nn

from benchmarks.synthetic_ranks import ResidualBlock
from course_lib.comm import halo
from course_lib.fast import spatial_parallel as fast
from course_lib.parallel.spatial_parallel import (
    SpatialBatchNorm,
    SpatialConv,
    Tiles,
    make_tiles,
    sum_over_tiles,
    tile_model,
    tile_of,
)
from tests.ranks.tiled import (
    close,
    dropping_what_returned,
    randomised,
    shapes,
    small_net,
    trains_alike,
)

CONVOLUTIONS: list[dict[str, Any]] = [
    {"kernel_size": 1},
    {"kernel_size": 3, "padding": 1},
    {"kernel_size": 3, "padding": "same", "dilation": 2, "bias": False},
    {"kernel_size": 4, "padding": "same"},
    {"kernel_size": 3, "padding": 0},
    {"kernel_size": (1, 5), "padding": (0, 2), "groups": 2},
    {"kernel_size": 3, "stride": 2, "padding": 1},
    {"kernel_size": 4, "stride": (3, 2), "padding": (3, 0)},
    {"kernel_size": 2, "stride": 3},
    {"kernel_size": 7, "padding": 3, "dilation": (1, 2)},
    {"kernel_size": 5, "padding": 9},
]
SIZE = (17, 11)
MODELS = [tile_model, fast.tile_model]  # plain and fast


def every_shape(comm: MPI.Intracomm) -> list[Tiles]:
    return [make_tiles(comm, *shape) for shape in shapes(comm.size)]


@pytest.mark.parametrize("how", CONVOLUTIONS, ids=str)
def test_a_convolution_of_tiles_is_that_of_the_image(comm: MPI.Intracomm, how: dict[str, Any]) -> None:
    layers = nn.Sequential(nn.Conv2d(2, 4, **how))
    for make in MODELS:
        assert all(trains_alike(tiles, layers, SIZE, make=make) for tiles in every_shape(comm)), (
            make.__module__
        )


def test_ghosts_may_come_from_beyond_the_neighbour_and_tiles_may_stay_empty(comm: MPI.Intracomm) -> None:
    wide = nn.Sequential(nn.Conv2d(2, 3, 9, padding=4), nn.Conv2d(3, 2, 3, padding=1))
    shrinking = nn.Sequential(nn.Conv2d(2, 3, 3, stride=2), nn.Tanh(), nn.Conv2d(3, 2, 2), nn.MaxPool2d(1))
    for tiles in every_shape(comm):
        for make in MODELS:
            assert trains_alike(tiles, wide, (5, 6), make=make)
            assert trains_alike(tiles, shrinking, (5, 6), make=make)  # a single row in the end


@pytest.mark.parametrize(
    "pool",
    [
        nn.MaxPool2d(2),
        nn.MaxPool2d(3, stride=2, padding=1),
        nn.MaxPool2d(3, stride=1, padding=1, dilation=2),
        nn.AvgPool2d(2),
        nn.AvgPool2d((3, 2), stride=(2, 1), padding=1),
        nn.AdaptiveAvgPool2d(1),
    ],
    ids=str,
)
def test_a_pooling_of_tiles_is_that_of_the_image(comm: MPI.Intracomm, pool: nn.Module) -> None:
    layers = nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), pool)
    assert all(trains_alike(tiles, layers, (13, 10)) for tiles in every_shape(comm))


@pytest.mark.parametrize(
    "norm",
    [
        nn.BatchNorm2d(2),
        nn.BatchNorm2d(2, momentum=None),
        nn.BatchNorm2d(2, affine=False),
        nn.BatchNorm2d(2, track_running_stats=False),
    ],
    ids=str,
)
def test_batch_norm_of_tiles_is_that_of_the_image(comm: MPI.Intracomm, norm: nn.Module) -> None:
    for tiles in every_shape(comm):
        assert trains_alike(tiles, nn.Sequential(norm), (7, 9))
        assert trains_alike(tiles, nn.Sequential(norm).eval(), (7, 9))


def test_a_small_net_and_a_residual_block_train_alike(comm: MPI.Intracomm) -> None:
    for tiles in every_shape(comm):
        for make in MODELS:
            assert trains_alike(tiles, small_net(), (14, 19), make=make)
            assert trains_alike(tiles, ResidualBlock(2, 4, stride=2), (11, 12), make=make)
            assert trains_alike(tiles, ResidualBlock(2, 2, stride=1), (11, 12), make=make)


# ---------------------------------------------------------------- known to be wrong


def two_convolutions() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.Tanh(), nn.Conv2d(3, 2, 3, padding=1))


def test_without_the_adjoint_the_first_layers_gradients_are_wrong(
    comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(halo, "return_halo", dropping_what_returned)
    monkeypatch.setattr(fast, "add_returned", lambda *_: None)
    for make in MODELS:
        verdicts = [
            trains_alike(tiles, two_convolutions(), (12, 12), make=make) for tiles in every_shape(comm)
        ]
        assert all(agree == (comm.size == 1) for agree in verdicts)


def test_without_ghosts_a_tile_is_an_image_of_its_own(comm: MPI.Intracomm) -> None:
    verdicts = [
        trains_alike(tiles, two_convolutions(), (12, 12), make=lambda _, whole: copy.deepcopy(whole))
        for tiles in every_shape(comm)
    ]
    assert all(agree == (comm.size == 1) for agree in verdicts)


def test_batch_norm_of_each_tile_is_another_layer(comm: MPI.Intracomm) -> None:
    def own_statistics(tiles: Tiles, whole: nn.Module) -> nn.Module:
        alone = make_tiles(MPI.COMM_SELF, 1, 1)
        first, norm = whole
        return nn.Sequential(tile_model(tiles, first), SpatialBatchNorm(alone, norm))

    layers = nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.BatchNorm2d(3))
    for tiles in every_shape(comm):
        assert trains_alike(tiles, layers, (12, 12), make=own_statistics) == (comm.size == 1)


# ---------------------------------------------------------------- what is kept, and what is refused


def test_what_is_kept_for_backward_is_the_tile_and_its_ghosts(comm: MPI.Intracomm) -> None:
    tiles, kept = make_tiles(comm, comm.size, 1), {}
    layers = fast.tile_model(
        tiles, nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1))
    )
    weights = {p.data_ptr() for p in layers.parameters()}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.data_ptr() not in weights:
            kept[tensor.data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    x = torch.zeros(1, 8, 16 * comm.size, 32)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        layers(tile_of(tiles, x).clone())
    tile = 8 * 16 * 32 * 4
    assert sum(kept.values()) < 2.5 * tile  # the two inputs and their ghosts; what ReLU keeps is the second


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        (nn.Conv2d(1, 1, 3, padding=1, padding_mode="reflect"), "padding_mode='zeros'"),
        (nn.MaxPool2d(2, ceil_mode=True), "ceil_mode=False"),
        (nn.AvgPool2d(2, count_include_pad=False), "count_include_pad=True"),
        (nn.Linear(2, 2), "join them before"),
        (nn.GroupNorm(1, 2), "join them before"),
    ],
    ids=str,
)
def test_what_tiles_cannot_do_is_refused(comm: MPI.Intracomm, layer: nn.Module, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        tile_model(make_tiles(comm, 1, comm.size), layer)


@pytest.mark.parametrize(
    "second",
    [nn.Conv2d(3, 2, 1, padding=1), nn.Conv2d(3, 2, 3, padding=1), nn.BatchNorm2d(3), nn.MaxPool2d(3, 1, 1)],
    ids=str,
)
def test_empty_tiles_of_an_image_without_a_gradient_train_like_the_others(
    comm: MPI.Intracomm, second: nn.Module
) -> None:
    layers = randomised(nn.Sequential(nn.Conv2d(2, 3, 3), second))
    image = torch.arange(30.0, dtype=torch.float64).view(1, 2, 3, 5).sin()  # one row after the first layer
    layers(image).square().sum().backward()
    for make in MODELS:
        tiles = make_tiles(comm, comm.size, 1)
        tiled = make(tiles, layers)
        tiled(tile_of(tiles, image)).square().sum().backward()
        sum_over_tiles(tiles, [tiled])
        pairs = zip(tiled.parameters(), layers.parameters(), strict=True)
        assert all(close(ours.grad, theirs.grad) for ours, theirs in pairs), make.__module__


def test_frozen_weights_stay_frozen_and_a_layer_used_twice_stays_one(comm: MPI.Intracomm) -> None:
    frozen = nn.Sequential(nn.Conv2d(2, 2, 3, padding=1), nn.BatchNorm2d(2)).requires_grad_(False)
    twice = nn.Conv2d(2, 2, 3, padding=1)
    layers = nn.Sequential(frozen, twice, nn.Tanh(), twice)
    for make in MODELS:
        tiles = make_tiles(comm, comm.size, 1)
        tiled = make(tiles, layers)
        assert [p.requires_grad for p in tiled.parameters()] == [p.requires_grad for p in layers.parameters()]
        assert trains_alike(tiles, layers[1:], (9, 7), make=make)


def test_two_layers_with_one_weight_are_refused(comm: MPI.Intracomm) -> None:
    first, second = nn.Conv2d(2, 2, 3, padding=1), nn.Conv2d(2, 2, 3, padding=1)
    second.weight = first.weight
    with pytest.raises(ValueError, match=r"0\.weight and 2\.weight share one parameter"):
        tile_model(make_tiles(comm, 1, comm.size), nn.Sequential(first, nn.Tanh(), second))


def test_parameters_outside_layers_are_refused(comm: MPI.Intracomm) -> None:
    model = nn.Sequential(nn.Tanh())
    model.scale = nn.Parameter(torch.ones(1))
    with pytest.raises(ValueError, match="Sequential has parameters and layers"):
        tile_model(make_tiles(comm, 1, comm.size), model)


def test_an_image_smaller_than_the_kernel_is_refused_on_every_rank(comm: MPI.Intracomm) -> None:
    tiles = make_tiles(comm, 1, comm.size)
    layer = SpatialConv(tiles, nn.Conv2d(1, 1, 9))
    with pytest.raises(ValueError, match="a window of 9 pixels does not fit into 8"):
        layer(tile_of(tiles, torch.zeros(1, 1, 8, 8)))
