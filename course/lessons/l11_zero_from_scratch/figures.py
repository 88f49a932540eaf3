"""The picture of lesson 11: what every rank keeps, stage by stage."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from course_lib.theory.memory import SHARDED_FROM, STAGES
from mpi_classroom.figures import FONT_SIZE, INK, Look, Picture, new_panels

LOOKS: dict[str, Look] = {
    "weights": {"color": "#0072B2", "hatch": ""},
    "gradients": {"color": "#E69F00", "hatch": "///"},
    "optimizer": {"color": "#009E73", "hatch": "..."},
    "activations": {"color": "#CC79A7", "hatch": "\\\\"},
}
WORDS = {"optimizer": "optimizer state"}
NUMBERS = {"weights": 1.0, "gradients": 1.0, "optimizer": 2.0}  # per parameter, with Adam
GAP = 0.15


def draw_kept(ranks: int, activations: float = 0.0, stages: Sequence[int] = STAGES) -> Picture:
    """Draw a panel per stage and a row per rank; in each a box per kind of number, filled where it is kept.

    A box is as wide as the kind has numbers per parameter; `activations` are those of one rank.
    """
    widths = {**NUMBERS, **({"activations": activations} if activations else {})}
    figure, panels = new_panels("", rows=len(stages), width=8.0, height=1.5 * len(stages) + 0.3)
    words = []
    for stage, axes in zip(stages, panels, strict=True):
        left, kept, shards = 0.0, 0.0, []
        for kind, width in widths.items():
            cut = stage >= getattr(SHARDED_FROM, kind, len(STAGES))
            shards += [WORDS.get(kind, kind)] if cut else []
            for rank in range(ranks):
                part = width / ranks if cut else width
                draw_box(axes, kind, (left, width), (left + rank * part if cut else left, part), rank)
            if stage == stages[0]:
                axes.text(left + width / 2, -0.1, WORDS.get(kind, kind), ha="center", fontsize=FONT_SIZE)
            left, kept = left + width + GAP, kept + part
        style(axes, stage, ranks, left)
        axes.text(
            left,
            ranks / 2,
            f"{kept:.2f} numbers\nper parameter\non each rank",
            va="center",
            fontsize=FONT_SIZE,
        )
        words.append(f"stage {stage}: {kept:.2f}, sharded: {', '.join(shards) or 'nothing'}")
    if any(stages):
        panels[-1].set_xlabel("white: kept by another rank", fontsize=FONT_SIZE)
    said = "; ".join(words).capitalize()
    return Picture(figure, f"What each of {ranks} ranks keeps, in numbers per parameter. {said}.")


def draw_box(axes: Axes, kind: str, whole: tuple[float, float], kept: tuple[float, float], rank: int) -> None:
    """An outline for the whole, and in it what the rank keeps: (left, width) of both."""
    look: Look = {"facecolor": LOOKS[kind]["color"], "hatch": LOOKS[kind]["hatch"], "edgecolor": "white"}
    axes.add_patch(Rectangle((kept[0], rank + 0.1), kept[1], 0.8, **look))
    axes.add_patch(Rectangle((whole[0], rank + 0.1), whole[1], 0.8, fill=False, edgecolor=INK, linewidth=0.6))


def style(axes: Axes, stage: int, ranks: int, right: float) -> None:
    """Name the rows, and leave room for the number at the right."""
    axes.set(xlim=(0, right + 0.7), ylim=(ranks, 0), xticks=[], ylabel=f"stage {stage}")
    axes.set_yticks([rank + 0.5 for rank in range(ranks)], [f"rank {rank}" for rank in range(ranks)])
    axes.tick_params(length=0, labelsize=FONT_SIZE)
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
