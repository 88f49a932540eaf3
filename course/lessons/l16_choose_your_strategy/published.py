"""The planner beside three published comparisons, which were named before it knew overlap.

`planner_published.json` has them with their sources, and one set of assumptions for all. As rows: throughput,
as a multiple of each comparison's first plan. `overlap`: the part that hides of what can.
"""

import json
from dataclasses import replace
from typing import Any

from course.lessons.l16_choose_your_strategy.planner.machine import Machine, machine_on_paper
from course.lessons.l16_choose_your_strategy.planner.models import TransformerShape
from course.lessons.l16_choose_your_strategy.planner.plan import Plan
from course.lessons.l16_choose_your_strategy.planner.ranking import Estimate, estimate
from course.paths import ROOT
from course_lib.rows import Row, predicted, published
from course_lib.theory.hockney import Hockney

NAMED = json.loads((ROOT / "benchmarks" / "results" / "planner_published.json").read_text(encoding="utf-8"))
COMPARISONS: list[dict[str, Any]] = NAMED["comparisons"]
BUCKET = 500_000_000  # bytes of gradients that GPUs sum at once


def node(overlap: float = 1.0, **others: Any) -> Machine:
    """A node of eight A100 with what was assumed for all comparisons."""
    a = NAMED["assumed"]
    link = Hockney(0.0, 1 / a["inside_bytes_per_second"])
    settings: dict[str, Any] = {
        "memory_nbytes": 80e9,
        "flop_per_second": a["products_reach"] * a["peak_flop_per_second"],
        "memory_bytes_per_second": a["memory_bytes_per_second"],
        "inside": link,
        "between": link,
        "ranks_per_node": 8,
        "context_nbytes": a["context_nbytes"],
        "waste": a["waste"],
    }
    return machine_on_paper("8 A100", a["why"], overlap=overlap, **settings | others)


def plan_of(entry: dict[str, Any]) -> Plan:
    """The plan of an entry, in 16 bits."""
    return Plan(**entry["plan"], mixed=True, bucket_nbytes=BUCKET)


def estimates(comparison: dict[str, Any], overlap: float = 1.0) -> list[Estimate]:
    """The planner's numbers for each plan of a comparison."""
    shape = TransformerShape(**comparison["model"])
    return [
        estimate(shape, one.get("batch", comparison.get("batch")), plan_of(one), node(overlap))
        for one in comparison["plans"]
    ]


def sequences_per_second(comparison: dict[str, Any], overlap: float = 1.0) -> list[float]:
    """The predicted rate of each plan."""
    found = zip(comparison["plans"], estimates(comparison, overlap), strict=True)
    return [one.get("batch", comparison.get("batch")) / said.seconds.value for one, said in found]


def rows(comparison: dict[str, Any]) -> list[Row]:
    """Each plan's throughput as a multiple of the first's: predicted with and without overlap, published."""
    kinds = {"full overlap": 1.0, "no overlap": 0.0}
    names = [replace(plan_of(one), recompute=False).name for one in comparison["plans"]]
    found = []
    for words, overlap in kinds.items():
        rates = sequences_per_second(comparison, overlap)
        found += [
            predicted(rate / rates[0], unit="times the first", plan=name, how=words)
            for name, rate in zip(names, rates, strict=True)
        ]
    first = comparison["plans"][0]["published"]
    source = comparison["name"].partition(",")[0]
    return found + [
        published(one["published"] / first, source=source, unit="times the first", plan=name, how="run")
        for name, one in zip(names, comparison["plans"], strict=True)
    ]


def same_order(comparison: dict[str, Any], overlap: float = 1.0) -> bool:
    """Whether the planner orders the plans as they were published."""
    said = sequences_per_second(comparison, overlap)
    run = [one["published"] for one in comparison["plans"]]
    return sorted(range(len(run)), key=said.__getitem__) == sorted(range(len(run)), key=run.__getitem__)
