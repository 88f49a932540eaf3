"""One look for all figures, and the picture that carries its own alt text.

Ranks have one colour *and* are always labelled with their number, in the same order from top to bottom;
activities differ in colour and hatching, so that no meaning depends on colour alone.

Nothing that a user has configured changes a figure (a matplotlibrc with `text.usetex: True` would fail every
one): from `new_figure` or `new_panels` to the `Picture`, matplotlib's own settings hold. The user's settings
hold before and after, for the user's own plots.
"""

import base64
import contextlib
import html
import io
import sys
import textwrap
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from PIL import Image

DPI = 100
MAX_WIDTH_INCHES = 8.0  # 800 pixels
FONT_SIZE = 12
INK = "#222222"
GRID = "#dddddd"
# Okabe and Ito's palette, which stays distinct for colour-blind readers.
RANK_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#999999")
Look = dict[str, Any]  # settings of matplotlib
ACTIVITIES: dict[str, Look] = {
    "compute": {"facecolor": "#56B4E9", "hatch": ""},
    "wait": {"facecolor": "#ffffff", "hatch": "..."},
    "transfer": {"facecolor": "#E69F00", "hatch": "///"},
}


def rank_colour(rank: int) -> str:
    """The colour of a rank, the same in every figure."""
    return RANK_COLOURS[rank % len(RANK_COLOURS)]


def ink_on(colour: str) -> str:
    """Dark or white: which letters can be read on this colour."""
    red, green, blue = to_rgb(colour)
    return INK if 0.299 * red + 0.587 * green + 0.114 * blue > 0.45 else "white"


def name_ranks(axes: Axes, ranks: Sequence[int], height: float = 0.0, word: str = "rank ") -> None:
    """A row for each rank, from top to bottom, `height` below its number, with a label in its colour."""
    axes.set_yticks([row + height for row in range(len(ranks))], [f"{word}{rank}" for rank in ranks])
    for label, rank in zip(axes.get_yticklabels(), ranks, strict=True):
        colour = rank_colour(rank)
        label.set(color=ink_on(colour), bbox={"facecolor": colour, "edgecolor": "none", "pad": 3})
    axes.tick_params(axis="y", length=0, pad=8)


SETTINGS: Any = matplotlib.rcParams  # of this process


def notebook_shell() -> Any:
    """IPython's shell; None in a program, which has not imported it either."""
    return sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None


class _OwnSettings:
    """Matplotlib's own settings while a figure of ours is being made, and the user's again afterwards."""

    def __init__(self) -> None:
        self.unfinished: weakref.WeakSet[Figure] = weakref.WeakSet()
        self.users: Look = {}

    def begin(self) -> None:
        """Put the user's settings aside, until the figures that are begun are finished.

        Settings that changed since the last begin are the user's: the figures before it had failed.
        """
        if any(SETTINGS[name] != value for name, value in DEFAULTS.items()):
            begun, self.users = bool(self.users), dict(SETTINGS)
            self.unfinished.clear()
            SETTINGS.update(DEFAULTS)
            if not begun and (shell := notebook_shell()) is not None:  # for one that fails
                shell.events.register("post_execute", self.restore)

    def finish(self, figure: Figure) -> None:
        """The figure is drawn: if it was the last one, the user's settings hold again."""
        self.unfinished.discard(figure)
        if not self.unfinished:
            self.restore()

    def restore(self) -> None:
        """Let the user's settings hold again, whatever became of our figures; safe to call twice."""
        self.unfinished.clear()
        if self.users:
            dict.update(SETTINGS, self.users)  # as they were, warnings and all checks aside
            self.users = {}
            if (shell := notebook_shell()) is not None:
                with contextlib.suppress(ValueError):  # not registered: it was begun without a shell
                    shell.events.unregister("post_execute", self.restore)


# The settings that decide how a figure looks; not the backend, which a user's own plots need.
DEFAULTS: Any = {
    name: value
    for name, value in matplotlib.rcParamsDefault.items()
    if name not in ("backend", "interactive")
}
_own_settings = _OwnSettings()


@dataclass(frozen=True)
class Picture:
    """A figure with the words that stand in for it; displays as an image with alt text.

    `table`: its numbers as an HTML table, which the page has folded below the image.
    """

    figure: Figure
    alt: str
    table: str = ""

    def __post_init__(self) -> None:
        _own_settings.finish(self.figure)

    def png(self) -> bytes:
        """The figure as PNG, with a palette: a third of the bytes, and a notebook has room for 600 kB."""
        buffer, small = io.BytesIO(), io.BytesIO()
        with matplotlib.rc_context(DEFAULTS):
            self.figure.savefig(buffer, format="png", dpi=DPI, facecolor="white")
        image = Image.open(buffer).convert("RGB").quantize(256, dither=Image.Dither.NONE)
        image.save(small, format="png", optimize=True)
        return small.getvalue()

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        data = base64.b64encode(self.png()).decode()
        alt = html.escape(self.alt, quote=True)
        image = f'<img alt="{alt}" src="data:image/png;base64,{data}" style="max-width: 100%">'
        fold = f"<details><summary>Numbers</summary>{self.table}</details>" if self.table else ""
        return {
            "text/html": image + fold,
            "text/plain": self.alt,
        }


