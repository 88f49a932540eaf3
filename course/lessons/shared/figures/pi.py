"""π in pictures: the error of a sum against its number of terms."""

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes

from mpi_classroom.figures import FONT_SIZE, Picture, new_figure, series_style

EXACT = 1e-16  # where an error of 0 is drawn: a logarithmic axis has no 0
ROUNDING = 1e-13  # errors below it are those of float64, not of the series


def _error_axes(axes: Axes, count: str) -> None:
    axes.set(xscale="log", yscale="log", xlabel=count, ylabel="distance from π")


def error_against_terms(
    errors: Mapping[str, Mapping[int, float]],
    predicted: Mapping[str, Mapping[int, float]] | None = None,
    *,
    count: str = "terms N",
) -> Picture:
    """Distance from π of each sum against its number of terms, log-log; what theory predicts as a line.

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
    axes.legend(fontsize=FONT_SIZE, loc="lower left")
    return Picture(figure, terms_alt(errors, said, count, title))


def order_of(points: Mapping[int, float]) -> float | None:
    """The p of error ~ 1/N**p by least squares, from points well above rounding; None from fewer than 2."""
    kept = [(n, abs(error)) for n, error in points.items() if abs(error) > ROUNDING]
    if len({n for n, _ in kept}) < 2:
        return None
    counts, distances = np.log(np.array(kept, dtype=float)).T
    return -float(np.polyfit(counts, distances, 1)[0])


def slopes_title(errors: Mapping[str, Mapping[int, float]]) -> str:
    """How much closer to π ten times the terms come, sum by sum."""
    orders = {name: order for name, points in errors.items() if (order := order_of(points)) is not None}
    if not orders:
        ends = [f"{name} {abs(points[max(points)]):.1g} from π" for name, points in errors.items()]
        return f"With the most terms: {', '.join(ends)}"
    return f"10 times N: {', '.join(f'{name} {10**p:.0f} times closer to π' for name, p in orders.items())}"


def terms_alt(
    errors: Mapping[str, Mapping[int, float]], said: Mapping[str, object], count: str, title: str
) -> str:
    """The same in words: where each sum begins and ends."""
    lines = []
    for name, points in errors.items():
        ends = [f"{abs(points[n]):.2g} from π at {n:,}" for n in sorted({min(points), max(points)})]
        lines.append(f"{name}: {', '.join(ends)}{', with the predicted line' if name in said else ''}")
    kind = f"Line chart, both axes logarithmic: distance from π against {count}"
    return f"{kind}. {title}. {'; '.join(lines)}."
