"""The runs of lesson 15 on any number of ranks: straggler and flipped bit are found, the restart is right."""

import numpy as np
import pytest
from mpi4py import MPI

from course.lessons.l15_when_things_fail.runs import resumed_losses, traced_steps, train_with_a_flip
from course.lessons.l15_when_things_fail.surviving import BATCH, FEATURES, batch_of, local_part
from course_lib.comm.straggler import find_straggler

COMM = MPI.COMM_WORLD
ALL = ["weights", "optimizer", "random"]


@pytest.mark.parametrize("slow", [0, 2])
def test_the_straggler_of_the_recorded_steps_is_the_slow_rank(slow: int) -> None:
    """Its lateness is 150 ms in each step, so that a busy machine does not hide it."""
    spans = traced_steps(COMM, slow=slow, milliseconds=100.0, steps=2)
    found = find_straggler(spans) if spans is not None else None
    rank, where = COMM.bcast((found.rank, found.slow_in) if found else (None, None))
    if COMM.size > 1:
        assert (rank, where) == (slow % COMM.size, "load")


def test_replicas_are_equal_until_the_bit_flips_and_differ_from_then_on() -> None:
    found = train_with_a_flip(COMM, steps=4, flip_at=2, rank=1)
    assert [step for step, _ in found] == [0, 1, 2, 3]
    flipped = [] if COMM.size == 1 else ["0.weight"]
    assert [[each.tensor for each in differences] for _, differences in found] == [[], [], flipped, flipped]
    if COMM.size > 2:
        assert found[-1][1][0].ranks == (1,)


def test_a_restart_is_right_only_with_all_of_the_state() -> None:
    never = resumed_losses(None)
    assert resumed_losses(ALL) == never
    assert never[-1] < 0.5 * never[0]
    for forgotten in ALL:
        losses = resumed_losses([each for each in ALL if each != forgotten])
        assert losses[:10] == never[:10] and losses[10:] != never[10:], forgotten
    assert resumed_losses(["weights"])[10:] != never[10:]
    with pytest.raises(ValueError, match="no state called 'momentum'"):
        resumed_losses(["momentum"])


def test_the_ranks_that_live_add_up_the_mean_gradient_and_loss_of_the_global_batch() -> None:
    """On any number of ranks it is that of one process, which takes the mean over all samples."""
    weights = np.linspace(-1.0, 2.0, FEATURES)
    total = COMM.allreduce(local_part(COMM, weights, step=8))
    inputs, targets = batch_of(8)
    samples = [
        (2 * (x @ weights - y) * x, (x @ weights - y) ** 2) for x, y in zip(inputs, targets, strict=True)
    ]
    assert len(samples) == BATCH
    assert total[:-1] == pytest.approx(np.mean([gradient for gradient, _ in samples], axis=0))
    assert total[-1] == pytest.approx(np.mean([loss for _, loss in samples]))
