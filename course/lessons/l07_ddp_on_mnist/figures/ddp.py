"""DDP in pictures: what a sampler deals to whom, and where the time of a step goes with each backend."""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain, zip_longest

from matplotlib.axes import Axes
from matplotlib.patches import Patch, Rectangle

from course.lessons.shared.figures.timeline import shares
from course_lib.comm.spans import Span, duration, totals
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
    three_digits,
    time_unit,
)

BACKENDS = {"gloo": "Gloo", "mpi4py": "MPI"}
IN_A_ROW = 24  # samples that can be read beside each other
Shares = Sequence[Sequence[int]]  # the samples of each rank, in the order in which it sees them

# ------------------------------------------------------------------ the sampler


def sampler_dealing(by_rank: Sequence[Mapping[str, Sequence[int]]]) -> Picture:
    """A row for each epoch: the samples in the order of dealing, in the colour of their rank.

    `by_rank[rank]["epoch 0"]` are the samples of a rank. What was dealt before in the same row is hatched.
    """
    dealt = {name: [mine[name] for mine in by_rank] for name in by_rank[0]}
    rows = {name: in_turn(parts) for name, parts in dealt.items()}
    columns = max((len(cards) for cards in rows.values()), default=0)
    if not 0 < columns <= IN_A_ROW:
        raise ValueError(f"{columns} samples do not fit into a row; deal 1 to {IN_A_ROW}")
    title = dealing_title(dealt)
    figure, (axes,) = new_panels(title, height=1.7 + 0.55 * len(rows))
    for row, cards in enumerate(rows.values()):
        _cards(axes, row, cards)
    axes.set(xlim=(0, columns), ylim=(len(rows), 0), xticks=[])
    axes.set_yticks([row + 0.5 for row in range(len(rows))], list(rows))
    axes.grid(False)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    keys = [Patch(label=f"rank {rank}", facecolor=rank_colour(rank)) for rank in range(len(by_rank))]
    keys.append(Patch(label="again", facecolor="white", edgecolor=INK, hatch="///"))
    figure.legend(handles=keys, loc="outside lower left", ncols=5, fontsize=FONT_SIZE, frameon=False)
    return Picture(figure, dealing_alt(dealt, title))


def _cards(axes: Axes, row: int, cards: Sequence[tuple[int, int]]) -> None:
    """One row of cells: rank and sample of each; what was there before is hatched, its number in a box."""
    seen: set[int] = set()
    for column, (rank, sample) in enumerate(cards):
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


def in_turn(parts: Shares) -> list[tuple[int, int]]:
    """Rank and sample, in the order in which they were dealt: one to each rank, then the next round."""
    rounds = zip_longest(*parts)
    return [(rank, sample) for cards in rounds for rank, sample in enumerate(cards) if sample is not None]


def dealing_title(dealt: Mapping[str, Shares]) -> str:
    """How many samples each rank has, how many were dealt twice, and whether the rows differ."""
    first = next(iter(dealt.values()))
    counts = Counter(chain.from_iterable(first))
    twice = sum(counts.values()) - len(counts)
    lengths = sorted({len(part) for part in first})
    each = f"{lengths[0]} each" if len(lengths) == 1 else f"{lengths[0]} to {lengths[-1]} each"
    again = f", so {twice} {'is' if twice == 1 else 'are'} dealt twice" if twice else ", none twice"
    title = f"{len(counts)} images on {len(first)} ranks: {each}{again}"
    if len(dealt) == 1:
        return title
    same = [name for name, parts in list(dealt.items())[1:] if as_lists(parts) == as_lists(first)]
    if same:
        return f"{title};\n{listed(same)} repeat{'s' * (len(same) == 1)} the order of {next(iter(dealt))}"
    return f"{title};\nevery epoch in another order"


def as_lists(parts: Shares) -> list[list[int]]:
    return [list(part) for part in parts]


def dealing_alt(dealt: Mapping[str, Shares], title: str) -> str:
    """The same in words: which samples each rank has, row by row."""
    lines = [
        f"{name}: " + ", ".join(f"rank {rank} {list(part)}" for rank, part in enumerate(parts))
        for name, parts in dealt.items()
    ]
    kind = "Rows of numbered cells, one a sample, coloured by the rank that gets it"
    return f"{kind}. {title}. {'; '.join(lines)}.".replace("\n", " ")


# ------------------------------------------------------------------ compute, wait, transfer


