"""Training in one process: what the learning rate and the batch do, a batch in pieces, and what threads gain.

Titles say what was measured. A training that diverged, or never reached its loss, is drawn at the upper
edge with a mark of its own.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator
from numpy.typing import NDArray

from course.lessons.l05_training_one_process.trials import Baseline, Reached, Trial
from mpi_classroom.figures import (
    FONT_SIZE,
    INK,
    Look,
    Picture,
    ink_on,
    listed,
    new_figure,
    rank_colour,
    series_style,
    three_digits,
)

IDEAL = "#777777"
Numbers = NDArray[np.floating]

# ------------------------------------------------------------------ learning rate


def loss_against_rate(trials: Sequence[Trial]) -> Picture:
    """The loss after each trial against its learning rate; what diverged is at the upper edge."""
    trials = sorted(trials, key=lambda trial: trial.learning_rate)
    learned = [trial for trial in trials if not trial.diverged]
    lost = [trial for trial in trials if trial.diverged]
    title = rate_title(trials)
    figure, axes = new_figure(title, width=7.5, height=4.2)
    style = series_style(0)
    rates, losses = [t.learning_rate for t in learned], [t.loss for t in learned]
    axes.plot(rates, losses, **style, markersize=8, label=f"loss after {trials[0].steps} steps")
    if lost:
        top = 2 * max(losses, default=1.0)
        look: Look = {"marker": "x", "linestyle": "none", "color": "#D55E00", "markersize": 11}
        axes.plot(
            [t.learning_rate for t in lost], [top] * len(lost), **look, label="diverged: no loss at all"
        )
    axes.set(xscale="log", yscale="log", xlabel="learning rate", ylabel="loss on images not trained on")
    show_values(axes, losses)
    tens = [10.0**p for p in range(-7, 7)]
    reach = [t for t in tens if trials[0].learning_rate <= t <= trials[-1].learning_rate] or rates
    axes.set_xticks(reach, [f"{t:g}" for t in reach])
    axes.legend(fontsize=FONT_SIZE, frameon=False, loc="lower left")
    told = "; ".join(
        f"{t.learning_rate:g}: {'diverged' if t.diverged else three_digits(t.loss)}" for t in trials
    )
    kind = "Line chart, both axes logarithmic: loss on images not trained on against the learning rate"
    return Picture(figure, f"{kind}. {title}. {told}.".replace("\n", " "))


def rate_title(trials: Sequence[Trial]) -> str:
    """Which learning rate did best, how much worse smaller ones did, and from where training diverges."""
    best = min(trials, key=lambda trial: trial.loss)
    smallest = min(trials, key=lambda trial: trial.learning_rate)
    largest = [t.learning_rate for t in trials if t.learning_rate > best.learning_rate and t.diverged]
    told = [f"Best: {best.learning_rate:g}, a loss of {three_digits(best.loss)}"]
    if smallest is not best and not smallest.diverged:
        told.append(f"{smallest.learning_rate:g} leaves it at {three_digits(smallest.loss)}")
    if largest:
        told.append(f"{min(largest):g} diverges")
    return ", ".join(told)


def show_values(axes: Axes, values: Sequence[float]) -> None:
    """Plain numbers at the ticks of a logarithmic y-axis over these values, in place of powers of ten."""
    low, high = min(values, default=1.0), max(values, default=1.0)
    ticks = [m * 10.0**p for p in range(-4, 7) for m in (1, 2, 5)]
    axes.yaxis.set_major_locator(FixedLocator([t for t in ticks if low / 2 <= t <= 3 * high]))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.6g}".replace(",", " "))


# ------------------------------------------------------------------ batch


def images_against_batch(series: Mapping[str, Sequence[Reached]]) -> Picture:
    """Images needed to reach a loss against the batch, a line for each series; arrows: not reached."""
    title = batch_title(series)
    figure, axes = new_figure(title, width=7.5, height=4.4)
    counts = [r.samples for reached in series.values() for r in reached if r.samples]
    top = 2.5 * max(counts, default=1)
    for index, (name, unsorted) in enumerate(series.items()):
        style, reached = series_style(index), sorted(unsorted, key=lambda r: r.batch_size)
        there = [(r.batch_size, r.samples) for r in reached if r.samples]
        sizes, needed = [size for size, _ in there], [count for _, count in there]
        axes.plot(sizes, needed, **style, markersize=8, label=name)
        for r in reached:
            if not r.samples:
                at = top * 1.25**-index
                axes.plot(
                    r.batch_size, at, marker="^", markerfacecolor="white", color=style["color"], markersize=11
                )
                axes.annotate("not reached ", (r.batch_size, at), ha="right", va="center", fontsize=FONT_SIZE)
    axes.set(xscale="log", yscale="log", xlabel="batch", ylabel="images needed")
    sizes = sorted({r.batch_size for reached in series.values() for r in reached})
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.margins(x=0.12)
    show_values(axes, counts)
    figure.legend(loc="outside lower left", ncols=2, fontsize=FONT_SIZE, frameon=False)
    told = "; ".join(f"{name}: {_told(reached)}" for name, reached in series.items())
    kind = "Line chart, both axes logarithmic: images needed to reach a loss against the batch"
    return Picture(figure, f"{kind}. {title}. {told}.".replace("\n", " "))


def _told(reached: Sequence[Reached]) -> str:
    return ", ".join(f"{r.batch_size} {r.samples or 'not reached'}" for r in reached)


def batch_title(series: Mapping[str, Sequence[Reached]]) -> str:
    """For each series, how many times the smallest batch's images the others need; which never got there."""
    return ";\n".join(f"{name}: {what_it_costs(reached)}" for name, reached in series.items())


