"""What lesson 08 says of its runs, chosen from what they measured, and how deep a model may be."""

from collections.abc import Mapping, Sequence

from matplotlib.patches import Patch

from course.lessons.shared.figures.schedules import boxes, idle, length
from course.lessons.shared.memory_limit import Fit
from course_lib.comm.spans import Span
from mpi_classroom.figures import FONT_SIZE, INK, Picture, listed, new_figure, say_seconds

CLOSE = 0.05  # shares of time that differ by less count as agreeing
BAR, REFUSED = "#BFE3F7", "#D55E00"

# ---------------------------------------------------------------- explanations


def explain_difference(difference: float) -> str:
    """Why the gradients of two stages are those of one process, or nearly."""
    if difference == 0:
        return (
            "The two stages and the one process did the same operations in the same order, so not even "
            "rounding differs."
        )
    if difference < 1e-5:
        return "That is rounding: the sums ran in a different order."
    return "That is more than rounding: compare `forward` and `backward` with the text."


def explain_one_batch(speedup: float) -> str:
    """Why stages do not make one batch faster."""
    if speedup > 0.5:
        return "Each stage needs the result of another one, so they work one after the other."
    return "Stages work one after the other, and probably something else used this machine as well."


def bubble(stages: int, microbatches: int) -> float:
    """The idle share of GPipe and of 1F1B with equal stages and free messages."""
    return (stages - 1) / (microbatches + stages - 1)


def explain_idle(share: float, *, stages: int, microbatches: int) -> str:
    """How a measured idle share compares with the formula."""
    formula = bubble(stages, microbatches)
    said = f"The formula says {stages - 1}/{microbatches + stages - 1}, or {formula:.0%}"
    if abs(share - formula) < CLOSE:
        return f"{said}, with free messages; real messages, and ranks that wake up late, change it a little."
    return f"{said}, with free messages. Probably something else used this machine, so ranks were late."


def explain_saved(percent: float) -> str:
    """Why 1F1B takes as long as GPipe, from the percent of time that it saved."""
    if abs(percent) < 100 * CLOSE:
        return "Both orders have the same bubble; what is left is noise and messages."
    return "The simulation says 0. Probably something else used this machine in at least one of the runs."


def compare_orders(runs: Mapping[str, Sequence[Span]], microbatches: int, *, cores: int) -> str:
    """A table of the runs' times and idle shares beside the formula, and a sentence that sums it up."""
    found = {name: boxes(spans) for name, spans in runs.items()}
    stages = 1 + max(box.rank for drawn in found.values() for box in drawn)
    formula = bubble(stages, microbatches)
    where = f"measured, {stages} rank{'s' * (stages > 1)} on {cores} core{'s' * (cores > 1)}"
    lines = [f"{'schedule':10}{'step':>9}{'idle':>7}   {where}"]
    lines += [f"{name:10}{say_seconds(length(drawn)):>9}{idle(drawn):>7.0%}" for name, drawn in found.items()]
    lines.append(f"{'formula':10}{'':9}{formula:>7.0%}   equal stages, free messages")
    far = [name for name, drawn in found.items() if abs(idle(drawn) - formula) >= CLOSE]
    reason = "stages that are not equally long, messages that take time, or a rank that lost its core"
    if far:
        lines.append(f"{listed(far)}: {100 * CLOSE:.0f} points or more from the formula. Possible: {reason}.")
    else:
        lines.append(f"All are within {100 * CLOSE:.0f} points of the formula.")
    lines.append("A few percent between steps may be noise: run the cell of `measured` and this one again.")
    return "\n".join(lines)


# ---------------------------------------------------------------- how deep a model may be


def depth_boundary(tried: Sequence[Fit]) -> Picture:
    """Bars: the deepest model that trained, by number of ranks; above each, the first that did not."""
    trained = {fit.ranks: fit.layers for fit in tried if fit.trained}
    refused = {fit.ranks: fit.layers for fit in tried if not fit.trained}
    most = listed([str(layers) for layers in trained.values()])
    title = f"Deepest model that trains, {tried[0].limit_mib} MiB per rank: {most} layers"
    figure, axes = new_figure(title, width=8.0, height=4.4)
    places = range(len(trained))
    axes.bar(places, list(trained.values()), width=0.6, color=BAR, edgecolor=INK)
    for place, (n, layers) in enumerate(trained.items()):
        axes.text(place, layers / 2, f"{layers}", ha="center", va="center", fontsize=FONT_SIZE, color=INK)
        axes.plot(place, refused[n], "X", color=REFUSED, markersize=10, clip_on=False)
    axes.set_xticks(places, [f"{n} rank{'s' * (n > 1)}" for n in trained])
    axes.set_ylim(0, 1.15 * max(refused.values()))
    axes.set_ylabel("layers of the model")
    cross = axes.plot([], [], "X", color=REFUSED, markersize=10, linestyle="", label="no memory left")[0]
    keys = [Patch(facecolor=BAR, edgecolor=INK, label="trained a step"), cross]
    axes.legend(handles=keys, loc="upper left", fontsize=FONT_SIZE, frameon=False)
    above = listed([f"{layers} on {n}" for n, layers in refused.items()])
    return Picture(figure, f"Bars: layers of a model by number of ranks. {title}. Refused: {above}.")
