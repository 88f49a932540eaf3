"""What was published on GPUs for GEMS and Hy-Fi, beside what this lesson's models predict.

The figures are those of a talk on high-performance deep learning (Ohio State University), which cites Jain
and others, SC 2020 (GEMS) and ISC 2022 (Hy-Fi). Nothing here was measured by the course.
"""

from dataclasses import dataclass

from course_lib.theory.cost_model import predict_seconds, ring_allreduce_cost
from course_lib.theory.hockney import Hockney
from course_lib.theory.schedules import gems_basic, gems_mast, gpipe, makespan, naive, simulate

BASIC, MAST, MASTER, HYBRID = 7.25, 6.28, 4.21, 27 / 60  # hours on slides of tissue
WEIGHTS, STEP, NETWORK = 100e6, 0.5, Hockney(5e-6, 1 / 10e9)  # assumed for 2 048 GPUs


@dataclass(frozen=True, slots=True)
class Published:
    """A published figure, the model's prediction, and what the model assumes."""

    what: str
    published: str
    predicted: str
    assumes: str


def bound(stages: float, backward: float = 2.0) -> float:
    """The largest speed-up that GEMS can have over one stage at a time: (f + b) / (b + f/p), with f = 1."""
    return (1 + backward) / (backward + 1 / stages)


def efficiency(ranks: int) -> float:
    """The share of a step that computes, if a ring all-reduce of all gradients follows it."""
    return STEP / (STEP + predict_seconds(ring_allreduce_cost(ranks, WEIGHTS), NETWORK))


def rows() -> list[Published]:
    """All rows, those of GEMS first."""
    mast = makespan(simulate(gems_basic(4, 2), 1, 2)) / makespan(simulate(gems_mast(4), 1, 2))
    pipeline = makespan(simulate(naive(4, 8), 1, 2)) / makespan(simulate(gpipe(4, 8), 1, 2))
    both = "replicas in both directions, many stages"
    return [
        Published("1024², GEMS-Basic, 4 GPUs", f"{BASIC} h", "-", "the baseline"),
        Published("1024², MAST / Basic", f"{BASIC / MAST:.3f}", f"{mast:.3f}", "4 equal stages, b = 2f"),
        Published(
            "1024², MASTER / Basic", f"{BASIC / MASTER:.2f}", f"≤ {bound(4):.2f}", "the same, any batch"
        ),
        Published(
            "1024², Hybrid / Basic, 128 GPUs",
            f"{BASIC / HYBRID:.1f}",
            f"≤ {32 * bound(4):.0f}",
            "32 × MASTER",
        ),
        Published("2048², Hy-Fi / layer parallel", "2.67", f"{pipeline:.2f}", "4 stages, 8 micro-batches"),
        Published("2048², Hy-Fi, 2 048 GPUs", "94.5 %", f"{efficiency(2048):.1%}", "100 MB, 0.5 s, 10 GB/s"),
        Published("8192², Hy-Fi / spatial", "1.476", f"≤ {bound(1e9):.2f}", both),
        Published("8192², the same, strong scaling", "2.26", f"≤ {bound(1e9):.2f}", both),
        Published("16384², Hy-Fi / spatial", "1.47", f"≤ {bound(1e9):.2f}", both),
    ]
