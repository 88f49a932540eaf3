"""When gradient buckets are under way in a step, what fusion brings, how stale a server's gradients are."""

from collections.abc import Mapping, Sequence
from math import comb
from statistics import median

from matplotlib.axes import Axes
from matplotlib.patches import Patch

from course.lessons.l06_data_parallel_by_hand.results import Fusion
from course_lib.comm.spans import Span, by_rank, duration
from mpi_classroom.figures import (
    ACTIVITIES,
    FONT_SIZE,
    INK,
    Look,
    Picture,
    name_ranks,
    new_figure,
    new_panels,
    rank_colour,
    say_bytes,
    say_ranks,
    say_seconds,
    three_digits,
    time_unit,
)

PHASES: dict[str, Look] = {  # of a step; their colours and hatching are those of the activities
    "forward": {"facecolor": "#bfe3f7", "hatch": ""},
    "backward": ACTIVITIES["compute"],
    "wait": ACTIVITIES["wait"],
    "update": {"facecolor": "#0072B2", "hatch": ""},
}
BUCKET = "bucket "
AS_IT_ENDS = 0.05  # the last part of backward: after the last gradient, it only returns
UNSURE = 0.05  # how often the median of all possible rounds may lie outside of what we say
VERY_STALE = 5  # from this staleness on, updates are counted together


def bucket_overlap(spans: Sequence[Span], *, cores: int) -> Picture:
    """One step of every rank, and below it a bar per bucket, from its start until it was found complete.

    `spans` are those that `trace_buckets` returns on rank 0.
    """
    lanes = by_rank(spans)
    if not any(span.name.startswith(BUCKET) for span in spans):
        raise ValueError("there is no bucket in these spans; pass what trace_buckets() returned on rank 0")
    factor, unit = time_unit(duration(spans))
    title = overlap_title(spans, cores)
    figure, (axes,) = new_panels(title, height=1.9 + 0.9 * len(lanes))
    for row, lane in enumerate(lanes.values()):
        draw_lane(axes, row, lane, factor)
    name_ranks(axes, list(lanes))
    axes.set_ylim(len(lanes) - 0.35, -0.55)
    axes.set_xlabel(f"{unit} since the first began")
    keys = [Patch(label=name, edgecolor=INK, **look) for name, look in PHASES.items()]
    keys.append(Patch(label="bucket under way", edgecolor=INK, **ACTIVITIES["transfer"]))
    figure.legend(handles=keys, loc="outside lower left", ncols=5, fontsize=FONT_SIZE, frameon=False)
    return Picture(figure, overlap_alt(lanes, title))


def draw_lane(axes: Axes, row: int, lane: Sequence[Span], factor: float) -> None:
    """Draw the phases as bars around `row` and the buckets as thin ones below them."""
    buckets = [span for span in lane if span.name.startswith(BUCKET)]
    for name, look in PHASES.items():
        bars = [(factor * span.start, factor * span.seconds) for span in lane if span.name == name]
        axes.broken_barh(bars, (row - 0.35, 0.4), edgecolor=INK, linewidth=1, **look)
    height = 0.42 / len(buckets)
    for place, span in enumerate(sorted(buckets, key=lambda span: span.start)):
        bar = [(factor * span.start, factor * span.seconds)]
        where = (row + 0.1 + place * height, 0.85 * height)
        axes.broken_barh(bar, where, edgecolor=INK, linewidth=0.6, **ACTIVITIES["transfer"])


def started_in_backward(lane: Sequence[Span]) -> tuple[int, int, int]:
    """How many of a rank's buckets start while backward still has work, as it ends, and at all."""
    (backward,) = (span for span in lane if span.name == "backward")
    starts = [span.start for span in lane if span.name.startswith(BUCKET)]
    early = sum(start < backward.end - AS_IT_ENDS * backward.seconds for start in starts)
    return early, sum(start < backward.end for start in starts) - early, len(starts)


def seconds_of(lane: Sequence[Span], name: str) -> float:
    return sum(span.seconds for span in lane if span.name == name)


def overlap_title(spans: Sequence[Span], cores: int) -> str:
    """How many buckets of the first rank start while backward still has work, and how many as it ends."""
    lanes = by_rank(spans)
    early, ending, buckets = started_in_backward(next(iter(lanes.values())))
    title = (
        f"{say_ranks(len(lanes), cores)}: {early} of {buckets} buckets start while backward still has work"
    )
    if not ending:
        return title
    return f"{title}; {'the last starts' if ending == 1 else f'the last {ending} start'} as it ends"


def overlap_alt(lanes: Mapping[int, Sequence[Span]], title: str) -> str:
    lines = []
    for rank, lane in lanes.items():
        early, ending, buckets = started_in_backward(lane)
        times = ", ".join(f"{name} {say_seconds(seconds_of(lane, name))}" for name in PHASES)
        started = f"{early} of {buckets} buckets started while backward still had work, {ending} as it ended"
        lines.append(f"rank {rank}: {times}; {started}")
    return f"Timeline: one lane per rank, with a thin bar per bucket below it. {title}. {'. '.join(lines)}."


