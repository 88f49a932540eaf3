"""When gradient buckets are on their way in a step, and how stale a parameter server's gradients are."""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.patches import Patch

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
    say_ranks,
    say_seconds,
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
    """A step of every rank; below it a bar for each bucket, from its start to the look that found it done.

    `spans` are those that `trace_buckets` gives on rank 0.
    """
    lanes = by_rank(spans)
    if not any(span.name.startswith(BUCKET) for span in spans):
        raise ValueError("there is no bucket in these spans; pass what trace_buckets() gave on rank 0")
    factor, unit = time_unit(duration(spans))
    title = overlap_title(spans, cores)
    figure, (axes,) = new_panels(title, height=1.9 + 0.9 * len(lanes))
    for row, lane in enumerate(lanes.values()):
        draw_lane(axes, row, lane, factor)
    name_ranks(axes, list(lanes))
    axes.set_ylim(len(lanes) - 0.35, -0.55)
    axes.set_xlabel(f"{unit} since the first began")
    keys = [Patch(label=name, edgecolor=INK, **look) for name, look in PHASES.items()]
    keys.append(Patch(label="bucket on its way", edgecolor=INK, **ACTIVITIES["transfer"]))
    figure.legend(handles=keys, loc="outside lower left", ncols=5, fontsize=FONT_SIZE, frameon=False)
    return Picture(figure, overlap_alt(lanes, title))


def draw_lane(axes: Axes, row: int, lane: Sequence[Span], factor: float) -> None:
    """The phases as a bar around `row`, the buckets as thin ones below it."""
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
    """How many of a rank's buckets left before its backward pass ended, and how many there are."""
    end = max(span.end for span in lane if span.name == "backward")
    buckets = [span for span in lane if span.name.startswith(BUCKET)]
    return sum(span.start < end for span in buckets), len(buckets)


def seconds_of(lane: Sequence[Span], name: str) -> float:
    return sum(span.seconds for span in lane if span.name == name)


def overlap_title(spans: Sequence[Span], cores: int) -> str:
    """How many buckets left during backward, and what was still to be waited for after it."""
    lanes = by_rank(spans)
    left, buckets = left_in_backward(next(iter(lanes.values())))
    waits = [seconds_of(lane, "wait") for lane in lanes.values()]
    rest = (
        f"{say_seconds(min(waits))} to {say_seconds(max(waits))}" if len(waits) > 1 else say_seconds(waits[0])
    )
    step = say_seconds(duration(spans))
    return (
        f"{say_ranks(len(lanes), cores)}: {left} of {buckets} buckets left during backward; "
        f"of a step of {step}, a wait of {rest} is left"
    )


def overlap_alt(lanes: Mapping[int, Sequence[Span]], title: str) -> str:
    lines = []
    for rank, lane in lanes.items():
        left, buckets = left_in_backward(lane)
        times = ", ".join(f"{name} {say_seconds(seconds_of(lane, name))}" for name in PHASES)
        lines.append(f"rank {rank}: {times}; {left} of {buckets} buckets left during backward")
    return f"Timeline: a lane a rank, with a thin bar for each bucket below it. {title}. {'. '.join(lines)}."


def explain_overlap(after: float, during: float, ranks: int) -> str:
    """What overlap brought: seconds of a step whose sum comes after backward, and during it."""
    told = f"sum after backward {say_seconds(after)} a step, during backward {say_seconds(during)}"
    if ranks == 1:
        return f"{told}; one rank has nobody to send to: what differs are the calls"
    saved = 1 - during / after
    if saved > 0.03:
        return f"{told}: {saved:.0%} saved; some of the sum moved while backward worked"
    if saved > -0.03:
        return f"{told}: no difference to speak of; a sum this short has little to hide"
    return f"{told}: {-saved:.0%} lost; more messages, and calls between the layers, cost more than they hide"


# ------------------------------------------------------------------ stale gradients


def staleness(histograms: Mapping[str, Mapping[int, int]]) -> Picture:
    """Updates against the staleness of their gradient, bars side by side for each run (named by its key)."""
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
    axes.set_xlabel("updates by others since its weights were read")
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
        told.append(f"{name}: {mean:.1f} on average, at most {max(counts, default=0)}")
    return "Staleness in updates\n" + "\n".join(told)


def say_counts(counts: Mapping[int, int]) -> str:
    return (
        ", ".join(f"{count} with staleness {stale}" for stale, count in counts.items() if count)
        or "no updates"
    )
