"""When gradient buckets are under way in a step, what fusion brings, and how stale a server's gradients "
"are."""

from collections.abc import Mapping, Sequence

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


def left_in_backward(lane: Sequence[Span]) -> tuple[int, int]:
    """How many of a rank's buckets were started before its backward pass ended, and how many there are."""
    end = max(span.end for span in lane if span.name == "backward")
    buckets = [span for span in lane if span.name.startswith(BUCKET)]
    return sum(span.start < end for span in buckets), len(buckets)


def seconds_of(lane: Sequence[Span], name: str) -> float:
    return sum(span.seconds for span in lane if span.name == name)


def overlap_title(spans: Sequence[Span], cores: int) -> str:
    """How many buckets were started during backward, and how long the ranks still waited afterwards."""
    lanes = by_rank(spans)
    left, buckets = left_in_backward(next(iter(lanes.values())))
    waits = [seconds_of(lane, "wait") for lane in lanes.values()]
    rest = (
        f"{say_seconds(min(waits))} to {say_seconds(max(waits))}" if len(waits) > 1 else say_seconds(waits[0])
    )
    step = say_seconds(duration(spans))
    return (
        f"{say_ranks(len(lanes), cores)}: {left} of {buckets} buckets start during backward; "
        f"the step takes {step}, {rest} of it waiting"
    )


def overlap_alt(lanes: Mapping[int, Sequence[Span]], title: str) -> str:
    lines = []
    for rank, lane in lanes.items():
        left, buckets = left_in_backward(lane)
        times = ", ".join(f"{name} {say_seconds(seconds_of(lane, name))}" for name in PHASES)
        lines.append(f"rank {rank}: {times}; {left} of {buckets} buckets started during backward")
    return f"Timeline: one lane per rank, with a thin bar per bucket below it. {title}. {'. '.join(lines)}."


def explain_overlap(after: float, during: float, ranks: int) -> str:
    """What overlap brought, from the seconds of a step that sums after backward and of one that sums "
    "during it."""
    found = f"Sum after backward: {say_seconds(after)} per step; during backward: {say_seconds(during)}."
    if ranks == 1:
        return f"{found} One rank sends nothing, so only the number of calls differs."
    saved = 1 - during / after
    if saved > 0.03:
        return f"{found} Some of the sum was done while backward computed."
    if saved > -0.03:
        return f"{found} No clear difference: such a short sum leaves little to hide."
    return f"{found} More messages, and calls between the layers, cost more than they hide here."


# ------------------------------------------------------------------ fusion


def fusion(found: Sequence[Fusion]) -> Picture:
    """How many messages carry the gradients, and how long they take, against the fusion threshold."""
    title = fusion_title(found)
    figure, (messages, times) = new_panels(title, columns=2, height=3.8)
    names, places = [say_bytes(each.limit) for each in found], range(len(found))
    look: Look = {"color": rank_colour(0), "edgecolor": INK}
    bars = messages.bar(places, [each.messages for each in found], **look)
    messages.bar_label(bars, fontsize=FONT_SIZE, padding=2)
    messages.set_ylabel("messages per step")
    bars = times.bar(places, [1e3 * each.seconds for each in found], hatch="///", **look)
    times.bar_label(bars, [three_digits(1e3 * each.seconds) for each in found], fontsize=FONT_SIZE, padding=2)
    times.set_ylabel("ms for all of them")
    for axes in (messages, times):
        axes.set_xticks(places, names)
        axes.set_xlabel("fusion threshold")
        axes.margins(y=0.15)
    lines = "; ".join(
        f"{name}: {each.messages} messages, {say_seconds(each.seconds)}"
        for name, each in zip(names, found, strict=True)
    )
    kind = "Two bar charts: messages per step, and their time, against the fusion threshold"
    return Picture(figure, f"{kind}. {title}. {lines}.")


def fusion_title(found: Sequence[Fusion]) -> str:
    """What fewer messages brought: the most and the fewest compared."""
    most, fewest = max(found, key=lambda f: f.messages), min(found, key=lambda f: f.messages)
    gain = most.seconds / fewest.seconds
    one = f"{fewest.messages} message{'s' * (fewest.messages != 1)}"
    if gain > 1.05:
        return f"{one} instead of {most.messages}: {gain:.2f} times as fast, for the same bytes"
    if gain < 0.95:
        return f"{one} instead of {most.messages} is no faster here ({1 / gain:.2f} times as long)"
    return f"{one} or {most.messages}: no difference here, for the same bytes"


# ------------------------------------------------------------------ stale gradients


def staleness(histograms: Mapping[str, Mapping[int, int]]) -> Picture:
    """How many updates had which staleness, with bars side by side for each run; a run's key names it."""
    title = staleness_title(histograms)
    figure, axes = new_figure(title, height=3.6)
    oldest = max((max(counts, default=0) for counts in histograms.values()), default=0)
    width = 0.8 / len(histograms)
    for index, (name, counts) in enumerate(histograms.items()):
        places = [stale + (index - (len(histograms) - 1) / 2) * width for stale in range(oldest + 1)]
        heights = [counts.get(stale, 0) for stale in range(oldest + 1)]
        hatch = ("", "///", "...", "xx")[index % 4]
        axes.bar(places, heights, width, label=name, color=rank_colour(index), edgecolor=INK, hatch=hatch)
    axes.set_xticks(range(0, oldest + 1, max(1, oldest // 12)))
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
