"""The picture of lesson 12: what each rank keeps and needs at its peak, a bar per stage."""

from collections.abc import Sequence

from course.lessons.shared.figures.zero import PARTS
from mpi_classroom.figures import FONT_SIZE, INK, Look, Picture, new_panels, three_digits

KEEPS: Look = PARTS["weights"]
BUFFERS: Look = {"color": "#CC79A7", "hatch": "\\\\"}


def draw_peaks(keeps: Sequence[float], peaks: Sequence[float], room: float) -> Picture:
    """Draw the bytes per parameter that a rank keeps, and its peak, a bar per stage, beside the `room`."""
    stages = range(len(keeps))
    buffers = [peak - kept for kept, peak in zip(keeps, peaks, strict=True)]
    figure, (axes,) = new_panels("Stage 3 keeps least, but not at its peak", height=3.1)
    axes.barh(stages, keeps, 0.7, label="kept all the time", edgecolor="white", **KEEPS)
    axes.barh(stages, buffers, 0.7, left=keeps, label="during a step", edgecolor="white", **BUFFERS)
    axes.axvline(room, color=INK, linestyle="--", linewidth=1.5, label=f"room: {three_digits(room)}")
    box = {"facecolor": "white", "edgecolor": "none", "pad": 1.5}
    for stage, peak in zip(stages, peaks, strict=True):
        axes.text(peak + 0.2, stage, three_digits(peak), va="center", fontsize=FONT_SIZE, bbox=box)
    axes.set_yticks(stages, [f"stage {stage}" for stage in stages])
    axes.set(ylim=(len(keeps) - 0.5, -0.5), xlim=(0, 1.1 * max(*peaks, room)), xticks=range(0, 21, 4))
    axes.set_xlabel("bytes per parameter on each of 2 ranks")
    axes.grid(False)
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=3, frameon=False, fontsize=FONT_SIZE - 2)
    pairs = enumerate(zip(keeps, peaks, strict=True))
    words = [f"stage {s}: {three_digits(a)}, at its peak {three_digits(b)}" for s, (a, b) in pairs]
    said = f"Bytes per parameter that each of 2 ranks keeps. {'; '.join(words)}"
    return Picture(figure, f"{said}. Each rank has room for {three_digits(room)}.")
