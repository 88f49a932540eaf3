"""DDP in pictures: which images each rank gets, how a training goes, where the time of a step goes."""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain, zip_longest
from statistics import fmean

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle

from course.lessons.l07_ddp_on_mnist.step_times import GAIN, StepTime
from mpi_classroom.figures import (
    ACTIVITIES,
    FONT_SIZE,
    INK,
    Look,
    Picture,
    ink_on,
    listed,
    new_panels,
    rank_colour,
    say_ranks,
    say_seconds,
    time_unit,
)

IN_A_ROW = 24  # samples that can be read beside each other
SMOOTH = 10  # steps; the loss of one batch jumps
CLASSES = 10  # the digits
Shards = Sequence[Sequence[int]]  # the samples of each rank, in the order in which it sees them

# ------------------------------------------------------------------ the sampler


def sampler_shards(by_rank: Sequence[Mapping[str, Sequence[int]]]) -> Picture:
    """A row for each epoch: the samples in shuffled order, each in the colour of its rank.

    `by_rank[rank]["epoch 0"]` are the samples of a rank. What comes a second time in its row is hatched.
    """
    shards = {name: [mine[name] for mine in by_rank] for name in by_rank[0]}
    rows = {name: in_turn(parts) for name, parts in shards.items()}
    columns = max((len(cells) for cells in rows.values()), default=0)
    if not 0 < columns <= IN_A_ROW:
        raise ValueError(f"{columns} samples do not fit into a row; use 1 to {IN_A_ROW}")
    title = shards_title(shards)
    figure, (axes,) = new_panels(title, height=1.7 + 0.55 * len(rows))
    for row, cells in enumerate(rows.values()):
        _cells(axes, row, cells)
    axes.set(xlim=(0, columns), ylim=(len(rows), 0), xticks=[])
    axes.set_yticks([row + 0.5 for row in range(len(rows))], list(rows))
    axes.grid(False)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    keys = [Patch(label=f"rank {rank}", facecolor=rank_colour(rank)) for rank in range(len(by_rank))]
    keys.append(Patch(label="repeated", facecolor="white", edgecolor=INK, hatch="///"))
    figure.legend(handles=keys, loc="outside lower left", ncols=5, fontsize=FONT_SIZE, frameon=False)
    return Picture(figure, shards_alt(shards, title))


def _cells(axes: Axes, row: int, cells: Sequence[tuple[int, int]]) -> None:
    """One row of cells: rank and sample of each; what was there before is hatched, its number in a box."""
    seen: set[int] = set()
    for column, (rank, sample) in enumerate(cells):
        colour, again = rank_colour(rank), sample in seen
        look: Look = {"edgecolor": "white", "linewidth": 2}
        if again:
            look |= {"hatch": "///"}
        axes.add_patch(Rectangle((column, row + 0.08), 1, 0.84, facecolor=colour, **look))
        middle: Look = {"ha": "center", "va": "center", "fontsize": FONT_SIZE, "color": ink_on(colour)}
        if again:
            middle["bbox"] = {"facecolor": colour, "edgecolor": "none", "pad": 1.5}
        axes.text(column + 0.5, row + 0.5, str(sample), **middle)
        seen.add(sample)


def in_turn(parts: Shards) -> list[tuple[int, int]]:
    """Rank and sample in shuffled order: one for each rank, then the next round."""
    rounds = zip_longest(*parts)
    return [(rank, sample) for turn in rounds for rank, sample in enumerate(turn) if sample is not None]


def shards_title(shards: Mapping[str, Shards]) -> str:
    """How many samples each rank has, how many come twice, and whether the rows differ."""
    first = next(iter(shards.values()))
    counts = Counter(chain.from_iterable(first))
    twice = sum(counts.values()) - len(counts)
    lengths = sorted({len(part) for part in first})
    each = f"{lengths[0]} per rank" if len(lengths) == 1 else f"{lengths[0]} to {lengths[-1]} per rank"
    again = (
        f", so {twice} image{'s' * (twice > 1)} come{'s' * (twice == 1)} twice" if twice else ", none twice"
    )
    title = f"{len(counts)} images on {len(first)} ranks: {each}{again}"
    if len(shards) == 1:
        return title
    same = [name for name, parts in list(shards.items())[1:] if as_lists(parts) == as_lists(first)]
    if same:
        return f"{title};\n{listed(same)} repeat{'s' * (len(same) == 1)} the order of {next(iter(shards))}"
    return f"{title};\nevery epoch has a different order"


def as_lists(parts: Shards) -> list[list[int]]:
    return [list(part) for part in parts]


def shards_alt(shards: Mapping[str, Shards], title: str) -> str:
    """The same in words: which samples each rank has, row by row."""
    lines = [
        f"{name}: " + ", ".join(f"rank {rank} {list(part)}" for rank, part in enumerate(parts))
        for name, parts in shards.items()
    ]
    kind = "Rows of numbered cells, one per image, coloured by the rank that gets it"
    return f"{kind}. {title}. {'; '.join(lines)}.".replace("\n", " ")


# ------------------------------------------------------------------ a training


