"""Rows of results as the tests of the study need them."""

from dataclasses import asdict

from course.lessons.l07_ddp_on_mnist.study_results import SEQUENTIAL, TIMING, EpochRow
from course.tools.study.plan import DRAWN, make_case

ABOUT = {
    "machine": {"processor": "a processor", "cores": 2, "memory_gb": 8.0, "system": "Linux x86_64"},
    "versions": {"python": "3.11", "torch": "2.13"},
    "data": DRAWN,
    "command": "course study",
    "date": "2026-01-01",
}

# `course` with a study of seconds.
PROGRAM = """
from course.tools import cli
from course.tools.study import command
from course.tools.study.plan import Scale
command.QUICK = Scale(1280, 1, 640, 640, 1, 1, ("mlp",), ("mlp",), 2, (2,), (2,))
cli.app()
"""


def a_case(engine=SEQUENTIAL, ranks=1, seed=0, part=TIMING, model="mlp", **rest):
    return make_case(part, model, engine, ranks, seed, DRAWN, **({"images": 640, "epochs": 1} | rest))


def a_row(case=None, *, epoch=1, seconds=2.0, wait=0.0, transfer=0.0, accuracy=0.9, loss=0.3, cores=2):
    case = case or a_case()
    known = not case.replayed
    return EpochRow(
        **asdict(case),
        epoch=epoch,
        epoch_seconds=seconds,
        wall_seconds=seconds * epoch,
        compute_seconds=seconds - wait - transfer,
        wait_seconds=wait,
        transfer_seconds=transfer,
        train_loss=loss if known else None,
        test_loss=loss if known else None,
        test_accuracy=accuracy if known else None,
        cores=cores,
    )
