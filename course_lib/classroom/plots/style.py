"""One look for all figures, and the picture that carries its own alt text.

Ranks have one colour *and* are always labelled with their number, in the same order from top to bottom;
activities are told apart by colour and hatching, so that no meaning hangs on colour alone.
"""

import base64
import html
import io
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

DPI = 100
MAX_WIDTH_INCHES = 8.0  # 800 pixels
FONT_SIZE = 12
INK = "#222222"
GRID = "#dddddd"
# Okabe and Ito's palette, which stays distinct for colour-blind readers.
RANK_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#999999")
ACTIVITIES = {
    "compute": {"facecolor": "#56B4E9", "hatch": ""},
    "transfer": {"facecolor": "#E69F00", "hatch": "///"},
    "wait": {"facecolor": "#ffffff", "hatch": "..."},
}


def rank_colour(rank: int) -> str:
    """The colour of a rank, the same in every figure."""
    return RANK_COLOURS[rank % len(RANK_COLOURS)]


@dataclass(frozen=True)
class Picture:
    """A figure with the words that stand in for it; displays as an image with alt text."""

    figure: Figure
    alt: str

    def png(self) -> bytes:
        """The figure as PNG."""
        buffer = io.BytesIO()
        self.figure.savefig(buffer, format="png", dpi=DPI, facecolor="white", metadata={"Software": None})
        return buffer.getvalue()

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        data = base64.b64encode(self.png()).decode()
        alt = html.escape(self.alt, quote=True)
        return {
            "text/html": f'<img alt="{alt}" src="data:image/png;base64,{data}" style="max-width: 100%">',
            "text/plain": self.alt,
        }


def new_figure(title: str, *, width: float = 7.0, height: float = 3.5) -> tuple[Figure, Axes]:
    """An empty figure of at most 8 inches (800 pixels) in the course's style; the title is the conclusion."""
    figure = Figure(figsize=(min(width, MAX_WIDTH_INCHES), height), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.set_title(title, fontsize=FONT_SIZE + 2, color=INK, loc="left", wrap=True)
    style_axes(axes)
    return figure, axes


def style_axes(axes: Axes) -> None:
    """Fonts of at least 12 points, a light grid, no box."""
    axes.tick_params(labelsize=FONT_SIZE, colors=INK)
    axes.xaxis.label.set_fontsize(FONT_SIZE)
    axes.yaxis.label.set_fontsize(FONT_SIZE)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(True, color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
