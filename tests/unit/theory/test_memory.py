"""The formula that the tests hold ZeRO to: the bytes per rank that its paper published."""

import pytest

from course_lib.theory.memory import ADAM_MIXED
from tests.formulas import held_state

PUBLISHED_GB = {0: 120.0, 1: 31.4, 2: 16.6, 3: 1.9}  # figure 1 of the paper: 7.5 billion parameters, 64 ranks


@pytest.mark.parametrize(("stage", "published"), PUBLISHED_GB.items())
def test_bytes_per_rank_are_those_of_the_zero_papers_figure(stage: int, published: float) -> None:
    assert round(held_state([7_500_000_000], stage, 64, 0, ADAM_MIXED).total / 1e9, 1) == published
