"""How far the planner can be trusted: 24 configurations, drawn before any was predicted, then measured.

`benchmarks/planner_validation.py` measured them on the reference machine, up to six plans each. The memory
limit of a configuration lies half way between the plans that fit and the next larger one. The planner's
choice is right if it fits and takes at most 10 % longer than the fastest plan that fits.
"""

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from matplotlib.axes import Axes

from course.paths import ROOT
from mpi_classroom.figures import FONT_SIZE, INK, Look, Picture, new_panels, series_style

RESULTS = ROOT / "benchmarks" / "results"
COMMITTED, DRAWN = RESULTS / "planner_validation.json", RESULTS / "planner_configurations.json"
NEAR = 0.1  # how much slower than the fastest a right choice may be
MEMORY_WITHIN, SECONDS_WITHIN = 0.15, 0.25  # the aims: of every memory, of the median time
SHORT_STEP = 0.02  # seconds
FAMILIES = {"transformer": "Transformer", "mlp": "fully connected", "conv": "convolutional"}
RING: Look = {"s": 170, "facecolor": "none", "edgecolor": "#D55E00", "linewidth": 2}
BAND = "#dddddd"


@dataclass(frozen=True, slots=True)
class Outcome:
    """One plan of a configuration: predicted and measured bytes and seconds."""

    plan: str
    predicted_nbytes: float
    measured_nbytes: float
    predicted_seconds: float
    measured_seconds: float

    @property
    def memory_error(self) -> float:
        """Predicted over measured, less 1."""
        return self.predicted_nbytes / self.measured_nbytes - 1

    @property
    def seconds_error(self) -> float:
        """Predicted over measured, less 1."""
        return self.predicted_seconds / self.measured_seconds - 1


@dataclass(frozen=True, slots=True)
class Configuration:
    """The plans of one configuration, on so many ranks; the limit lets `fitting` of them fit."""

    model: str
    ranks: int
    fitting: int
    plans: tuple[Outcome, ...]


def configurations(results: Path = COMMITTED, drawn: Path = DRAWN) -> list[Configuration]:
    """The committed results."""
    names = [field.name for field in fields(Outcome)]
    models = [entry["model"] for entry in json.loads(drawn.read_text(encoding="utf-8"))["configurations"]]
    entries = json.loads(results.read_text(encoding="utf-8"))["plans"]
    found = []
    for number in sorted({entry["configuration"] for entry in entries}):
        mine = [entry for entry in entries if entry["configuration"] == number]
        plans = tuple(Outcome(**{name: entry[name] for name in names}) for entry in mine)
        found.append(Configuration(models[number], mine[0]["ranks"], mine[0]["fitting"], plans))
    return found


def choose(found: Sequence[Outcome], fitting: int) -> tuple[Outcome | None, Outcome, bool]:
    """The planner's choice under the emulated limit, the fastest plan that fits, and whether it is right.

    The limit lies half way between the `fitting` smallest measured peaks and the next.
    """
    limit = limit_of(found, fitting)
    fastest = min(
        (each for each in found if each.measured_nbytes <= limit), key=lambda each: each.measured_seconds
    )
    allowed = [each for each in found if each.predicted_nbytes <= limit]
    if not allowed:
        return None, fastest, False
    chosen = min(allowed, key=lambda each: each.predicted_seconds)
    near = chosen.measured_seconds <= (1 + NEAR) * fastest.measured_seconds
    return chosen, fastest, near and chosen.measured_nbytes <= limit


def limit_of(found: Sequence[Outcome], fitting: int) -> float:
    """The emulated limit in bytes: half way between the `fitting` smallest measured peaks and the next."""
    peaks = sorted(each.measured_nbytes for each in found)
    return 1.1 * peaks[-1] if fitting == len(peaks) else (peaks[fitting - 1] + peaks[fitting]) / 2


def share_of_right(found: Sequence[Outcome], fitting: int) -> float:
    """The part of the plans that fit which take at most 10 % longer than the fastest of them."""
    limit = limit_of(found, fitting)
    seconds = [each.measured_seconds for each in found if each.measured_nbytes <= limit]
    return sum(one <= (1 + NEAR) * min(seconds) for one in seconds) / len(seconds)


# ------------------------------------------------------------------ in words


