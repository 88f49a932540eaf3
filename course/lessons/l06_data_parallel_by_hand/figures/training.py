"""Training on several ranks: how the loss falls, what the ranks gain, and where their time goes.

The loss of each run is one curve. The first is drawn wide and the next ones narrower on top of it, so that
equal runs still show.
"""

from collections.abc import Mapping, Sequence
from statistics import median

from course.lessons.l06_data_parallel_by_hand.results import Run
from course.lessons.shared.figures.timeline import shares
from course.lessons.shared.reference import reference
from course_lib.comm.spans import Span, duration, totals
from mpi_classroom.figures import FONT_SIZE, Picture, new_figure, say_seconds, series_style

STYLES = ("-", "--", ":", "-.")
WIDTHS = (6.0, 3.5, 2.5, 2.0)
APART = 0.05  # runs whose losses differ by more than this are not the same training

# ------------------------------------------------------------------ one step


def rest_of(speedup: float, ranks: int) -> str:
    """What to say below a speed-up before its cause is known."""
    if ranks == 1:
        return "There is one core, so there is one rank to measure."
    if speedup > 1.05 * ranks:
        return (
            f"More than {ranks}: sharing the work cannot explain that. Each rank also has a smaller batch, "
            "and more of its activations may stay in the core's cache."
        )
    if speedup >= ranks:
        return "Nothing is missing."
    return "Section 7 shows where the rest went."


def explain_speedup(one: Run, many: Run, spans: Sequence[Span], bare: float) -> str:
    """Why the ranks of `many` are so many times as fast as the rank of `one`, if the measurement can say it.

    `spans` are those of one step, as `trace_step` returns them; `bare` is the seconds of a sum of the same
    gradients alone. A cause is named only if the traced step takes about as long as those of the training
    and its transfer about as long as the bare sum. Otherwise other programs may have used the cores.
    """
    seconds = totals(spans)
    if many.ranks == 1:
        return "One rank sends nothing, so there is no speed-up to explain."
    step, transfer = duration(spans), max(mine["transfer"] for mine in seconds.values())
    if transfer > 2 * bare:
        sums = (
            f"A bare sum of these gradients takes {say_seconds(bare)}; here it took {say_seconds(transfer)}."
        )
        return f"{sums} {BUSY} {reference_speedup()}"
    if abs(step - many.seconds) > 0.2 * many.seconds:
        steps = (
            f"A step of the training took {say_seconds(many.seconds)}; the traced one {say_seconds(step)}."
        )
        return f"{steps} {BUSY} {reference_speedup()}"
    speedup, share = one.seconds / many.seconds, shares(seconds)
    lost = 1 - share["compute"]
    where = f"In one step, the ranks spend {lost:.1%} of their time waiting and transferring"
    computing = sum(mine["compute"] for mine in seconds.values())
    compared = (
        f"{where}. The rest is computing, {say_seconds(computing)} on all ranks together; one rank alone "
        f"took {say_seconds(one.seconds)}."
    )
    if speedup > 1.05 * many.ranks and computing < one.seconds:
        return f"{compared} The parts of a batch took less computing than the whole."
    if speedup >= 0.8 * many.ranks and computing > 1.02 * one.seconds:
        return (
            f"{compared} The parts of a batch took more computing than the whole: perhaps because the cores "
            "share caches and memory."
        )
    if speedup >= 0.8 * many.ranks:
        return f"{where}; the rest is computing, and that is what they share."
    if share["wait"] > max(share["transfer"], 0.2):
        return f"{where}, most of it waiting: one core is slower, or busy with something else."
    if share["transfer"] > 0.2:
        return f"{where}, most of it transferring: the messages are long for such a short step."
    return f"{where}. The rest is computing, slower than alone: the cores share caches and memory."


BUSY = "The two do not agree, so no cause is named here. Other programs may be using the cores: run it again."


def reference_speedup() -> str:
    """The speed-up of the CNN on the reference machine, from the committed benchmark."""
    row = reference("data_parallel", "cnn, MNIST: efficiency, one bucket")
    speedup = row["ratio"] * row["ranks"]
    return (
        f"Reference machine, {row['ranks']} ranks on free cores, all gradients in one message: {speedup:.2f}."
    )


