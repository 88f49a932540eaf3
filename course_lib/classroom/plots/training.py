"""Training on several ranks: where the time of a step goes, and how the loss falls.

A step is drawn as one lane a rank, from the moment all start together to the end of the last; the loss as
one curve a run, drawn on top of each other so that runs which do the same look the same.
"""

from collections.abc import Mapping, Sequence
from itertools import chain
from statistics import median

from matplotlib.patches import Patch

from course_lib.classroom.plots.style import ACTIVITIES, FONT_SIZE, INK, Picture, new_figure, rank_colour

Span = tuple[int, str, float, float]  # rank, activity, start and stop in seconds
Spans = Sequence[Sequence[Span]]  # one sequence a rank; empty for ranks that took no part
STYLES = ("-", "--", ":", "-.")
WIDTHS = (6.0, 3.5, 2.5, 2.0)

# ------------------------------------------------------------------ one step


def step_lanes(spans: Spans, *, cores: int) -> Picture:
    """One lane a rank: when it computed, waited and transferred during one step."""
    lanes = [lane for lane in spans if lane]
    title = step_title(lanes, cores)
    figure, axes = new_figure(title, width=8.0, height=1.9 + 0.5 * len(lanes))
    for place, lane in enumerate(lanes):
        for _, activity, start, stop in lane:
            bar = axes.barh(place, 1e3 * (stop - start), left=1e3 * start, height=0.6, linewidth=1)
            bar[0].set(edgecolor=INK, **ACTIVITIES[activity])
    axes.set_yticks(range(len(lanes)), [f"rank {lane[0][0]}" for lane in lanes])
    for label, lane in zip(axes.get_yticklabels(), lanes, strict=True):
        label.set(color=rank_colour(lane[0][0]), fontweight="bold")
    axes.set_ylim(len(lanes) - 0.5, -0.5)
    axes.set_xlabel("milliseconds since all started the step together")
    keys = [Patch(label=activity) for activity in ACTIVITIES]
    for key, style in zip(keys, ACTIVITIES.values(), strict=True):
        key.set(edgecolor=INK, **style)
    figure.legend(
        handles=keys, loc="outside lower center", ncols=len(keys), fontsize=FONT_SIZE, frameon=False
    )
    return Picture(figure, step_alt(lanes, title))


def seconds_of(spans: Sequence[Span], activity: str) -> float:
    """Seconds that `activity` took in all of `spans`."""
    return sum(stop - start for _, what, start, stop in spans if what == activity)


def shares(spans: Spans) -> dict[str, float]:
    """The fraction of all ranks' time that each activity took."""
    every = list(chain.from_iterable(spans))
    total = sum(stop - start for _, _, start, stop in every)
    return {activity: seconds_of(every, activity) / total for activity in ACTIVITIES}


def step_title(lanes: Spans, cores: int) -> str:
    """What the ranks did with their time, and whether they had a core each."""
    ranks, share = len(lanes), shares(lanes)
    machine = f"{ranks} ranks taking turns on {cores}" if ranks > cores else f"{ranks} ranks on {cores}"
    return (
        f"{machine} {'core' if cores == 1 else 'cores'}: {share['compute']:.0%} of the time computing, "
        f"{share['wait']:.0%} waiting, {share['transfer']:.0%} transferring"
    )


def step_alt(lanes: Spans, title: str) -> str:
    """The same in words, rank by rank."""
    lines = []
    for lane in lanes:
        done = [f"{activity} {1e3 * seconds_of(lane, activity):.1f} ms" for activity in ACTIVITIES]
        lines.append(f"rank {lane[0][0]}: {', '.join(done)}")
    kind = "Lanes of one training step, one a rank, time in milliseconds to the right"
    return f"{kind}. {title}. {'; '.join(lines)}."


def step_seconds(spans: Spans) -> float:
    """From the common start to the end of the slowest rank."""
    return max(stop for *_, stop in chain.from_iterable(spans))


def explain_speedup(alone: Spans, together: Spans, cores: int) -> str:
    """How much faster a step is on several ranks, and where their time went: below 1.2, what ran out."""
    ranks, share = sum(1 for lane in together if lane), shares(together)
    if ranks == 1:
        return f"one core: no second one that a second rank could use; a step takes {_ms(alone)}"
    speedup = step_seconds(alone) / step_seconds(together)
    told = f"a step on 1 rank {_ms(alone)}, on {ranks} ranks {_ms(together)}: {speedup:.2f} times as fast"
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


def _ms(spans: Spans) -> str:
    return f"{1e3 * step_seconds(spans):.0f} ms"


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
