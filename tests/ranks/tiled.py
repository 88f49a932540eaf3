"""What tests of tiles share: the images, the whole layer that is the oracle, and what counts as equal.

Also a program: the same tests of equality on 5, 6 and 8 ranks, which no pytest session has.
"""

import copy
import sys
from collections.abc import Callable, Sequence

import torch
from mpi4py import MPI
from torch import nn

from course_lib.parallel.spatial_parallel import Tiles, make_tiles, sum_over_tiles, tile_model, tile_of
from course_lib.theory.tiles import Halo

CLOSE = {"rtol": 0.0, "atol": 1e-10}
STEPS = 3


def shapes(size: int) -> list[tuple[int, int]]:
    """All rows × columns of `size` tiles: vertical and horizontal strips, squares and oblongs."""
    return [(rows, size // rows) for rows in range(1, size + 1) if size % rows == 0]


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def close(ours: torch.Tensor | None, expected: torch.Tensor | None) -> bool:
    if ours is None or expected is None:
        return ours is expected
    return ours.shape == expected.shape and torch.allclose(ours, expected, **CLOSE)


def randomised(model: nn.Module) -> nn.Module:
    """`model` in float64 with weights of its own, also where torch starts with ones and zeros."""
    generator = torch.Generator().manual_seed(7)
    model = model.double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) / 3)
    return model


def trains_alike(
    tiles: Tiles,
    whole: nn.Module,
    size: tuple[int, int],
    *,
    channels: int = 2,
    images: int = 2,
    make: Callable[[Tiles, nn.Module], nn.Module] = tile_model,
    combine: Callable[[Tiles, Sequence[nn.Module]], None] = sum_over_tiles,
) -> bool:
    """Three steps both ways; whether outputs, gradients of inputs and of all weights, and weights agree."""
    whole = randomised(copy.deepcopy(whole))
    tiled = make(tiles, whole)
    optimizers = [
        torch.optim.SGD([*m.parameters(), torch.zeros(1)], lr=0.05, momentum=0.9) for m in (tiled, whole)
    ]
    agree = True
    for step in range(STEPS):
        image = numbers(images, channels, *size, seed=step).requires_grad_()
        mine = tile_of(tiles, image.detach()).clone().requires_grad_()
        for optimizer in optimizers:
            optimizer.zero_grad()
        expected, got = whole(image), tiled(mine)
        scale = numbers(*expected.shape, seed=10 + step)
        joined = got.shape == expected.shape and tiles.comm.size > 1
        expected.backward(scale)
        got.backward(scale if joined else tile_of(tiles, scale))
        combine(tiles, [tiled])
        agree &= close(got, expected if joined else tile_of(tiles, expected))
        agree &= close(mine.grad, tile_of(tiles, image.grad))
        pairs = zip(tiled.parameters(), whole.parameters(), strict=True)
        agree &= all(close(ours.grad, theirs.grad) for ours, theirs in pairs)
        for optimizer in optimizers:
            optimizer.step()
    agree &= all(close(*pair) for pair in zip(tiled.parameters(), whole.parameters(), strict=True))
    return agree and all(close(*pair) for pair in zip(tiled.buffers(), whole.buffers(), strict=True))


def small_net() -> nn.Sequential:
    """A convolution, batch-norm and pooling each, strides and odd sizes among them."""
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.Tanh(),
        nn.MaxPool2d(3, stride=2, padding=1),
        nn.Conv2d(4, 3, (5, 3), stride=(1, 2), padding=(2, 1), dilation=(1, 2)),
        nn.ELU(),
        nn.AvgPool2d(2),
    )


def dropping_what_returned(comm: MPI.Intracomm, gradient: torch.Tensor, dim: int, halo: Halo) -> torch.Tensor:
    """Known wrong: the tile's own gradient alone, as autograd finds it by itself."""
    own = gradient.narrow(dim, *halo.in_needed(halo.kept))
    total = gradient.new_zeros(*own.shape[:dim], len(halo.owned), *own.shape[dim + 1 :])
    total.narrow(dim, *halo.in_tile(halo.kept)).copy_(own)
    return total


def main() -> None:
    comm = MPI.COMM_WORLD
    for rows, columns in shapes(comm.size):
        agree = trains_alike(make_tiles(comm, rows, columns), small_net(), (29, 37))
        verdicts = comm.gather(agree)
        if verdicts is not None:
            print(f"{rows} x {columns}: {'equal' if all(verdicts) else 'different'}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
