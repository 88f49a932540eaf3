"""The planner beside three published comparisons, which were named before it knew overlap.

    python -m benchmarks.planner_published

`results/planner_published.json` has the comparisons with their sources, and one set of assumptions for all.
`overlap` is the part that hides of what can hide behind computing.
"""

import json
from typing import Any

from course.lessons.l16_choose_your_strategy.planner.machine import Machine, machine_on_paper
from course.lessons.l16_choose_your_strategy.planner.models import TransformerShape
from course.lessons.l16_choose_your_strategy.planner.plan import Plan
from course.lessons.l16_choose_your_strategy.planner.seconds import seconds_of
from course.paths import ROOT
from course_lib.theory.hockney import Hockney

NAMED = json.loads((ROOT / "benchmarks" / "results" / "planner_published.json").read_text(encoding="utf-8"))
COMPARISONS: list[dict[str, Any]] = NAMED["comparisons"]
BUCKET = 500_000_000  # bytes of gradients that GPUs sum at once


def node(overlap: float) -> Machine:
    """A node of eight A100 with what was assumed for all comparisons."""
    a = NAMED["assumed"]
    link = Hockney(0.0, 1 / a["inside_bytes_per_second"])
    return machine_on_paper(
        "8 A100",
        a["why"],
        overlap=overlap,
        memory_nbytes=80e9,
        flop_per_second=a["products_reach"] * a["peak_flop_per_second"],
        memory_bytes_per_second=a["memory_bytes_per_second"],
        inside=link,
        between=link,
        ranks_per_node=8,
        context_nbytes=a["context_nbytes"],
        waste=a["waste"],
    )


def sequences_per_second(comparison: dict[str, Any], overlap: float = 1.0) -> list[float]:
    """The predicted rate of each plan, in 16 bits."""
    shape, rates = TransformerShape(**comparison["model"]), []
    for one in comparison["plans"]:
        batch = one.get("batch", comparison.get("batch"))
        plan = Plan(**one["plan"], mixed=True, bucket_nbytes=BUCKET)
        rates.append(batch / seconds_of(shape, batch, plan, node(overlap)).value)
    return rates


def same_order(comparison: dict[str, Any], overlap: float = 1.0) -> bool:
    """Whether the planner orders the plans as they were published."""
    said = sequences_per_second(comparison, overlap)
    run = [one["published"] for one in comparison["plans"]]
    return sorted(range(len(run)), key=said.__getitem__) == sorted(range(len(run)), key=run.__getitem__)


def main() -> None:
    for comparison in COMPARISONS:
        print(f"{comparison['name']} ({comparison['source']}); throughput as a multiple of the first plan's:")
        hidden, shown = (sequences_per_second(comparison, overlap) for overlap in (1.0, 0.0))
        for one, with_overlap, without in zip(comparison["plans"], hidden, shown, strict=True):
            run = one["published"] / comparison["plans"][0]["published"]
            predicted = f"{with_overlap / hidden[0]:.2f} with overlap, {without / shown[0]:.2f} without"
            print(f"  {one['plan']}: published {run:.2f}, predicted {predicted}")
        print(f"  same order: {same_order(comparison)} with overlap, {same_order(comparison, 0.0)} without")


if __name__ == "__main__":
    main()