def training_curve(losses: Sequence[Sequence[float]], right: float, *, images: str) -> Picture:
    """The loss of every step; in the title, the accuracy `right` (0 to 1) on the test images at the end.

    `losses[rank]` are those of one rank, equally many on each; drawn is the mean of all ranks.
    """
    steps = [fmean(step) for step in zip(*losses, strict=True)]
    title = curve_title(len(losses), right, images)
    figure, (axes,) = new_panels(title, height=3.4)
    pale: Look = {"color": "#56B4E9", "linewidth": 1, "label": "one step, the mean of all ranks"}
    axes.plot(range(1, len(steps) + 1), steps, **pale)
    ends = range(SMOOTH, len(steps) + 1)
    smooth: Look = {"color": INK, "linewidth": 2.5, "label": f"mean of {SMOOTH} steps"}
    axes.plot(list(ends), [fmean(steps[end - SMOOTH : end]) for end in ends], **smooth)
    axes.set(xlabel="step", ylabel="training loss", ylim=(0, None))
    axes.legend(fontsize=FONT_SIZE, frameon=False, loc="upper right")
    kind = "Line chart of the training loss against the step"
    fall = f"In {len(steps)} steps the loss goes from {steps[0]:.2f} to {fmean(steps[-SMOOTH:]):.2f}"
    return Picture(figure, f"{kind}. {title.replace(chr(10), ' ')}. {fall}, the mean of the last {SMOOTH}.")


def curve_title(ranks: int, right: float, images: str) -> str:
    """What was trained on what, and how much of the test is right at the end."""
    test = f"at the end, {right:.1%} of the test images are right (guessing: {1 / CLASSES:.0%})"
    return f"{ranks} ranks train one network on {images};\n{test}"


# ------------------------------------------------------------------ three ways to take a step


def way_bars(ways: Sequence[StepTime], *, cores: int) -> Picture:
    """A bar per way: how long a step computed, waited and transferred; a diamond: a normal step."""
    longest = max(max(way.step.middle, sum(parts_of(way).values())) for way in ways)
    factor, unit = time_unit(longest)
    title = ways_title(ways, cores)
    figure, (axes,) = new_panels(title, height=2.2 + 0.6 * len(ways))
    for row, way in enumerate(ways):
        left = 0.0
        for activity, seconds in parts_of(way).items():
            axes.barh(row, factor * seconds, 0.6, left, edgecolor=INK, **ACTIVITIES[activity])
            left += factor * seconds
        mark: Look = {"marker": "D", "markersize": 10, "color": INK, "markeredgecolor": "white"}
        axes.plot([factor * way.step.middle], [row], linestyle="none", **mark)
        end = max(left, factor * way.step.middle)
        axes.text(
            end + 0.03 * factor * longest,
            row,
            f"normal: {say_seconds(way.step.middle)}",
            va="center",
            fontsize=FONT_SIZE,
        )
    axes.set_yticks(range(len(ways)), [way.name for way in ways])
    axes.set(ylim=(len(ways) - 0.4, -0.6), xlim=(0, 1.32 * factor * longest))
    axes.set_xlabel(f"{unit} per step; bars: mean of the ranks")
    axes.grid(False, axis="y")
    keys: list[Patch | Line2D] = [
        Patch(label=activity, edgecolor=INK, **style) for activity, style in ACTIVITIES.items()
    ]
    diamond: Look = {"color": INK, "marker": "D", "linestyle": "none", "markersize": 9}
    keys.append(Line2D([], [], **diamond, label="normal step, slowest rank"))
    figure.legend(handles=keys, loc="outside lower left", ncols=4, fontsize=FONT_SIZE, frameon=False)
    return Picture(figure, ways_alt(ways, title))


def parts_of(way: StepTime) -> dict[str, float]:
    """The median seconds of each activity, in the order of the bars."""
    return {"compute": way.compute.middle, "wait": way.wait.middle, "transfer": way.transfer.middle}


def ways_title(ways: Sequence[StepTime], cores: int) -> str:
    """How much of a step is waiting and transfer, in each way."""
    lost = [
        f"{way.name} {(way.wait.middle + way.transfer.middle) / sum(parts_of(way).values()):.0%}"
        for way in ways
    ]
    where = say_ranks(ways[0].ranks, cores)
    return f"{where}: with overlap off, waiting and transfer take\n{listed(lost)} of a step"


def ways_alt(ways: Sequence[StepTime], title: str) -> str:
    """The same in words, bar by bar."""
    lines = [
        f"{way.name}: "
        + ", ".join(f"{kind} {say_seconds(seconds)}" for kind, seconds in parts_of(way).items())
        + f", normal step {say_seconds(way.step.middle)}"
        for way in ways
    ]
    return f"Stacked bars, one per way to take a step. {title}. {'; '.join(lines)}.".replace("\n", " ")


# ------------------------------------------------------------------ tables of text


def synthetic_report(rates: Mapping[int, Sequence[Sequence[float]]]) -> str:
    """Lines like those of Horovod's synthetic benchmark: `rates[n][rank]` are images a second on n ranks."""
    lines, alone = [], 0.0
    for ranks, readings in sorted(rates.items()):
        mean, spread = mean_and_spread([rate for part in readings for rate in part])
        alone = alone or mean
        lines.append(f"{ranks} rank{'s' * (ranks > 1)}: {mean:.1f} ± {spread:.1f} img/s per rank")
        lines[-1] += f", total {ranks * mean:.1f}" + (f", {ranks * mean / alone:.2f}×" if ranks > 1 else "")
    if ranks > 1 and ranks * mean < GAIN * alone:
        lines.append(
            "The cores were busy: this run says nothing about weak scaling. Run it again on a quiet machine."
        )
    return "\n".join(lines)


def mean_and_spread(values: Sequence[float]) -> tuple[float, float]:
    """The mean, and 1.96 standard deviations, as that benchmark has it: 95 % of readings lie within."""
    mean = sum(values) / len(values)
    return mean, 1.96 * (sum((value - mean) ** 2 for value in values) / len(values)) ** 0.5


def compare_times(seconds: Sequence[tuple[str, float]]) -> str:
    """Lines of text: each way to do the same work, its time, and how many times as fast as the first."""
    first, width = seconds[0][1], max(len(name) for name, _ in seconds)
    return "\n".join(f"{name:{width}}  {say_seconds(time):>8}  {first / time:.2f}×" for name, time in seconds)
