"""Training in one process: learning rate, batch size, a batch in pieces, threads and ranks, memory.

Titles say what was measured. A training that diverged, or did not reach its loss, has a mark of its own at
the upper edge.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, MultipleLocator, NullLocator
from numpy.typing import NDArray

from course.lessons.l05_training_one_process.trials import Baseline, Reached, Trial
from course.lessons.shared.reference import reference
from mpi_classroom.figures import (
    FONT_SIZE,
    INK,
    Look,
    Picture,
    ink_on,
    listed,
    new_figure,
    new_panels,
    rank_colour,
    series_style,
    three_digits,
)

IDEAL = "#777777"
NO_NUMBER = "#eeeeee"  # the band of trainings that have no number
Numbers = NDArray[np.floating]

# ------------------------------------------------------------------ learning rate


def loss_against_rate(trials: Sequence[Trial]) -> Picture:
    """The test loss after each trial against its learning rate; those that diverged are in the top band."""
    trials = sorted(trials, key=lambda trial: trial.learning_rate)
    learned = [trial for trial in trials if not trial.diverged]
    lost = [trial for trial in trials if trial.diverged]
    title = rate_title(trials)
    figure, axes = new_figure(title, width=7.5, height=4.2)
    axes.set(xscale="log", yscale="log", xlabel="learning rate", ylabel="loss on test images")
    rates, losses = [t.learning_rate for t in learned], [t.loss for t in learned]
    axes.plot(
        rates, losses, **series_style(0), markersize=8, label=f"test loss after {trials[0].steps} steps"
    )
    if lost:
        top = max(losses, default=1.0)
        look: Look = {"marker": "x", "linestyle": "none", "color": "#D55E00", "markersize": 11}
        axes.plot([t.learning_rate for t in lost], [2.2 * top] * len(lost), **look, label="diverged")
        axes.axhspan(1.6 * top, 3 * top, color=NO_NUMBER, zorder=0)
        axes.set_ylim(None, 3 * top)
    show_values(axes, losses)
    tens = [10.0**p for p in range(-7, 7)]
    reach = [t for t in tens if trials[0].learning_rate <= t <= trials[-1].learning_rate] or rates
    axes.set_xticks(reach, [f"{t:g}" for t in reach])
    axes.legend(fontsize=FONT_SIZE, frameon=False, loc="lower left")
    found = "; ".join(
        f"{t.learning_rate:g}: {'diverged' if t.diverged else three_digits(t.loss)}" for t in trials
    )
    kind = "Line chart, both axes logarithmic: loss on test images against the learning rate"
    return Picture(figure, f"{kind}. {title}. {found}.")


def rate_title(trials: Sequence[Trial]) -> str:
    """Which learning rate did best, what the smallest one reached, and which ones diverged."""
    best = min(trials, key=lambda trial: trial.loss)
    smallest = min(trials, key=lambda trial: trial.learning_rate)
    largest = [t.learning_rate for t in trials if t.learning_rate > best.learning_rate and t.diverged]
    found = [f"The rate {best.learning_rate:g} does best: loss {three_digits(best.loss)}"]
    if smallest is not best and not smallest.diverged:
        found.append(f"{smallest.learning_rate:g} stays at {three_digits(smallest.loss)}")
    if largest:
        found.append(f"{min(largest):g} diverges")
    return "; ".join(found)


def explain_rate(trials: Sequence[Trial]) -> str:
    """Why the best learning rate is not the smallest or the largest, as far as the trials show it."""
    best = min(trials, key=lambda trial: trial.loss)
    smaller = sum(t.learning_rate < best.learning_rate for t in trials)
    diverged = [t.learning_rate for t in trials if t.diverged]
    found = (
        [f"The {smaller} smaller rates were still on their way after {best.steps} steps."] if smaller else []
    )
    if diverged:
        found.append(f"From {min(diverged):g} on, training diverged.")
    return " ".join(found)


def show_values(axes: Axes, values: Sequence[float]) -> None:
    """Write plain numbers instead of powers of ten at the ticks of a logarithmic y-axis over these values."""
    low, high = min(values, default=1.0), max(values, default=1.0)
    ticks = [m * 10.0**p for p in range(-4, 7) for m in (1, 2, 5)]
    axes.yaxis.set_major_locator(FixedLocator([t for t in ticks if low / 2 <= t <= 1.5 * high]))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.7g}".replace(",", " "))


# ------------------------------------------------------------------ batch


def images_against_batch(series: Mapping[str, Sequence[Reached]]) -> Picture:
    """Images and steps needed to reach a test loss, against the batch size, one line per series.

    A training that diverged, or did not arrive, is a cross in the band at the top.
    """
    title = batch_title(series)
    figure, (images, steps) = new_panels(title, columns=2, height=4.6)
    top = _panel(images, series, "images")
    _panel(steps, series, "steps")
    look: Look = {"marker": "x", "linestyle": "none", "markersize": 10}
    for index, reached in enumerate(series.values()):
        lost = [r.batch_size for r in reached if not r.samples]
        images.plot(lost, [3.5 * top] * len(lost), color=series_style(index)["color"], **look)
    images.axhspan(2.3 * top, 5.3 * top, color=NO_NUMBER, zorder=0)
    images.set_ylim(None, 5.3 * top)
    images.plot([], [], color=INK, label="diverged or not reached", **look)
    handles, names = images.get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower left", ncols=3, fontsize=FONT_SIZE, frameon=False)
    lines = "; ".join(f"{name}: {', '.join(map(_in_words, reached))}" for name, reached in series.items())
    kind = (
        "Two line charts, all axes logarithmic: images and steps needed to reach a test loss, by batch size"
    )
    return Picture(figure, f"{kind}. {title}. {lines}.".replace("\n", " "))


def _panel(axes: Axes, series: Mapping[str, Sequence[Reached]], what: str) -> int:
    """Draw what the trainings needed that arrived; return the largest number."""
    numbers = [1]
    for index, (name, reached) in enumerate(series.items()):
        known = [(r.batch_size, needed) for r in reached if (needed := _needed(r, what))]
        sizes, counts = [size for size, _ in known], [count for _, count in known]
        axes.plot(sizes, counts, **series_style(index), markersize=8, label=name)
        numbers += counts
    sizes = sorted({r.batch_size for reached in series.values() for r in reached})
    axes.set(xscale="log", yscale="log", xlabel="batch size", ylabel=f"{what} needed")
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.margins(x=0.12)
    show_values(axes, numbers[1:])
    return max(numbers)


def _needed(reached: Reached, what: str) -> int | None:
    return reached.samples if what == "images" else reached.steps


def _in_words(reached: Reached) -> str:
    if reached.samples:
        return f"batches of {reached.batch_size} {reached.samples} images, {reached.steps} steps"
    return f"batches of {reached.batch_size} {'diverged' if reached.diverged else 'not reached'}"


def batch_title(series: Mapping[str, Sequence[Reached]]) -> str:
    """What the second largest batch of each series costs, relative to the second smallest."""
    return ";\n".join(f"{name}: {what_it_costs(reached)}" for name, reached in series.items())


def what_it_costs(reached: Sequence[Reached]) -> str:
    """How many times the images of the second smallest batch the larger ones need."""
    _, base, *larger = sorted(reached, key=lambda r: r.batch_size)
    if not base.samples:
        return f"batches of {base.batch_size} do not arrive, so nothing can be compared"
    there = [f"{r.batch_size} needs {_times(r.samples / base.samples)}×" for r in larger if r.samples]
    never = [r.batch_size for r in larger if not r.samples]
    found = [f"{listed(there)} the images of {base.batch_size}"] if there else []
    found += [f"{listed(never)} {'do' if never[1:] else 'does'} not arrive"] if never else []
    return ", ".join(found)


def _times(ratio: float) -> str:
    return f"{ratio:.0f}" if ratio >= 9.95 else f"{ratio:.1f}"


def explain_ends(same: Sequence[Reached], scaled: Sequence[Reached]) -> str:
    """What the smallest batch shows at the same rate and the largest at the scaled one, if they do."""
    one, one_scaled = (min(reached, key=lambda r: r.batch_size) for reached in (same, scaled))
    found = []
    if not one.samples and one_scaled.samples:
        found.append(
            f"The gradient of {_images(one.batch_size)} is so noisy that the rate {one.learning_rate:g} is "
            f"too large for it; at {one_scaled.learning_rate:g} it arrives."
        )
    *_, large, largest = sorted(scaled, key=lambda r: r.batch_size)
    if large.samples and largest.samples and large.steps and largest.steps:
        found.append(
            f"Scaled rate: {largest.batch_size} takes {largest.steps} steps where {large.batch_size} takes "
            f"{large.steps}, and {_times(largest.samples / large.samples)} times the images."
        )
    return " ".join(found)


def _images(count: int) -> str:
    return "a single image" if count == 1 else f"{count} images"


def batch_128(same: Sequence[Reached]) -> tuple[float | None, str]:
    """How many times the images of batch 16 batch 128 needs, and why; None if one of them did not arrive."""
    small, large = (next(r for r in same if r.batch_size == size) for size in (16, 128))
    if not small.samples or not large.samples:
        return None, "Not reached: one of the two batches did not arrive, so nothing can be compared."
    return large.samples / small.samples, explain_batch(large.samples / small.samples)


def explain_batch(times: float) -> str:
    """Why batches of 128 need so many times the images of 16, chosen from the number."""
    if times > 4:
        return "A step along a better gradient goes hardly further, and an epoch has 8 times fewer steps."
    if times > 1.5:
        return "A step along a better gradient goes further, but not 8 times as far."
    return "Here the gradient of 16 images was so noisy that 128 make up for having fewer steps."


# ------------------------------------------------------------------ a batch in pieces


def microbatch_sum(parts: Numbers, lengths: Sequence[int], whole: Numbers) -> Picture:
    """One weight's gradient: of the full batch, as a sum over micro-batches, and as the mean of their means.

    `parts[i]` (weights) is what micro-batch i adds when its summed loss is divided by the batch size,
    `lengths[i]` its number of images, `whole` (weights) the gradient of the full batch. The weight drawn is
    the one with the largest gradient among those whose parts all have one sign.
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
    above: Look = {"ha": "right" if whole > 0 else "left", "va": "bottom", "fontsize": FONT_SIZE}
    axes.annotate("full batch ", (whole, 1), xycoords=("data", "axes fraction"), **above)
    axes.set_yticks([0, 1, 2], ["full batch", "sum over\nmicro-batches", "mean of\ntheir means"])
    axes.invert_yaxis()
    axes.set_xlabel("gradient of one weight (in the bars: number of images)")
    told = ", ".join(
        f"{length} image{'s add' if length > 1 else ' adds'} {part:.3g}"
        for part, length in zip(parts, lengths, strict=True)
    )
    kind = "Three bars, the gradient of one weight"
    alt = f"{kind}: full batch {whole:.3g}; {told}; mean of the means {sum(means):.3g}. {title}."
    return Picture(figure, alt.replace("\n", " "))


