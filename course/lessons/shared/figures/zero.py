"""ZeRO: who owns which slice of the flat parameters, what every rank holds, and what is live within a step.

Bytes are counted by those who hold them and come as plain numbers; formulas are drawn as marks.
"""

from collections.abc import Mapping, Sequence
from itertools import accumulate

from matplotlib.patches import Patch, Rectangle

from course_lib.theory.memory import StateBytes, bytes_per_parameter
from course_lib.theory.partition import even_ranges
from mpi_classroom.figures import (
    FONT_SIZE,
    INK,
    Look,
    Picture,
    ink_on,
    listed,
    new_panels,
    rank_colour,
    series_style,
    three_digits,
)

PARTS: dict[str, Look] = {  # of what a rank holds
    "weights": {"color": "#0072B2", "hatch": ""},
    "gradients": {"color": "#E69F00", "hatch": "///"},
    "optimizer": {"color": "#009E73", "hatch": "..."},
}
ARROW = {"arrowstyle": "-", "color": INK}
WORDS = {"weights": "weights", "gradients": "gradients", "optimizer": "optimizer state"}

# ------------------------------------------------------------------ owners


def slice_owners(sizes: Mapping[str, int], ranks: int) -> Picture:
    """Parameters of these `sizes` in one flat buffer, and below it the slice of it that each rank owns."""
    total = sum(sizes.values())
    slices = even_ranges(total, ranks)
    title = owner_title(sizes, ranks)
    figure, (axes,) = new_panels(title, height=3.3)
    start = 0
    for name, size in sizes.items():
        axes.add_patch(Rectangle((start, 1.15), size, 0.7, facecolor="#eeeeee", edgecolor=INK))
        middle = start + size / 2
        words: Look = {"va": "center", "fontsize": FONT_SIZE, "color": INK}
        if size > 0.15 * total:
            box = {"fc": "#eeeeee", "ec": "none", "pad": 1}
            axes.text(middle, 1.5, f"{name}\n{size}", bbox=box, ha="center", **words)
        else:  # too narrow for its name, which goes above it
            side = "left" if middle < 0.15 * total else "right" if middle > 0.85 * total else "center"
            axes.annotate(
                f"{name} {size}", (middle, 1.85), (middle, 2.35), ha=side, arrowprops=ARROW, **words
            )
        start += size
    for rank, part in enumerate(slices):
        colour = rank_colour(rank)
        axes.add_patch(Rectangle((part.start, 0.1), len(part), 0.7, facecolor=colour, edgecolor="white"))
        words = {"ha": "center", "va": "center", "fontsize": FONT_SIZE, "color": ink_on(colour)}
        axes.text((part.start + part.stop) / 2, 0.45, f"rank {rank}\n{len(part)}", **words)
    for part in slices[1:]:
        axes.plot([part.start, part.start], [0.8, 1.85], color=INK, linestyle="--", linewidth=1.5)
    axes.set(xlim=(0, total), ylim=(0, 2.6), yticks=[0.45, 1.5], yticklabels=["owners", "parameters"])
    axes.set_xlabel("index in the flat buffer")
    axes.grid(False)
    axes.spines[:].set_visible(False)
    axes.tick_params(axis="y", length=0)
    return Picture(figure, owner_alt(sizes, ranks, title))


def cut_parameters(sizes: Mapping[str, int], ranks: int) -> list[str]:
    """The parameters that a border between two slices goes through."""
    ends = list(accumulate(sizes.values()))
    starts = [end - size for end, size in zip(ends, sizes.values(), strict=True)]
    borders = [part.start for part in even_ranges(sum(sizes.values()), ranks)[1:]]
    return [
        name
        for name, start, end in zip(sizes, starts, ends, strict=True)
        if any(start < border < end for border in borders)
    ]


def owner_title(sizes: Mapping[str, int], ranks: int) -> str:
    """What slices look like, and what they do not care about."""
    lengths = [len(part) for part in even_ranges(sum(sizes.values()), ranks)]
    low, high = min(lengths), max(lengths)
    each = f"{low}" if low == high else f"{low} or {high}"
    cut = cut_parameters(sizes, ranks)
    what = f";\na border goes through {listed(cut)}" if cut else ""
    owns = f"Each of {ranks} ranks owns" if ranks > 1 else "One rank owns"
    return f"{owns} {each} numbers{what}"


def owner_alt(sizes: Mapping[str, int], ranks: int, title: str) -> str:
    """The same in words."""
    parameters = listed(f"{name} with {size}" for name, size in sizes.items())
    slices = even_ranges(sum(sizes.values()), ranks)
    owners = listed(
        f"rank {rank} has {part.start} to {part.stop - 1}" for rank, part in enumerate(slices) if part
    )
    return f"A flat buffer of parameters, {parameters}, above the owners of its shards. {title}. {owners}."


# ------------------------------------------------------------------ what is held