def what_it_costs(reached: Sequence[Reached]) -> str:
    """What larger batches need of the images of the smallest: "256 needs 4.6× the images of 16"."""
    smallest, *larger = sorted(reached, key=lambda r: r.batch_size)
    if not smallest.samples:
        return f"{smallest.batch_size} does not get there, so nothing is compared"
    there = [r for r in larger if r.samples]
    never = [r.batch_size for r in larger if not r.samples]
    told = [
        f"{r.batch_size} needs {r.samples / smallest.samples:.1f}× the images of {smallest.batch_size}"
        for r in there[-1:]
        if r.samples
    ]
    told += [f"{listed(never)} fail{'s' * (len(never) == 1)}"] if never else []
    return ", ".join(told) or "nothing to compare"


# ------------------------------------------------------------------ a batch in pieces


def microbatch_sum(parts: Numbers, lengths: Sequence[int], whole: Numbers) -> Picture:
    """One number of the gradient: the batch's, its micro-batches' added up, and the mean of their means.

    `parts[i]` are the numbers that micro-batch i adds, its loss divided by the batch, `lengths[i]` its
    images, `whole` the numbers of the batch. Drawn is the largest whose parts have one sign, laid end to end.
    """
    place = largest_of_one_sign(parts)
    return _sum_of_one(parts[:, place].tolist(), lengths, float(whole[place]))


def largest_of_one_sign(parts: Numbers) -> int:
    """The column of `parts` (pieces, numbers) with the largest sum among those without a change of sign."""
    one_sign = np.abs(np.sign(parts).sum(axis=0)) == len(parts)
    if not one_sign.any():
        raise ValueError("in every number, some parts cancel others; draw more numbers or fewer parts")
    return int(np.argmax(np.abs(parts.sum(axis=0)) * one_sign))


def _sum_of_one(parts: Sequence[float], lengths: Sequence[int], whole: float) -> Picture:
    batch = sum(lengths)
    means = [part * batch / length / len(parts) for part, length in zip(parts, lengths, strict=True)]
    title = sum_title(parts, means, whole)
    figure, axes = new_figure(title, width=8.0, height=3.2)
    axes.barh(0, whole, color="#bbbbbb", edgecolor=INK)
    axes.text(whole / 2, 0, f"{batch} images", ha="center", va="center", fontsize=FONT_SIZE)
    for row, pieces in ((1, parts), (2, means)):
        left = 0.0
        for index, (piece, length) in enumerate(zip(pieces, lengths, strict=True)):
            colour = rank_colour(index)
            axes.barh(row, piece, left=left, color=colour, edgecolor=INK)
            middle: Look = {"ha": "center", "va": "center", "fontsize": FONT_SIZE, "color": ink_on(colour)}
            if abs(piece) > 0.06 * max(abs(whole), abs(sum(means))):
                axes.text(left + piece / 2, row, str(length), **middle)
            left += piece
    axes.axvline(whole, color=INK, linestyle=":")
    axes.set_yticks([0, 1, 2], ["whole batch", "micro-batches,\nadded up", "mean of\ntheir means"])
    axes.invert_yaxis()
    axes.set_xlabel("gradient of one weight (numbers: images of a micro-batch)")
    told = ", ".join(f"{length} images add {part:.3g}" for part, length in zip(parts, lengths, strict=True))
    kind = "Three bars, the gradient of one weight"
    alt = f"{kind}: whole batch {whole:.3g}; {told}; mean of the means {sum(means):.3g}. {title}."
    return Picture(figure, alt.replace("\n", " "))


def sum_title(parts: Sequence[float], means: Sequence[float], whole: float) -> str:
    """Whether the parts add up to the whole, and how far the mean of the means is from it."""
    same = abs(sum(parts) - whole) <= 1e-4 * abs(whole)
    added = "Micro-batches add up to the batch" if same else "The parts do NOT add up to the batch"
    off = (sum(means) - whole) / whole
    other = (
        "is the same here" if abs(off) < 5e-4 else f"is {abs(off):.0%} too {'large' if off > 0 else 'small'}"
    )
    return f"{added}; the mean of their means {other}"


