"""Data × replica × pipeline × tile × tensor on 8 ranks, beside the same training in one process.

python -m mpi_classroom.launch 8 -m course.lessons.l10_spatial_and_hybrid.five_dimensions
"""

import copy

import torch
from mpi4py import MPI
from torch import nn
from torch.nn import functional as F

from course_lib.parallel.hybrid import Hybrid
from course_lib.theory.hybrid import HybridShape, StageShape
from course_lib.training.loop import Batch, summed_cross_entropy

SHAPE = HybridShape((StageShape(rows=2), StageShape(tensor=2)), data=2, replicas=2)
SAMPLES, STEPS = 8, 3


def two_stages() -> list[nn.Sequential]:
    """Convolutions for tiles, and fully connected layers for tensor shards, in float64."""
    torch.manual_seed(0)
    convolutions = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1), nn.MaxPool2d(2)
    )
    head = nn.Sequential(nn.Flatten(), nn.Linear(4 * 6 * 6, 16), nn.ReLU(), nn.Linear(16, 3))
    return [convolutions.double(), head.double()]


def largest_differences(comm: MPI.Intracomm) -> tuple[float, float]:
    """The largest difference from one process, of the losses of all steps and of all weights after them."""
    whole = nn.Sequential(*two_stages())
    hybrid = Hybrid(comm, SHAPE, copy.deepcopy(list(whole)))
    optimizers = [torch.optim.SGD(list(net.parameters()), lr=0.1) for net in (hybrid, whole)]
    losses = 0.0
    for step in range(STEPS):
        generator = torch.Generator().manual_seed(step)
        images = torch.randn(SAMPLES, 1, 12, 12, generator=generator, dtype=torch.float64)
        labels = torch.randint(0, 3, (SAMPLES,), generator=generator)
        for optimizer in optimizers:
            optimizer.zero_grad()
        expected = F.cross_entropy(whole(images), labels)
        expected.backward()
        loss = hybrid.step(Batch(images, labels, SAMPLES), summed_cross_entropy, microbatches=2)
        losses = max(losses, abs(loss - expected.item()))
        for optimizer in optimizers:
            optimizer.step()
    weights = 0.0
    for replica, module in hybrid.modules.items():
        group = hybrid.groups[replica]
        same_cut = hybrid.build(group, whole[group.stage])
        for ours, theirs in zip(module.parameters(), same_cut.parameters(), strict=True):
            weights = max(weights, (ours - theirs).abs().max().item())
    return comm.allreduce(losses, MPI.MAX), comm.allreduce(weights, MPI.MAX)


def main() -> None:
    """Rank 0 prints both."""
    comm = MPI.COMM_WORLD
    losses, weights = largest_differences(comm)
    if comm.rank == 0:
        print(f"{comm.size} ranks, {STEPS} steps beside one process:")
        print(f"losses differ by at most {losses:.0e}, weights by at most {weights:.0e}")


if __name__ == "__main__":
    main()
