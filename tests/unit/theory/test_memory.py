"""The memory of a model in training: the bytes per rank that the ZeRO paper published."""

import pytest

from course_lib.theory.memory import bytes_per_parameter

PUBLISHED_GB = {0: 120.0, 1: 31.4, 2: 16.6, 3: 1.9}  # figure 1 of the paper: 7.5 billion parameters, 64 ranks


@pytest.mark.parametrize(("stage", "published"), PUBLISHED_GB.items())
def test_bytes_per_rank_are_those_of_the_zero_papers_figure(stage: int, published: float) -> None:
    assert round(7.5 * bytes_per_parameter(stage, 64), 1) == published


def test_a_stage_or_a_number_of_ranks_that_is_not_is_refused() -> None:
    for stage, ranks in ((4, 2), (-1, 2), (1, 0)):
        with pytest.raises(ValueError, match=f"no stage {stage} on {ranks} ranks"):
            bytes_per_parameter(stage, ranks)
