"""The live view of the ranks: what `cluster.dashboard()` shows.

    the watch's snapshots ──▶ Lanes ──▶ ten ticks per second, two in a frame ──▶ comm ──▶ dashboard.js
                                └─────▶ words and a picture, for pages without widgets

`%%px` blocks the kernel's main thread until the cell has ended, and looks at the ranks all the while. The
dashboard is handed what it sees: no rank is asked anything more, on whatever host it runs. A frame is a
message of a few hundred bytes per rank, sent as any output is: in order, by ipykernel's own thread. It costs
the kernel and the Jupyter server a millisecond of CPU time each, so a frame brings two ticks, and the page
draws the second a tenth of a second after the first. Each frame says everything, so one that a slow page
misses is no loss. While all ranks go on with what they do, one frame per second is sent, and the page moves
the lanes on by itself. What a page sends back reaches the kernel
only between two cells.

A page without widgets shows the lanes in words, anew after each cell, as long as no page has answered that it
shows the widget. When the cluster is stopped, the last frame takes the place of both, as a picture with alt
text: this is what an executed notebook keeps, and what a website shows.
"""

import json
from collections.abc import Callable, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

import anywidget
import ipywidgets
import traitlets
from IPython.display import display
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from mpi_classroom.figures import (
    ACTIVITIES,
    FONT_SIZE,
    INK,
    Look,
    Picture,
    ink_on,
    name_ranks,
    new_panels,
    rank_colour,
    say_bytes,
)
from mpi_classroom.lanes import KEPT, LETTERS, TICK_SECONDS, Doing, Frame, Lane, Lanes
from mpi_classroom.recording.calls import Counts
from mpi_classroom.snapshot import Snapshot

LOOKS: dict[Doing, Look] = {
    "computing": ACTIVITIES["compute"],
    "waiting": ACTIVITIES["wait"],
    "transferring": ACTIVITIES["transfer"],
    "finished": {"facecolor": "#dddddd", "hatch": ""},
    "raised": {"facecolor": "#ffffff", "hatch": "\\\\\\"},
    "stopped": {"facecolor": "#ffffff", "hatch": "---"},
    "dead": {"facecolor": "#999999", "hatch": "xxx"},
}
TICKS_PER_FRAME = 2
SHARES = tuple(LOOKS)[:3]  # whose numbers a page shows
WIDGET = "application/vnd.jupyter.widget-view+json"
IN_WORDS = "See them live: cluster.dashboard()"


class View(anywidget.AnyWidget):
    """The widget: `frame` is the last frame, in JSON."""

    _esm = Path(__file__).with_name("dashboard.js")
    frame = traitlets.Unicode().tag(sync=True)
    looks = traitlets.Dict().tag(sync=True)


class Dashboard:
    """A live view of `size` ranks: `begin` with every cell, `show` each snapshot, `end`; at last `close`."""

    def __init__(self, size: int) -> None:
        self.lanes = Lanes(size)
        self.view: View | None = View(looks=legend(size))
        self.view.on_msg(self._page_answers)
        self._is_seen = False
        self._displays: list[Any] = []
        self._cell, self._running = "", False
        self._sent: tuple[Any, ...] = ()
        self._unsent_ticks, self._has_news = 0, False
        self._send()

    # ---------------------------------------------------------------- what the cells say

    def begin(self, cell: int, counts: Mapping[int, Counts]) -> None:
        """The cell with this number begins on ranks that have done `counts`."""
        self._cell, self._running = f"cell [{cell}]", True
        self.lanes.begin(counts)
        self._send()

    def show(self, now: Snapshot) -> None:
        """Show what the ranks are doing; of more than ten snapshots per second, ten, in five frames."""
        if self.lanes.see(now):
            self._unsent_ticks += 1
            self._has_news |= gist(self.lanes.frame) != self._sent
            if self._has_news and self._unsent_ticks >= TICKS_PER_FRAME:
                self._send()

    def end(self) -> None:
        """The cell has ended."""
        self._running = False
        self._send()
        if not self._is_seen:
            self._update(self._bundle())

    def close(self) -> None:
        """Leave the last frame as a picture: there will be no other. Safe to call twice."""
        if self.view is not None:
            view, self.view = self.view, None
            bundle = self._bundle()
            if any(lane.ticks for lane in self.lanes.frame.lanes):
                bundle |= picture(self.lanes.frame, self._cell)._repr_mimebundle_()
            self._update(bundle)
            view.close()

    # ---------------------------------------------------------------- pages

    def _send(self) -> None:
        if self.view is not None:
            self._sent, self._unsent_ticks, self._has_news = gist(self.lanes.frame), 0, False
            content = as_sent(self.lanes.frame, self._cell, self._running)
            self.view.frame = json.dumps(content, ensure_ascii=False, separators=(",", ":"))

    def _page_answers(self, view: View, content: Any, buffers: Any) -> None:
        self._is_seen = True

    def _ipython_display_(self) -> None:
        self._displays.append(display(self._bundle(), raw=True, display_id=True))

    def appear_in(self, handle: Any) -> None:
        """Take the place of what `handle`, of IPython's `display`, shows."""
        self._displays.append(handle)
        handle.update(self._bundle(), raw=True)

    def _update(self, bundle: Mapping[str, Any]) -> None:
        for handle in filter(None, self._displays):
            handle.update(bundle, raw=True)

    def _bundle(self) -> dict[str, Any]:
        """The lanes in words, and the widget while there is one."""
        return with_widget(in_words(self.lanes.frame, self._cell), self.view)


