"""Training on several ranks: what they gained and where their time went, and how the loss falls.

The loss is one curve a run, drawn on top of each other so that runs which do the same look the same.
"""

from collections.abc import Mapping, Sequence
from statistics import median

from course.lessons.shared.figures.timeline import shares
from course_lib.comm.spans import Span, duration, totals
from mpi_classroom.figures import FONT_SIZE, Picture, new_figure, rank_colour, say_seconds

STYLES = ("-", "--", ":", "-.")
WIDTHS = (6.0, 3.5, 2.5, 2.0)

# ------------------------------------------------------------------ one step


def explain_speedup(alone: Sequence[Span], together: Sequence[Span], cores: int) -> str:
    """How much faster a step is on several ranks, and where their time went: below 1.2, what ran out.

    Both are the spans of a step as `trace_step` gives them, on one rank and on several.
    """
    seconds = totals(together)
    ranks, share, one = len(seconds), shares(seconds), say_seconds(duration(alone))
    if ranks == 1:
        return f"one core: no second one that a second rank could use; a step takes {one}"
    speedup = duration(alone) / duration(together)
    several = say_seconds(duration(together))
    told = f"a step on 1 rank {one}, on {ranks} ranks {several}: {speedup:.2f} times as fast"
    if speedup >= 1.2:
        lost = 1 - share["compute"]
        return f"{told}; {lost:.0%} of the ranks' time went into waiting and transferring"
    if ranks > cores:
        return f"{told}; the cores ran out: the ranks take turns"
    if share["transfer"] > max(share["wait"], 0.25):
        return f"{told}; the transfer ran out of bandwidth: it took {share['transfer']:.0%} of the time"
    if share["wait"] > 0.25:
        return f"{told}; they waited {share['wait']:.0%} of the time: some core is slower, or busy elsewhere"
    return f"{told}; they computed nearly all the time, so they share what ran out: memory, or busy cores"


# ------------------------------------------------------------------ the loss of several runs


def loss_curves(losses: Mapping[str, Sequence[float]], *, window: int = 20) -> Picture:
    """The loss of each run against its step, averaged over `window` steps (a run is named by its key)."""
    smooth = {name: averaged(values, window) for name, values in losses.items()}
    title = curves_title(smooth)
    figure, axes = new_figure(title, width=7.5, height=3.8)
    for index, (name, values) in enumerate(smooth.items()):
        steps = range(window, window + len(values))
        style, width = STYLES[index % len(STYLES)], WIDTHS[index % len(WIDTHS)]
        axes.plot(steps, values, style, color=rank_colour(index), linewidth=width, label=name)
    axes.set_yscale("log")
    axes.set_xlabel("step")
    axes.set_ylabel(f"training loss, mean of {window} steps")
    axes.legend(fontsize=FONT_SIZE, frameon=False)
    return Picture(figure, curves_alt(smooth, window, title))


def averaged(values: Sequence[float], window: int) -> list[float]:
    """The mean of every `window` consecutive values."""
    if len(values) < window:
        raise ValueError(f"{len(values)} steps are fewer than the {window} of one mean; train for longer")
    return [sum(values[end - window : end]) / window for end in range(window, len(values) + 1)]


def curves_title(smooth: Mapping[str, Sequence[float]]) -> str:
    """How far apart the runs typically are, and where they end."""
    ends = ", ".join(f"{name} {values[-1]:.3f}" for name, values in smooth.items())
    if len(smooth) < 2:
        return f"Loss at the end: {ends}"
    return f"The losses typically differ by {typical_spread(smooth):.1%}; at the end: {ends}"


def typical_spread(smooth: Mapping[str, Sequence[float]]) -> float:
    """The difference between the runs relative to the smallest of them: the median over the steps."""
    return median((max(values) - min(values)) / min(values) for values in zip(*smooth.values(), strict=False))


def curves_alt(smooth: Mapping[str, Sequence[float]], window: int, title: str) -> str:
    """The same in words: where each curve begins and ends."""
    lines = [f"{name}: from {values[0]:.3f} to {values[-1]:.3f}" for name, values in smooth.items()]
    return (
        f"Line chart: training loss (mean of {window} steps, logarithmic) against the step, one line a run. "
        f"{title}. {'; '.join(lines)}."
    )