def step_bars(steps: Mapping[str, Sequence[Span]], *, cores: int) -> Picture:
    """A bar for each backend and rank: how long a step computed, waited and transferred.

    `steps["gloo"]` are the spans of one step, as `trace_ddp_step` gives them on rank 0.
    """
    if not steps or not all(steps.values()):
        raise ValueError("there is a step without spans; pass what trace_ddp_step gave on rank 0")
    steps = {BACKENDS.get(name, name): spans for name, spans in steps.items()}
    seconds = {name: totals(spans) for name, spans in steps.items()}
    factor, unit = time_unit(max(duration(spans) for spans in steps.values()))
    lanes = [(name, rank, mine) for name, ranks in seconds.items() for rank, mine in ranks.items()]
    title = bars_title(steps, cores)
    figure, (axes,) = new_panels(title, height=1.9 + 0.5 * len(lanes))
    for row, (_, _, mine) in enumerate(lanes):
        left = 0.0
        for activity in ("compute", "wait", "transfer"):
            width = factor * mine[activity]
            axes.barh(row, width, 0.7, left, edgecolor=INK, **ACTIVITIES[activity])
            left += width
    axes.set_yticks(range(len(lanes)), [f"{name}, rank {rank}" for name, rank, _ in lanes])
    for label, (_, rank, _) in zip(axes.get_yticklabels(), lanes, strict=True):
        colour = rank_colour(rank)
        label.set(color=ink_on(colour), bbox={"facecolor": colour, "edgecolor": "none", "pad": 3})
    axes.set_ylim(len(lanes) - 0.4, -0.6)
    axes.set_xlabel(f"{unit} of one step")
    keys = [Patch(label=activity, edgecolor=INK, **style) for activity, style in ACTIVITIES.items()]
    figure.legend(handles=keys, loc="outside lower left", ncols=3, fontsize=FONT_SIZE, frameon=False)
    return Picture(figure, bars_alt(steps, title))


def bars_title(steps: Mapping[str, Sequence[Span]], cores: int) -> str:
    """With each backend, how much of the time in a sum was waiting, and how much transfer."""
    ranks = len(totals(next(iter(steps.values()))))
    told = "; ".join(f"{name} {told_sum(spans)}" for name, spans in steps.items())
    return f"{say_ranks(ranks, cores)}, a step's time in the sum: {told}"


def told_sum(spans: Sequence[Span]) -> str:
    """Seconds that a rank spent waiting and transferring, the mean of all ranks."""
    seconds = totals(spans)
    waiting, transfer = (mean_seconds(seconds, kind) for kind in ("wait", "transfer"))
    return f"{say_seconds(waiting)} waiting, {say_seconds(transfer)} transfer"


def mean_seconds(seconds: Mapping[int, Mapping[str, float]], kind: str) -> float:
    return sum(mine[kind] for mine in seconds.values()) / len(seconds)


def waiting_share(spans: Sequence[Span]) -> float:
    """Of the time that the ranks spent in sums, the fraction that was only waiting; 0 if they took none."""
    share = shares(totals(spans))
    return share["wait"] / ((share["wait"] + share["transfer"]) or 1)


def bars_alt(steps: Mapping[str, Sequence[Span]], title: str) -> str:
    """The same in words, bar by bar."""
    lines = [
        f"{name}, rank {rank}: " + ", ".join(f"{kind} {say_seconds(mine[kind])}" for kind in ACTIVITIES)
        for name, spans in steps.items()
        for rank, mine in totals(spans).items()
    ]
    return f"Stacked bars, one a backend and rank. {title}. {'; '.join(lines)}."


# ------------------------------------------------------------------ tables of text


def profile_table(rows: Sequence[tuple[str, int, float]], *, top: int = 8) -> str:
    """The `top` longest operators of a step as lines of text, and their share of all its time."""
    whole = sum(seconds for *_, seconds in rows) or 1.0
    factor, unit = time_unit(whole)
    lines = [f"{unit:>7}  share  calls  operator"]
    lines += [
        f"{three_digits(factor * seconds):>7}  {seconds / whole:5.0%}  {calls:5}  {short(name)}"
        for name, calls, seconds in rows[:top]
    ]
    rest = sum(seconds for *_, seconds in rows[top:])
    lines.append(f"{three_digits(factor * rest):>7}  {rest / whole:5.0%}         {len(rows[top:])} others")
    return "\n".join(lines)


def short(name: str) -> str:
    """The name of an operator in at most 60 letters: the end tells more than the beginning."""
    return name if len(name) <= 60 else f"…{name[-59:]}"


def synthetic_report(rates: Mapping[int, Sequence[Sequence[float]]]) -> str:
    """Lines like those of Horovod's synthetic benchmark: `rates[n][rank]` are images a second on n ranks."""
    lines, alone = [], 0.0
    for ranks, readings in sorted(rates.items()):
        mean, spread = mean_and_spread([rate for part in readings for rate in part])
        alone = alone or mean
        lines.append(f"{ranks} rank{'s' * (ranks > 1)}: {mean:.1f} ± {spread:.1f} img/s a rank")
        lines[-1] += f", total {ranks * mean:.1f}" + (f", {ranks * mean / alone:.2f}×" if ranks > 1 else "")
    return "\n".join(lines)


def mean_and_spread(values: Sequence[float]) -> tuple[float, float]:
    """The mean, and 1.96 standard deviations, as that benchmark has it: 95 % of readings lie within."""
    mean = sum(values) / len(values)
    return mean, 1.96 * (sum((value - mean) ** 2 for value in values) / len(values)) ** 0.5


def compare_times(seconds: Sequence[tuple[str, float]]) -> str:
    """Lines of text: each way to do the same work, its time, and how many times as fast as the first."""
    first, width = seconds[0][1], max(len(name) for name, _ in seconds)
    return "\n".join(f"{name:{width}}  {say_seconds(time):>8}  {first / time:.2f}×" for name, time in seconds)
