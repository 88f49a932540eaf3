"""Figures of lesson 16: what plans need and take, the decision tree, and rules over a link's rate."""

import textwrap
from collections.abc import Mapping, Sequence

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import FancyBboxPatch, Patch

from course.lessons.l16_choose_your_strategy.words import (
    FAMILIES,
    NEAR,
    choices,
    family_of,
    in_mb,
    peak_of,
    percent_less,
    short,
)
from course.lessons.shared.figures.zero import PARTS, WORDS
from course_lib.theory.planner.quantity import Quantity
from course_lib.theory.planner.ranking import Decision, Estimate
from mpi_classroom.figures import (
    FONT_SIZE,
    INK,
    SERIES,
    Look,
    Picture,
    new_panels,
    say_seconds,
    series_style,
    three_digits,
)

HELD: dict[str, Look] = {WORDS[part]: look for part, look in PARTS.items()}
HELD["activations and buffers"] = {"color": "#CC79A7", "hatch": "xx"}
PREDICTED: Look = {"color": "#56B4E9", "hatch": ""}
MEASURED: Look = {"color": "#E69F00", "hatch": "///"}
LIMIT: Look = {"color": "#D55E00", "linewidth": 2, "linestyle": "--"}
PLATE: Look = {"facecolor": "white", "edgecolor": "none", "pad": 1}
CHOSEN, ASKED, REFUSED, PALE = "#009E73", "#eeeeee", "#ffffff", "#bbbbbb"

# ------------------------------------------------------------------ what plans need and take


def memory_bars(needs: Mapping[str, Quantity], limit: float) -> Picture:
    """The memory of each plan on its fullest rank, by what it is for, and the limit per rank in bytes."""
    fitting = sum(need.value <= limit for need in needs.values())
    state = sum(sum(held_by(need)[:3]) <= limit for need in needs.values())
    title = f"{fitting} of {len(needs)} plans fit into {in_mb(limit)}; counting state only, {state} would"
    figure, (axes,) = new_panels(title, height=1.9 + 0.55 * len(needs))
    for row, need in enumerate(needs.values()):
        start = 0.0
        for nbytes, look in zip(held_by(need), HELD.values(), strict=True):
            axes.barh(row, nbytes / 1e6, left=start / 1e6, edgecolor="white", height=0.6, **look)
            start += nbytes
        axes.text(start / 1e6, row, f" {need.value / 1e6:.0f}", va="center", fontsize=FONT_SIZE, color=INK)
    axes.axvline(limit / 1e6, **LIMIT)
    axes.set_yticks(range(len(needs)), [short(name, 24) for name in needs])
    axes.set_ylim(len(needs) - 0.5, -0.5)
    axes.set_xlim(0, 1.1 * max(need.value for need in needs.values()) / 1e6)
    axes.set_xlabel("MB on the fullest rank, predicted")
    handles: list[Artist] = [
        Patch(facecolor=look["color"], edgecolor="white", hatch=look["hatch"], label=name)
        for name, look in HELD.items()
    ]
    handles.append(Line2D([], [], label=f"limit, {in_mb(limit)}", **LIMIT))
    figure.legend(handles=handles, loc="outside lower left", ncols=3, fontsize=FONT_SIZE, frameon=False)
    told = [
        f"{name}: {in_mb(need.value)}, of that {in_mb(sum(held_by(need)[:3]))} state"
        for name, need in needs.items()
    ]
    return Picture(figure, f"Stacked bars: memory per rank of each plan. {title}. {'; '.join(told)}.")


def held_by(need: Quantity) -> tuple[float, float, float, float]:
    """Bytes of weights, gradients, optimizer state, and of all that comes and goes within a step."""
    peak = peak_of(need)
    state = (peak["weights"].value, peak["gradients"].value, peak["optimizer"].value)
    return (*state, peak.value - sum(state))


