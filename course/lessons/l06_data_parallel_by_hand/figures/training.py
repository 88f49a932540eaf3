"""Training on several ranks: how the loss falls, what the ranks gain, and where their time goes.

The loss of each run is one curve. The first is drawn wide and the next ones narrower on top of it, so that
equal runs still show.
"""

from collections.abc import Mapping, Sequence
from statistics import median

from course.lessons.l06_data_parallel_by_hand.results import Run
from course.lessons.shared.figures.timeline import shares
from course_lib.comm.spans import Span, totals
from mpi_classroom.figures import FONT_SIZE, Picture, new_figure, series_style

STYLES = ("-", "--", ":", "-.")
WIDTHS = (6.0, 3.5, 2.5, 2.0)

# ------------------------------------------------------------------ one step


def explain_speedup(alone: float, together: float, spans: Sequence[Span], cores: int) -> str:
    """Why the ranks are so many times as fast as one, chosen from the measurement.

    `alone` and `together` are the seconds of the same training on one rank and on several, `spans` those of
    one of their steps, as `trace_step` returns them.
    """
    seconds = totals(spans)
    ranks, share = len(seconds), shares(seconds)
    if ranks == 1:
        return "There is one core, so there is one rank to measure."
    speedup, lost = alone / together, 1 - share["compute"]
    where = f"In one step, the ranks spend {lost:.0%} of their time waiting and transferring"
    if ranks > cores:
        return f"{ranks} ranks share {cores} cores, so a part of them always waits for a core."
    if speedup >= 0.8 * ranks:
        return f"{where}; the rest is computing, and that is what they share."
    if share["wait"] > max(share["transfer"], 0.2):
        return f"{where}, most of it waiting: some core is slower, or busy with something else."
    if share["transfer"] > 0.2:
        return f"{where}, most of it transferring: long messages, or a core that was busy during the sum."
    return (
        f"{where}. The rest is computing, slower than alone: the cores share caches, memory and other work."
    )


def summary(run: Run) -> str:
    """One line about a training: ranks, seconds, test accuracy, and whether the replicas agree."""
    agree = "" if run.ranks == 1 else f"; replicas {'agree' if run.agree else 'do NOT agree'}"
    ranks = f"{run.ranks} rank{'s' * (run.ranks > 1)}"
    return f"{ranks}: {run.seconds:.1f} s, {run.accuracy:.1%} of the test images right{agree}"


def explain_wait(spans: Sequence[Span]) -> str:
    """Which rank the others waited for; or that nobody did."""
    seconds = totals(spans)
    if len(seconds) == 1:
        return "One rank has nobody to wait for."
    last = min(seconds, key=lambda rank: seconds[rank]["wait"])
    if shares(seconds)["wait"] < 0.01:
        return "All ranks arrived at nearly the same time."
    return f"Rank {last} waited least, so it arrived last: the others waited for it."


# ------------------------------------------------------------------ the loss of several runs


def loss_curves(losses: Mapping[str, Sequence[float]], *, window: int = 10) -> Picture:
    """The loss of each run against the step, as the mean of `window` consecutive steps; a run's key "
    "names it."""
    smooth = {name: averaged(values, window) for name, values in losses.items()}
    title = curves_title(smooth)
    figure, axes = new_figure(title, width=7.5, height=3.8)
    for index, (name, values) in enumerate(smooth.items()):
        steps = range(window, window + len(values))
        style, width = STYLES[index % len(STYLES)], WIDTHS[index % len(WIDTHS)]
        colour = series_style(index)["color"]
        axes.plot(steps, values, style, color=colour, linewidth=width, label=name)
    axes.set_xlabel("step")
    axes.set_ylabel(f"training loss, mean of {window} steps")
    axes.set_ylim(0, None)
    axes.legend(fontsize=FONT_SIZE, frameon=False)
    return Picture(figure, curves_alt(smooth, window, title))


def averaged(values: Sequence[float], window: int) -> list[float]:
    """The mean of every `window` consecutive values; ValueError when there are fewer."""
    if len(values) < window:
        raise ValueError(f"{len(values)} steps are fewer than the {window} of one mean; train for longer")
    return [sum(values[end - window : end]) / window for end in range(window, len(values) + 1)]


def curves_title(smooth: Mapping[str, Sequence[float]]) -> str:
    """From where to where the loss goes, and how far apart the runs typically are."""
    first, last = (next(iter(smooth.values()))[place] for place in (0, -1))
    moved = "falls" if last < first else "does NOT fall"
    found = f"The loss {moved} from {first:.2f} to {last:.2f}"
    if len(smooth) < 2:
        return found
    return f"{found}; the {len(smooth)} runs typically differ by {typical_spread(smooth):.1%}"


def typical_spread(smooth: Mapping[str, Sequence[float]]) -> float:
    """The difference between the runs relative to the smallest of them, the median over the steps."""
    return median((max(values) - min(values)) / min(values) for values in zip(*smooth.values(), strict=False))


def curves_alt(smooth: Mapping[str, Sequence[float]], window: int, title: str) -> str:
    """The picture in words: where each curve begins and ends."""
    lines = [f"{name}: from {values[0]:.3f} to {values[-1]:.3f}" for name, values in smooth.items()]
    kind = f"Line chart: training loss (mean of {window} steps) against the step, one line per run"
    return f"{kind}. {title}. {'; '.join(lines)}."
