"""Which runs a study has: each once, with the batch and the rate that its rule says."""

import pytest

from course.lessons.l07_ddp_on_mnist.study_results import (
    ACCURACY,
    FIXED,
    GLOBAL,
    LOCAL,
    SCALED,
)
from course.tools.study.plan import (
    DRAWN,
    FULL,
    MNIST,
    QUICK,
    Choice,
    job_size,
    jobs,
    plan,
)
from course_lib.training.recipes import RECIPES


@pytest.mark.parametrize("scale", [FULL, QUICK])
@pytest.mark.parametrize("cores", [1, 8])
def test_every_case_is_there_once_and_every_job_has_one_size(scale, cores):
    cases = plan(Choice(scale), cores=cores, data=MNIST)
    assert len(cases) == len(set(cases))
    assert [case for job in jobs(cases) for case in job] == cases
    assert all(len({job_size(case) for case in job}) == 1 for job in jobs(cases))


def test_batch_and_rate_follow_their_rules():
    cases = plan(Choice(models=("cnn",), parts=(ACCURACY,), ranks=(4,), seeds=1), cores=2, data=MNIST)
    found = {(case.batch_rule, case.rate_rule): (case.batch_size, case.learning_rate) for case in cases}
    size, rate = RECIPES["cnn"].batch_size, RECIPES["cnn"].learning_rate
    assert found == {
        (GLOBAL, FIXED): (size, rate),
        (LOCAL, FIXED): (4 * size, rate),
        (LOCAL, SCALED): (4 * size, pytest.approx(4 * rate)),
    }


def test_numbers_that_are_none_of_ranks_are_refused():
    with pytest.raises(ValueError, match="give 1 to 64 ranks"):
        plan(Choice(ranks=(0,)), cores=2, data=DRAWN)