def plan_cloud(estimates: Sequence[Estimate]) -> Picture:
    """Every plan by its memory and its step time; the staircase is the best plan for each limit."""
    limit, fitting = estimates[0].limit.value, [one for one in estimates if one.fits]
    title = f"{len(fitting)} of {len(estimates)} plans fit into {in_mb(limit)}"
    if fitting:
        title += f"; the fastest of them takes {say_seconds(fitting[0].seconds.value)} per step"
    figure, (axes,) = new_panels(title, height=4.6)
    for index, family in enumerate(FAMILIES):
        mine = [one for one in estimates if family_of(one.plan) == family]
        look: Look = {"color": SERIES[index + 1]["color"], "marker": SERIES[index + 1]["marker"], "s": 36}
        axes.scatter(*points_of(mine), label=family, alpha=0.6, **look)
    best = choices(estimates)
    axes.step(*points_of(best), where="post", color=INK, linewidth=1.5, label="best for each limit")
    axes.axvline(limit / 1e6, label=f"limit, {in_mb(limit)}", **LIMIT)
    if fitting:
        star: Look = {"marker": "*", "color": CHOSEN, "edgecolor": INK, "zorder": 3}
        axes.scatter(*points_of(fitting[:1]), s=320, **star)
        axes.scatter([], [], s=150, label="fastest that fits", **star)
    axes.set_xlabel("MB on the fullest rank, predicted")
    axes.set_ylabel("ms per step, predicted")
    axes.set_ylim(bottom=0)
    figure.legend(loc="outside lower left", ncols=3, fontsize=FONT_SIZE, frameon=False)
    ends = (
        f"The best plans go from {in_mb(best[0].memory.value)} and {say_seconds(best[0].seconds.value)} to "
        f"{in_mb(best[-1].memory.value)} and {say_seconds(best[-1].seconds.value)}"
    )
    kind = "Scatter plot: seconds per step against memory per rank, a point per plan"
    return Picture(figure, f"{kind}. {title}. {ends}.")


def points_of(estimates: Sequence[Estimate]) -> tuple[list[float], list[float]]:
    """Megabytes and milliseconds of the plans."""
    return [one.memory.value / 1e6 for one in estimates], [1e3 * one.seconds.value for one in estimates]


def predicted_and_measured(estimates: Sequence[Estimate], runs: Sequence[Mapping[str, float]]) -> Picture:
    """Memory and step time of each plan, predicted and measured, side by side."""
    pairs = list(zip(estimates, runs, strict=True))
    memory = [(one.memory.value / 1e6, run["nbytes"] / 1e6) for one, run in pairs]
    seconds = [(1e3 * one.seconds.value, 1e3 * run["seconds"]) for one, run in pairs]
    title = f"Memory: off by {worst(memory):.0%} at most; time: off by {worst(seconds):.0%} at most"
    figure, panels = new_panels(title, columns=2, height=1.8 + 0.8 * len(pairs), sharey=True)
    for axes, values, unit in zip(panels, (memory, seconds), ("MB per rank", "ms per step"), strict=True):
        for row, both in enumerate(values):
            for offset, value, look in zip((-0.2, 0.2), both, (PREDICTED, MEASURED), strict=True):
                axes.barh(row + offset, value, height=0.36, edgecolor="white", **look)
                words: Look = {
                    "va": "center",
                    "fontsize": FONT_SIZE,
                    "color": INK,
                    "bbox": PLATE,
                    "zorder": 3,
                }
                axes.text(value, row + offset, f" {three_digits(value)}", **words)
        axes.set_xlabel(unit)
        axes.set_xlim(0, 1.35 * max(max(both) for both in values))
    panels[0].axvline(estimates[0].limit.value / 1e6, **LIMIT)
    panels[0].set_yticks(range(len(pairs)), [short(one.plan.name, 22) for one in estimates])
    panels[0].set_ylim(len(pairs) - 0.5, -0.5)
    handles: list[Artist] = [Patch(label="predicted", **PREDICTED), Patch(label="measured", **MEASURED)]
    handles.append(Line2D([], [], label=f"limit, {in_mb(estimates[0].limit.value)}", **LIMIT))
    figure.legend(handles=handles, loc="outside lower left", ncols=3, fontsize=FONT_SIZE, frameon=False)
    told = [
        f"{one.plan.name}: {said:.0f} MB predicted, {found:.0f} measured; {before:.0f} ms predicted, "
        f"{after:.0f} measured"
        for (one, _), (said, found), (before, after) in zip(pairs, memory, seconds, strict=True)
    ]
    return Picture(figure, f"Bars: predicted beside measured, for each plan. {title}. {'. '.join(told)}.")


