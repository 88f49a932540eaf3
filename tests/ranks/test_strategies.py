"""The table of lesson 10: every strategy equals one process, and known-wrong ones do not."""

from functools import partial

import pytest
from mpi4py import MPI

from course.lessons.l10_spatial_and_hybrid import strategies
from course.lessons.l10_spatial_and_hybrid.strategies import ROUNDING, STRATEGIES, Strategy, measure
from course_lib.parallel.spatial_parallel import sum_over_tiles


@pytest.mark.deadline(60)
@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda strategy: strategy.name)
def test_every_strategy_equals_one_process(comm: MPI.Intracomm, strategy: Strategy) -> None:
    found = measure(comm, strategy)
    assert list(found) == [n for n in strategy.ranks if n <= comm.size]
    assert all(difference < ROUNDING for difference in found.values())


def test_the_mean_over_tiles_does_not(comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch) -> None:
    def mean_over_tiles(tiles, modules) -> None:  # type: ignore[no-untyped-def]
        sum_over_tiles(tiles, modules)
        for module in modules:
            for parameter in module[0].parameters():
                parameter.grad /= tiles.comm.size

    monkeypatch.setattr(strategies, "sum_over_tiles", mean_over_tiles)
    wrong = Strategy("wrong", "image", "halos", partial(strategies.spatial, False, False), (comm.size,))
    assert (measure(comm, wrong)[comm.size] < ROUNDING) == (comm.size == 1)


def test_replicas_that_do_not_exchange_gradients_do_not(
    comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(strategies, "sum_replicas", lambda comm, replicas: None)
    wrong = Strategy("wrong", "", "", partial(strategies.gems, strategies.gems_mast), (comm.size,))
    assert measure(comm, wrong)[comm.size] > ROUNDING
