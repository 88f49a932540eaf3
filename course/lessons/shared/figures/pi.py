"""π in pictures: darts by rank, errors against the size of the sum, seconds by program, and Amdahl's law."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Circle, Rectangle

from course.lessons.shared.explained import NEAR
from course_lib.theory.cost_model import amdahl_speedup, karp_flatt_fraction
from mpi_classroom.figures import (
    FONT_SIZE,
    GRID,
    INK,
    Look,
    Picture,
    new_figure,
    rank_colour,
    say_seconds,
)

MISSED = "#888888"
DARK, MIDDLE = "#444444", "#aaaaaa"
PANELS_PER_ROW = 4


# ------------------------------------------------------------------ darts


def darts_by_rank(darts: Sequence[np.ndarray]) -> Picture:
    """One panel per rank with its darts; `darts[rank]` has shape (2, n), coordinates from -1 to 1."""
    inside = [int(((x**2 + y**2) <= 1).sum()) for x, y in darts]
    title = darts_title(darts, inside)
    columns = min(PANELS_PER_ROW, len(darts))
    rows = -(-len(darts) // columns)
    figure, axes = new_figure("", width=8.0, height=0.5 + 2.2 * rows)
    axes.remove()
    figure.suptitle(title, fontsize=FONT_SIZE + 2, color=INK, x=0.01, ha="left")
    panels = np.atleast_1d(figure.subplots(rows, columns)).ravel()
    for rank, points in enumerate(darts):
        _panel(panels[rank], rank, points, inside[rank])
    for spare in panels[len(darts) :]:
        spare.axis("off")
    shares = ", ".join(f"rank {rank} {hits} of {darts[rank].shape[1]}" for rank, hits in enumerate(inside))
    kind = "A scatter plot for each rank: points in the square from -1 to 1, and its circle"
    return Picture(figure, f"{kind}. Inside the circle: {shares}. {title}.")


def _panel(axes: Axes, rank: int, points: np.ndarray, hits: int) -> None:
    """The darts of one rank: dots in its colour inside the circle, grey crosses outside."""
    x, y = points
    hit = x**2 + y**2 <= 1
    axes.add_patch(Rectangle((-1, -1), 2, 2, fill=False, edgecolor=INK))
    axes.add_patch(Circle((0, 0), 1, fill=False, edgecolor=INK))
    axes.plot(x[hit], y[hit], "o", color=rank_colour(rank), markersize=3)
    axes.plot(x[~hit], y[~hit], "x", color=MISSED, markersize=4)
    axes.set_aspect("equal")
    axes.axis("off")
    axes.set_title(f"rank {rank}: {hits} of {len(x)}", fontsize=FONT_SIZE, color=INK)


def darts_title(darts: Sequence[np.ndarray], inside: Sequence[int]) -> str:
    """The estimate of π from all darts together, or that all ranks threw the same darts."""
    thrown = sum(points.shape[1] for points in darts)
    if len(darts) > 1 and all(np.array_equal(points, darts[0]) for points in darts):
        return f"{len(darts)} ranks threw the same {darts[0].shape[1]} darts"
    ranks = f"{len(darts)} rank{'s' * (len(darts) > 1)} threw {thrown}"
    different = " different" * (len(darts) > 1)
    return f"{ranks}{different} darts, {sum(inside)} inside: π ≈ {4 * sum(inside) / thrown:.3f}"


# ------------------------------------------------------------------ error against samples


def error_against_samples(errors: Mapping[int, Sequence[float]], constant: float) -> Picture:
    """|error| of several runs for each number of darts, log-log, over the band of one standard error.

    `errors[samples]` are the errors of the runs with so many darts; the band reaches up to constant/√samples.
    Runs with the same number of darts are drawn up to 10% apart in x, so that each can be seen.
    """
    sizes = sorted(errors)
    runs = [(n, abs(error)) for n in sizes for error in errors[n]]
    within = sum(error <= constant / n**0.5 for n, error in runs)
    title = f"{within} of {len(runs)} runs are within one standard error of π, {constant:.2f}/√N"
    figure, axes = new_figure(title, width=7.5, height=4.2)
    floor = min(max(error, 1e-12) for _, error in runs) / 2
    span = np.array([sizes[0] / 2, sizes[-1] * 2])
    band = constant / np.sqrt(span)
    axes.fill_between(span, floor, band, color=GRID, linewidth=0, label="within one standard error")
    axes.plot(span, band, color=INK, linestyle="--", label=f"theory: {constant:.2f}/√N")
    x = np.concatenate([n * np.linspace(0.9, 1.1, len(errors[n])) for n in sizes])
    axes.plot(x, [error for _, error in runs], "o", color=DARK, markersize=5, label="measured: one run")
    _error_axes(axes, "darts N")
    axes.legend(fontsize=FONT_SIZE, loc="upper right")
    axes.set(xlim=span, ylim=(floor, None))
    line = ", ".join(f"{constant / n**0.5:.2g} at {n:,}" for n in sizes)
    alt = (
        f"Scatter plot, both axes logarithmic: distance from π against the number of darts, "
        f"{len(runs)} runs, with the band of one standard error below {constant:.2f}/√N. "
        f"{within} of {len(runs)} runs lie in the band. The line: {line} darts."
    )
    return Picture(figure, alt)


def _error_axes(axes: Axes, count: str) -> None:
    axes.set(xscale="log", yscale="log", xlabel=count, ylabel="distance from π")


# ------------------------------------------------------------------ seconds by program


def seconds_by_program(
    loop: float, plain: float, tuned: Mapping[int, float], *, cores: int, darts: str = "10⁸"
) -> Picture:
    """Seconds for `darts` darts as bars on a log axis: loop, plain NumPy, tuned NumPy on 1 rank and more.

    `tuned[n]` is the time of tuned NumPy on n ranks, 1 included. Bars of more ranks than `cores` are hatched.
    Bars begin at a power of ten: 1 s, if the fastest program takes 1.5 to 15 s.
    """
    one = tuned[1]
    bars = [
        ("loop", loop, "", False),
        ("plain NumPy", plain, f"{times(loop / plain)} as fast as the loop", False),
        ("tuned NumPy,\n1 rank", one, f"{times(plain / one)} as fast as plain NumPy", False),
    ]
    more = sorted((n, seconds) for n, seconds in tuned.items() if n > 1)
    bars += [
        (on_cores(n, cores), seconds, f"{times(one / seconds)} as fast as 1 rank", n > cores)
        for n, seconds in more
    ]
    title = programs_title(loop, tuned, cores)
    figure, axes = new_figure(title, width=8.0, height=1.4 + 0.62 * len(bars))
    least, most = min(seconds for _, seconds, _, _ in bars), max(seconds for _, seconds, _, _ in bars)
    start = 10.0 ** np.floor(np.log10(least / 1.5))
    labels = []
    for position, (_, seconds, factor, crowded) in enumerate(bars):
        colour = "white" if crowded else DARK if position < 3 else MIDDLE
        look: Look = {"facecolor": colour, "hatch": "///" if crowded else "", "edgecolor": INK}
        axes.barh(position, seconds - start, left=start, height=0.6, **look)
        said = f"{say_seconds(seconds)}{factor and ': '}{factor}"
        plain_ground = {
            "facecolor": "white",
            "edgecolor": "none",
            "pad": 1,
        }  # no grid lines through the words
        look = {"va": "center", "fontsize": FONT_SIZE, "color": INK, "bbox": plain_ground, "in_layout": False}
        labels.append(axes.text(seconds * 1.12, position, said, **look))
    axes.set_yticks(range(len(bars)), [name for name, *_ in bars])
    axes.set_ylim(len(bars) - 0.5, -0.5)
    axes.set_xscale("log")
    axes.set_xlim(start, most)
    figure.draw_without_rendering()  # from here on labels and axes have their widths
    widths = [label.get_window_extent().width / axes.bbox.width for label in labels]
    ends = [
        np.log10(label.get_position()[0] / start) / (1 - w) for label, w in zip(labels, widths, strict=True)
    ]
    axes.set_xlim(start, 1.05 * start * 10.0 ** max(ends))
    axes.set_xlabel(f"seconds for {darts} darts, scaled; logarithmic axis")
    lines = [
        f"{name}: {say_seconds(seconds)}{factor and ', '}{factor}".replace("\n", " ")
        for name, seconds, factor, _ in bars
    ]
    alt = f"Bar chart on a logarithmic axis, seconds for {darts} darts. {'; '.join(lines)}. {title}."
    return Picture(figure, alt.replace("\n", " "))


def times(factor: float) -> str:
    """A factor in words: 1.96×, 13×."""
    return f"{factor:.0f}×" if factor >= 10 else f"{factor:.2g}×" if factor >= 3 else f"{factor:.2f}×"


def on_cores(ranks: int, cores: int) -> str:
    """What the bar of `ranks` ranks is called on `cores` cores."""
    room = f"{cores} core{'s' * (cores != 1)}"
    return f"{ranks} ranks, {room}\n(oversubscribed)" if ranks > cores else f"{ranks} ranks,\n{room}"


def programs_title(loop: float, tuned: Mapping[int, float], cores: int) -> str:
    """The speed-up of NumPy and that of ranks: as many as have a core each, where that is more than one."""
    with_core = [n for n in tuned if 1 < n <= cores]
    n = max(with_core, default=max(tuned))
    where = "" if with_core else f", on {cores} core{'s' * (cores != 1)},"
    disturbed = any(
        not NEAR <= tuned[1] / seconds / min(ranks, cores) <= 1.1 for ranks, seconds in tuned.items()
    )
    return (
        f"Tuned NumPy on one rank is {times(loop / tuned[1])} as fast as the loop;\n"
        f"{n} ranks{where} are {times(tuned[1] / tuned[n])} as fast as one"
        f"{' (not as on separate free cores)' * disturbed}"
    )


# ------------------------------------------------------------------ Amdahl's law


def amdahl(
    speedups: tuple[float, float, float], ranks: int, *, machine: str = "", most: int = 1024
) -> Picture:
    """What a speed-up measured on `ranks` ranks says about more ranks, by Amdahl's law.

    `speedups` are a low, the median and a high value of the measurement; `machine` names where it was made,
    if not here. The band lies between the curves of the serial fractions that explain the low one and the
    high one; a value above `ranks` counts as no serial part. Raises ValueError where `ranks` ranks were
    slower than one.
    """
    low, median, high = speedups
    fractions = [max(0.0, karp_flatt_fraction(each, ranks)) for each in speedups]
    title = amdahl_title(speedups, fractions, ranks, most, machine)
    figure, axes = new_figure(title, width=7.5, height=4.4)
    counts = [2**k for k in range(most.bit_length())]
    below, middle, above = ([amdahl_speedup(f, n) for n in counts] for f in fractions)
    look: Look = {"color": MIDDLE, "alpha": 0.5, "linewidth": 0}
    axes.fill_between(counts, below, above, **look, label="predicted from the quartiles")
    axes.plot(counts, counts, color=MISSED, linestyle=":", linewidth=2, label="ideal")
    axes.plot(counts, middle, color=INK, label=f"{fractions[1]:.1%} serial: the median")
    five = [amdahl_speedup(0.05, n) for n in counts]
    axes.plot(counts, five, color="#D55E00", linestyle="--", label="5% serial")
    axes.plot([ranks], [median], "o", color=INK, markersize=9, label=f"measured: {ranks} ranks")
    axes.set(xscale="log", yscale="log", xlabel="ranks", ylabel="speed-up")
    axes.set_xticks([1, 4, 16, 64, 256, 1024], ["1", "4", "16", "64", "256", "1024"])
    axes.set_yticks([1, 4, 16, 64, 256, 1024], ["1", "4", "16", "64", "256", "1024"])
    axes.minorticks_off()
    axes.legend(fontsize=FONT_SIZE, loc="upper left", handlelength=1.2, labelspacing=0.2, frameon=False)
    alt = (
        f"Line chart, both axes logarithmic: predicted speed-up against ranks. Measured: {median:.3g} on "
        f"{ranks} ranks, between {low:.3g} and {high:.3g}. Predicted for {most} ranks: {below[-1]:.0f} to "
        f"{above[-1]:.0f}; with 5% serial {five[-1]:.0f}. {title}."
    )
    return Picture(figure, alt.replace("\n", " "))


def amdahl_title(
    speedups: tuple[float, float, float], fractions: Sequence[float], ranks: int, most: int, machine: str
) -> str:
    """What the measured speed-ups leave open about `most` ranks."""
    low, _, high = speedups
    where = f"{ranks} ranks{machine and f' of the {machine}'}"
    few, _, many = (amdahl_speedup(fraction, most) for fraction in fractions)
    return (
        f"Measured on {where}: {low:.2f}× to {high:.2f}×.\n"
        f"By Amdahl's law, {most} ranks: anything from {few:.0f}× to {many:.0f}×"
    )