def worst(pairs: Sequence[tuple[float, float]]) -> float:
    """The largest error of (predicted, measured), as a part of what was measured."""
    return max(abs(said / found - 1) for said, found in pairs)


# ------------------------------------------------------------------ the decision tree


def decision_tree(decisions: Sequence[Decision]) -> Picture:
    """The planner's questions with their answers; marked are the first plan that fits, and the fastest."""
    first = next((row for row, one in enumerate(decisions) if one.answer), None)
    fastest = fastest_row(decisions)
    title = tree_title(decisions, first, fastest)
    words = [leaf_words(one, starred=row == fastest) for row, one in enumerate(decisions)]
    lines = max(2, *(text.count("\n") + 1 for text in words))
    figure, (axes,) = new_panels(title, height=0.7 + (0.36 + 0.22 * lines) * len(decisions))
    axes.set(xlim=(0, 10), ylim=(len(decisions) - 0.45, -0.55))
    axes.axis("off")
    for row, (one, text) in enumerate(zip(decisions, words, strict=True)):
        need = f"{one.smallest.memory.value / 1e6:.3g} MB"
        box(axes, (0.0, row, 4.25), textwrap.fill(one.question, 34), ASKED)
        arrow(axes, (4.25, row), (5.95, row), f"{'yes' if one.answer else 'no'}: needs\n{need}")
        if row + 1 < len(decisions):
            pale = first is not None and row >= first  # what comes after a "yes" is for comparison
            arrow(axes, (2.3, row + 0.37), (2.3, row + 0.63), "", PALE if pale else INK)
        if one.fastest is None:
            axes.text(6.0, row, text, va="center", fontsize=FONT_SIZE, color=INK)
        else:
            colour, line = CHOSEN if row == fastest else REFUSED, 3 if row == first else 1
            box(axes, (5.9, row, 4.1), text, colour, line)
    told = [
        f"{one.question} {'Yes' if one.answer else 'No'}, {in_mb(one.smallest.memory.value)}"
        + (f"; the fastest is {one.fastest.plan.name}, {one.fastest.seconds.text}" if one.fastest else "")
        for one in decisions
    ]
    return Picture(figure, f"Decision tree of {len(decisions)} questions. {title}. {'. '.join(told)}.")


def leaf_words(one: Decision, *, starred: bool) -> str:
    """The fastest plan of a kind with its time, in lines that fit into a box."""
    if one.fastest is None:
        return "does not fit"
    milliseconds = one.fastest.seconds.text.replace(" ", "\N{NO-BREAK SPACE}")
    return textwrap.fill(f"{'★ ' * starred}{one.fastest.plan.name}: {milliseconds}", 32)


def fastest_row(decisions: Sequence[Decision]) -> int | None:
    """The question with the fastest plan that fits; None if none fits."""
    found = [(one.fastest.seconds.value, row) for row, one in enumerate(decisions) if one.fastest]
    return min(found)[1] if found else None