def sum_title(parts: Sequence[float], means: Sequence[float], whole: float) -> str:
    """Whether the parts add up to the full gradient, and how far off the mean of the means is."""
    same = abs(sum(parts) - whole) <= 1e-4 * abs(whole)
    added = "The micro-batches add up to the batch" if same else "The parts do NOT add up to the batch"
    off = (sum(means) - whole) / whole
    other = (
        "is the same here" if abs(off) < 5e-4 else f"is {abs(off):.0%} too {'large' if off > 0 else 'small'}"
    )
    return f"{added}; the mean of their means {other}"


# ------------------------------------------------------------------ epochs


def learning_curves(trained: Sequence[float], tested: Sequence[float]) -> Picture:
    """The loss per epoch on the training images (the mean over the epoch) and on the test images after it."""
    title = curves_title(trained, tested)
    figure, axes = new_figure(title, width=7.5, height=4.0)
    epochs = range(1, len(trained) + 1)
    axes.plot(epochs, trained, **series_style(0), markersize=6, label="training images")
    axes.plot(epochs, tested, **series_style(1), markersize=6, label="test images")
    axes.set(yscale="log", xlabel="epoch", ylabel="mean loss")
    axes.xaxis.set_major_locator(MultipleLocator(max(1, len(trained) // 5)))
    show_values(axes, [*trained, *tested])
    figure.legend(loc="outside lower left", ncols=2, fontsize=FONT_SIZE, frameon=False)
    told = "; ".join(
        f"epoch {n}: {one:.3f} and {other:.3f}" for n, one, other in zip(epochs, trained, tested, strict=True)
    )
    kind = "Line chart, y logarithmic: mean loss on training images and on test images, by epoch"
    return Picture(figure, f"{kind}. {title}. {told}.".replace("\n", " "))


def curves_title(trained: Sequence[float], tested: Sequence[float]) -> str:
    """Where both losses end, and after which epoch the test loss was lowest."""
    best = min(range(len(tested)), key=lambda epoch: tested[epoch])
    training = (
        f"training loss {'falls' if trained[-1] < trained[0] else 'goes'} to {three_digits(trained[-1])}"
    )
    if best + 1 == len(tested):
        return f"Test loss is still falling at the end: {three_digits(tested[-1])}; {training}"
    lowest = f"Test loss is lowest after epoch {best + 1} ({three_digits(tested[best])})"
    return f"{lowest} and ends at {three_digits(tested[-1])}; {training}"


# ------------------------------------------------------------------ threads and ranks


def throughput(baselines: Sequence[Baseline]) -> Picture:
    """How many times as fast as one thread each model is trained, one bar per number of threads or ranks."""
    title = throughput_title(baselines)
    figure, axes = new_figure(title, width=7.5, height=4.2)
    gains = speedups(baselines)
    ways = list(dict.fromkeys(way for by_way in gains.values() for way in by_way))
    width = 0.8 / len(ways)
    for index, way in enumerate(ways):
        places = [n + (index - (len(ways) - 1) / 2) * width for n in range(len(gains))]
        heights = [by_way[way] for by_way in gains.values()]
        hatch = ("", "///", "...")[index % 3]
        bars = axes.bar(
            places, heights, width, label=way, color=rank_colour(index), edgecolor=INK, hatch=hatch
        )
        axes.bar_label(bars, [f"{height:.2f}" for height in heights], fontsize=FONT_SIZE, padding=2)
    axes.set_xticks(range(len(gains)), [name.upper() for name in gains])
    axes.set_ylabel("speed-up over 1 thread")
    axes.margins(y=0.15)
    figure.legend(loc="outside lower left", ncols=len(ways), fontsize=FONT_SIZE, frameon=False)
    rates = "; ".join(
        f"{b.name} on {way_of(b)}: {three_digits(b.images_per_second)} images/s" for b in baselines
    )
    return Picture(figure, f"Bar chart: speed-up over one thread, for each model. {title}. {rates}.")


def way_of(baseline: Baseline) -> str:
    """Who computes: "1 thread", "2 threads" or "2 ranks"."""
    if baseline.ranks > 1:
        return f"{baseline.ranks} ranks"
    return f"{baseline.threads} thread{'s' * (baseline.threads > 1)}"


def speedups(baselines: Sequence[Baseline]) -> dict[str, dict[str, float]]:
    """The speed-up over one thread, by model and way."""
    alone = {b.name: b.images_per_second for b in baselines if b.threads == b.ranks == 1}
    gains: dict[str, dict[str, float]] = {name: {} for name in alone}
    for b in baselines:
        gains[b.name][way_of(b)] = b.images_per_second / alone[b.name]
    return gains


def throughput_title(baselines: Sequence[Baseline]) -> str:
    """Which way was fastest for each model; ways that differ by less than 5 % are named together."""
    gains = speedups(baselines)
    if all(len(by_way) == 1 for by_way in gains.values()):
        return "One core: there are no threads or ranks to compare"
    if disturbed(gains["cnn"]):
        return "The cores were busy: this run does not compare threads with ranks"
    fastest: dict[str, list[str]] = {}
    for name, by_way in gains.items():
        best = [way for way, gain in by_way.items() if gain > 0.95 * max(by_way.values())]
        fastest.setdefault(" or ".join(best), []).append(name.upper())
    return "Fastest: " + "; ".join(f"{ways} for {listed(names)}" for ways, names in fastest.items())


def explain_threads(baselines: Sequence[Baseline]) -> str:
    """The CNN's speed-ups with threads and with ranks, and what they say, chosen from the measurement."""
    gains = speedups(baselines)["cnn"]
    ways = [way for way in gains if way != "1 thread"]
    if len(ways) < 2:
        return "One core: more threads or ranks would only share it."
    threads, ranks = gains[ways[-2]], gains[ways[-1]]
    told = f"Speed-up {ranks:.2f} with {ways[-1]}, {threads:.2f} with {ways[-2]}."
    if disturbed(gains):
        team, free = reference_speedup()
        return (
            f"{told} On free cores, {team} ranks of the reference machine reach {free:.2f}: here the cores "
            "were busy, so this run says nothing about threads against ranks."
        )
    if max(threads, ranks) < 1.2:
        return f"{told} Both are small: are the cores busy with something else?"
    if threads > 1.05 * ranks:
        return f"{told} Threads share one copy of the weights and send nothing, so here they win."
    if ranks > 1.05 * threads:
        return f"{told} Ranks wait for each other once per step, threads after every operation."
    return f"{told} For the CNN on this machine, it makes no difference."


def disturbed(gains: Mapping[str, float]) -> bool:
    """Whether ranks are far slower than as many on free cores; `gains` are the CNN's speed-ups, by way."""
    ranks, free = reference_speedup()
    return gains.get(f"{ranks} ranks", free) < 0.85 * free


def reference_speedup() -> tuple[int, float]:
    """The number of ranks of the committed benchmark, and their speed-up of the CNN on free cores."""
    row = reference("data_parallel", "cnn, MNIST: efficiency, one bucket")
    return row["ranks"], row["ratio"] * row["ranks"]


# ------------------------------------------------------------------ memory

DEVICES = {"a GPU of 16 GB": 16e9, "a GPU of 80 GB": 80e9, "a server of 192 GB": 192e9}


def memory_against_image(measured: Mapping[int, int], batch_size: int) -> Picture:
    """Bytes per image of a training step against the edge of the image, and where memories are full.

    `measured` has the bytes of a step with `batch_size` images, by the edge in pixels. The predicted line
    goes on from the largest image in proportion to the number of pixels.
    """
    edge, nbytes = max(measured.items())
    per_pixel = nbytes / batch_size / edge**2
    full = {name: (room / per_pixel) ** 0.5 for name, room in DEVICES.items()}
    first, room = next(iter(full.items()))
    title = f"One image of {_pixels(room)} × {_pixels(room)} pixels fills {first} (predicted)"
    figure, axes = new_figure(title, width=7.5, height=4.2)
    points = [count / batch_size / 1e9 for count in measured.values()]
    axes.plot(list(measured), points, **series_style(0), markersize=8, label="measured")
    far = [edge, 2 * max(full.values())]
    axes.plot(far, [per_pixel * n**2 / 1e9 for n in far], linestyle=":", color=IDEAL, label="predicted")
    for name, at in full.items():
        axes.axhline(DEVICES[name] / 1e9, color="#D55E00", linewidth=1)
        place = (min(measured), 1.12 * DEVICES[name] / 1e9)
        axes.annotate(f"{name}: {_pixels(at)} × {_pixels(at)}", place, fontsize=FONT_SIZE)
    axes.set(xscale="log", yscale="log", xlabel="edge of the image (pixels)", ylabel="GB per image")
    for axis, ticks in ((axes.xaxis, (32, 128, 1000, 10_000)), (axes.yaxis, (0.001, 0.01, 0.1, 1, 10, 100))):
        axis.set_major_locator(FixedLocator(ticks))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(lambda value, _: f"{value:,.6g}".replace(",", " "))
    axes.legend(fontsize=FONT_SIZE, frameon=False, loc="lower right")
    lines = "; ".join(f"{n} pixels: {count / batch_size / 1e6:.3g} MB" for n, count in measured.items())
    rooms = "; ".join(f"{name} holds one of {_pixels(at)} pixels" for name, at in full.items())
    kind = "Line chart, both axes logarithmic: memory of a training step per image, against the image's edge"
    return Picture(figure, f"{kind}. {title}. Measured: {lines}. Predicted: {rooms}.")


def _pixels(edge: float) -> str:
    return f"{round(edge, -2):,.0f}".replace(",", " ")