# ------------------------------------------------------------------ epochs


def learning_curves(trained: Sequence[float], tested: Sequence[float]) -> Picture:
    """The loss after each epoch, of the images trained on (their mean in the epoch) and of those not."""
    title = curves_title(trained, tested)
    figure, axes = new_figure(title, width=7.5, height=4.0)
    epochs = range(1, len(trained) + 1)
    axes.plot(epochs, trained, **series_style(0), markersize=6, label="images trained on")
    axes.plot(epochs, tested, **series_style(1), markersize=6, label="images not trained on")
    axes.set(yscale="log", xlabel="epoch", ylabel="mean loss")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    show_values(axes, [*trained, *tested])
    figure.legend(loc="outside lower left", ncols=2, fontsize=FONT_SIZE, frameon=False)
    told = "; ".join(
        f"epoch {n}: {one:.3f} and {other:.3f}" for n, one, other in zip(epochs, trained, tested, strict=True)
    )
    kind = "Line chart, y logarithmic: mean loss of the images trained on, and of others, after each epoch"
    return Picture(figure, f"{kind}. {title}. {told}.".replace("\n", " "))


def curves_title(trained: Sequence[float], tested: Sequence[float]) -> str:
    """Where both losses end, and after which epoch nothing was gained on images not trained on."""
    best = min(range(len(tested)), key=lambda epoch: tested[epoch])
    told = f"Trained on: {three_digits(trained[-1])} at the end. Not trained on: {three_digits(tested[-1])}"
    if best + 1 == len(tested):
        return f"{told}, still falling"
    return f"{told}, and no lower after epoch {best + 1}"


# ------------------------------------------------------------------ threads


def thread_speedups(baselines: Sequence[Baseline], published: Mapping[str, Mapping[int, float]]) -> Picture:
    """How many times as fast as on one thread: measured, and published of another machine."""
    title = threads_title(baselines)
    figure, axes = new_figure(title, width=7.5, height=4.2)
    measured = speedups(baselines)
    for index, (name, gains) in enumerate(measured.items()):
        style = series_style(index)
        axes.plot(list(gains), list(gains.values()), **style, markersize=8, label=f"{name}: measured")
        if name in published:
            look = {
                "color": style["color"],
                "marker": style["marker"],
                "markerfacecolor": "white",
                "alpha": 0.6,
            }
            line = published[name]
            axes.plot(list(line), list(line.values()), **look, linestyle=":", label=f"{name}: published")
    most = max([1, *(n for gains in [*measured.values(), *published.values()] for n in gains)])
    axes.plot([1, most], [1, most], color=IDEAL, linewidth=1, label="ideal")
    axes.set(xlabel="threads", ylabel="times as fast as 1 thread", ylim=(0, None))
    axes.xaxis.set_major_locator(FixedLocator(range(1, most + 1)))
    figure.legend(loc="outside lower left", ncols=3, fontsize=FONT_SIZE, frameon=False)
    rates = "; ".join(
        f"{b.name} on {b.threads}: {three_digits(b.images_per_second)} images/s" for b in baselines
    )
    kind = (
        "Line chart: how many times as fast as on one thread, against the number of threads, one line a model"
    )
    return Picture(figure, f"{kind}, measured, with published ones beside. {title}. Measured: {rates}.")


def speedups(baselines: Sequence[Baseline]) -> dict[str, dict[int, float]]:
    """Times as fast as on one thread, by model and number of threads."""
    alone = {b.name: b.images_per_second for b in baselines if b.threads == 1}
    gains: dict[str, dict[int, float]] = {name: {} for name in alone}
    for b in baselines:
        gains[b.name][b.threads] = b.images_per_second / alone[b.name]
    return gains


def threads_title(baselines: Sequence[Baseline]) -> str:
    """What the most threads gained for each model."""
    most = max(b.threads for b in baselines)
    if most == 1:
        return "One core: there are no threads to compare"
    told = listed(f"{name} {gains[most]:.2f}×" for name, gains in speedups(baselines).items())
    return f"{most} threads: {told} as fast as 1"


def explain_threads(baselines: Sequence[Baseline]) -> str:
    """Why the threads gained what they did, chosen from what was measured; an empty machine is assumed."""
    most = max(b.threads for b in baselines)
    if most == 1:
        return "one core: a second thread would only take turns with the first"
    gains = {name: by_threads[most] for name, by_threads in speedups(baselines).items()}
    best, least = max(gains, key=lambda name: gains[name]), min(gains, key=lambda name: gains[name])
    if gains[best] < 1.1:
        return (
            f"no model gained: are all {most} cores free? Threads that share a core with others wait for it"
        )
    if gains[least] > 0.85 * most:
        return f"all use {most} cores well: their operations are large enough to share"
    return (
        f"{best} gained most, {gains[best]:.2f}×, {least} least, {gains[least]:.2f}×: threads meet after "
        "every operation, and small operations leave little to share"
    )
