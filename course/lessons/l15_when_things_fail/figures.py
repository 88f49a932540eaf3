"""Figures of lesson 15: who noticed a failure, what a killed saver leaves, how often to save, who goes on."""

from collections.abc import Mapping, Sequence

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from course.lessons.l15_when_things_fail.jobs import ElasticRun, Failure, SurvivorRun, first_notice
from course.lessons.l15_when_things_fail.kill_points import HALF, LOST, NEW_STATE, OLD_STATE, Instant
from course_lib.theory.failures import (
    Unreliable,
    best_interval,
    daly_interval,
    efficiency,
    expected_seconds,
    simulated_seconds,
    young_interval,
)
from mpi_classroom.figures import (
    ACTIVITIES,
    FONT_SIZE,
    INK,
    Look,
    Picture,
    listed,
    name_ranks,
    new_figure,
    new_panels,
    say_seconds,
    series_style,
    three_digits,
)

FAILS: Look = {"facecolor": "#D55E00", "hatch": "xx"}
GONE: Look = {"facecolor": "#dddddd", "hatch": ""}

# ------------------------------------------------------------------ one rank fails


def failure_timeline(failure: Failure) -> Picture:
    """What each rank did before and after the failure, when it noticed, and when its process ended."""
    guilty, first = failure.guilty, first_notice(failure)
    if first is None:
        late = failure.lanes[guilty][-1].end
        title = (
            f"Rank {guilty} {failure.how}, and nobody notices: the job ends well after {say_seconds(late)}"
        )
    else:
        rank, seconds = first
        what = "be ended" if failure.noticed[rank].was_ended else "notice"
        title = f"Rank {guilty} {failure.how}; rank {rank} is the first to {what}, after {seconds:.2f} s"
    ranks = list(failure.lanes)
    figure, panels = new_panels(title, height=1.9 + 0.5 * len(ranks))
    axes = panels[0]
    last = max(lane[-1].end for lane in failure.lanes.values())
    styles = {**ACTIVITIES, "fails": FAILS}
    for row, rank in enumerate(ranks):
        for moment in failure.lanes[rank]:
            bar = [(moment.start, moment.end - moment.start)]
            axes.broken_barh(bar, (row - 0.3, 0.6), edgecolor=INK, linewidth=0.6, **styles[moment.activity])
        end = failure.lanes[rank][-1].end
        axes.plot(end, row, marker="X", color=INK, markersize=11, linestyle="none")
        if rank in failure.noticed and not failure.noticed[rank].was_ended:
            axes.plot(failure.noticed[rank].seconds, row, **NOTICED)
    axes.axvline(0, color=FAILS["facecolor"], linewidth=1.5)
    name_ranks(axes, ranks)
    axes.set_ylim(len(ranks) - 0.4, -0.6)
    axes.set_xlim(failure.lanes[guilty][0].start, last + 0.04 * (last - failure.lanes[guilty][0].start))
    axes.set_xlabel("seconds since the failure")
    keys: list[Look] = [{"label": name, **styles[name]} for name in ("compute", "wait", "fails")]
    handles: list[Artist] = [Patch(edgecolor=INK, **key) for key in keys]
    handles += axes.plot([], [], label="raises the timeout", **NOTICED)
    handles += axes.plot([], [], marker="X", color=INK, markersize=9, linestyle="none", label="process ends")
    figure.legend(handles=handles, loc="outside lower left", ncols=5, fontsize=FONT_SIZE, frameon=False)
    told = [
        f"rank {rank}: ends {say_seconds(lane[-1].end)} after the failure"
        + (f", noticed after {say_seconds(failure.noticed[rank].seconds)}" if rank in failure.noticed else "")
        for rank, lane in failure.lanes.items()
    ]
    return Picture(figure, f"Timeline: one lane per rank. {title}. {'; '.join(told)}.")


NOTICED: Look = {
    "marker": "v",
    "color": "#CC79A7",
    "markeredgecolor": INK,
    "markersize": 12,
    "linestyle": "none",
}

# ------------------------------------------------------------------ what a killed saver leaves

STATES: dict[str, Look] = {
    OLD_STATE: {"facecolor": "#56B4E9", "hatch": ""},
    NEW_STATE: {"facecolor": "#009E73", "hatch": "//"},
    HALF: {"facecolor": "#E69F00", "hatch": "xx"},
    LOST: {"facecolor": "#222222", "hatch": ""},
}
WHEN = {"after_kill": "kill -9", "after_power_cut": "power cut"}


