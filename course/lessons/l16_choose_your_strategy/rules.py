"""The rules that everyone repeats, derived: what plans on two nodes take, by the rate between the nodes.

The model has 13 billion parameters, the machine is that of `published.A100`: nodes of 8 GPUs, inside a node
300 GB/s. Only the rate between the nodes varies. Latencies are left out, and nothing overlaps.
"""

from collections.abc import Sequence
from dataclasses import replace

from course.lessons.l16_choose_your_strategy.published import A100
from course_lib.theory.hockney import Hockney, Piecewise
from course_lib.theory.planner.machine import Link, Machine
from course_lib.theory.planner.models import TransformerShape
from course_lib.theory.planner.plan import Plan
from course_lib.theory.planner.ranking import Estimate, estimate

GPT_13B = TransformerShape(blocks=40, width=5120, length=2048, vocabulary=51_200, heads=32)
BATCH = 64  # sequences
BUCKET = 500_000_000  # bytes of gradients that are summed at once
PLANS = {
    "tensor on 16, across nodes": Plan(
        tensor=16, sequence=True, microbatches=32, mixed=True, bucket_nbytes=BUCKET
    ),
    "tensor on 8, pipeline across nodes": Plan(
        tensor=8, sequence=True, pipeline=2, microbatches=32, mixed=True, bucket_nbytes=BUCKET
    ),
    "tensor on 8, ZeRO-1 across nodes": Plan(
        tensor=8, sequence=True, data=2, zero=1, microbatches=32, mixed=True, bucket_nbytes=BUCKET
    ),
    "ZeRO-3 on 16": Plan(data=16, zero=3, microbatches=4, mixed=True, bucket_nbytes=BUCKET),
}
LINKS = {"one port": 25e9, "eight ports": 200e9}  # bytes per second between nodes; a port has 200 Gbit/s
RATES = (3.125e9, 6.25e9, 12.5e9, 25e9, 50e9, 100e9, 200e9, 300e9)


def between(rate: float) -> Machine:
    """The nodes of A100, joined by links of so many bytes per second."""
    line = Piecewise((float("inf"),), (Hockney(0.0, 1 / rate),))
    return replace(A100, between=Link("between nodes", line, A100.between.sum, "given"))


def on_two_nodes(rate: float) -> dict[str, Estimate]:
    """What each plan needs and takes when the nodes' link has this rate."""
    machine = between(rate)
    return {name: estimate(GPT_13B, BATCH, plan, machine) for name, plan in PLANS.items()}


def sweep(rates: Sequence[float] = RATES) -> dict[str, list[float]]:
    """Seconds per step of each plan, for every rate."""
    found = [on_two_nodes(rate) for rate in rates]
    return {name: [each[name].seconds.value for each in found] for name in PLANS}


def rules_table(estimates: dict[str, Estimate]) -> str:
    """Memory, bytes sent and seconds of each plan."""
    lines = [f"{'':38}{'memory':>10}{'sent':>10}{'step':>10}"]
    lines += [
        f"{name:38}{one.memory.text:>10}{one.sent.text:>10}{one.seconds.text:>10}"
        for name, one in estimates.items()
    ]
    return "\n".join(lines)
