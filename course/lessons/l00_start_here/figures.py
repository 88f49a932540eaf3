"""Lesson 00 in pictures: from a cell to a core, what fits in memory, and the map of the course."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from IPython.display import Markdown
from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch

from course.paths import LESSONS
from course_lib.theory.memory import GB, StateBytes
from mpi_classroom.figures import FONT_SIZE, INK, Picture, listed, new_figure, rank_colour, series_style

PALE = "#f2f2f2"


# ------------------------------------------------------------------ notebook, kernel, ranks, cores


def cluster_picture(rank_cores: Sequence[int | None], core_count: int) -> Picture:
    """From the notebook to the kernel, to the ranks, and to the core on which each rank was last seen.

    `rank_cores[rank]` is the number of that core, None where the operating system does not say; `core_count`
    is how many cores we may use.
    """
    size = len(rank_cores)
    cores = shown_cores(rank_cores, core_count)
    title = cluster_title(size, core_count)
    figure, axes = new_figure(title, width=8.0, height=1.7 + 0.55 * size)
    _blank(axes, width=10.0, height=1.0)
    ranks_y, cores_y = _spread(size), _spread(len(cores))
    _box(axes, 1.0, 0.5, "notebook\n(browser)", width=1.7, height=0.2)
    _box(axes, 3.7, 0.5, "kernel\n(1 process)", width=1.7, height=0.2)
    _arrow(axes, (1.9, 0.5), (2.8, 0.5))
    for rank, y in enumerate(ranks_y):
        _box(axes, 6.5, y, f"rank {rank} (1 process)", 2.5, _height(size), rank_colour(rank))
        _arrow(axes, (4.6, 0.5), (5.2, y))
        if (core := rank_cores[rank]) is not None:
            _arrow(axes, (7.8, y), (8.7, cores_y[cores.index(core)]), colour=rank_colour(rank))
    for core, y in zip(cores, cores_y, strict=True):
        _box(axes, 9.3, y, f"core {core}", width=1.1, height=_height(size))
    captions = {3.7: "cells without\n%%px run here", 6.5: "%%px cells\nrun here"}
    if more := core_count - len(cores):
        captions[9.3] = f"and {more} more"
    for x, words in captions.items():
        axes.text(x, 0.13, words, ha="center", va="top", fontsize=FONT_SIZE, color=INK)
    return Picture(figure, cluster_alt(rank_cores, core_count, title))


def shown_cores(rank_cores: Sequence[int | None], core_count: int) -> list[int]:
    """The cores to draw: all when there are no more of them than ranks, else those a rank was seen on.

    Where no rank was seen anywhere: as many as there are ranks, at most.
    """
    numbers = set(range(core_count))
    seen = {core for core in rank_cores if core is not None} or set(range(min(core_count, len(rank_cores))))
    return sorted(numbers if seen <= numbers and core_count <= len(rank_cores) else seen)


def cluster_title(size: int, core_count: int) -> str:
    """Whether ranks have to share cores."""
    ranks, cores = _plural(size, "rank"), _plural(core_count, "core")
    if size > core_count:
        return f"{ranks} on {cores}: ranks share {'cores' if core_count > 1 else 'the core'}"
    return f"{ranks} on {cores}: each rank can have a core to itself"


def cluster_alt(rank_cores: Sequence[int | None], core_count: int, title: str) -> str:
    """The same in words."""
    places = [f"rank {rank} on core {core}" for rank, core in enumerate(rank_cores) if core is not None]
    seen = ", ".join(places) or "unknown on this system"
    return (
        f"Diagram. {title}. From left to right: the notebook in the browser sends every cell to the kernel, "
        f"one process; the kernel sends %%px cells to {_plural(len(rank_cores), 'rank')}, one process each. "
        f"Last seen: {seen}. This machine has {_plural(core_count, 'core')}."
    )


# ------------------------------------------------------------------ memory


def memory_bars(state: StateBytes, memories: Mapping[str, int], *, parameters: int) -> Picture:
    """The bytes that training `parameters` parameters takes, above the memory of some devices.

    `memories` maps the name of a device to bytes; the title says which of them are large enough.
    """
    title = memory_title(state.total, memories, parameters)
    figure, axes = new_figure(title, width=8.0, height=1.9 + 0.6 * len(memories))
    segments = {"weights": state.weights, "gradients": state.gradients, "optimizer state": state.optimizer}
    looks = (("#0072B2", ""), ("#E69F00", "///"), ("#009E73", "..."))
    left = 0.0
    for (name, nbytes), (colour, hatch) in zip(segments.items(), looks, strict=True):
        width = nbytes / GB
        label = f"{name}, {_gb(nbytes)}"
        axes.barh(0, width, left=left, color=colour, hatch=hatch, edgecolor="white", label=label)
        left += width
    names = [f"{_count(parameters)} parameters", *memories]
    for row, nbytes in enumerate(memories.values(), start=1):
        axes.barh(row, nbytes / GB, color="#999999")
    for row, nbytes in enumerate([state.total, *memories.values()]):
        axes.text(nbytes / GB, row, f" {_gb(nbytes)}", va="center", fontsize=FONT_SIZE, color=INK)
    axes.set_yticks(range(len(names)), names, fontsize=FONT_SIZE)
    axes.invert_yaxis()
    axes.margins(x=0.14)
    axes.grid(False, axis="y")
    axes.set_xlabel("memory in GB (10⁹ bytes)")
    figure.legend(loc="outside lower center", ncols=3, fontsize=FONT_SIZE, frameon=False)
    return Picture(figure, memory_alt(segments, memories, title))


def memory_title(need: int, memories: Mapping[str, int], parameters: int) -> str:
    """What training takes, and which of `memories` are large enough."""
    enough = [name for name, room in memories.items() if room >= need]
    start = f"Training {_count(parameters)} parameters takes {_gb(need)}"
    if not enough:
        which = {1: "this device does not have", 2: "neither of these devices has"}
        return f"{start};\n{which.get(len(memories), 'none of these devices has')} that much"
    return f"{start};\n{listed(enough)} {'has' if len(enough) == 1 else 'have'} enough"


def memory_alt(segments: Mapping[str, int], memories: Mapping[str, int], title: str) -> str:
    """The same in words."""
    parts = ", ".join(f"{name} {_gb(nbytes)}" for name, nbytes in segments.items())
    others = ", ".join(f"{name} {_gb(nbytes)}" for name, nbytes in memories.items())
    words = title.replace("\n", " ")
    return f"Bar chart of memory in GB. {words}. Training takes: {parts}. To compare: {others}."


def memory_by_size(measured: Mapping[int, Mapping[int, int]], memories: Mapping[str, int]) -> Picture:
    """The memory of activations against the side of the image, with the memory of some devices as lines.

    `measured[batch][side]` is in bytes. Beyond the largest side of a batch, bytes grow with the number of
    pixels, and the line is dashed. `memories` maps the name of a device to bytes.
    """
    title = size_title(measured, memories)
    figure, axes = new_figure(title, width=8.0, height=4.6)
    last = 2 * first_too_large(measured[min(measured)], max(memories.values()))
    for index, (batch, by_side) in enumerate(measured.items()):
        look = series_style(index) | {"linestyle": "-", "markersize": 8}
        sides = sorted(by_side)
        axes.plot(sides, [by_side[side] / GB for side in sides], label=_images(batch), **look)
        beyond = [sides[-1] * 2**n for n in range(20) if sides[-1] * 2**n <= last]
        scaled = [by_side[sides[-1]] * (side / sides[-1]) ** 2 / GB for side in beyond]
        axes.plot(beyond, scaled, color=look["color"], linestyle="--")
    axes.plot([], [], color=INK, linestyle="--", label="extrapolated: proportional to the pixels")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_ylim(0.005, 3 * max(memories.values()) / GB)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_xlim(min(min(sides) for sides in measured.values()) / 1.3, last)
    for name, nbytes in memories.items():
        axes.axhline(nbytes / GB, color="#999999", linewidth=1.5, zorder=0)
        text = f"{name}, {_gb(nbytes)}"
        left = axes.get_xlim()[0] * 1.1
        axes.text(left, nbytes / GB, text, va="bottom", fontsize=FONT_SIZE, color=INK)
    ticks = [2**n for n in range(6, 20, 2) if axes.get_xlim()[0] <= 2**n <= last]
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    axes.set_xlabel("side of a square image, in pixels")
    axes.set_ylabel("GB of activations")
    axes.legend(loc="lower right", fontsize=FONT_SIZE)
    return Picture(figure, size_alt(measured, memories, title))


def first_too_large(by_side: Mapping[int, int], nbytes: int) -> int:
    """The first side, doubled from the largest measured one, whose activations need more than `nbytes`."""
    side = max(by_side)
    while by_side[max(by_side)] * (side / max(by_side)) ** 2 <= nbytes:
        side *= 2
    return side


def size_title(measured: Mapping[int, Mapping[int, int]], memories: Mapping[str, int]) -> str:
    """How memory grows with the side of an image, and the first image, measured or not, that fits nowhere."""
    batch = min(measured)
    by_side = measured[batch]
    *_, before, largest = sorted(by_side)
    times = by_side[largest] / by_side[before]
    side = first_too_large(by_side, max(memories.values()))
    how = " extrapolated:" if side > largest else ""
    return (
        f"{largest / before:g} times the side takes {times:.1f} times the memory;{how}\n"
        f"no device here has room for {_images(batch)} of {side:,} × {side:,} pixels"
    )


def size_alt(measured: Mapping[int, Mapping[int, int]], memories: Mapping[str, int], title: str) -> str:
    """The same in words."""
    points = [
        f"{_images(batch)}: "
        + ", ".join(f"{nbytes / GB:.2g} GB at {side}" for side, nbytes in by_side.items())
        for batch, by_side in measured.items()
    ]
    devices = ", ".join(f"{name} {_gb(nbytes)}" for name, nbytes in memories.items())
    words = title.replace("\n", " ")
    return (
        "Line chart, both axes logarithmic: GB of activations against the side of a square image in pixels. "
        f"{words}. Measured: {'; '.join(points)}. Devices: {devices}."
    )


def _images(batch: int) -> str:
    return "one image" if batch == 1 else f"{batch} images"


def _gb(nbytes: float) -> str:
    return f"{nbytes / GB:.3g} GB"


def _count(number: int) -> str:
    for unit, size in (("billion", 10**9), ("million", 10**6), ("thousand", 10**3)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return str(number)


# ------------------------------------------------------------------ the course


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the course: its name and its lessons, number and short title."""

    name: str
    lessons: tuple[tuple[str, str], ...]


