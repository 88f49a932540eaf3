"""The halo exchange, held to slices of the whole image, and to its own transpose: ⟨Hx, y⟩ = ⟨x, Hᵀy⟩."""

import pytest
import torch
from mpi4py import MPI

from course_lib.comm import halo
from course_lib.comm.counting import counted
from course_lib.comm.halo import halo_exchange, owned_ranges, return_ghost_rows, with_ghost_rows
from course_lib.parallel.spatial_parallel import Tiles, make_tiles, padded_tile, tile_of
from course_lib.theory.partition import even_range, even_ranges
from course_lib.theory.tiles import Window
from tests.ranks.tiled import dropping_what_returned, numbers

WINDOWS = [
    Window(1),
    Window(3, before=1, after=1),
    Window(5, before=2, after=2),
    Window(4, before=1, after=2),
    Window(3, stride=2, before=1, after=1),
    Window(2, stride=2),
    Window(3, stride=3, before=0, after=1),
    Window(1, stride=4),
    Window(3, before=4, after=4, dilation=4),
    Window(7, stride=2, before=3, after=3, dilation=2),
]
LENGTH = 13  # on four ranks, what a window needs may come from beyond the neighbour


def inner(comm: MPI.Intracomm, one: torch.Tensor, other: torch.Tensor) -> float:
    return comm.allreduce((one * other).sum().item())


def mine_of(comm: MPI.Intracomm, image: torch.Tensor, dim: int) -> torch.Tensor:
    part = even_range(image.shape[dim], comm.size, comm.rank)
    return image.narrow(dim, part.start, len(part)).clone()


def needs_of(comm: MPI.Intracomm, window: Window, length: int) -> list[range]:
    return [window.needs(part) for part in even_ranges(window.outputs(length), comm.size)]


@pytest.mark.parametrize("dim", [2, -1])
@pytest.mark.parametrize("window", WINDOWS)
def test_a_tile_gets_what_the_whole_image_has_there(comm: MPI.Intracomm, window: Window, dim: int) -> None:
    shape = [2, 3, 4, 4]
    shape[dim] = LENGTH
    image, needed = numbers(*shape, seed=1), needs_of(comm, window, LENGTH)
    got = halo_exchange(comm, mine_of(comm, image, dim), dim, needed, fill=7.0)
    places = needed[comm.rank]
    assert got.shape[dim] == len(places)
    for index, place in enumerate(places):
        expected = image.select(dim, place) if 0 <= place < LENGTH else torch.tensor(7.0).double()
        assert torch.equal(got.select(dim, index), expected.expand_as(got.select(dim, index)))


@pytest.mark.parametrize("dim", [2, -1])
@pytest.mark.parametrize("window", WINDOWS)
def test_backward_is_the_transpose(comm: MPI.Intracomm, window: Window, dim: int) -> None:
    shape = [2, 3, 4, 4]
    shape[dim] = LENGTH
    x = mine_of(comm, numbers(*shape, seed=1), dim).requires_grad_()
    got = halo_exchange(comm, x, dim, needs_of(comm, window, LENGTH))
    y = numbers(*got.shape, seed=2 + comm.rank)
    got.backward(y)
    assert x.grad is not None
    assert inner(comm, got.detach(), y) == pytest.approx(inner(comm, x.detach(), x.grad), abs=1e-10)


