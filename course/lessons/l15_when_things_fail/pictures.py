"""Pictures of lesson 15's core: a failure as lanes, the states of a save, a killed and resumed training."""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.patches import Patch

from course.lessons.l15_when_things_fail.jobs import Failure
from course.lessons.l15_when_things_fail.kill_points import HALF, LOST, NEW_STATE, OLD_STATE, Instant
from mpi_classroom.figures import (
    ACTIVITIES,
    FONT_SIZE,
    GRID,
    INK,
    Look,
    Picture,
    ink_on,
    listed,
    name_ranks,
    new_figure,
    new_panels,
    series_style,
)

Losses = Mapping[int, float]  # by step
MOMENTS: Mapping[str, Look] = {
    "compute": ACTIVITIES["compute"],
    "wait": ACTIVITIES["wait"],
    "fails": {"facecolor": "#D55E00", "hatch": "xx"},
}
STATES = {OLD_STATE: "#56B4E9", NEW_STATE: "#009E73", HALF: "#D55E00", LOST: "#222222"}
WHAT_HAPPENS = ("after kill -9", "after a power cut")

# ------------------------------------------------------------------ a failure


def failure_timeline(failure: Failure) -> Picture:
    """A lane per rank: when it computed, waited or failed, and when its process ended."""
    title = failure_title(failure)
    figure, axes = new_figure(title, width=8.0, height=1.9 + 0.5 * len(failure.lanes))
    for place, rank in enumerate(sorted(failure.lanes)):
        lane = failure.lanes[rank]
        for moment in lane:
            style = MOMENTS[moment.activity]
            bar = [(moment.start, moment.end - moment.start)]
            axes.broken_barh(bar, (place - 0.3, 0.6), edgecolor=INK, **style)
        if failure.exit_code:
            axes.plot(lane[-1].end, place, "X", color=INK, markersize=10, clip_on=False, zorder=3)
    name_ranks(axes, sorted(failure.lanes))
    axes.set_ylim(len(failure.lanes) - 0.4, -0.6)
    axes.set_xlabel("seconds since the failure")
    keys = [Patch(label=name, edgecolor=INK, **style) for name, style in MOMENTS.items()]
    if failure.exit_code:
        keys.append(*axes.plot([], [], "X", color=INK, markersize=10, linestyle="none", label="process ends"))
    figure.legend(handles=keys, loc="outside lower left", ncols=4, fontsize=FONT_SIZE, frameon=False)
    ends = (f"rank {rank} ends at {lane[-1].end:.2f} s" for rank, lane in sorted(failure.lanes.items()))
    return Picture(figure, f"Timeline with one lane per rank. {title}. {'; '.join(ends)}.")


def failure_title(failure: Failure) -> str:
    """What the guilty rank did, and what became of the others."""
    others = [rank for rank in failure.lanes if rank != failure.guilty]
    told = {rank: failure.noticed[rank].seconds for rank in others if rank in failure.noticed}
    what = f"Rank {failure.guilty} {failure.how}"
    if not told:
        return f"{what}: ranks {listed(others)} wait for it, and go on"
    first = min(told, key=lambda rank: told[rank])
    if failure.blamed == failure.guilty:
        return f"{what}: after {told[first]:.1f} s, the others are ended, too"
    return f"{what}, and nobody notices for {told[first]:.1f} s. Then rank {first} reports a timeout"


# ------------------------------------------------------------------ the states of a save


def save_states(savers: Mapping[str, Sequence[Instant]]) -> Picture:
    """What a reader finds in the file if a saver is killed, or the power fails, before each operation."""
    title = states_title(savers)
    height = 1.7 + 0.42 * sum(len(instants) for instants in savers.values())
    heights: Look = {"height_ratios": [len(instants) for instants in savers.values()]}
    figure, panels = new_panels(title, rows=len(savers), width=8.0, height=height, **heights)
    for axes, (name, instants) in zip(panels, savers.items(), strict=True):
        draw_states(axes, instants)
        axes.set_ylabel(name, fontsize=FONT_SIZE + 1)
    panels[0].set_xticks(range(len(WHAT_HAPPENS)), WHAT_HAPPENS)
    rows = "; ".join(
        f"{name}: "
        + ", ".join(f"{row_name(each)} {each.after_kill}/{each.after_power_cut}" for each in instants)
        for name, instants in savers.items()
    )
    words = f"Table of the file's states after kill -9 and after a power cut. {title}. {rows}."
    return Picture(figure, words)


def row_name(instant: Instant) -> str:
    """When it is: "before rename a to b", "the end"."""
    return instant.operation if instant.operation == "the end" else f"before {instant.operation}"


def draw_states(axes: Axes, instants: Sequence[Instant]) -> None:
    """A row per operation that did not happen any more, with a coloured cell for each of two disasters."""
    for row, each in enumerate(instants):
        for column, state in enumerate((each.after_kill, each.after_power_cut)):
            axes.barh(row, 0.94, 0.86, left=column - 0.47, color=STATES[state])
            where: Look = {"ha": "center", "va": "center", "fontsize": FONT_SIZE}
            axes.text(column, row, state, color=ink_on(STATES[state]), **where)
    axes.set_yticks(range(len(instants)), [row_name(each) for each in instants])
    axes.set_ylim(len(instants) - 0.5, -0.5)
    axes.set_xlim(-0.5, len(WHAT_HAPPENS) - 0.5)
    axes.set_xticks([])
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    axes.grid(False)
    axes.spines[:].set_visible(False)


def states_title(savers: Mapping[str, Sequence[Instant]]) -> str:
    """How many of its instants each saver survives a kill and a power cut at."""
    found = []
    for name, instants in savers.items():
        whole = sum({each.after_kill, each.after_power_cut} <= {OLD_STATE, NEW_STATE} for each in instants)
        found.append(f"at {whole} of {len(instants)} moments ({name})")
    return f"The file is whole {listed(found)}"


# ------------------------------------------------------------------ a resumed training


def resumed_curves(runs: Mapping[str, Losses]) -> Picture:
    """The losses of three jobs by step: the undisturbed one, the killed one, and the one that resumed it."""
    undisturbed, killed, resumed = runs.values()
    far = max(abs(undisturbed[step] - loss) for step, loss in resumed.items())
    first, last = min(resumed), max(killed)
    title = f"From step {first} on, the resumed losses differ from the undisturbed ones by at most {far:.0e}"
    figure, axes = new_figure(title, width=7.5, height=3.8)
    axes.axvspan(first - 0.5, last + 0.5, color=GRID, label=f"computed twice: steps {first} to {last}")
    styles: tuple[Look, ...] = (
        {"color": "#999999", "linewidth": 6.0},
        {**series_style(1), "linestyle": "none", "markersize": 9},
        {**series_style(2), "linestyle": "none", "markersize": 7},
    )
    for (name, losses), style in zip(runs.items(), styles, strict=True):
        axes.plot(list(losses), list(losses.values()), label=name, **style)
    axes.set_xlabel("step")
    axes.set_ylabel("training loss")
    axes.legend(fontsize=FONT_SIZE, frameon=False)
    names = list(runs)
    alt = (
        f"Loss against step for three jobs. {title}. {names[1]}: steps {min(killed)} to {last}; {names[2]}: "
        f"steps {first} to {max(resumed)}. {names[0]}: the loss goes from "
        f"{undisturbed[min(undisturbed)]:.2f} to {undisturbed[max(undisturbed)]:.2f}."
    )
    return Picture(figure, alt)
