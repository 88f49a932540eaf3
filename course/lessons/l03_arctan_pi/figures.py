"""Seconds against the number of ranks: the same job (strong scaling) beside a job that grows (weak scaling).

Dotted is the ideal; grey is the best that the cores allow. Times on more ranks than cores are open circles.
"""

from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, NullLocator

from course_lib.theory.scaling import parallel_efficiency
from mpi_classroom.figures import FONT_SIZE, INK, Look, Picture, new_panels, say_seconds

MISSED = "#777777"
# Where a label keeps off the grey line: it comes down from the left, is level, or rises to the right.
ABOVE_RIGHT: Look = {"xytext": (2, 8), "ha": "left", "va": "bottom"}
ABOVE: Look = {"xytext": (0, 8), "ha": "center", "va": "bottom"}
ABOVE_LEFT: Look = {"xytext": (-2, 8), "ha": "right", "va": "bottom"}
Seconds = Mapping[int, float]  # for each number of ranks


def scaling(same: Seconds, grown: Seconds, *, cores: int) -> Picture:
    """Two panels: `same[n]` seconds of one job on n ranks, `grown[n]` seconds of n times the job on n ranks.

    Both have the time on 1 rank; raises ValueError without it. Each point is labelled with its efficiency.
    """
    for times in (same, grown):
        if 1 not in times:
            raise ValueError(
                f"there are times on {sorted(times)} ranks; add the one on 1 rank to compare with"
            )
    title = scaling_title(same, grown, cores)
    figure, (left, right) = new_panels(title, columns=2, height=4.8, sharey=True)
    reach = range(1, max(*same, *grown) + 1)
    strong = {n: parallel_efficiency(same[1] / same[n], n) for n in sorted(same)}
    weak = {n: grown[1] / grown[n] for n in sorted(grown)}
    ideal, room = {n: same[1] / n for n in reach}, {n: same[1] / min(n, cores) for n in reach}
    _panel(left, "strong scaling: the same job", same, strong, ideal, room, cores, (ABOVE_RIGHT, ABOVE_RIGHT))
    ideal, room = dict.fromkeys(reach, grown[1]), {n: grown[1] * max(1, n / cores) for n in reach}
    _panel(right, "weak scaling: n times the job", grown, weak, ideal, room, cores, (ABOVE, ABOVE_LEFT))
    left.set_ylabel("seconds")
    left.set_ylim(0, 1.2 * max(*same.values(), *grown.values()))
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower left", ncols=5, fontsize=FONT_SIZE, frameon=False)
    lines = [_in_words(same, strong, "the same job", cores), _in_words(grown, weak, "n times the job", cores)]
    kind = f"Two charts of seconds against ranks, with the ideal and the best possible on {say_cores(cores)}"
    return Picture(figure, f"{kind}. {title}. {' '.join(lines)}".replace("\n", " "))


def _panel(
    axes: Axes,
    name: str,
    seconds: Seconds,
    efficiency: Mapping[int, float],
    ideal: Seconds,
    room: Seconds,
    cores: int,
    labels: tuple[Look, Look],
) -> None:
    axes.plot(list(ideal), list(ideal.values()), color=MISSED, linestyle=":", linewidth=2, label="ideal")
    best = f"best possible on {say_cores(cores)}"
    grey: Look = {"color": MISSED, "linewidth": 6, "alpha": 0.35, "label": best}
    axes.plot(list(room), list(room.values()), **grey)
    look: Look = {"marker": "o", "color": INK, "markersize": 9, "linestyle": "none"}
    fits = {n: time for n, time in seconds.items() if n <= cores}
    crowded = {n: time for n, time in seconds.items() if n > cores}
    axes.plot(list(fits), list(fits.values()), **look, label="measured")
    if crowded:
        look |= {"markerfacecolor": "white", "label": "oversubscribed"}
        axes.plot(list(crowded), list(crowded.values()), **look)
    for n, time in seconds.items():
        place = labels[n >= cores]
        axes.annotate(
            f"{efficiency[n]:.0%}", (n, time), textcoords="offset points", fontsize=FONT_SIZE, **place
        )
    axes.set_title(name, fontsize=FONT_SIZE, color=INK)
    axes.set_xlabel("ranks n")
    axes.set_xlim(min(ideal) - 0.6, max(ideal) + 0.6)
    axes.xaxis.set_major_locator(FixedLocator(sorted(ideal)))
    axes.xaxis.set_minor_locator(NullLocator())


def say_cores(cores: int) -> str:
    """1 core, 2 cores."""
    return f"{cores} core{'s' * (cores != 1)}"


def scaling_title(same: Seconds, grown: Seconds, cores: int) -> str:
    """The speed-up of the same job on the most ranks, and how much longer the larger job took there."""
    n = max((n for n in same if n > 1 and n in grown), default=None)
    if n is None:
        return f"1 rank on {say_cores(cores)}: {say_seconds(same[1])}, and no other time to compare with"
    return (
        f"On {say_cores(cores)}, {n} ranks: the same job {same[1] / same[n]:.2f} times as fast;\n"
        f"{n} times the job takes {grown[n] / grown[1]:.2f} times as long"
    )


def _in_words(seconds: Seconds, efficiency: Mapping[int, float], job: str, cores: int) -> str:
    """Every point of a panel: seconds and efficiency."""
    points = [
        f"{n} rank{'s' * (n > 1)}{' (oversubscribed)' * (n > cores)} {say_seconds(seconds[n])}, efficiency "
        f"{efficiency[n]:.0%}"
        for n in sorted(seconds)
    ]
    return f"{job.capitalize()}: {'; '.join(points)}."