def save_states(savers: Mapping[str, Sequence[Instant]]) -> Picture:
    """For each instant of each saver: what the file holds after a kill, and after a power cut."""
    title = "Damaged files: " + "; ".join(f"{name}, {say_damage(each)}" for name, each in savers.items())
    counts = [len(instants) for instants in savers.values()]
    height = 1.6 + 0.6 * len(counts) + 0.33 * sum(counts)
    figure, panels = new_panels(title, rows=len(counts), height=height, height_ratios=counts, sharex=True)
    for axes, (name, instants) in zip(panels, savers.items(), strict=True):
        draw_instants(axes, name, instants)
    panels[0].set_xticks(range(len(WHEN)), list(WHEN.values()))
    for axes in panels:
        axes.tick_params(labeltop=axes is panels[0], labelbottom=False)
    keys: list[Look] = [{"label": state, **style} for state, style in STATES.items()]
    handles = [Patch(edgecolor=INK, **key) for key in keys]
    figure.legend(handles=handles, loc="outside lower left", ncols=4, fontsize=FONT_SIZE, frameon=False)
    told = [
        f"{name}, {each.when}: kill {each.after_kill}, power cut {each.after_power_cut}"
        for name, instants in savers.items()
        for each in instants
    ]
    return Picture(
        figure, f"Grid: what a file holds when its save is interrupted. {title}. {'; '.join(told)}."
    )


def draw_instants(axes: Axes, name: str, instants: Sequence[Instant]) -> None:
    """A row per instant, a box per kind of interruption."""
    for row, instant in enumerate(instants):
        for column, when in enumerate(WHEN):
            state = getattr(instant, when)
            axes.broken_barh([(column - 0.47, 0.94)], (row - 0.42, 0.84), edgecolor=INK, **STATES[state])
            plate: Look = {"facecolor": "white", "edgecolor": "none", "pad": 1.5}
            axes.text(column, row, state, ha="center", va="center", fontsize=FONT_SIZE, color=INK, bbox=plate)
    axes.set_yticks(range(len(instants)), [each.when for each in instants])
    axes.set_title(name, fontsize=FONT_SIZE, loc="left", color=INK)
    axes.set_ylim(len(instants) - 0.5, -0.5)
    axes.tick_params(axis="both", length=0)
    axes.grid(False)
    axes.spines[:].set_visible(False)


def say_damage(instants: Sequence[Instant]) -> str:
    """How many of the kills, and of the power cuts, leave neither the old file nor the new one."""
    kills, cuts = (sum(getattr(each, when) in (HALF, LOST) for each in instants) for when in WHEN)
    return f"{kills} of {len(instants)} kills and {cuts} of {len(instants)} power cuts"


# ------------------------------------------------------------------ how often to save


def efficiency_curves(machine: Unreliable, *, runs: int = 40) -> Picture:
    """The efficiency against the interval, with Young's, Daly's and the best interval, and simulated runs.

    The simulated runs do the work of 30 mean times between failures each, `runs` of them per point.
    """
    best = best_interval(machine)
    top = efficiency(best, machine)
    intervals = [best * 10 ** (power / 20) for power in range(-30, 31)]
    half, double = (efficiency(best * factor, machine) for factor in (0.5, 2.0))
    title = (
        f"Best: save every {say_time(best)}, efficiency {100 * top:.1f} %; with half or twice that interval "
        f"it is {100 * half:.1f} and {100 * double:.1f} %"
    )
    figure, panels = new_panels(title, height=4.4)
    axes = panels[0]
    shown = [interval / 60 for interval in intervals]
    axes.plot(
        shown,
        [100 * efficiency(each, machine) for each in intervals],
        color=INK,
        linewidth=2,
        label="exact model",
    )
    work = 30 * machine.mtbf_seconds
    points = {
        factor * best: simulated_seconds(work, factor * best, machine, runs=runs) for factor in SIMULATED
    }
    axes.errorbar(
        [interval / 60 for interval in points],
        [100 * work / mean for mean, _ in points.values()],
        [100 * work / mean * 3 * error / mean for mean, error in points.values()],
        fmt="o",
        color="#0072B2",
        capsize=4,
        label="simulated (bars: 3 standard errors)",
    )
    named = {"Young": young_interval(machine), "Daly": daly_interval(machine), "best": best}
    if say_time(named["Daly"]) == say_time(best):  # one line would hide the other
        named = {"Young": named["Young"], "best = Daly": best}
    for index, (name, interval) in enumerate(named.items()):
        style = series_style(index + 1)
        line: Look = {"color": style["color"], "linestyle": style["linestyle"], "linewidth": 2}
        axes.axvline(interval / 60, label=f"{name}: {say_time(interval)}", **line)
    axes.set(xscale="log", ylim=(0, 100))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_xlabel("minutes of work between two saves")
    axes.set_ylabel("efficiency: useful work,\n% of the time")
    figure.legend(loc="outside lower left", ncols=2, fontsize=FONT_SIZE, frameon=False)
    words = listed(f"{name} {say_time(interval)}" for name, interval in named.items())
    far = max(
        abs(mean / expected_seconds(work, interval, machine) - 1) for interval, (mean, _) in points.items()
    )
    kind = "Line chart, logarithmic horizontal axis: efficiency against the interval between saves"
    return Picture(
        figure,
        f"{kind}. {title}. Intervals: {words}. Simulated runs differ from the exact model by at "
        f"most {100 * far:.1f} %.",
    )


