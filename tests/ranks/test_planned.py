"""Training by a plan: the losses of one process, and a known-wrong training that has others."""

import math
from pathlib import Path

import pytest
from mpi4py import MPI

from course.lessons.l16_choose_your_strategy import planned
from course.lessons.l16_choose_your_strategy.planned import grid_of, prepare, start
from course.lessons.l16_choose_your_strategy.planner.models import TransformerShape
from course.lessons.l16_choose_your_strategy.planner.plan import Plan, why_not

TEXT = TransformerShape(blocks=4, width=24, length=12, vocabulary=24, heads=12)  # 12 is a multiple of 1 to 4
BATCH, STEPS = 12, 3
CLOSE = 0.002  # of what the loss changes in these steps: rounding makes less of it, a wrong gradient more


def plans_for(ranks: int) -> list[Plan]:
    """A plan of each kind on so many ranks."""
    found = [Plan(data=ranks, zero=zero) for zero in range(4)]
    found += [
        Plan(pipeline=ranks, microbatches=3),
        Plan(tensor=ranks, sequence=True),
        Plan(data=ranks, microbatches=3, recompute=True, offload=True),
    ]
    return [plan for plan in found if why_not(TEXT, BATCH, plan) is None]


def losses(comm: MPI.Intracomm, plan: Plan, folder: Path) -> list[float]:
    """The loss of the global batch before each step."""
    grid = grid_of(comm, plan)
    training = prepare(grid, TEXT, BATCH, plan, folder)
    parts = (training.step() for _ in range(STEPS))
    return [grid["data"].allreduce(grid["pipeline"].allreduce(part)) for part in parts]


def as_in_one_process(comm: MPI.Intracomm, plan: Plan, folder: Path) -> bool:
    """Whether the plan has the losses of one process, up to rounding."""
    found, alone = losses(comm, plan, folder), losses(MPI.COMM_SELF, Plan(), folder)
    allowed = CLOSE * abs(alone[0] - alone[-1])
    return all(
        math.isclose(one, other, rel_tol=0, abs_tol=allowed) for one, other in zip(found, alone, strict=True)
    )


@pytest.mark.parametrize("index", range(7))
def test_a_plan_trains_as_one_process_does(comm: MPI.Intracomm, index: int, tmp_path: Path) -> None:
    for plan in plans_for(comm.size)[index : index + 1]:
        assert as_in_one_process(comm, plan, tmp_path), plan.name


def test_ranks_that_keep_their_own_gradients_have_other_losses(
    comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(planned, "start", lambda data, *more, **named: start(MPI.COMM_SELF, *more, **named))
    assert as_in_one_process(comm, Plan(data=comm.size), tmp_path) == (comm.size == 1)
