"""What lesson 11's measurements say: each sentence is chosen from the numbers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from course.lessons.l11_zero_from_scratch.records import Look
from course.paths import ROOT

RESULTS = ROOT / "benchmarks" / "results" / "zero.json"
ALIKE = 1.05  # times that differ by less are not told apart


def explain_peak(looks: Sequence[Look]) -> str:
    """Why the peak falls less than what is held, from the first stage to the last."""
    first, last = looks[0], looks[-1]
    held, peak = 1 - last.held / first.held, 1 - last.peak / first.peak
    if peak >= held:
        return "It falls as much as what is held: activations are small here."
    kept = (
        f"{_mb(last.activations)} of activations, as in stage 0"
        if last.activations == first.activations
        else f"activations: {_mb(first.activations)} and {_mb(last.activations)}"
    )
    return (
        f"What is held falls by {100 * held:.0f} %. On top come {kept}, and in stage 3 gathered weights and "
        "full gradients."
    )


def memory_table(looks: Sequence[Look]) -> str:
    """Held, peak and activations by stage."""
    rows = ["MB on rank 0    held    peak   activations"]
    for stage, look in enumerate(looks):
        rows.append(
            f"stage {stage}      {look.held / 1e6:8.2f}{look.peak / 1e6:8.2f}{look.activations / 1e6:14.2f}"
        )
    return "\n".join(rows)


def compare_last_stages(looks: Sequence[Look]) -> str:
    """How much less the last stage holds than the one before it, and how much lower its peak is."""
    (before, last), stage = looks[-2:], len(looks) - 1
    held, peak = before.held - last.held, before.peak - last.peak
    lower = f"{_mb(peak)} lower" if peak >= 0 else f"{_mb(-peak)} higher"
    found = f"Stage {stage} holds {_mb(held)} less than stage {stage - 1}, and its peak is {lower}."
    if peak >= held:
        return found
    rest = "Gathered weights and full gradients use up the rest: a layer's, and the embedding's and head's."
    return f"{found}\n{rest}"


def _mb(nbytes: int) -> str:
    return f"{nbytes / 1e6:.2f} MB"


def explain_seconds(seconds: Sequence[float], ranks: int) -> str:
    """The time of a step by stage, and what it says of stages 0 and 1, and 2 and 3."""
    rows = [f"stage   ms per step   ({ranks} rank{'s' * (ranks > 1)})"]
    rows += [f"{stage:5}{1e3 * spent:14.1f}" for stage, spent in enumerate(seconds)]
    if ranks == 1:
        return "\n".join([*rows, "One rank sends nothing: the stages differ in their bookkeeping only."])
    if seconds[0] > ALIKE * seconds[1]:
        rows.append("Stage 0 takes longer than stage 1: there every rank updates all weights, not a shard.")
    if seconds[3] > ALIKE * seconds[2]:
        rows.append("Stage 3 takes longer than stage 2: it gathers twice, layer by layer, and waits.")
    else:
        rows.append("Stage 3 costs no more time here: messages are fast inside a machine, or it is busy.")
    return "\n".join(rows)


def benchmark_table(here: float, rows: Sequence[Mapping[str, Any]] | None = None) -> str:
    """The committed benchmark of our stages beside DeepSpeed's and FSDP2's, with a comment on stage 3.

    `here`: how many times as long stage 3 took as stage 2 in the lesson.
    """
    rows = json.loads(RESULTS.read_text()) if rows is None else rows
    lines = [f"seconds per step on {rows[0]['ranks']} ranks", "ours                      beside"]
    for row in rows:
        ours = row["case"].rpartition(": ")[2].replace("own ", "stage ")
        peer = row["peer_name"].replace("own ", "our stage ")
        lines.append(f"{ours:18}{row['ours']:6.2f}  {peer:14}{row['peer']:6.2f}")
    own = {row["case"].rpartition(": ")[2]: row["ours"] for row in rows}
    times = own["own 3"] / own["own 2"]
    lines.append(
        f"A stage-3 step takes {times:.2f} times as long as a stage-2 step there, {here:.2f} times here."
    )
    spread = max(row[f"{who}_spread"] / row[who] for row in rows for who in ("ours", "peer"))
    lines.append(
        f"The slowest and the fastest step of one program were up to {100 * spread:.0f} % of a step apart:"
    )
    lines.append("ratios near 1 do not say which program is faster.")
    if here > (1 + spread) * times:
        lines.append("That model is larger and its texts are longer: computing is more of a step, so")
        lines.append("the additional gathers weigh less.")
    return "\n".join(lines)
