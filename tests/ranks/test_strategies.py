"""The table of lesson 17: every strategy equals one process, and with its mistake it does not."""

import pytest
from mpi4py import MPI

from course.lessons.l17_five_dimensions.strategies import ROUNDING, STRATEGIES, Strategy, measure


@pytest.mark.deadline(60)
@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda strategy: strategy.name)
def test_every_strategy_equals_one_process_and_with_its_mistake_does_not(
    comm: MPI.Intracomm, strategy: Strategy
) -> None:
    if comm.size in strategy.ranks:
        assert measure(comm, strategy) < ROUNDING
        assert measure(comm, strategy, mistaken=True) > 1e4 * ROUNDING
