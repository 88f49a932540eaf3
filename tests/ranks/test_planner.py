"""What the planner predicts of memory and messages, against real ranks: one way to split at a time."""

from typing import Any, cast

import pytest
from mpi4py import MPI

from course.lessons.l16_choose_your_strategy.planned import grid_of, peak_nbytes, prepare
from course.lessons.l16_choose_your_strategy.planner.memory import memory_of
from course.lessons.l16_choose_your_strategy.planner.models import TransformerShape
from course.lessons.l16_choose_your_strategy.planner.plan import Plan, why_not
from course.lessons.l16_choose_your_strategy.planner.seconds import sent_by
from course_lib.comm.counting import counted
from tests.zero_counts import Receiving

TEXT = TransformerShape(blocks=4, width=48, length=24, vocabulary=48, heads=12)  # 12 is a multiple of 1 to 4
BATCH, HEADER_NBYTES = 12, 300


def plans_for(ranks: int) -> list[Plan]:
    """A plan of each kind on so many ranks."""
    found = [
        Plan(data=ranks, zero=0),
        Plan(data=ranks, zero=2, microbatches=12 // ranks if ranks < 4 else 3),
        Plan(pipeline=ranks, microbatches=3),
        Plan(pipeline=ranks, microbatches=3, schedule="GPipe", recompute=ranks > 1),
        Plan(tensor=ranks),
        Plan(tensor=ranks, sequence=ranks > 1),
    ]
    return [plan for plan in found if why_not(TEXT, BATCH, plan) is None]


@pytest.mark.parametrize("index", range(6))
def test_a_rank_holds_what_is_predicted(comm: MPI.Intracomm, index: int) -> None:
    runnable = plans_for(comm.size)
    if index >= len(runnable):
        return
    plan = runnable[index]
    peak = comm.allreduce(peak_nbytes(prepare(grid_of(comm, plan), TEXT, BATCH, plan)), MPI.MAX)
    assert memory_of(TEXT, BATCH, plan).value == pytest.approx(peak, rel=0.08), plan.name


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_zero_sends_what_is_predicted(comm: MPI.Intracomm, stage: int) -> None:
    if comm.size == 1:
        return
    plan = Plan(data=comm.size, zero=stage)
    grid = grid_of(comm, plan)
    receiving = grid["data"] = Receiving(grid["data"])
    training = prepare(grid, TEXT, BATCH, plan)
    training.step()
    mean = comm.allreduce(receiving.nbytes) / comm.size
    assert sent_by(TEXT, BATCH, plan).value == pytest.approx(mean, rel=0.01)


def test_a_pipeline_sends_what_is_predicted(comm: MPI.Intracomm) -> None:
    if comm.size == 1:
        return
    plan = Plan(pipeline=comm.size, microbatches=4)
    grid: dict[str, Any] = grid_of(comm, plan)
    counting = grid["pipeline"] = counted(cast(MPI.Intracomm, grid["pipeline"]))
    prepare(grid, TEXT, BATCH, plan).step()
    most = comm.allreduce(counting.sent.nbytes, MPI.MAX)
    predicted = sent_by(TEXT, BATCH, plan).value
    assert 0 <= most - predicted <= 2 * plan.microbatches * HEADER_NBYTES