def tree_title(decisions: Sequence[Decision], first: int | None, fastest: int | None) -> str:
    """Which plan is the plainest that fits, which is the fastest, and how much faster it is."""
    limit = in_mb(decisions[0].smallest.limit.value)
    if first is None or fastest is None:
        return f"Nothing fits into {limit} per rank"
    plain, quick = decisions[first].fastest, decisions[fastest].fastest
    assert plain is not None and quick is not None
    if first == fastest:
        return f"{limit} per rank: question {first + 1} finds the fastest plan that fits"
    return (
        f"{limit} per rank: question {first + 1} finds the first plan that fits; the fastest (★) takes "
        f"{percent_less(plain, quick)}% less time"
    )


def box(axes: Axes, place: tuple[float, float, float], words: str, colour: str, line: float = 1) -> None:
    """Words in a box at (left, middle, width)."""
    left, middle, width = place
    look: Look = {"boxstyle": "round,pad=0,rounding_size=0.12", "edgecolor": INK, "linewidth": line}
    axes.add_patch(FancyBboxPatch((left, middle - 0.36), width, 0.72, facecolor=colour, **look))
    ink = "white" if colour == CHOSEN else INK
    axes.text(left + 0.1, middle, words, va="center", fontsize=FONT_SIZE, color=ink, linespacing=1.05)


def arrow(
    axes: Axes, start: tuple[float, float], end: tuple[float, float], words: str, colour: str = INK
) -> None:
    """An arrow, with words on it."""
    axes.annotate("", end, start, arrowprops={"arrowstyle": "->", "color": colour, "linewidth": 1.5})
    if words:
        middle = ((start[0] + end[0]) / 2, (start[1] + end[1]) / 2)
        axes.text(*middle, words, ha="center", va="center", fontsize=FONT_SIZE, color=INK, bbox=PLATE)


# ------------------------------------------------------------------ the rules, derived


def link_sweep(
    rates: Sequence[float], steps: Mapping[str, Sequence[float]], marks: Mapping[str, float]
) -> Picture:
    """Step time of each plan against the rate of the link between its ranks, in bytes per second.

    `marks` are links by name; the title says which plan is the fastest on each, or how many are as fast.
    """
    said = "; ".join(f"with {name}, {fastest_at(rates, steps, rate)}" for name, rate in marks.items())
    title = said[0].upper() + said[1:]
    figure, (axes,) = new_panels(title, height=4.6)
    for index, (name, seconds) in enumerate(steps.items()):
        style = series_style(index) | {"markersize": 5}
        axes.plot([rate / 1e9 for rate in rates], seconds, label=name, **style)
    for name, rate in marks.items():
        axes.axvline(rate / 1e9, color="#777777", linewidth=1.5, linestyle=":")
        axes.text(
            rate / 1e9, 0.98, f"{name} ", transform=axes.get_xaxis_transform(), rotation=90, ha="right",
            va="top", fontsize=FONT_SIZE, color=INK,
        )  # fmt: skip
    axes.set(xscale="log", yscale="log")
    axes.set_xlabel("GB/s between two nodes")
    axes.set_ylabel("s per step, predicted")
    figure.legend(loc="outside lower left", ncols=2, fontsize=FONT_SIZE, frameon=False)
    told = [
        f"{name}: {say_seconds(seconds[0])} at {rates[0] / 1e9:.3g} GB/s, {say_seconds(seconds[-1])} at "
        f"{rates[-1] / 1e9:.3g}"
        for name, seconds in steps.items()
    ]
    return Picture(
        figure,
        f"Line chart, logarithmic axes: step time against the rate of a link. {title}. {'; '.join(told)}.",
    )


def fastest_at(rates: Sequence[float], steps: Mapping[str, Sequence[float]], rate: float) -> str:
    """Which plan is the fastest at the rate nearest to this one, or how many plans are as good."""
    place = min(range(len(rates)), key=lambda index: abs(rates[index] / rate - 1))
    fastest = min(steps, key=lambda name: steps[name][place])
    good = sum(seconds[place] <= (1 + NEAR) * steps[fastest][place] for seconds in steps.values())
    return f"{good} plans are equally fast within {NEAR:.0%}" if good > 1 else f"“{fastest}” is the fastest"