class Offer:
    """A button in a page; pressed, it becomes what `open_view` returns."""

    def __init__(self, open_view: Callable[[], Dashboard]) -> None:
        self._button = ipywidgets.Button(description="Live view", tooltip="Show what the ranks are doing")
        self._button.on_click(self._pressed)
        self._open_view = open_view
        self._handle = display(with_widget(IN_WORDS, self._button), raw=True, display_id=True)

    def _pressed(self, button: Any) -> None:
        if self._handle is not None:  # nothing outside a notebook
            self._open_view().appear_in(self._handle)
            self._end()

    def close(self) -> None:
        """Leave the words alone, unless it was pressed. Safe to call twice."""
        if self._handle is not None:
            self._handle.update(with_widget(IN_WORDS, None), raw=True)
            self._end()

    def _end(self) -> None:
        self._handle = None
        self._button.close()


def with_widget(words: str, widget: Any) -> dict[str, Any]:
    """What a page shows: the widget if there is one and the page can show it, else the words."""
    bundle: dict[str, Any] = {"text/plain": words}
    if widget is not None:
        bundle[WIDGET] = {"version_major": 2, "version_minor": 0, "model_id": widget.model_id}
    return bundle


def legend(size: int) -> dict[str, Any]:
    """What dashboard.js must know before the first frame: how ranks, activities and lanes look."""
    looks = [{"letter": LETTERS[doing], "label": doing, **look} for doing, look in LOOKS.items()]
    colours = [rank_colour(rank) for rank in range(size)]
    ranks = [{"background": colour, "color": ink_on(colour)} for colour in colours]
    return {"looks": looks, "ranks": ranks, "kept": KEPT, "milliseconds": 1000 * TICK_SECONDS}


def gist(frame: Frame) -> tuple[Any, ...]:
    """What a page cannot know by itself while it moves the lanes on: equal until there is news."""
    lanes = [
        (lane.words, int(lane.seconds), lane.in_circle, lane.sent_bytes, lane.messages, lane.collectives)
        for lane in frame.lanes
    ]
    return int(frame.seconds), frame.note, lanes


# -------------------------------------------------------------------- a frame in words


def title_of(frame: Frame, cell: str) -> str:
    """What the frame shows, and when."""
    ranks = f"{len(frame.lanes)} rank{'s' * (len(frame.lanes) != 1)}"
    return f"{ranks}, {cell} after {int(frame.seconds)} s" if cell else f"{ranks}, no cell yet"


def now_of(lane: Lane) -> str:
    """What the rank is doing, and for how long if it is in a call."""
    return f"{lane.words}, for {int(lane.seconds)} s" if lane.seconds >= 1 else lane.words