def held_bars(held: Sequence[Sequence[StateBytes]], parameters: int, each: StateBytes) -> Picture:
    """What every rank holds in every stage, `held[stage][rank]`, as stacked bars; the formula as a mark.

    `parameters` are those of the whole model, and `each` what one of them needs.
    """
    title = held_title(held, parameters, each)
    figure, (axes,) = new_panels(title, height=4.6)
    ranks = len(held[0])
    places = [stage * (ranks + 1) + rank for stage in range(len(held)) for rank in range(ranks)]
    flat = [state for stage in held for state in stage]
    bottom = [0.0] * len(flat)
    for name, look in PARTS.items():
        heights = [getattr(state, name) / 1e6 for state in flat]
        axes.bar(places, heights, 0.85, bottom=bottom, edgecolor="white", **look)
        bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
    for stage in range(len(held)):
        level = parameters * bytes_per_parameter(stage, ranks, each) / 1e6
        left = stage * (ranks + 1) - 0.6
        axes.plot([left, left + ranks + 0.2], [level, level], color=INK, linestyle="--", linewidth=1.5)
        words = f"{three_digits(level)} MB"
        axes.text(left, level, words, va="bottom", fontsize=FONT_SIZE, color=INK)
    axes.set_xticks(places, [str(rank) for _ in held for rank in range(ranks)])
    for stage in range(len(held)):
        middle = stage * (ranks + 1) + (ranks - 1) / 2
        name = f"stage {stage}"
        below: Look = {"ha": "center", "va": "top", "fontsize": FONT_SIZE, "color": INK}
        axes.text(middle, -0.10, name, transform=axes.get_xaxis_transform(), **below)
    axes.set_xlabel("rank", labelpad=22)
    axes.set_ylabel("MB held by a rank (counted)")
    axes.grid(False, axis="x")
    axes.margins(y=0.1)
    keys: list[object] = [
        Patch(label=WORDS[name], facecolor=look["color"], hatch=look["hatch"], edgecolor="white")
        for name, look in PARTS.items()
    ]
    keys += axes.plot([], [], color=INK, linestyle="--", label="formula")
    figure.legend(handles=keys, loc="outside lower left", ncols=4, fontsize=FONT_SIZE, frameon=False)
    return Picture(figure, held_alt(held, title))


def held_title(held: Sequence[Sequence[StateBytes]], parameters: int, each: StateBytes) -> str:
    """Bytes per parameter by stage, and how far the formula is off."""
    ranks = len(held[0])
    means = [sum(state.total for state in stage) / ranks / parameters for stage in held]
    formula = [bytes_per_parameter(stage, ranks, each) for stage in range(len(held))]
    off = max(abs(mean / wanted - 1) for mean, wanted in zip(means, formula, strict=True))
    words = listed(f"{mean:.1f}" for mean in means)
    exact = "as the formula says" if off < 5e-4 else f"within {100 * off:.1f} % of the formula"
    return f"Bytes per parameter that a rank holds, by stage: {words}, {exact}"


def held_alt(held: Sequence[Sequence[StateBytes]], title: str) -> str:
    """The same in words, for rank 0."""
    words = "; ".join(
        f"stage {stage}: "
        + ", ".join(f"{WORDS[name]} {three_digits(getattr(states[0], name) / 1e6)} MB" for name in PARTS)
        for stage, states in enumerate(held)
    )
    return (
        f"Stacked bars, MB held by each of {len(held[0])} ranks in each stage. {title}. On rank 0, {words}."
    )


# ------------------------------------------------------------------ what is live within a step


def live_lines(live: Mapping[str, Sequence[int]], held: Mapping[str, int]) -> Picture:
    """Bytes of all tensors on one rank, after every operation of a step; one line per way of training.

    `held` is what each of them keeps between steps: where its line begins. The peaks of the first and the
    last are marked.
    """
    title = live_title(live, held)
    figure, (axes,) = new_panels(title, height=4.4)
    for index, (name, values) in enumerate(live.items()):
        look = {key: value for key, value in series_style(index).items() if key != "marker"}
        progress = [100 * place / max(len(values) - 1, 1) for place in range(len(values))]
        axes.plot(progress, [value / 1e6 for value in values], label=name, linewidth=1.8, **look)
        if index in (0, len(live) - 1):
            peak = max(values)
            where = progress[list(values).index(peak)], peak / 1e6
            axes.plot(*where, "o", color=look["color"])
            words: Look = {"xytext": (6, 4) if index == 0 else (12, -80), "textcoords": "offset points"}
            words |= {"fontsize": FONT_SIZE, "color": INK} | ({"arrowprops": ARROW} if index else {})
            axes.annotate(f"peak {_mb(peak)}", where, **words)
    axes.margins(y=0.1)
    axes.set(xlabel="percent of the step's operations", ylabel="MB of live tensors, rank 0", ylim=(0, None))
    figure.legend(loc="outside lower left", ncols=4, fontsize=FONT_SIZE, frameon=False)
    return Picture(figure, live_alt(live, held, title))


def live_title(live: Mapping[str, Sequence[int]], held: Mapping[str, int]) -> str:
    """By how much held memory and the peak change from the first way to the last."""
    first, *_, last = live
    return (
        f"From {first} to {last}, held memory {_fall(held[first], held[last])},\n"
        f"the peak of a step {_fall(max(live[first]), max(live[last]))}"
    )


def _fall(before: float, after: float) -> str:
    percent = round(100 * (1 - after / before))
    return f"falls by {percent} %" if percent >= 0 else f"rises by {-percent} %"


def live_alt(live: Mapping[str, Sequence[int]], held: Mapping[str, int], title: str) -> str:
    """The same in words."""
    words = listed(f"{name} holds {_mb(held[name])}, at most {_mb(max(live[name]))}" for name in live)
    return f"Line chart, MB of live tensors on rank 0 against the operations of a step. {title}. {words}."


def _mb(nbytes: float) -> str:
    return f"{three_digits(nbytes / 1e6)} MB"
