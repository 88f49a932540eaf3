"""What was published on thousands of ranks, beside the α–β–γ model of a data-parallel step.

The published figures are those of a talk on high-performance deep learning (Ohio State University): runs of
ResNet-50 on Summit and Frontera, Hy-Fi (Jain and others, ISC 2022) and GEMS (SC 2020). What the model assumes
is written beside each; the course measured none of it.
"""

import textwrap
from collections.abc import Iterable
from math import log2

from course_lib.theory.hockney import Hockney
from course_lib.theory.scale_out import Claim, DataParallelStep
from course_lib.theory.scaling import karp_flatt_fraction
from mpi_classroom.figures import three_digits

ON_ONE, ON_TWO = 334.0, 316.4  # images per second and GPU, on one and on two V100 GPUs, 64 images per batch
RESNET_50 = 25_557_032 * 4  # bytes of gradients
SUMMIT, FRONTERA = 420_000.0, 260_000.0  # images per second
SUMMIT_GPUS, FRONTERA_NODES, RANKS_PER_NODE = 1536, 2048, 4
INFINIBAND = Hockney(5e-6, 1 / 12.5e9, 1 / 20e9)  # 100 Gbit/s; γ: adding in the memory of a CPU
TWO_PORTS = Hockney(5e-6, 1 / 25e9, 1 / 300e9)  # two ports of 100 Gbit/s per node; γ: in that of a GPU
GPU_STEP = DataParallelStep(64 / ON_ONE, RESNET_50, 64)
HOURS_BASIC, HOURS_MASTER, HOURS_HYBRID = 7.25, 4.21, 27 / 60  # GEMS on 4, 4 and 128 GPUs


def repeated() -> float:
    """Images per second on Summit if every doubling lost what the first one loses."""
    return SUMMIT_GPUS * ON_ONE * (ON_TWO / ON_ONE) ** log2(SUMMIT_GPUS)


def modelled() -> float:
    """Images per second on Summit by the model."""
    return GPU_STEP.samples_per_second(SUMMIT_GPUS, TWO_PORTS)


def frontera_step() -> DataParallelStep:
    """The step of one rank on Frontera that would make 260,000 images per second, at 32 images per rank."""
    ranks = FRONTERA_NODES * RANKS_PER_NODE
    seconds = 32 * ranks / FRONTERA
    allreduce = DataParallelStep(0.0, RESNET_50, 32).seconds(ranks, INFINIBAND)
    return DataParallelStep(seconds - allreduce, RESNET_50, 32)


def claims() -> list[Claim]:
    """The published runs with the model's figures."""
    frontera = frontera_step().efficiency(FRONTERA_NODES * RANKS_PER_NODE, INFINIBAND)
    leaders = frontera_step().efficiency(FRONTERA_NODES, INFINIBAND)
    node = RANKS_PER_NODE * frontera_step().samples_per_second(1, INFINIBAND)
    hyfi = DataParallelStep(0.5, 100e6, 1).efficiency(2048, Hockney(5e-6, 1 / 10e9))
    replicas = 32 * DataParallelStep(0.5, 100e6, 1).efficiency(32, Hockney(5e-6, 1 / 10e9))
    gems, hybrid = HOURS_BASIC / HOURS_MASTER, HOURS_BASIC / HOURS_HYBRID
    serial = karp_flatt_fraction(hybrid / gems, 32)
    return [
        Claim(
            "Two V100 GPUs on two nodes",
            100 * ON_TWO / ON_ONE,
            100 * GPU_STEP.efficiency(2, TWO_PORTS),
            "% efficiency",
            "334 images/s on one GPU, 64 per batch; 102 MB of gradients; 25 GB/s, 5 µs, and γ = 1/300 s "
            "per GB",
            "the real network of that cluster, which the talk does not describe, and GPUs that wait",
        ),
        Claim(
            "Summit, 1,536 GPUs",
            SUMMIT / 1e3,
            modelled() / 1e3,
            "thousand images/s",
            "the same, in one ring through all GPUs",
            "nodes: six GPUs share one; GPUs that wait for the slowest one; reading images; and the "
            "framework: 334 is PyTorch's rate",
        ),
        Claim(
            "Frontera, 2,048 nodes, 'close to ideal'",
            100.0,
            100 * frontera,
            "% efficiency",
            "'close to ideal' taken for 100 %; 260,000 images/s, 4 ranks per node, 32 images per rank; "
            "the same gradients; 12.5 GB/s, 5 µs, and γ = 1/20 s per GB",
            f"a rate of one node (the model's: {node:.0f} images/s), without which 260,000 is no prediction; "
            f"and a hierarchy (with one leader per node the model says {100 * leaders:.0f} %)",
        ),
        Claim(
            "Hy-Fi, 2,048 GPUs",
            94.5,
            100 * hyfi,
            "% efficiency",
            "0.5 s of computing, 100 MB of gradients, 10 GB/s, 5 µs, γ = 0",
            "replicas of several GPUs: fewer than 2,048 ranks are in each all-reduce",
        ),
        Claim(
            "GEMS, 128 GPUs against 4",
            hybrid,
            gems * replicas,
            "times as fast",
            f"32 replicas, each {gems:.2f} times as fast as the baseline (published); the rest as for Hy-Fi",
            f"work that does not shrink with the GPUs: a serial {100 * serial:.0f} % of the time would "
            "explain it (lesson 02, Karp and Flatt)",
        ),
    ]


def claims_table(claims: Iterable[Claim]) -> str:
    """Published, predicted and error of every claim; below it, what the model assumes and lacks."""
    lines = [f"{'':40}{'published':>26}{'model':>8}{'error':>8}"]
    for claim in claims:
        said = f"{three_digits(claim.published)} {claim.unit}"
        lines.append(f"{claim.what:40}{said:>26}{three_digits(claim.predicted):>8}{claim.error:>+8.0%}")
        for word, text in (("assumes", claim.assumes), ("lacks", claim.lacks)):
            lines.append(textwrap.fill(text, 82, initial_indent=f"  {word:8}", subsequent_indent=" " * 10))
    return "\n".join(lines)