COURSE = (
    Part("", (("00", "Start here"),)),
    Part(
        "I  Message\npassing",
        (
            ("01", "MPI basics"),
            ("02", "Monte\nCarlo π"),
            ("03", "arctan π and\nquadrature"),
            ("04", "Collectives"),
        ),
    ),
    Part(
        "II  Data\nparallelism",
        (("05", "Training in\none process"), ("06", "Data parallel\nby hand"), ("07", "DDP on\nMNIST")),
    ),
    Part(
        "III  Model\nparallelism",
        (("08", "Pipeline\nparallelism"), ("09", "Tensor\nparallelism"), ("10", "Spatial and\nhybrid")),
    ),
    Part(
        "IV  Memory",
        (("11", "ZeRO\nfrom scratch"), ("12", "DeepSpeed\non CIFAR"), ("13", "DeepSpeed\nsummarization")),
    ),
    Part(
        "V  In the\nworld",
        (("14", "Scaling out"), ("15", "When things\nfail"), ("16", "Choose your\nstrategy")),
    ),
)
FORK = "After 07, go on\nwith III or IV,\nas you like."
FORK_ROWS = (3, 4)  # III and IV
IN_PREPARATION = "dashed: in preparation"


def course_map(here: str = "00", course: Sequence[Part] = COURSE, folder: Path = LESSONS) -> Picture:
    """All lessons by part, the one with the number `here` marked; dashed are those not yet in `folder`."""
    first = listed(number for part in course if not part.name for number, _ in part.lessons)
    lessons = [len(part.lessons) for part in course if part.name]
    title = f"Lesson {first} and {sum(lessons)} more in {len(lessons)} parts; after 07 you choose the order"
    title += f" (you are at {here})"
    figure, axes = new_figure(title, width=8.0, height=0.8 + 0.72 * len(course))
    _blank(axes, width=10.3, height=float(len(course)))
    for row, part in enumerate(course):
        y = len(course) - row - 0.5
        axes.text(0.1, y, part.name, va="center", fontsize=FONT_SIZE, color=INK, fontweight="bold")
        for column, (number, name) in enumerate(part.lessons):
            colour = rank_colour(1) if number == here else PALE
            line = "-" if _stems(number, folder) else "--"
            name = f"{number}  {name}"
            _box(axes, 2.7 + 2.15 * column, y, name, 2.05, 0.78, colour, fade=number != here, line=line)
    top, bottom = len(course) - FORK_ROWS[0] - 0.15, len(course) - FORK_ROWS[1] - 0.85
    axes.plot([8.1, 8.25, 8.25, 8.1], [top, top, bottom, bottom], color=INK, linewidth=1.5)
    axes.text(8.4, (top + bottom) / 2, FORK, fontsize=FONT_SIZE, color=INK, va="center", ha="left")
    if missing := missing_lessons(course, folder):
        row = next(n for n, part in enumerate(course) if missing[0] in dict(part.lessons))
        words = IN_PREPARATION.replace(" in", "\nin")
        axes.text(8.4, len(course) - row - 0.5, words, fontsize=FONT_SIZE, color=INK, va="center", ha="left")
    return Picture(figure, course_alt(course, title, missing))


