"""A stack of convolutions on one image of 2048² pixels: two ranks, one thread each, beside one rank.

Forward and backward, halo exchange and the sum of the weights' gradients included; each rank has a strip.
Beside it what else two cores can do: one rank, the whole image, torch with two threads. Then the bytes that
autograd keeps for backward on a rank, seen by saved-tensor hooks, of which each storage counts once.

    python -m benchmarks.spatial [--quick] [--json FILE]
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from benchmarks.harness import Row, Timing, main, on_ranks, row
from mpi_classroom.launch import available_cores

if TYPE_CHECKING:
    import torch
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
    """Seconds of a forward and backward: on all ranks; on rank 0 alone with one thread, and with as many
    threads as there are ranks. And the bytes kept for backward: on a rank, and alone."""
    import torch

    from course_lib.parallel.spatial_parallel import make_tiles, sum_over_tiles, tile_model, tile_of

    torch.manual_seed(0)
    whole, image = stack(layers, channels), torch.randn(1, 3, pixels, pixels)
    tiles = make_tiles(comm, comm.size, 1)
    tiled, tile = tile_model(tiles, whole), tile_of(tiles, image).clone()

    def on_tiles() -> None:
        tiled.zero_grad()
        tiled(tile).square().mean().backward()
        sum_over_tiles(tiles, [tiled])

    def on_image() -> None:
        if comm.rank == 0:
            whole.zero_grad()
            whole(image).square().mean().backward()

    def on_image_with_threads() -> None:
        torch.set_num_threads(comm.size)
        on_image()
        torch.set_num_threads(1)

    torch.set_num_threads(1)
    contenders = {"tiles": on_tiles, "one": on_image, "threads": on_image_with_threads}
    seconds = in_turn(comm, contenders, repetitions)
    kept = max(comm.allgather(kept_nbytes(tiled, tile)))
    alone = kept_nbytes(whole, image) if comm.rank == 0 else 0
    return {"seconds": seconds, "kept": kept, "kept_alone": alone}


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


def kept_nbytes(model: nn.Module, x: torch.Tensor) -> int:
    """Bytes that autograd keeps for backward, weights not counted."""
    import torch

    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        result = model(x)
    return sum(kept.values()) if result.requires_grad else 0


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
    bytes_ours, bytes_alone = (Timing(float(found[name]), 0.0) for name in ("kept", "kept_alone"))
    return [
        row(f"{what}: step", ranks, timings["tiles"], timings["one"], "1 rank, 1 thread, whole image"),
        row(
            f"{what}: step",
            ranks,
            timings["tiles"],
            timings["threads"],
            f"1 rank, {ranks} threads, whole image",
        ),
        row(
            f"{what}: kept for backward on a rank",
            ranks,
            bytes_ours,
            bytes_alone,
            "1 rank, whole image",
            unit="bytes",
        ),
    ]


if __name__ == "__main__":
    main("Spatial parallelism: convolutions on strips of an image", measure)
