"""The picture of lesson 12: what each rank needs, a bar per stage."""

from typing import Any

from matplotlib.axes import Axes

from course.lessons.shared.figures.zero import PARTS
from mpi_classroom.figures import FONT_SIZE, INK, Look, Picture, ink_on, new_panels, three_digits

LOOKS: dict[str, Look] = {
    "weights": PARTS["weights"],
    "gradients": PARTS["gradients"],
    "averages (and copy)": PARTS["optimizer"],
    "buffers": {"color": "#CC79A7", "hatch": "\\\\"},
}


def draw_needs(ranks: int, room: float) -> Picture:
    """Draw the bytes per parameter that each rank needs, a bar per stage, and the `room` that it has.

    Numbers of 32 bits; the buffers are drawn as 4 bytes, those of gathered weights are left out.
    """
    n = ranks
    stages: list[list[float]] = [
        [4, 4, 8, 4],
        [4, 4, 12 / n, 4],
        [4, 4 / n, 12 / n, 4],
        [4 / n, 4 / n, 12 / n, 4],
    ]
    figure, (axes,) = new_panels("Needs by the sum above", height=3.1)
    left, words = [0.0] * len(stages), []
    for (name, look), widths in zip(LOOKS.items(), zip(*stages, strict=True), strict=True):
        axes.barh(range(len(stages)), widths, 0.7, left=left, label=name, edgecolor="white", **look)
        for stage, width in enumerate(widths):
            style: Look = {"ha": "center", "color": ink_on(look["color"])}
            write(axes, left[stage] + width / 2, stage, width, look["color"], **style)
        left = [start + width for start, width in zip(left, widths, strict=True)]
    axes.axvline(room, color=INK, linestyle="--", linewidth=1.5, label=f"room: {three_digits(room)}")
    for stage, (parts, total) in enumerate(zip(stages, left, strict=True)):
        write(axes, total + 0.2, stage, total, "white", ha="left", color=INK)
        words.append(f"stage {stage}: {' + '.join(map(three_digits, parts))} = {three_digits(total)}")
    axes.set_yticks(range(len(stages)), [f"stage {stage}" for stage in range(len(stages))])
    axes.set(ylim=(len(stages) - 0.5, -0.5), xlim=(0, 1.1 * max(*left, room)), xticks=range(0, 21, 4))
    axes.set_xlabel(f"bytes per parameter on each of {ranks} ranks")
    axes.grid(False)
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=5, frameon=False, fontsize=FONT_SIZE - 2)
    said = f"Bytes per parameter on each of {ranks} ranks: {', '.join(LOOKS)}. {'; '.join(words)}"
    return Picture(figure, f"{said}. Each rank has room for {three_digits(room)}.")


def write(axes: Axes, x: float, stage: int, number: float, behind: str, **style: Any) -> None:
    """A number on the bar of a stage, on a box in the colour `behind` it."""
    box = {"facecolor": behind, "edgecolor": "none", "pad": 1.5}
    axes.text(x, stage, three_digits(number), va="center", fontsize=FONT_SIZE, bbox=box, **style)
