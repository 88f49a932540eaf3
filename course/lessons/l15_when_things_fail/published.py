"""Published failures and intervals beside the formulas of `theory/failures.py`, each with its source.

The course measured none of it, and the assumptions are ours.
"""

import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby

from course_lib.theory.failures import (
    Unreliable,
    best_interval,
    efficiency,
    machine_mtbf,
    young_interval,
)
from course_lib.theory.scale_out import Claim
from mpi_classroom.figures import three_digits

MINUTE, HOUR, DAY = 60.0, 3600.0, 86_400.0
GPUS_PER_NODE = 8

LLAMA = "Llama team, The Llama 3 Herd of Models, arXiv:2407.21783, 2024, section 3.3.4"
LLAMA_GPUS, LLAMA_DAYS, LLAMA_UNEXPECTED = 16_384, 54, 419
LLAMA_NODES = LLAMA_GPUS // GPUS_PER_NODE  # 2,048
LLAMA_MTBF = LLAMA_DAYS * DAY / LLAMA_UNEXPECTED  # seconds

KOKOLIS = (
    "Kokolis and others, Revisiting Reliability in Large-Scale Machine Learning Research Clusters, HPCA "
    "2025, arXiv:2410.21680"
)
NODE_DAYS_PER_FAILURE = {"RSC-1": 1000 / 6.50, "RSC-2": 1000 / 2.34}

DALY = (
    "Daly, A higher order estimate of the optimum checkpoint interval for restart dumps, Future Generation "
    "Computer Systems 22(3), 2006, captions of figures 3 to 5"
)
GRAPHLAB = "Low and others, Distributed GraphLab, PVLDB 5(8), 2012, on fault tolerance"


@dataclass(frozen=True, slots=True)
class Sourced:
    """A claim, and where it was published."""

    claim: Claim
    source: str


def of_daly(mtbf_seconds: float, printed_minutes: float) -> Sourced:
    """An optimum that Daly printed, beside the exact one."""
    machine = Unreliable(mtbf_seconds, 5 * MINUTE, 10 * MINUTE)
    claim = Claim(
        f"best interval at an MTBF of {three_digits(mtbf_seconds / HOUR)} h",
        printed_minutes,
        best_interval(machine) / MINUTE,
        "minutes",
        "5 min per save; the exact model",
        "",
    )
    return Sourced(claim, DALY)


def of_llama() -> list[Sourced]:
    """Llama 3's interruptions, forecast from another cluster; and what part of the time was training."""
    by_rate = machine_mtbf(NODE_DAYS_PER_FAILURE["RSC-1"] * DAY, LLAMA_NODES)
    machine = Unreliable(LLAMA_MTBF, save_seconds=MINUTE, restart_seconds=10 * MINUTE)
    interval = best_interval(machine)
    rate = Claim(
        f"Llama 3, {LLAMA_GPUS:,} GPUs: MTBF",
        LLAMA_MTBF / HOUR,
        by_rate / HOUR,
        "hours",
        "6.5 failures per 1,000 node-days, those of Meta's RSC-1, on 2,048 nodes; published: 54 days / 419",
        f"other GPUs, other years: with the 2.34 of Meta's RSC-2 it would be "
        f"{machine_mtbf(NODE_DAYS_PER_FAILURE['RSC-2'] * DAY, LLAMA_NODES) / HOUR:.2g} hours",
    )
    part = Claim(
        "Llama 3, effective training time: more than",
        90.0,
        100 * efficiency(interval, machine),
        "%",
        f"1 min per save, 10 min per restart (not published), a save every {interval / MINUTE:.0f} min",
        "the real times of saves and restarts, probably shorter; and the 47 planned interruptions",
    )
    return [Sourced(rate, LLAMA), Sourced(part, LLAMA)]


def of_rsc() -> Sourced:
    """The MTBF of jobs on 1,024 GPUs, from the 47.7 days that were measured for one node."""
    nodes = 1024 // GPUS_PER_NODE
    claim = Claim(
        "Meta RSC-1, 1,024 GPUs: MTBF (measured)",
        7.9,
        machine_mtbf(47.7 * DAY, nodes) / HOUR,
        "hours",
        f"47.7 days for a job on one node of 8 GPUs, measured; divided by {nodes:,} nodes",
        "that nodes differ, and that jobs of one node also fail for reasons of their own",
    )
    return Sourced(claim, KOKOLIS)


def of_graphlab() -> Sourced:
    """The interval that GraphLab computed with Young's formula."""
    graphlab = Unreliable(machine_mtbf(365 * DAY, 64), 2 * MINUTE, 0.0)
    claim = Claim(
        "best interval on 64 machines",
        3.0,
        young_interval(graphlab) / HOUR,
        "hours",
        "one failure per machine and year, 2 min per save; Young's formula",
        "",
    )
    return Sourced(claim, GRAPHLAB)


def claims() -> list[Sourced]:
    """Every published figure with the model's: first those that were measured, then those computed there."""
    return [*of_llama(), of_rsc(), of_daly(24 * HOUR, 117.0), of_daly(15 * MINUTE, 9.1), of_graphlab()]


def claims_table(claims: Iterable[Sourced]) -> str:
    """By source: published, predicted and error of every claim, with what the model assumes and lacks.

    Claims that assume and lack the same share one note, below the last of them.
    """
    lines = []
    for source, of_source in groupby(claims, key=lambda each: each.source):
        lines += ["", *textwrap.wrap(source, 88), f"{'':46}{'published':>10}{'model':>8}{'error':>8}"]
        for (assumes, lacks), group in groupby(
            (each.claim for each in of_source), key=lambda claim: (claim.assumes, claim.lacks)
        ):
            for claim in group:
                numbers = f"{three_digits(claim.published):>10}{three_digits(claim.predicted):>8}"
                lines.append(f"{claim.what:46}{numbers}{say_error(claim.error):>8}  {claim.unit}")
            for word, text in (("assumes", assumes), ("lacks", lacks)):
                first, further = f"  {word:8}", " " * 10
                lines += textwrap.wrap(text, 88, initial_indent=first, subsequent_indent=further)
    return "\n".join(lines[1:])


def say_error(error: float) -> str:
    """A fraction in whole percent, with its sign if it is not 0."""
    percent = round(100 * error)
    return f"{percent:+d}%" if percent else "0%"
