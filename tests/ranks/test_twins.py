"""Training by a plan: the losses of one process, and a known-wrong training that has others."""

import pytest
from mpi4py import MPI

from course.lessons.l16_choose_your_strategy.capstone import CHATBOT, LAPTOP
from course.lessons.l16_choose_your_strategy.runs import losses_of, run_plan
from course.lessons.l16_choose_your_strategy.twins import alike, train_twin
from course_lib.parallel import planned
from course_lib.parallel.zero_stages import start
from course_lib.theory.planner.models import Shape, TransformerShape
from course_lib.theory.planner.nets import ConvShape, MLPShape
from course_lib.theory.planner.plan import Plan, why_not

TEXT = TransformerShape(blocks=4, width=24, length=12, vocabulary=24, heads=12)  # 12 is a multiple of 1 to 4
IMAGES, LAYERS = ConvShape(24, (3, 8, 8)), MLPShape((16, 32, 32, 10), layer_tiles=2)
BATCH, STEPS = 12, 3


def plans_for(ranks: int) -> list[tuple[Shape, Plan]]:
    """A plan of each kind on so many ranks."""
    found: list[tuple[Shape, Plan]] = [(TEXT, Plan(data=ranks, zero=zero)) for zero in range(4)]
    found += [
        (TEXT, Plan(pipeline=ranks, microbatches=3)),
        (TEXT, Plan(tensor=ranks, sequence=True)),
        (TEXT, Plan(data=ranks, microbatches=3, recompute=True, offload=True)),
        (LAYERS, Plan(data=ranks, zero=3)),
        (IMAGES, Plan(tiles=(ranks, 1))),
        (IMAGES, Plan(data=ranks, zero=1)),
    ]
    return [(shape, plan) for shape, plan in found if why_not(shape, BATCH, plan) is None]


def losses(comm: MPI.Intracomm, shape: Shape, plan: Plan) -> tuple[list[float], list[float]]:
    """The losses of the plan, and those of one process."""
    alone = losses_of(MPI.COMM_SELF, shape, BATCH, Plan(), steps=STEPS)
    return losses_of(comm, shape, BATCH, plan, steps=STEPS), alone


@pytest.mark.parametrize("index", range(10))
def test_a_plan_trains_as_one_process_does(comm: MPI.Intracomm, index: int) -> None:
    for shape, plan in plans_for(comm.size)[index : index + 1]:
        assert alike(*losses(comm, shape, plan)), plan.name


def test_ranks_that_keep_their_own_gradients_have_other_losses(
    comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planned, "start", lambda data, *more, **named: start(MPI.COMM_SELF, *more, **named))
    assert alike(*losses(comm, TEXT, Plan(data=comm.size))) == (comm.size == 1)


def test_tiles_that_keep_their_own_gradients_have_other_losses(
    comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planned, "sum_over_tiles", lambda tiles, modules: None)
    if comm.size > 1:
        assert not alike(*losses(comm, IMAGES, Plan(tiles=(comm.size, 1))))


def test_every_rank_has_the_same_numbers_of_a_run(comm: MPI.Intracomm) -> None:
    found = run_plan(comm, TEXT, BATCH, Plan(pipeline=comm.size), steps=1)
    assert found["nbytes"] > 0 and found["seconds"] > 0
    assert comm.allgather(found) == [found] * comm.size


def test_a_twin_trains_on_as_many_ranks_as_it_takes(comm: MPI.Intracomm) -> None:
    run = train_twin(comm, LAPTOP, LAPTOP.fastest, timed=1)
    assert run.fits and run.equal and "equal up to rounding" in str(run)
    if comm.size < 4:
        with pytest.raises(ValueError, match=f"takes 4 ranks, and there are {comm.size}"):
            train_twin(comm, CHATBOT, CHATBOT.fastest)