def saved_by_overlap(after: Sequence[float], during: Sequence[float], ranks: int) -> tuple[float, str]:
    """The percent of a step that overlap saves, the median of the rounds, and what the rounds let us say.

    `after` and `during` are the seconds of a step that sums after backward and of one that sums during it,
    measured in turn: each pair is one round.
    """
    percents = [100 * (1 - new / old) for old, new in zip(after, during, strict=True)]
    middle, (low, high) = median(percents), median_between(percents)
    found = (
        f"Median step: {say_seconds(median(after))} with the sum after backward, "
        f"{say_seconds(median(during))} with the sum during it. The percentage is the median of each "
        f"round's own saving. From {len(percents)} rounds, the median saving lies between {low:.1f} % and "
        f"{high:.1f} %."
    )
    if ranks == 1:
        return middle, f"{found} One rank sends nothing, so only the number of calls differs."
    if low <= 0 <= high:
        return middle, f"{found} That includes 0: these rounds show no difference."
    if middle > 0:
        return middle, f"{found} A part of the sum was done while backward computed."
    return middle, f"{found} More messages, and calls between the layers, cost more than they hide here."


def median_between(values: Sequence[float]) -> tuple[float, float]:
    """Two of the `values` between which the median of all possible values lies with 95 % probability.

    Each value lies below that median with probability 1/2, like the throw of a coin. The 8th and the 18th of
    25 sorted values are such a pair. Fewer than 6 values cannot say it: then the smallest and the largest.
    """
    below = [sum(comb(len(values), i) for i in range(k)) / 2 ** len(values) for k in range(len(values) + 1)]
    place = max([k for k, chance in enumerate(below) if k and chance <= UNSURE / 2], default=1)
    return sorted(values)[place - 1], sorted(values)[-place]


# ------------------------------------------------------------------ fusion


def fusion(found: Sequence[Fusion]) -> Picture:
    """How many messages carry the gradients, and how long they take, against the fusion threshold."""
    title = fusion_title(found)
    figure, (messages, times) = new_panels(title, columns=2, height=3.8)
    names, places = [say_bytes(each.limit) for each in found], range(len(found))
    factor, unit = time_unit(max(each.seconds for each in found))
    look: Look = {"color": rank_colour(0), "edgecolor": INK}
    bars = messages.bar(places, [each.messages for each in found], **look)
    messages.bar_label(bars, fontsize=FONT_SIZE, padding=2)
    messages.set_ylabel("messages per step")
    heights = [factor * each.seconds for each in found]
    bars = times.bar(places, heights, hatch="///", **look)
    times.bar_label(bars, [three_digits(height) for height in heights], fontsize=FONT_SIZE, padding=2)
    times.set_ylabel(f"{unit} for all of them")
    for axes in (messages, times):
        axes.set_xticks(places, names)
        axes.set_xlabel("fusion threshold")
        axes.margins(y=0.15)
    lines = "; ".join(
        f"{name}: {say_messages(each.messages)}, {say_seconds(each.seconds)}"
        for name, each in zip(names, found, strict=True)
    )
    kind = "Two bar charts: messages per step, and their time, against the fusion threshold"
    return Picture(figure, f"{kind}. {title}. {lines}.")


def fusion_title(found: Sequence[Fusion]) -> str:
    """What fewer messages brought: the most and the fewest compared."""
    most, fewest = max(found, key=lambda f: f.messages), min(found, key=lambda f: f.messages)
    times = (
        f"The same bytes take {say_seconds(fewest.seconds)} in {say_messages(fewest.messages)}, "
        f"{say_seconds(most.seconds)} in {most.messages}"
    )
    gain = most.seconds / fewest.seconds
    if gain > 1.05:
        return times
    return f"{times}: {'fewer are not faster' if gain < 0.95 else 'no difference'} here"


def say_messages(count: int) -> str:
    return f"{count} message{'s' * (count != 1)}"


# ------------------------------------------------------------------ stale gradients


def staleness(histograms: Mapping[str, Mapping[int, int]]) -> Picture:
    """How many updates had which staleness, with bars side by side for each run; a run's key names it.

    Updates with a staleness of `VERY_STALE` or more share a bar.
    """
    title = staleness_title(histograms)
    figure, axes = new_figure(title, height=3.6)
    oldest = max((max(counts, default=0) for counts in histograms.values()), default=0)
    last = min(oldest, VERY_STALE)
    width = 0.8 / len(histograms)
    for index, (name, counts) in enumerate(histograms.items()):
        places = [stale + (index - (len(histograms) - 1) / 2) * width for stale in range(last + 1)]
        heights = [counts.get(stale, 0) for stale in range(last)]
        heights.append(sum(count for stale, count in counts.items() if stale >= last))
        hatch = ("", "///", "...", "xx")[index % 4]
        axes.bar(places, heights, width, label=name, color=rank_colour(index), edgecolor=INK, hatch=hatch)
    more = f"{last}{' and more' * (oldest > last)}"
    axes.set_xticks(range(last + 1), [*map(str, range(last)), more])
    axes.set_xlabel("staleness: updates by others since the weights were read")
    axes.set_ylabel("updates")
    axes.legend(fontsize=FONT_SIZE, frameon=False)
    lines = "; ".join(f"{name}: {say_counts(counts)}" for name, counts in histograms.items())
    return Picture(figure, f"Bar chart: updates by the staleness of their gradient. {title}. {lines}.")


def staleness_title(histograms: Mapping[str, Mapping[int, int]]) -> str:
    """The mean and the largest staleness of each run."""
    told = []
    for name, counts in histograms.items():
        updates = sum(counts.values())
        mean = sum(stale * count for stale, count in counts.items()) / (updates or 1)
        told.append(f"{name}, mean {mean:.1f}, at most {max(counts, default=0)}")
    return "Staleness: " + "; ".join(told)


def say_counts(counts: Mapping[int, int]) -> str:
    return (
        ", ".join(f"{count} with staleness {stale}" for stale, count in counts.items() if count)
        or "no updates"
    )