def course_alt(course: Sequence[Part], title: str, missing: Sequence[str] = ()) -> str:
    """The same in words; `missing` are the numbers of the lessons in preparation."""
    parts = []
    for part in course:
        names = ", ".join(f"{number} {name}" for number, name in part.lessons)
        parts.append(f"{part.name}: {names}" if part.name else names)
    last = f" In preparation: {listed(missing)}." if missing else ""
    return " ".join(f"Map of the course. {title}. {'; '.join(parts)}. {FORK}{last}".split())


def missing_lessons(course: Sequence[Part], folder: Path) -> list[str]:
    """The numbers of the lessons that `folder` has no source of."""
    return [number for part in course for number, _ in part.lessons if not _stems(number, folder)]


def _stems(number: str, folder: Path) -> list[str]:
    """The notebook names, without suffix, of the lesson `number`: one, or none if it has no source."""
    return [path.parent.name.removeprefix("l") for path in folder.glob(f"l{number}_*/lesson.py")]


def lesson_table(course: Sequence[Part] = COURSE, folder: Path = LESSONS) -> Markdown:
    """The lessons by part as a table, with a link to each that `folder` has the source of."""
    rows = ["| Part | Lessons |", "|---|---|"]
    for part in course:
        cells = list[str]()
        for number, name in part.lessons:
            title = f"{number} · {' '.join(name.split())}"
            stems = _stems(number, folder)
            cells.append(f"[{title}]({stems[0]}.ipynb)" if stems else title)
        rows.append(f"| {' '.join(part.name.split())} | {' · '.join(cells)} |")
    if missing := missing_lessons(course, folder):
        rows += ["", f"In preparation: {listed(missing)}."]
    return Markdown("\n".join(rows))