def test_without_the_adjoint_it_is_not_the_transpose(
    comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(halo, "return_halo", dropping_what_returned)
    x = mine_of(comm, numbers(1, 1, 12, 5, seed=1), 2).requires_grad_()
    got = halo_exchange(comm, x, 2, needs_of(comm, Window(3, before=1, after=1), 12))
    got.backward(got.detach())
    assert x.grad is not None
    difference = inner(comm, got.detach(), got.detach()) - inner(comm, x.detach(), x.grad)
    assert (abs(difference) > 0.1) == (comm.size > 1)


def test_owned_tiles_of_any_size_even_empty_ones(comm: MPI.Intracomm) -> None:
    lengths = [5, 0, 1, 9][: comm.size]
    image = numbers(1, 2, sum(lengths), 3, seed=3)
    start = sum(lengths[: comm.rank])
    x = image[:, :, start : start + lengths[comm.rank]].clone().requires_grad_()
    assert owned_ranges(comm, x.shape[2])[comm.rank] == range(start, start + lengths[comm.rank])
    everything = [range(-1, sum(lengths) + 1)] * comm.size
    got = halo_exchange(comm, x, 2, everything)
    assert torch.equal(got[:, :, 1:-1], image)
    got.sum().backward()
    assert x.grad is not None and torch.equal(x.grad, torch.full_like(x, comm.size))


def test_bfloat16_travels(comm: MPI.Intracomm) -> None:
    image = numbers(1, 1, 8, 2, seed=3).bfloat16()
    got = halo_exchange(comm, mine_of(comm, image, 2), 2, [range(8)] * comm.size)
    assert torch.equal(got, image)


def test_tiles_that_contradict_what_is_said_of_them_are_refused(comm: MPI.Intracomm) -> None:
    owned = [range(3 * rank, 3 * rank + 3) for rank in range(comm.size)]
    with pytest.raises(ValueError, match="this tile has 4 pixels, but `owned` says 3"):
        halo_exchange(comm, torch.zeros(1, 1, 4, 1), 2, owned, owned=owned)
    with pytest.raises(ValueError, match="give one need per tile"):
        halo_exchange(comm, torch.zeros(1, 1, 3, 1), 2, [*owned, range(1)])
    with pytest.raises(ValueError, match="0 tiles and"):
        halo_exchange(comm, torch.zeros(1, 1, 3, 1), 2, owned, owned=[])


# ---------------------------------------------------------------- the version that lessons show


@pytest.mark.parametrize("width", [1, 2, 3])
def test_ghost_rows_are_what_the_general_exchange_gives(comm: MPI.Intracomm, width: int) -> None:
    image = numbers(2, 3, 3 * comm.size + 1, 5, seed=4)
    strip = mine_of(comm, image, 2)
    x = strip.clone().requires_grad_()
    rows = even_ranges(image.shape[2], comm.size)
    needed = [range(part.start - width, part.stop + width) for part in rows]
    got, expected = with_ghost_rows(comm, strip, width), halo_exchange(comm, x, 2, needed)
    assert torch.equal(got, expected)
    y = numbers(*got.shape, seed=comm.rank)
    expected.backward(y)
    assert x.grad is not None
    assert torch.allclose(return_ghost_rows(comm, y, width), x.grad, rtol=0, atol=1e-14)


@pytest.mark.parametrize("kind", ["channels last", "strided", "bfloat16"])
def test_ghost_rows_of_any_layout_and_dtype(comm: MPI.Intracomm, kind: str) -> None:
    image = numbers(2, 3, 3 * comm.size, 4, seed=4)
    strip = mine_of(comm, image, 2)
    if kind == "channels last":
        strip = strip.to(memory_format=torch.channels_last)
    if kind == "strided":
        strip = strip.transpose(0, 1).contiguous().transpose(0, 1)
    if kind == "bfloat16":
        image, strip = image.bfloat16(), strip.bfloat16()
    got = with_ghost_rows(comm, strip, 2)
    rows = range(3 * comm.rank - 2, 3 * comm.rank + 5)
    padded = torch.nn.functional.pad(image, (0, 0, 2, 2))
    assert torch.equal(got, padded[:, :, rows.start + 2 : rows.stop + 2])
    above, below = comm.rank > 0, comm.rank < comm.size - 1  # of three rows, two go to each neighbour
    expected = torch.tensor([1 + above, 1 + above + below, 1 + below])
    returned = return_ghost_rows(comm, torch.ones_like(got), 2)
    assert torch.equal(returned, expected.view(1, 1, 3, 1).expand(2, 3, 3, 4).to(strip.dtype))


def test_a_strip_that_is_thinner_than_its_ghosts_is_refused(comm: MPI.Intracomm) -> None:
    with pytest.raises(RuntimeError, match="exceeds dimension size"):
        with_ghost_rows(comm, torch.zeros(1, 1, 1, 4), 2)


def halo_numbers(image: tuple[int, int], tiles: tuple[int, int], width: int) -> list[int]:
    """Pixels within `width` of each tile, corners included, inside the image (Dryden et al. 2019)."""
    along = [even_ranges(length, parts) for length, parts in zip(image, tiles, strict=True)]
    wide = [
        [min(part.stop + width, length) - max(part.start - width, 0) for part in parts]
        for parts, length in zip(along, image, strict=True)
    ]
    return [
        wide[0][row] * wide[1][column] - len(rows) * len(columns)
        for row, rows in enumerate(along[0])
        for column, columns in enumerate(along[1])
    ]


def test_a_tile_sends_as_many_bytes_as_the_theory_says(comm: MPI.Intracomm) -> None:
    for rows in (rows for rows in range(1, comm.size + 1) if comm.size % rows == 0):
        made = make_tiles(comm, rows, comm.size // rows)
        tiles = Tiles(comm, counted(made.height), counted(made.width))
        image = numbers(2, 3, 13, 11, seed=2).float()
        padded_tile(tiles, tile_of(tiles, image), [Window(5, before=2, after=2)] * 2)
        sent = sum(axis.sent.nbytes for axis in (tiles.height, tiles.width))  # type: ignore[attr-defined]
        above_and_below = (made.height.rank > 0) + (made.height.rank < made.height.size - 1)
        at_the_sides = (made.width.rank == 0) + (made.width.rank == made.width.size - 1)
        padding = above_and_below * at_the_sides * 2 * 2 * 2 * 3 * 4  # rows are sent with their padding
        theory = halo_numbers((13, 11), (rows, comm.size // rows), 2)
        assert sent == theory[comm.rank] * 2 * 3 * 4 + padding
