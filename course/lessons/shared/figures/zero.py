"""ZeRO: what every rank holds.

Bytes are counted by those who hold them and come as plain numbers; formulas are drawn as marks.
"""

from collections.abc import Sequence

from matplotlib.patches import Patch

from course_lib.theory.memory import StateBytes, bytes_per_parameter
from mpi_classroom.figures import (
    FONT_SIZE,
    INK,
    Look,
    Picture,
    new_panels,
    three_digits,
)
from mpi_classroom.sentences import listed

PARTS: dict[str, Look] = {  # of what a rank holds
    "weights": {"color": "#0072B2", "hatch": ""},
    "gradients": {"color": "#E69F00", "hatch": "///"},
    "optimizer": {"color": "#009E73", "hatch": "..."},
}
ARROW = {"arrowstyle": "-", "color": INK}
WORDS = {"weights": "weights", "gradients": "gradients", "optimizer": "optimizer state"}


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