# ------------------------------------------------------------------ boxes and arrows


def _blank(axes: Axes, *, width: float, height: float) -> None:
    axes.set_xlim(0, width)
    axes.set_ylim(0, height)
    axes.axis("off")


def _box(
    axes: Axes,
    x: float,
    y: float,
    text: str,
    width: float,
    height: float,
    colour: str = PALE,
    fade: bool = True,
    line: str = "-",
) -> None:
    """A rounded box around (x, y); `fade` lightens its colour, so that text on it can be read."""
    style = "round,pad=0,rounding_size=0.02"
    corner = (x - width / 2, y - height / 2)
    face = _pale(colour) if fade else colour
    axes.add_patch(
        FancyBboxPatch(corner, width, height, style, facecolor=face, edgecolor=INK, linestyle=line)
    )
    axes.text(x, y, text, ha="center", va="center", fontsize=FONT_SIZE, color=INK)


def _pale(colour: str) -> tuple[float, float, float]:
    """The colour mixed with white."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (1 - 0.4 * (1 - channel) for channel in channels)
    return red, green, blue


def _arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float], colour: str = INK) -> None:
    axes.annotate("", end, start, arrowprops={"arrowstyle": "->", "color": colour, "linewidth": 1.5})


def _spread(count: int) -> list[float]:
    """Heights for `count` boxes, from top to bottom, between 0.14 and 1; captions stand below."""
    return [1 - 0.86 * (i + 0.5) / count for i in range(count)]


def _height(count: int) -> float:
    return min(0.2, 0.7 / count)


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count != 1)}"