def summary(run: Run) -> str:
    """One line about a training: ranks, time per step, test accuracy, and whether the replicas agree."""
    agree = "" if run.ranks == 1 else f"; replicas {'agree' if run.agree else 'do NOT agree'}"
    ranks = f"{run.ranks} rank{'s' * (run.ranks > 1)}"
    return f"{ranks}: {say_seconds(run.seconds)} per step, {run.accuracy:.1%} of the test images right{agree}"


def explain_wait(spans: Sequence[Span]) -> str:
    """Which rank the others waited for; or that nobody did."""
    seconds = totals(spans)
    if len(seconds) == 1:
        return "One rank has nobody to wait for."
    last = min(seconds, key=lambda rank: seconds[rank]["wait"])
    if shares(seconds)["wait"] < 0.01:
        return "All ranks arrived at nearly the same time."
    return f"Rank {last} waited least, so it arrived last: the others waited for it."


# ------------------------------------------------------------------ the loss of several runs


def loss_curves(losses: Mapping[str, Sequence[float]], *, window: int = 10) -> Picture:
    """The loss of each run against the step, as the mean of `window` consecutive steps.

    A run's key names it.
    """
    smooth = {name: averaged(values, window) for name, values in losses.items()}
    title = curves_title(smooth, window)
    figure, axes = new_figure(title, width=7.5, height=3.8)
    for index, (name, values) in enumerate(smooth.items()):
        steps = range(window, window + len(values))
        style, width = STYLES[index % len(STYLES)], WIDTHS[index % len(WIDTHS)]
        colour = series_style(index)["color"]
        axes.plot(steps, values, style, color=colour, linewidth=width, label=name)
    axes.set_xlabel("step")
    axes.set_ylabel(f"training loss, mean of {window} steps")
    axes.set_ylim(0, None)
    axes.legend(fontsize=FONT_SIZE, frameon=False)
    return Picture(figure, curves_alt(smooth, window, title))


def averaged(values: Sequence[float], window: int) -> list[float]:
    """The mean of every `window` consecutive values; ValueError when there are fewer."""
    if len(values) < window:
        raise ValueError(f"{len(values)} steps are fewer than the {window} of one mean; train for longer")
    return [sum(values[end - window : end]) / window for end in range(window, len(values) + 1)]


def curves_title(smooth: Mapping[str, Sequence[float]], window: int) -> str:
    """From where to where the loss goes and how far apart the runs are; of different runs, how each ends."""
    first, last = (next(iter(smooth.values()))[place] for place in (0, -1))
    moved = "falls" if last < first else "does NOT fall"
    found = f"The loss {moved} from {first:.2f} to {last:.2f}"
    if len(smooth) < 2:
        return found
    spread = typical_spread(smooth)
    if spread > APART:
        steps = len(next(iter(smooth.values()))) + window - 1
        ends = ", ".join(f"{values[-1]:.2f} {name}" for name, values in smooth.items())
        return f"After {steps} steps: loss {ends}"
    if all(max(values) < 1.0005 * min(values) for values in zip(*smooth.values(), strict=False)):
        return f"{found}; the {len(smooth)} curves coincide"
    return f"{found}; the {len(smooth)} runs typically differ by {spread:.1%}"


def typical_spread(smooth: Mapping[str, Sequence[float]]) -> float:
    """The difference between the runs relative to the smallest of them, the median over the steps."""
    return median((max(values) - min(values)) / min(values) for values in zip(*smooth.values(), strict=False))


def curves_alt(smooth: Mapping[str, Sequence[float]], window: int, title: str) -> str:
    """The picture in words: where each curve begins and ends."""
    lines = [f"{name}: from {values[0]:.3f} to {values[-1]:.3f}" for name, values in smooth.items()]
    kind = f"Line chart: training loss (mean of {window} steps) against the step, one line per run"
    return f"{kind}. {title}. {'; '.join(lines)}."