def traffic_of(lane: Lane) -> str:
    """Its messages and collectives in this cell; how many bytes a collective sends is MPI's affair."""
    messages = f"{say_bytes(lane.sent_bytes)} sent in {lane.messages} message{'s' * (lane.messages != 1)}"
    collectives = f"{lane.collectives} collective{'s' * (lane.collectives != 1)}"
    return (
        ", ".join([messages] * bool(lane.messages) + [collectives] * bool(lane.collectives)) or "no message"
    )


def shares_of(lane: Lane) -> str:
    """How it spent the last ten seconds."""
    return ", ".join(f"{doing} {100 * share:.0f} %" for doing, share in lane.shares.items())


def sentence_of(lane: Lane) -> str:
    """All of a lane, as it is read aloud."""
    circle = ", in a circle of waiting" * lane.in_circle
    shares = f". Last {KEPT * TICK_SECONDS:.0f} s: {shares_of(lane)}" if lane.shares else ""
    return f"{name_of(lane)}: {now_of(lane)}{circle}. In this cell: {traffic_of(lane)}{shares}."


def name_of(lane: Lane) -> str:
    """The rank, and its host if there are several."""
    return f"rank {lane.rank} on {lane.host}" if lane.host else f"rank {lane.rank}"


def in_words(frame: Frame, cell: str) -> str:
    """The frame as text, one line per rank."""
    lines = [title_of(frame, cell), frame.note, *(sentence_of(lane) for lane in frame.lanes)]
    return "\n".join(filter(None, lines))


def as_sent(frame: Frame, cell: str, running: bool) -> dict[str, Any]:
    """The frame as dashboard.js draws it."""
    lanes = [
        {
            "name": name_of(lane),
            "doing": lane.doing,
            "circle": lane.in_circle,
            "now": now_of(lane),
            "traffic": traffic_of(lane),
            "shares": [round(100 * lane.shares.get(doing, 0)) for doing in SHARES] if lane.shares else [],
            "ticks": lane.ticks,
        }
        for lane in frame.lanes
    ]
    return {"when": title_of(frame, cell), "note": frame.note, "running": running, "lanes": lanes}


# -------------------------------------------------------------------- a frame as a picture


def picture(frame: Frame, cell: str) -> Picture:
    """The lanes of the last ten seconds, each below its words, as a picture with alt text."""
    title = "\n".join(filter(None, (title_of(frame, cell), frame.note)))
    figure, (axes,) = new_panels(title, height=1.5 + 0.9 * len(frame.lanes))
    for place, lane in enumerate(frame.lanes):
        _bars(axes, place, lane.ticks)
        text = f"{'↻ ' * lane.in_circle}{now_of(lane)} · {traffic_of(lane)}\n{shares_of(lane)}"
        words = axes.text(
            -KEPT * TICK_SECONDS, place - 0.07, text, va="bottom", fontsize=FONT_SIZE, color=INK
        )
        words.set_in_layout(False)  # long words must not make the lanes narrow
    name_ranks(axes, [lane.rank for lane in frame.lanes], height=0.2)
    axes.set_xlim(-KEPT * TICK_SECONDS, 0)
    axes.set_ylim(len(frame.lanes) - 0.5, -0.6)
    axes.set_xlabel("seconds; the time between two cells is left out")
    axes.grid(visible=False)
    present = set("".join(lane.ticks for lane in frame.lanes))
    keys = [
        Patch(label=doing, edgecolor=INK, **look)
        for doing, look in LOOKS.items()
        if LETTERS[doing] in present
    ]
    figure.legend(handles=keys, loc="outside lower left", ncols=4, fontsize=FONT_SIZE, frameon=False)
    kind = f"Timeline: one lane per rank, the last {KEPT * TICK_SECONDS:.0f} s from left to right"
    title, *lines = in_words(frame, cell).split("\n")
    return Picture(figure, " ".join((f"{kind}. {title}.", *lines)))


def _bars(axes: Axes, place: int, ticks: str) -> None:
    at = -len(ticks) * TICK_SECONDS
    looks = {LETTERS[doing]: look for doing, look in LOOKS.items()}
    for letter, run in groupby(ticks):
        seconds = len(list(run)) * TICK_SECONDS
        if letter in looks:
            axes.broken_barh([(at, seconds)], (place, 0.4), edgecolor=INK, linewidth=0.6, **looks[letter])
        at += seconds
