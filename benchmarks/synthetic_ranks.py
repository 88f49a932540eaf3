"""The synthetic benchmark: random images, so that only computing and communicating are timed.

    warm up 10 batches,  then again and again:  10 batches  →  one reading of images per second

The protocol is that of Horovod's `pytorch_synthetic_benchmark.py`: the mean of all readings, ± 1.96
deviations. It is weak scaling: every rank has the same batch on any number of ranks. Horovod multiplies what
one rank read by the number of ranks; here the readings of all ranks are summed, reading by reading, so that
a slow rank counts.
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from mpi4py import MPI
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD

from course_lib.parallel.data_parallel import GradientBucket, broadcast_weights
from course_lib.training.loop import Batch, Step, make_step, summed_cross_entropy
from course_lib.training.models import seeded

DEVIATIONS = 1.96  # of a normal distribution, 95 % lie within so many


@dataclass(frozen=True, slots=True)
class Rate:
    """Images per second: the mean of the readings, and what 95 % of them lie within, if they are normal."""

    mean: float
    within: float

    @classmethod
    def of(cls, readings: Sequence[float]) -> "Rate":
        return cls(statistics.fmean(readings), DEVIATIONS * statistics.pstdev(readings))


def synthetic_benchmark(
    comm: MPI.Intracomm,
    step: Step,
    *,
    batch_size: int = 32,
    warm_up: int = 10,
    iterations: int = 10,
    batches: int = 10,
) -> Rate:
    """Images per second of all ranks of `comm`, the same on each, when `step` trains on random images.

    `batch_size` is that of each rank. All ranks call it.
    """
    batch = random_images(comm, batch_size)
    for _ in range(warm_up):
        step(batch)
    mine = [read(comm, lambda: step(batch), batches, batch_size) for _ in range(iterations)]
    return summed(comm, mine)


def read(comm: MPI.Intracomm, work: Callable[[], object], batches: int, batch_size: int) -> float:
    """This rank's images per second over `batches` batches."""
    start = MPI.Wtime()
    for _ in range(batches):
        work()
    return batches * batch_size / (MPI.Wtime() - start)


def summed(comm: MPI.Intracomm, mine: Sequence[float]) -> Rate:
    """The rate of all ranks: their readings are summed, reading by reading."""
    total = np.empty(len(mine))
    comm.Allreduce(np.array(mine), total)
    return Rate.of(total.tolist())


def own_step(comm: MPI.Intracomm, model: nn.Module) -> Step:
    """Data parallelism by our own bucket."""
    broadcast_weights(comm, model)
    bucket = GradientBucket(model)
    optimizer = SGD(model.parameters(), lr=0.01)
    return make_step(model, summed_cross_entropy, optimizer, lambda: bucket.sum(comm))


def random_images(comm: MPI.Intracomm, batch_size: int) -> Batch:
    """This rank's images (batch_size, 3, 32, 32) and labels: random, and others on every rank."""
    generator = torch.Generator().manual_seed(comm.rank)
    images = torch.randn(batch_size, 3, 32, 32, generator=generator)
    labels = torch.randint(10, (batch_size,), generator=generator)
    return Batch(images, labels, comm.size * batch_size)


# ---------------------------------------------------------------- the net


def build_resnet(*, seed: int) -> nn.Module:
    """The net, with the same initial weights wherever it is built."""
    return seeded(ResNet, seed=seed, name="resnet")


class ResidualBlock(nn.Module):
    """Two convolutions with batch-norm, added to what came in; a stride above 1 halves the image."""

    def __init__(self, maps_in: int, maps_out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(maps_in, maps_out, 3, stride, padding=1, bias=False)
        self.conv2 = nn.Conv2d(maps_out, maps_out, 3, padding=1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(maps_out), nn.BatchNorm2d(maps_out)
        same = stride == 1 and maps_in == maps_out
        self.shortcut = nn.Identity() if same else nn.Conv2d(maps_in, maps_out, 1, stride, bias=False)

    def forward(self, maps: torch.Tensor) -> torch.Tensor:
        """Maps (B, maps_in, H, W) to (B, maps_out, H / stride, W / stride)."""
        hidden = F.relu(self.norm1(self.conv1(maps)))
        return F.relu(self.norm2(self.conv2(hidden)) + self.shortcut(maps))


class ResNet(nn.Module):
    """A residual network for small images, 8 layers deep. He et al. (2016), section 4.2."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)
        self.groups = nn.Sequential(
            ResidualBlock(16, 16, 1), ResidualBlock(16, 32, 2), ResidualBlock(32, 64, 2)
        )
        self.fc = nn.Linear(64, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Logits (B, 10) of images (B, 3, H, W); H and W are multiples of 4."""
        maps = self.groups(F.relu(self.norm(self.first(images))))  # (B, 64, H/4, W/4)
        return self.fc(maps.mean(dim=(2, 3)))
