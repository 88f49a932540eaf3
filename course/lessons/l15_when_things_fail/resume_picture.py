"""A training that was killed and resumed on other ranks, on top of one that nobody disturbed."""

from collections.abc import Mapping

from mpi_classroom.figures import FONT_SIZE, GRID, Look, Picture, new_figure, series_style

Losses = Mapping[int, float]  # by step


def resumed_curves(runs: Mapping[str, Losses]) -> Picture:
    """The losses of three jobs by step: the undisturbed one, the killed one, and the one that resumed it."""
    undisturbed, killed, resumed = runs.values()
    far = max(abs(undisturbed[step] - loss) for step, loss in resumed.items())
    first, last = min(resumed), max(killed)
    title = f"The killed job ends after step {last}, the resumed one begins with step {first}"
    figure, axes = new_figure(title, width=7.5, height=3.8)
    axes.axvspan(first - 0.5, last + 0.5, color=GRID, label=f"computed twice: steps {first} to {last}")
    styles: tuple[Look, ...] = (
        {"color": "#999999", "linewidth": 6.0},
        {**series_style(1), "linestyle": "none", "markersize": 9},
        {**series_style(2), "linestyle": "none", "markersize": 7},
    )
    for (name, losses), style in zip(runs.items(), styles, strict=True):
        axes.plot(list(losses), list(losses.values()), label=name, **style)
    axes.set_xlabel("step")
    axes.set_ylabel("training loss")
    axes.legend(fontsize=FONT_SIZE, frameon=False)
    names = list(runs)
    alt = (
        f"Loss against step for three jobs. {title}. {names[1]}: steps {min(killed)} to {last}; {names[2]}: "
        f"steps {first} to {max(resumed)}. {names[0]}: the loss goes from "
        f"{undisturbed[min(undisturbed)]:.2f} to {undisturbed[max(undisturbed)]:.2f}. "
        f"The resumed losses differ from the undisturbed ones by at most {far:.0e}."
    )
    return Picture(figure, alt)
