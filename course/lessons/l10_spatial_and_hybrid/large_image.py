"""A large image that one rank cannot train on under a memory limit, and four can, with a tile each.

    limit 96 MiB per rank      1 rank      1024 × 1024 pixels        no memory left
                              4 ranks     strips of 256 × 1024      the loss falls

A slide of tissue, drawn here: nuclei in noise. The network says for every pixel how likely it belongs to a
nucleus. The limit holds in the processes of a job of its own (Linux only), as in `shared/memory_limit.py`.
"""

from __future__ import annotations

import copy
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from subprocess import TimeoutExpired
from typing import TYPE_CHECKING

from course.lessons.shared.memory_limit import MIB, STATUS, TENSORS_APART, out_of_memory
from mpi_classroom.job_output import marked_lines
from mpi_classroom.launch import run_ranks

if TYPE_CHECKING:
    import torch
    from mpi4py import MPI
    from torch import nn

LIMIT_MIB, SIDE, STEPS, MAPS = 96, 1024, 8, 4
LEARNING_RATE = 0.5
MARK = "large image: "


@dataclass(frozen=True, slots=True)
class Trained:
    """How the training on one image of `side`² pixels went: the loss of every step, and a sentence."""

    ranks: int
    limit_mib: int
    side: int
    losses: list[float]
    story: str


def train_limited(
    ranks: int, *, side: int = SIDE, limit_mib: int = LIMIT_MIB, steps: int = STEPS, timeout: float = 100.0
) -> Trained:
    """Train on one image in a job of `ranks` ranks that may each allocate `limit_mib` MiB.

    Where memory cannot be limited, or the job is not done in time, the story says so. Raises RuntimeError if
    the job ends without a word.
    """
    if not STATUS.exists():
        return Trained(ranks, limit_mib, side, [], "not run: memory can be limited on Linux only")
    module = "course.lessons.l10_spatial_and_hybrid.large_image"
    command = ["-m", module, str(limit_mib), str(side), str(steps)]
    try:
        job = run_ranks(ranks, command, timeout=timeout, environment=os.environ | TENSORS_APART)
    except TimeoutExpired:
        return Trained(
            ranks, limit_mib, side, [], f"not done after {timeout:.0f} s: this machine is too busy"
        )
    found = marked_lines(job.stdout, MARK)
    if not found:
        raise RuntimeError(f"the job of {ranks} ranks ended without a word:\n{job.stdout}\n{job.stderr}")
    return Trained(**found[-1])


# ---------------------------------------------------------------- the slide and the network


def slide(side: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A drawn slide (1, 1, side, side), and 1 where a pixel belongs to a nucleus, else 0."""
    import torch

    generator = torch.Generator().manual_seed(0)
    count = side * side // 4096
    centres = torch.rand(count, 2, generator=generator) * side
    radii = 6 + 8 * torch.rand(count, generator=generator)
    nuclei = torch.zeros(side, side)
    for (row, column), radius in zip(centres.tolist(), radii.tolist(), strict=True):
        top, left = max(0, int(row - radius)), max(0, int(column - radius))
        rows = torch.arange(top, min(side, int(row + radius) + 1))[:, None]
        columns = torch.arange(left, min(side, int(column + radius) + 1))
        inside = (rows - row) ** 2 + (columns - column) ** 2 < radius**2
        nuclei[top : top + len(rows), left : left + len(columns)][inside] = 1
    noise = 0.7 * torch.randn(side, side, generator=generator)
    return (nuclei + noise)[None, None], nuclei[None, None]


def network() -> nn.Sequential:
    """Four convolutions, from pixels to one score per pixel."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    maps = [1, MAPS, MAPS, MAPS]
    pairs = [(nn.Conv2d(a, b, 3, padding=1), nn.ReLU()) for a, b in pairwise(maps)]
    return nn.Sequential(*(layer for pair in pairs for layer in pair), nn.Conv2d(MAPS, 1, 3, padding=1))


def kept_mib(comm: MPI.Intracomm, side: int) -> tuple[float, float]:
    """MiB that a forward pass keeps for backward: of a whole image of `side`², and of this rank's strip.

    Ranks other than 0 do not compute the whole image; theirs is 0.
    """
    import torch

    from course_lib.fast.spatial_parallel import tile_model
    from course_lib.parallel.spatial_parallel import make_tiles, tile_of
    from course_lib.training.kept import kept_bytes

    image, net = torch.zeros(1, 1, side, side), network()
    whole = kept_bytes(net, lambda: net(image)) if comm.rank == 0 else 0
    tiles = make_tiles(comm, comm.size, 1)
    tiled, strip = tile_model(tiles, copy.deepcopy(net)), tile_of(tiles, image).clone()
    return whole / MIB, kept_bytes(tiled, lambda: tiled(strip)) / MIB


# ---------------------------------------------------------------- in a process that is limited


def train(comm: MPI.Intracomm, side: int, steps: int) -> list[float]:
    """The loss of every step on one image, a strip of it on each rank; alone, the plain network."""
    import torch
    from torch.nn import functional as F

    from course_lib.fast.spatial_parallel import tile_model
    from course_lib.parallel.spatial_parallel import make_tiles, sum_over_tiles, tile_of

    tiles = make_tiles(comm, comm.size, 1)
    image, nuclei = (tile_of(tiles, each).clone() for each in slide(side))
    net = network() if comm.size == 1 else tile_model(tiles, network())
    velocity = [torch.zeros_like(parameter) for parameter in net.parameters()]
    losses = []
    for _ in range(steps):
        net.zero_grad()
        loss = F.binary_cross_entropy_with_logits(net(image), nuclei, reduction="sum") / side**2
        loss.backward()
        sum_over_tiles(tiles, [net])
        update(list(net.parameters()), velocity)
        losses.append(comm.allreduce(loss.item()))
    return losses


def update(parameters: Sequence[nn.Parameter], velocity: Sequence[torch.Tensor]) -> None:
    """A step of SGD with momentum, in place; torch's optimizers import more than the limit is about."""
    import torch

    with torch.no_grad():
        for parameter, speed in zip(parameters, velocity, strict=True):
            assert parameter.grad is not None
            parameter.sub_(LEARNING_RATE * speed.mul_(0.9).add_(parameter.grad))


def main(arguments: Sequence[str]) -> None:
    """A rank of the job: LIMIT in MiB, SIDE, STEPS."""
    import torch
    from mpi4py import MPI

    from course_lib.effects import memory_limit

    comm = MPI.COMM_WORLD
    limit_mib, side, steps = map(int, arguments)
    torch.set_num_threads(1)
    train(comm, 64, 1)  # what torch and MPI allocate once and for all
    try:
        with memory_limit(limit_mib * MIB):
            losses = train(comm, side, steps)
    except RuntimeError as error:
        if not out_of_memory(error):
            raise
        report(Trained(comm.size, limit_mib, side, [], f"rank {comm.rank} has no memory left"))
        comm.Abort(1)  # the others wait for this rank's messages
    if comm.rank == 0:
        story = f"the loss fell from {losses[0]:.2f} to {losses[-1]:.2f} in {steps} steps"
        report(Trained(comm.size, limit_mib, side, losses, story))


def report(found: Trained) -> None:
    print(MARK + json.dumps(asdict(found)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
