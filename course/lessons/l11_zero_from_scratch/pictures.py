"""The pictures of lesson 11, from what its runs return."""

from collections.abc import Sequence

from course.lessons.l11_zero_from_scratch.records import Look, Training
from course.lessons.shared.figures.zero import held_bars, live_lines
from course_lib.theory.memory import ADAM_FP32
from mpi_classroom.figures import Picture
from mpi_classroom.show import show


def bytes_held(runs: Sequence[Sequence[Training]], stage: int) -> float:
    """What a rank holds in this stage, the mean over the ranks; `runs[rank][stage]`."""
    return sum(run[stage].held.total for run in runs) / len(runs)


def held_picture(runs: Sequence[Sequence[Training]], parameters: int) -> Picture:
    """What every rank held in every stage, beside the formula."""
    stages = range(len(runs[0]))
    return held_bars([[run[stage].held for run in runs] for stage in stages], parameters, ADAM_FP32)


def loss_picture(stages: Sequence[Training]) -> Picture:
    """The loss of each stage."""
    rows = [
        {"labels": {"step": step, "stage": str(stage)}, "value": loss, "unit": "nats"}
        for stage, run in enumerate(stages)
        for step, loss in enumerate(run.losses)
    ]
    return show(rows, x="step", y="training loss", by="stage")


def peak_picture(looks: Sequence[Look]) -> Picture:
    """All live memory within a step of each stage."""
    names = [f"stage {stage}" for stage in range(len(looks))]
    return live_lines(
        {name: look.live for name, look in zip(names, looks, strict=True)},
        {name: look.held for name, look in zip(names, looks, strict=True)},
    )