def new_figure(title: str, *, width: float = 7.0, height: float = 3.5) -> tuple[Figure, Axes]:
    """An empty figure of at most 8 inches (800 pixels) in the course's style; the title is the conclusion."""
    figure = empty_figure(width, height, "constrained")
    axes = figure.add_subplot()
    axes.set_title(title, fontsize=FONT_SIZE + 2, color=INK, loc="left", wrap=True)
    style_axes(axes)
    return figure, axes


def empty_figure(width: float, height: float, layout: Any = None) -> Figure:
    """A figure of at most 8 inches, without axes; matplotlib's settings hold until its Picture is made."""
    _own_settings.begin()
    figure = Figure(figsize=(min(width, MAX_WIDTH_INCHES), height), layout=layout, facecolor="white")
    _own_settings.unfinished.add(figure)
    FigureCanvasAgg(figure)
    return figure


def style_axes(axes: Axes) -> None:
    """Fonts of at least 12 points, a light grid, no box."""
    axes.tick_params(which="both", labelsize=FONT_SIZE, colors=INK)
    axes.xaxis.label.set_fontsize(FONT_SIZE)
    axes.yaxis.label.set_fontsize(FONT_SIZE)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(True, color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)


# ------------------------------------------------------------------ several panels, several series

# Series other than ranks (algorithms, runs): colour, marker and line differ, so that no meaning hangs on one.
SERIES: tuple[Look, ...] = (
    {"color": "#222222", "marker": "o", "linestyle": "-"},
    {"color": "#D55E00", "marker": "s", "linestyle": "--"},
    {"color": "#0072B2", "marker": "^", "linestyle": "-."},
    {"color": "#009E73", "marker": "D", "linestyle": ":"},
    {"color": "#CC79A7", "marker": "v", "linestyle": (0, (5, 1, 1, 1, 1, 1))},
    {"color": "#777777", "marker": "P", "linestyle": (0, (1, 3))},
)


def new_panels(
    title: str, *, rows: int = 1, columns: int = 1, width: float = 8.0, height: float = 4.0, **layout: Any
) -> tuple[Figure, list[Axes]]:
    """A figure with `rows` x `columns` panels, row by row, under one title; `layout` goes to `subplots`."""
    _own_settings.begin()  # of which the engine is made, too
    engine = ConstrainedLayoutEngine(w_pad=0.08)  # inches: room for the coloured labels of ranks
    figure = empty_figure(width, height, engine)
    lines = wrapped(title, figure.get_figwidth())
    figure.suptitle(lines, fontsize=FONT_SIZE + 2, color=INK, x=0.01, ha="left")
    panels = list(figure.subplots(rows, columns, squeeze=False, **layout).ravel())
    for panel in panels:
        style_axes(panel)
    return figure, panels


def wrapped(title: str, width: float) -> str:
    """The title in lines that fit into `width` inches; its own line breaks stay."""
    letters = int(width * 72 / (0.53 * (FONT_SIZE + 2)))
    return "\n".join(line for part in title.split("\n") for line in textwrap.wrap(part, letters) or [""])


def series_style(index: int) -> Look:
    """Colour, marker and line of the series number `index`."""
    return dict(SERIES[index % len(SERIES)])


# ------------------------------------------------------------------ numbers in words


def time_unit(seconds: float) -> tuple[float, str]:
    """The factor and the name of the unit in which times of up to `seconds` read well."""
    if seconds >= 1 or seconds <= 0:
        return 1.0, "s"
    return (1e3, "ms") if seconds >= 1e-3 else (1e6, "µs")


def say_seconds(seconds: float) -> str:
    """A duration with its unit, in three digits."""
    factor, unit = time_unit(seconds)
    return f"{three_digits(factor * seconds)} {unit}"


def say_bytes(nbytes: float) -> str:
    """A size with its unit: 4 KiB is 4096 B."""
    for unit in ("B", "KiB", "MiB"):
        if nbytes < 1024:
            return f"{three_digits(nbytes)} {unit}"
        nbytes /= 1024
    return f"{three_digits(nbytes)} GiB"


def three_digits(value: float) -> str:
    """A number in three digits, never in powers of ten between 0.001 and a million."""
    return f"{value:.0f}" if 100 <= abs(value) < 1e6 else f"{value:.3g}"
