"""Hybrid shapes by the ranks they need, and what they are held to: one process on the whole batch.

Also a program: the shapes of 8 ranks, which no pytest session has.
"""

import copy
import sys
from collections.abc import Callable

import torch
from mpi4py import MPI
from torch import nn
from torch.nn import functional as F

from course_lib.parallel.hybrid import Hybrid, build_stage
from course_lib.theory.hybrid import HybridShape, StageShape
from course_lib.training.loop import Batch, summed_cross_entropy
from tests.ranks.tiled import close, numbers, randomised

ONE, ROWS, COLUMNS = StageShape(), StageShape(rows=2), StageShape(columns=2)
SHAPES = {
    "one process": HybridShape((ONE,)),
    "two replicas of one process": HybridShape((ONE,), replicas=2),
    "data": HybridShape((ONE,), data=2),
    "pipeline": HybridShape((ONE, ONE)),
    "tile": HybridShape((COLUMNS,)),
    "replica × pipeline": HybridShape((ONE, ONE), replicas=2),
    "replica × tile": HybridShape((ROWS,), replicas=2),
    "data × replica": HybridShape((ONE,), data=2, replicas=2),
    "GEMS of three stages": HybridShape((ONE, ONE, ONE), replicas=2),
    "tiles, joined": HybridShape((COLUMNS, ONE), replicas=2),
    "data × pipeline": HybridShape((ONE, ONE), data=2),
    "data × tile": HybridShape((ROWS,), data=2),
    "pipeline × tile": HybridShape((ROWS, ROWS)),
    "split and joined": HybridShape((ONE, COLUMNS, ONE)),
    "Hy-Fi without data": HybridShape((ROWS, ONE, ONE), replicas=2),
    "Hy-Fi": HybridShape((ROWS, ONE, ONE), data=2, replicas=2),
}
SAMPLES, STEPS = 19, 3


def whole_units() -> list[nn.Sequential]:
    """Two units of convolutions and a head."""
    units = [
        nn.Sequential(
            nn.Conv2d(2, 4, 3, padding=1), nn.Tanh(), nn.Conv2d(4, 4, 3, stride=2, padding=1), nn.Tanh()
        ),
        nn.Sequential(
            nn.Conv2d(4, 5, 3, padding=1), nn.Tanh(), nn.Conv2d(5, 2, 3, padding=1), nn.MaxPool2d(2)
        ),
        nn.Sequential(nn.Flatten(), nn.Linear(2 * 3 * 3, 6), nn.Tanh(), nn.Linear(6, 4)),
    ]
    return [randomised(unit) for unit in units]  # type: ignore[misc]


def stages_of(units: list[nn.Sequential], count: int) -> list[nn.Sequential]:
    """The units in so many stages; the last has what is left."""
    return [nn.Sequential(*units[i : i + 1 if i < count - 1 else None]) for i in range(count)]


def equals_one_process(
    comm: MPI.Intracomm, shape: HybridShape, *, spoil: Callable[[Hybrid], None] = lambda hybrid: None
) -> bool:
    """Three steps both ways; whether losses, all gradients and all weights of this rank agree."""
    count = len(shape.stages)
    whole = nn.Sequential(*whole_units())
    hybrid = Hybrid(comm, shape, stages_of(copy.deepcopy(list(whole)), count))
    spoil(hybrid)
    ours = torch.optim.SGD(hybrid.parameters(), lr=0.05, momentum=0.9)
    theirs = torch.optim.SGD(whole.parameters(), lr=0.05, momentum=0.9)
    agree = True
    for step in range(STEPS):
        images, labels = numbers(SAMPLES, 2, 13, 11, seed=step), torch.arange(SAMPLES) % 4
        ours.zero_grad(), theirs.zero_grad()
        expected = F.cross_entropy(whole(images), labels)
        expected.backward()
        batch = Batch(images, labels, SAMPLES)
        loss = hybrid.step(batch, summed_cross_entropy, microbatches=3)
        agree &= abs(loss - expected.item()) < 1e-10
        gradients = copy.deepcopy(whole)
        for mine, parameter in zip(gradients.parameters(), whole.parameters(), strict=True):
            mine.data = parameter.grad.clone()  # type: ignore[union-attr]
        agree &= same_on_this_rank(hybrid, gradients, lambda parameter: parameter.grad)
        ours.step(), theirs.step()
    return agree and same_on_this_rank(hybrid, whole, lambda parameter: parameter.detach())


def same_on_this_rank(
    hybrid: Hybrid, whole: nn.Sequential, read: Callable[[nn.Parameter], torch.Tensor | None]
) -> bool:
    """Whether what this rank has of the model is what the same cut makes of `whole`."""
    stages = stages_of(list(whole), len(hybrid.shape.stages))  # type: ignore[arg-type]
    agree = True
    for replica, module in hybrid.modules.items():
        group = hybrid.groups[replica]
        expected = build_stage(group, stages[group.stage])
        pairs = list(zip(module.parameters(), expected.parameters(), strict=True))
        agree &= bool(pairs) and all(close(read(mine), other.detach()) for mine, other in pairs)
    return agree


def main() -> None:
    comm = MPI.COMM_WORLD
    for name, shape in SHAPES.items():
        if shape.ranks == comm.size:
            verdicts = comm.gather(equals_one_process(comm, shape))
            if verdicts is not None:
                print(f"{name}: {'equal' if all(verdicts) else 'different'}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
