"""A training as it is watched, beside long trainings that were measured earlier: loss and accuracy.

The long ones are those of `python -m benchmarks.deepspeed_cifar`, as plain data from the repository.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from course.paths import ROOT
from mpi_classroom.figures import FONT_SIZE, INK, Look, Picture, new_panels

LONG_RUNS = ROOT / "benchmarks" / "results" / "deepspeed_cifar.curves.json"
CLASSES = 10
SMOOTH = 10  # steps in a mean of the loss
TODAY: Look = {"color": INK, "linewidth": 2.5, "marker": "o", "markersize": 7}
LOOKS: dict[str, Look] = {  # of the long runs
    "ranks": {"color": "#0072B2", "linewidth": 1.5},
    "alone": {"color": "#E69F00", "linewidth": 1.5, "linestyle": "--"},
    "small": {"color": "#CC79A7", "linewidth": 1.5, "linestyle": ":"},
}


@dataclass(frozen=True, slots=True)
class Training:
    """What was trained on which images, and how it went."""

    data: str  # as it is called in a sentence
    ranks: int
    batch_size: int
    losses: Sequence[float]  # of every step, or means of equally many steps
    accuracies: Sequence[float]  # fractions of the validation images that are right, after each epoch
    steps: int  # in all epochs together
    model: str = "convnet"
    seed: int = 0

    @property
    def epochs(self) -> int:
        """Passes over the training images."""
        return len(self.accuracies)

    @property
    def images(self) -> float:
        """How many images it was trained on, with all repetitions."""
        return self.steps * self.batch_size


def long_trainings(path: Path = LONG_RUNS) -> list[Training]:
    """The trainings in the file at `path`; none where there is no file."""
    return [as_training(each) for each in json.loads(path.read_text())] if path.exists() else []


def as_training(found: dict[str, object]) -> Training:
    """One entry of the file."""
    percents = list(map(float, found["validation"]))  # type: ignore[call-overload]
    return Training(
        data=str(found["data"]),
        ranks=int(str(found["ranks"])),
        batch_size=int(str(found["batch_size"])),
        losses=list(found["losses"]),  # type: ignore[call-overload]
        accuracies=[percent / 100 for percent in percents],
        steps=int(str(found["updates_per_epoch"])) * len(percents),
        model=str(found["model"]),
        seed=int(str(found["seed"])),
    )


def learning_curves(today: Training, long: Sequence[Training]) -> Picture:
    """Left: the loss of today's training; right: its accuracy, beside that of the long ones."""
    title = curves_title(today, long)
    figure, (left, right) = new_panels(title, columns=2, height=4.3)
    pale: Look = {"color": "#56B4E9", "linewidth": 1}
    left.plot(range(1, len(today.losses) + 1), today.losses, **pale)
    ends = list(range(SMOOTH, len(today.losses) + 1))
    means = [fmean(today.losses[end - SMOOTH : end]) for end in ends]
    left.plot(ends, means, color=INK, linewidth=2.5)
    left.set(xlabel="step", ylim=(0, None))
    left.set_title("training loss, today", fontsize=FONT_SIZE, color=INK, loc="left")
    for name, runs in groups(long).items():
        for run in runs:
            label = group_label(name, runs) if run is runs[0] else None
            right.plot(*points(run), label=label, **LOOKS[name])
    right.plot(*points(today), label=f"today, {today.data}", **TODAY)
    right.axhline(100 / CLASSES, color="#777777", linewidth=1, linestyle="--", label="guessing")
    right.set(xlabel="thousand images trained on", xlim=(0, None), ylim=(0, 100))
    right.set_title("percent correct after each epoch", fontsize=FONT_SIZE, color=INK, loc="left")
    figure.legend(loc="outside lower left", ncols=2, fontsize=FONT_SIZE, frameon=False)
    return Picture(figure, curves_alt(today, long, title))


def points(run: Training) -> tuple[list[float], list[float]]:
    """Thousands of images after each epoch, and the percent that is right then."""
    each = run.images / run.epochs / 1000
    return [each * (epoch + 1) for epoch in range(run.epochs)], [100 * value for value in run.accuracies]


def groups(long: Sequence[Training]) -> dict[str, list[Training]]:
    """The long trainings by how they were made, those that there are."""
    of = {
        "ranks": [run for run in long if run.ranks > 1 and run.model == "convnet"],
        "alone": [run for run in long if run.ranks == 1],
        "small": [run for run in long if run.ranks > 1 and run.model != "convnet"],
    }
    return {name: runs for name, runs in of.items() if runs}


def group_label(name: str, runs: Sequence[Training]) -> str:
    """What the lines of a group are, in the legend."""
    seeds = f"{len(runs)} seeds" if len(runs) > 1 else "1 seed"
    words = {"ranks": f"{runs[0].ranks} ranks", "alone": "one process", "small": "DeepSpeed's example net"}
    return f"measured earlier: {words[name]}, {seeds}"


def curves_title(today: Training, long: Sequence[Training]) -> str:
    """How much is right today, and how much after the long trainings."""
    title = f"Today: {today.accuracies[-1]:.1%} correct after {today.epochs} short epochs ({today.data})"
    found = groups(long)
    if "ranks" in found:
        first = found["ranks"][0]
        ends = f"{mean_end(found['ranks']):.1%} on {first.ranks} ranks"
        if "alone" in found:
            ends += f", {mean_end(found['alone']):.1%} in one process"
        title += f";\nearlier ({first.data}): {ends}"
    return title


def explain_lines(long: Sequence[Training]) -> str:
    """What the lines of the figure are, and what can be compared with the long trainings."""
    found = groups(long)
    said = (
        "The black lines are today's training. On the left, the pale line is the loss of every step, and the "
        f"black line a mean of {SMOOTH} steps."
    )
    if not found:
        return said
    said += f"\nThe lines measured earlier are longer trainings ({long[0].data})."
    if "ranks" in found and "alone" in found:
        ranks, alone = found["ranks"], found["alone"]
        most = max(spread(ranks), spread(alone))
        said += (
            f"\nThey end at {mean_end(ranks):.1%} on {ranks[0].ranks} ranks, {mean_end(alone):.1%} in one "
        )
        said += f"process; the seed alone changes that by up to {most:.1f} points."
    if "small" in found:
        said += f"\nThe net of DeepSpeed's own example ends at {mean_end(found['small']):.1%}."
    return said


def mean_end(runs: Sequence[Training]) -> float:
    """The accuracy at the end, on average over the `runs`."""
    return fmean(run.accuracies[-1] for run in runs)


def spread(runs: Sequence[Training]) -> float:
    """How many percentage points lie between the best and the worst end of the `runs`."""
    ends = [100 * run.accuracies[-1] for run in runs]
    return max(ends) - min(ends)


def curves_alt(today: Training, long: Sequence[Training], title: str) -> str:
    """The same in words."""
    fall = f"{today.losses[0]:.2f} to {fmean(today.losses[-SMOOTH:]):.2f}"
    ends = [
        f"{group_label(name, runs)}: {', '.join(f'{run.accuracies[-1]:.1%}' for run in runs)} at the end"
        for name, runs in groups(long).items()
    ]
    beside = f" {'; '.join(ends)}." if ends else ""
    return (
        f"Two line charts: the loss of today's training by step, and the accuracy by images trained on. "
        f"{title.replace(chr(10), ' ')}. In {len(today.losses)} steps the loss goes from {fall}.{beside}"
    )