def verdict(found: Sequence[Configuration]) -> str:
    """How large the errors are, where times are wrong, how often the choice was right, and what was not."""
    plans = [each for one in found for each in one.plans]
    worst = max(plans, key=lambda each: abs(each.memory_error))
    right = sum(choose(one.plans, one.fitting)[2] for one in found)
    shares = [share_of_right(one.plans, one.fitting) for one in found]
    always, mean = shares.count(1.0), sum(shares)
    lines = [
        f"memory: {count_near(plans)} of {len(plans)} plans within {MEMORY_WITHIN:.0%}; the worst is off by "
        f"{abs(worst.memory_error):.1%}",
        f"time: median error {median_error(plans):.0%}",
        f"choice: right in {right} of {len(found)} configurations. A random choice among the plans that fit",
        f"        would be right in {mean:.1f} on average (in {always} configurations, any is right)",
        "",
        f"{'measured step':24}{'plans':>6}{'median error':>14}{'took longer':>13}",
    ]
    for name, low, high in (
        (f"below {1e3 * SHORT_STEP:.0f} ms", 0.0, SHORT_STEP),
        (f"{1e3 * SHORT_STEP:.0f} to 100 ms", SHORT_STEP, 0.1),
        ("above 100 ms", 0.1, float("inf")),
    ):
        mine = [each for each in plans if low <= each.measured_seconds < high]
        if mine:
            short = sum(each.seconds_error < 0 for each in mine)
            lines.append(f"{name:24}{len(mine):>6}{median_error(mine):>14.0%}{short:>13}")
    return "\n".join([*lines, "", *wrong_choices(found)])


def count_near(plans: Sequence[Outcome]) -> int:
    """How many memories are predicted as well as we aimed at."""
    return sum(abs(each.memory_error) <= MEMORY_WITHIN for each in plans)


def median_error(plans: Sequence[Outcome]) -> float:
    """The median of the errors of the predicted times, without their signs."""
    return statistics.median(abs(each.seconds_error) for each in plans)


def wrong_choices(found: Sequence[Configuration]) -> list[str]:
    """For each configuration whose choice was wrong: what was chosen, and what was the fastest."""
    lines = []
    for number, one in enumerate(found):
        chosen, fastest, right = choose(one.plans, one.fitting)
        if right:
            continue
        what = f"wrong in configuration {number} ({FAMILIES[one.model]} net, {one.ranks} ranks): the planner "
        if chosen is None:
            what += "said that nothing fits"
        else:
            what += f"chose\n  {milliseconds(chosen)}"
        lines.append(f"{what};\n  the fastest was\n  {milliseconds(fastest)}")
    return lines


def milliseconds(one: Outcome) -> str:
    """A plan with its predicted and its measured time."""
    said, found = 1e3 * one.predicted_seconds, 1e3 * one.measured_seconds
    return f"{one.plan}: {said:.1f} ms predicted, {found:.1f} measured"


# ------------------------------------------------------------------ as a picture


def validation_picture(found: Sequence[Configuration]) -> Picture:
    """Predicted against measured, memory and time of every plan; a ring marks those outside the band."""
    plans = [each for one in found for each in one.plans]
    near = sum(abs(each.seconds_error) <= SECONDS_WITHIN for each in plans)
    title = (
        f"Of {len(plans)} plans, {count_near(plans)} are predicted within {MEMORY_WITHIN:.0%} in memory, "
        f"{near} within {SECONDS_WITHIN:.0%} in time"
    )
    figure, panels = new_panels(title, columns=2, height=4.8)
    draw_pairs(panels[0], found, "nbytes", 1e-6, MEMORY_WITHIN)
    draw_pairs(panels[1], found, "seconds", 1e3, SECONDS_WITHIN)
    for axes, unit in zip(panels, ("MB per rank", "ms per step"), strict=True):
        axes.set_xlabel(f"{unit}, measured")
        axes.set_ylabel(f"{unit}, predicted")
    panels[0].scatter([], [], label="outside the band", **RING)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower left", ncols=2, fontsize=FONT_SIZE, frameon=False)
    kind = "Two scatter plots with logarithmic axes: predicted against measured, a point per plan"
    band = f"The bands are {MEMORY_WITHIN:.0%} and {SECONDS_WITHIN:.0%} wide to each side"
    return Picture(
        figure, f"{kind}. {title}. {band}. The median error of the times is {median_error(plans):.0%}."
    )


def draw_pairs(axes: Axes, found: Sequence[Configuration], what: str, scale: float, within: float) -> None:
    """A point per plan, the line of right predictions, and the band around it."""
    plans = [each for one in found for each in one.plans]
    largest, smallest = (pick(each for plan in plans for each in pair(plan, what)) for pick in (max, min))
    line = [0.8 * scale * smallest, 1.25 * scale * largest]
    axes.plot(line, line, color=INK, linewidth=1)
    axes.fill_between(line, [(1 - within) * x for x in line], [(1 + within) * x for x in line], color=BAND)
    for index, (model, name) in enumerate(FAMILIES.items()):
        mine = [pair(each, what) for one in found if one.model == model for each in one.plans]
        style = series_style(index + 1)
        look: Look = {"color": style["color"], "marker": style["marker"], "s": 32, "alpha": 0.7}
        axes.scatter([scale * x for x, _ in mine], [scale * y for _, y in mine], label=name, **look)
        far = [(scale * x, scale * y) for x, y in mine if abs(y / x - 1) > within]
        axes.scatter([x for x, _ in far], [y for _, y in far], **RING)
    axes.set(xscale="log", yscale="log")


def pair(plan: Outcome, what: str) -> tuple[float, float]:
    """Measured and predicted bytes or seconds."""
    return getattr(plan, f"measured_{what}"), getattr(plan, f"predicted_{what}")
