"""A stack of convolutions on one image of 2048² pixels: two ranks, one thread each, beside one rank.

Forward and backward, halo exchange and the sum of the weights' gradients included; each rank has a strip.
Beside it what else two cores can do: one rank, the full image, torch with two threads; and the plain form of
the tiled convolution, a halo exchange and an ordinary one. Then the bytes that autograd saves for backward
per rank, seen by saved-tensor hooks, of which each storage counts once.

    python -m benchmarks.spatial [--quick] [--json FILE]
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from benchmarks.harness import Row, Timing, main, on_ranks, row
from mpi_classroom.launch import available_cores

if TYPE_CHECKING:
    from mpi4py import MPI
    from torch import nn

PIXELS, LAYERS, CHANNELS = 2048, 4, 16
RANKS = 2


# ---------------------------------------------------------------- on the ranks


def stack(layers: int, channels: int) -> nn.Sequential:
    """3×3 convolutions with ReLU in between, from 3 channels on."""
    from torch import nn

    widths = [3] + [channels] * layers
    found: list[nn.Module] = []
    for before, after in pairwise(widths):
        found += [nn.Conv2d(before, after, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*found)


def step_seconds(
    comm: MPI.Intracomm, pixels: int, layers: int, channels: int, repetitions: int
) -> dict[str, Any]:
    """Seconds of a forward and backward: on all ranks, fast and plain; on rank 0 alone with one thread, and
    with as many threads as ranks. And the bytes saved for backward: per rank, fast and plain, and alone."""
    import torch

    from course_lib.fast.spatial_parallel import tile_model
    from course_lib.parallel import spatial_parallel as plain
    from course_lib.parallel.spatial_parallel import make_tiles, sum_over_tiles, tile_of
    from course_lib.training.kept import kept_bytes

    torch.manual_seed(0)
    whole, image = stack(layers, channels), torch.randn(1, 3, pixels, pixels)
    tiles = make_tiles(comm, comm.size, 1)
    tile = tile_of(tiles, image).clone()
    tiled, plainly_tiled = tile_model(tiles, whole), plain.tile_model(tiles, whole)

    def on_tiles(model: nn.Module) -> None:
        model.zero_grad()
        model(tile).square().mean().backward()
        sum_over_tiles(tiles, [model])

    def on_image() -> None:
        if comm.rank == 0:
            whole.zero_grad()
            whole(image).square().mean().backward()

    def on_image_with_threads() -> None:
        torch.set_num_threads(comm.size)
        on_image()
        torch.set_num_threads(1)

    torch.set_num_threads(1)
    contenders: dict[str, Callable[[], None]] = {
        "tiles": partial(on_tiles, tiled),
        "plain": partial(on_tiles, plainly_tiled),
        "one": on_image,
        "threads": on_image_with_threads,
    }
    seconds = in_turn(comm, contenders, repetitions)
    kept = max(comm.allgather(kept_bytes(tiled, lambda: tiled(tile))))
    kept_plainly = max(comm.allgather(kept_bytes(plainly_tiled, lambda: plainly_tiled(tile))))
    alone = kept_bytes(whole, lambda: whole(image)) if comm.rank == 0 else 0
    return {"seconds": seconds, "kept": kept, "kept_plainly": kept_plainly, "kept_alone": alone}


def in_turn(
    comm: MPI.Intracomm, contenders: Mapping[str, Callable[[], None]], repetitions: int
) -> dict[str, list[float]]:
    """Seconds of the slowest rank, by contender; who has nothing to do leaves the core to the others."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for repetition in range(repetitions + 1):  # the first is a warm-up
        for name, contender in contenders.items():
            comm.Barrier()
            start = time.perf_counter()
            contender()
            mine = time.perf_counter() - start
            sleep_until_all(comm)
            slowest = max(comm.allgather(mine))
            if repetition:
                seconds[name].append(slowest)
    return seconds


def sleep_until_all(comm: MPI.Intracomm) -> None:
    """A barrier that leaves the core to those who still compute."""
    request = comm.Ibarrier()
    while not request.Test():
        time.sleep(0.01)


# ---------------------------------------------------------------- the table


def measure(quick: bool) -> list[Row]:
    """Rows of time and of bytes."""
    pixels, repetitions = (512, 3) if quick else (PIXELS, 7)
    ranks = min(RANKS, max(1, available_cores()))
    found = on_ranks(
        ranks,
        step_seconds,
        pixels=pixels,
        layers=LAYERS,
        channels=CHANNELS,
        repetitions=repetitions,
        timeout=900,
    )
    what = f"{LAYERS} convolutions, {CHANNELS} channels, {pixels}² pixels"
    timings = {name: Timing.of(values) for name, values in found["seconds"].items()}
    saved = {name: Timing(float(found[name]), 0.0) for name in ("kept", "kept_plainly", "kept_alone")}
    step, kept = f"{what}: step", f"{what}: kept for backward on a rank"
    ours, plain = timings["tiles"], "halo exchange + ordinary convolution"
    return [
        row(step, ranks, ours, timings["one"], "1 rank, 1 thread, whole image"),
        row(step, ranks, ours, timings["threads"], f"1 rank, {ranks} threads, whole image"),
        row(step, ranks, ours, timings["plain"], plain),
        row(kept, ranks, saved["kept"], saved["kept_alone"], "1 rank, whole image", unit="bytes"),
        row(kept, ranks, saved["kept"], saved["kept_plainly"], plain, unit="bytes"),
    ]


if __name__ == "__main__":
    main("Spatial parallelism: convolutions on strips of an image", measure)