SIMULATED = (0.1, 0.3, 1.0, 3.0, 10.0)  # times the best interval


def say_time(seconds: float) -> str:
    """A duration in minutes, or in what suits it better."""
    return f"{three_digits(seconds / 60)} min" if seconds >= 60 else say_seconds(seconds)


# ------------------------------------------------------------------ going on


def loss_of_survivors(run: SurvivorRun, undisturbed: SurvivorRun) -> Picture:
    """The loss of every step, on top of a job without a death; and how many ranks were left."""
    before, after = run.steps[0].ranks, run.steps[-1].ranks
    died = next((step.step for step in run.steps if step.ranks == after), None) if after < before else None
    pairs = zip(run.steps, undisturbed.steps, strict=True)
    far = max(abs(mine.loss - other.loss) for mine, other in pairs if mine.ranks == after)
    if died is None:
        title = f"All {before} ranks take all {len(run.steps)} steps"
    else:
        title = (
            f"Rank {run.victim} dies in step {died}; from then on the losses differ from the undisturbed "
            f"ones by at most {far:.0e}"
        )
    figure, axes = new_figure(title, width=8, height=3.6)
    axes.plot(
        [step.step for step in undisturbed.steps],
        [step.loss for step in undisturbed.steps],
        color="#999999",
        linewidth=6,
        label=f"{before} ranks, undisturbed",
    )
    for index, ranks in enumerate(dict.fromkeys(step.ranks for step in run.steps)):
        mine = [step for step in run.steps if step.ranks == ranks]
        label = f"{ranks} rank{'s' * (ranks != 1)}"
        axes.plot(
            [step.step for step in mine], [step.loss for step in mine], **series_style(index), label=label
        )
    if died is not None:
        axes.axvline(died - 0.5, color=FAILS["facecolor"], linewidth=1.5, label=f"rank {run.victim} dies")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("step")
    axes.set_ylabel("loss of the global batch")
    axes.legend(fontsize=FONT_SIZE, frameon=False)
    ends = f"from {three_digits(run.steps[0].loss)} to {three_digits(run.steps[-1].loss)}"
    return Picture(
        figure, f"Line chart: loss against step. {title}. The loss goes {ends} in {len(run.steps)} steps."
    )


def elastic_timeline(run: ElasticRun) -> Picture:
    """Both attempts of every worker: starting, training, and the step from which the second one went on."""
    victim = max(worker.rank for worker in run.workers)
    title = (
        f"Worker {victim} is killed in step {run.killed_in_step}; {say_seconds(run.recovered_seconds)} later "
        f"step {run.killed_in_step} is done; {run.repeated_steps} steps were computed twice"
    )
    ranks = sorted({worker.rank for worker in run.workers})
    figure, panels = new_panels(title, height=2.1 + 0.55 * len(ranks))
    axes = panels[0]
    for worker in run.workers:
        row = ranks.index(worker.rank)
        trained = max(worker.steps.values(), default=worker.loaded)
        parts = [
            ("start Python, import torch, meet, load", worker.started, worker.loaded, ACTIVITIES["wait"]),
            ("train", worker.loaded, trained, ACTIVITIES["compute"]),
            ("end", trained, worker.ended, GONE),
        ]
        for _, start, end, style in parts:
            axes.broken_barh(
                [(start, max(0.0, end - start))], (row - 0.3, 0.6), edgecolor=INK, linewidth=0.6, **style
            )
    axes.plot(
        0, ranks.index(victim), marker="X", color=FAILS["facecolor"], markersize=14, markeredgecolor=INK
    )
    name_ranks(axes, ranks, word="worker ")
    axes.set_ylim(len(ranks) - 0.4, -0.6)
    axes.set_xlabel("seconds since the kill")
    handles: list[Artist] = [Patch(edgecolor=INK, label=name, **style) for name, _, _, style in parts]
    handles += axes.plot(
        [],
        [],
        marker="X",
        color=FAILS["facecolor"],
        markeredgecolor=INK,
        markersize=11,
        linestyle="none",
        label="killed",
    )
    figure.legend(handles=handles, loc="outside lower left", ncols=4, fontsize=FONT_SIZE, frameon=False)
    told = [
        f"the other{'s were' if len(ranks) > 2 else ' was'} ended after {say_seconds(run.noticed_seconds)}",
        f"the programs started again after {say_seconds(run.restarted_seconds)}",
        f"they had loaded the checkpoint after {say_seconds(run.loaded_seconds)}",
    ]
    return Picture(figure, f"Timeline: one lane per worker, two attempts. {title}. {'; '.join(told)}.")
