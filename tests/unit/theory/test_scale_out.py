"""The model of a data-parallel step, against numbers worked out by hand."""

import pytest

from course_lib.theory.hockney import Hockney
from course_lib.theory.scale_out import (
    Claim,
    DataParallelStep,
)

STEP = DataParallelStep(compute_seconds=0.1, gradient_nbytes=4e6, samples_per_rank=64)
LINK = Hockney(1e-3, 1e-8)


def test_one_rank_only_computes() -> None:
    assert STEP.seconds(1, LINK) == 0.1
    assert STEP.efficiency(1, LINK) == 1
    assert STEP.samples_per_second(1, LINK) == pytest.approx(640)


@pytest.mark.parametrize(("ranks", "ring"), [(2, 0.002 + 0.04), (4, 0.006 + 0.06), (2048, 4.094 + 0.07996)])
def test_a_step_computes_and_then_goes_round_the_ring(ranks: int, ring: float) -> None:
    assert STEP.seconds(ranks, LINK) == pytest.approx(0.1 + ring, rel=1e-4)
    assert STEP.efficiency(ranks, LINK) == pytest.approx(0.1 / (0.1 + ring), rel=1e-4)
    assert STEP.samples_per_second(ranks, LINK) == pytest.approx(64 * ranks / (0.1 + ring), rel=1e-4)


def test_bandwidth_alone_hides_the_steps_of_many_ranks() -> None:
    no_latency = Hockney(0.0, LINK.beta_seconds_per_byte)
    assert STEP.efficiency(2, LINK) == pytest.approx(STEP.efficiency(2, no_latency), rel=0.02)
    assert STEP.efficiency(2048, LINK) < STEP.efficiency(2048, no_latency) / 20


def test_the_error_of_a_claim_has_a_sign() -> None:
    assert Claim("", 100, 110, "", "", "").error == pytest.approx(0.1)
    assert Claim("", 100, 90, "", "", "").error == pytest.approx(-0.1)
