"""π in pictures: darts by rank, the error against the number of darts, and who gained what."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Circle, Rectangle

from course_lib.theory.cost_model import amdahl_speedup, karp_flatt_fraction
from mpi_classroom.figures import (
    FONT_SIZE,
    GRID,
    INK,
    Picture,
    new_figure,
    rank_colour,
    series_style,
)

MISSED = "#888888"
DARK, MIDDLE = "#444444", "#aaaaaa"
PANELS_A_ROW = 4
EXACT = 1e-16  # where an error of 0 is drawn: a logarithmic axis has no 0
ROUNDING = 1e-13  # errors below it are those of float64, not of the series


# ------------------------------------------------------------------ darts


def darts_by_rank(darts: Sequence[np.ndarray]) -> Picture:
    """One panel a rank with the darts it threw; `darts[rank]` has shape (2, n), coordinates from -1 to 1."""
    inside = [int(((x**2 + y**2) <= 1).sum()) for x, y in darts]
    title = darts_title(darts, inside)
    columns = min(PANELS_A_ROW, len(darts))
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
    """What all darts together say of π, unless they are the same darts on every rank."""
    thrown = sum(points.shape[1] for points in darts)
    if len(darts) > 1 and all(np.array_equal(points, darts[0]) for points in darts):
        return f"{len(darts)} ranks threw the same {darts[0].shape[1]} darts: only one rank's add information"
    ranks = f"{len(darts)} rank{'s' * (len(darts) > 1)}"
    return f"{ranks}, {thrown} darts, {sum(inside)} inside: π ≈ {4 * sum(inside) / thrown:.3f}"


# ------------------------------------------------------------------ error against samples


def error_against_samples(errors: Mapping[int, Sequence[float]], constant: float) -> Picture:
    """|error| of several runs for each number of darts, log-log, over the band of one standard error.

    `errors[samples]` are the errors of the runs with so many darts; the band reaches up to constant/√samples.
    """
    sizes = sorted(errors)
    runs = [(n, abs(error)) for n in sizes for error in errors[n]]
    within = sum(error <= constant / n**0.5 for n, error in runs)
    title = (
        f"{within} of {len(runs)} runs are within one standard error, {constant:.2f}/√N:\n"
        "100 times the darts for one more digit"
    )
    figure, axes = new_figure(title, width=7.5, height=4.2)
    floor = min(max(error, 1e-12) for _, error in runs) / 2
    span = np.array([sizes[0] / 2, sizes[-1] * 2])
    band = constant / np.sqrt(span)
    axes.fill_between(span, floor, band, color=GRID, linewidth=0)
    axes.plot(span, band, color=INK, linestyle="--", label=f"theory: {constant:.2f}/√N")
    axes.plot(*zip(*runs, strict=True), "o", color=DARK, markersize=5, label="measured: one run")
    _error_axes(axes, "darts N")
    axes.set(xlim=span, ylim=(floor, None))
    typical = ", ".join(f"{np.sqrt(np.mean(np.square(errors[n]))):.1g} at {n:,}" for n in sizes)
    alt = (
        f"Scatter plot, both axes logarithmic: distance from π against the number of darts, "
        f"{len(runs)} runs, with the band of one standard error below {constant:.2f}/√N. "
        f"{within} of {len(runs)} runs lie in the band. Typical distance: {typical} darts."
    )
    return Picture(figure, alt)


def _error_axes(axes: Axes, count: str) -> None:
    axes.set(xscale="log", yscale="log", xlabel=count, ylabel="distance from π")
    axes.legend(fontsize=FONT_SIZE, loc="lower left")


def error_against_terms(
    errors: Mapping[str, Mapping[int, float]],
    predicted: Mapping[str, Mapping[int, float]] | None = None,
    *,
    count: str = "terms N",
) -> Picture:
    """|error| of each series for each number of terms, log-log; what theory predicts as a line.

    `errors["arctan"][1000]` is how far 1000 terms of that series are from π; `count` names the axis.
    """
    said = predicted or {}
    title = slopes_title(errors)
    figure, axes = new_figure(title, width=8.0, height=4.6)
    for index, (name, points) in enumerate(errors.items()):
        style, drawn = series_style(index), {n: max(abs(e), EXACT) for n, e in sorted(points.items())}
        if name in said:
            line = dict(sorted(said[name].items()))
            look = {"color": style["color"], "linestyle": style["linestyle"]}
            axes.plot(list(line), list(line.values()), **look, label=f"{name}: predicted")
            style["linestyle"] = "none"
        axes.plot(list(drawn), list(drawn.values()), **style, markersize=7, label=f"{name}: measured")
    _error_axes(axes, count)
    return Picture(figure, terms_alt(errors, said, count, title))


def order_of(points: Mapping[int, float]) -> float | None:
    """The p of error ~ 1/N**p by least squares, from points well above rounding; None from fewer than 2."""
    kept = [(n, abs(error)) for n, error in points.items() if abs(error) > ROUNDING]
    if len({n for n, _ in kept}) < 2:
        return None
    counts, distances = np.log(np.array(kept, dtype=float)).T
    return -float(np.polyfit(counts, distances, 1)[0])


def slopes_title(errors: Mapping[str, Mapping[int, float]]) -> str:
    """How much closer ten times the terms come, series by series."""
    orders = {name: order for name, points in errors.items() if (order := order_of(points)) is not None}
    if not orders:
        ends = [f"{name} {abs(points[max(points)]):.1g} from π" for name, points in errors.items()]
        return f"With the most terms: {', '.join(ends)}"
    return (
        f"10 times the terms: {', '.join(f'{name} {10**p:.3g} times closer' for name, p in orders.items())}"
    )


def terms_alt(
    errors: Mapping[str, Mapping[int, float]], said: Mapping[str, object], count: str, title: str
) -> str:
    """The same in words: where each series begins and ends."""
    lines = []
    for name, points in errors.items():
        ends = [f"{abs(points[n]):.2g} from π at {n:,}" for n in sorted({min(points), max(points)})]
        lines.append(f"{name}: {', '.join(ends)}{', with the predicted line' if name in said else ''}")
    kind = f"Line chart, both axes logarithmic: distance from π against {count}"
    return f"{kind}. {title}. {'; '.join(lines)}."


# ------------------------------------------------------------------ what NumPy gained, what ranks gained


def gains(loop: float, numpy: float, ranks: Mapping[int, float], *, cores: int, note: str) -> Picture:
    """How many times faster NumPy is than the loop, and ranks than one rank, as bars on a log axis.

    `loop`, `numpy` and `ranks[n]`, on n ranks with NumPy, are seconds for the same number of darts; `note`
    says which of them are scaled. More ranks than `cores` are hatched and called oversubscribed.
    """
    bars = [("NumPy for the loop", loop / numpy, False)]
    bars += [(rank_label(n, cores), numpy / seconds, n > cores) for n, seconds in sorted(ranks.items())]
    fitting = [n for n in ranks if n <= cores]
    title = gains_title(bars[0][1], max(fitting, default=1), numpy, ranks)
    figure, axes = new_figure(title, width=8.0, height=1.7 + 0.65 * len(bars))
    for position, (_, factor, crowded) in enumerate(bars):
        colour = "white" if crowded else MIDDLE if position else DARK
        hatch = "///" if crowded else ""
        axes.barh(position, factor - 1, left=1, height=0.6, facecolor=colour, hatch=hatch, edgecolor=INK)
        axes.text(
            max(factor, 1) * 1.06, position, f"{factor:.3g}×", va="center", fontsize=FONT_SIZE, color=INK
        )
    axes.set_yticks(range(len(bars)), [label for label, _, _ in bars])
    axes.set_ylim(len(bars) - 0.5, -0.5)
    axes.set_xscale("log")
    axes.set_xlim(min(0.9, *(factor for _, factor, _ in bars)), max(factor for _, factor, _ in bars) * 2)
    axes.set_xlabel(f"times faster ({note})")
    words = "; ".join(f"{label} {factor:.3g} times" for label, factor, _ in bars).replace("\n", " ")
    return Picture(figure, f"Bar chart on a logarithmic axis, times faster: {words}. {title}. {note}.")


def rank_label(ranks: int, cores: int) -> str:
    """How a bar of `ranks` ranks is called on `cores` cores."""
    if ranks > cores:
        return f"{ranks} ranks for 1,\noversubscribed: {cores} core{'s' * (cores > 1)}"
    return f"{ranks} rank{'s' * (ranks > 1)} for 1"


def gains_title(numpy_gain: float, fitting: int, numpy: float, ranks: Mapping[int, float]) -> str:
    """Both gains and their product; on one core, that ranks had nowhere to run."""
    if fitting < 2:
        return f"NumPy gained {numpy_gain:.0f}×; ranks gain nothing here: there is one core"
    gain = numpy / ranks[fitting]
    if gain < 1:
        lost = f"{fitting} ranks were slower than 1: other programs may use the cores"
        return f"NumPy gained {numpy_gain:.0f}×; {lost}"
    both = numpy_gain * gain
    return f"NumPy gained {numpy_gain:.0f}×, {fitting} ranks gained {gain:.1f}×: together {both:.0f}×"


# ------------------------------------------------------------------ Amdahl


def amdahl(speedup: float, ranks: int, *, most: int = 1024) -> Picture:
    """Amdahl's bound for the serial share that a measured `speedup` on `ranks` ranks implies, and others."""
    share = min(1.0, max(0.0, karp_flatt_fraction(speedup, ranks)))
    title = amdahl_title(share, speedup, ranks, most)
    figure, axes = new_figure(title, width=7.5, height=4.2)
    counts = [2**k for k in range(most.bit_length())]
    axes.plot(counts, counts, color=MISSED, linestyle=":", label="ideal: no serial share")
    looks = {0.01: ("-.", DARK), 0.1: ("--", DARK), share: ("-", INK)}
    for fraction, (style, colour) in sorted(looks.items()):
        label = f"predicted: {fraction:.1%} serial" + (", as measured" if fraction == share else "")
        axes.plot(counts, [amdahl_speedup(fraction, n) for n in counts], style, color=colour, label=label)
    axes.plot([ranks], [speedup], "o", color=INK, markersize=9, label=f"measured: {ranks} ranks")
    axes.set(xscale="log", yscale="log", xlabel="ranks", ylabel="times faster than 1 rank")
    axes.set_xticks([1, 4, 16, 64, 256, 1024], ["1", "4", "16", "64", "256", "1024"])
    axes.set_yticks([1, 4, 16, 64, 256, 1024], ["1", "4", "16", "64", "256", "1024"])
    axes.minorticks_off()
    axes.legend(fontsize=FONT_SIZE, loc="upper left")
    bounds = ", ".join(
        f"{f:.1%} serial: {amdahl_speedup(f, most):.0f} times on {most} ranks" for f in sorted(looks)
    )
    alt = (
        f"Line chart, both axes logarithmic: predicted speed-up against ranks. {bounds}. "
        f"Measured: {speedup:.3g} times on {ranks} ranks. {title}."
    )
    return Picture(figure, alt.replace("\n", " "))


def amdahl_title(share: float, speedup: float, ranks: int, most: int) -> str:
    """What the measured point implies, and how far that may be trusted."""
    if speedup <= 1:
        return f"{ranks} ranks were not faster than 1 ({speedup:.2f}×): other programs may use the cores"
    if share == 0:
        return (
            f"{speedup:.2f}× on {ranks} ranks: no serial share to see.\nThat says little about {most} ranks"
        )
    return (
        f"{speedup:.2f}× on {ranks} ranks is a serial share of {share:.1%}:\n"
        f"if it stays, {most} ranks gain {amdahl_speedup(share, most):.0f}×"
    )
