"""Which runs a study has: each once, with the batch and the rate that its rule says."""

from dataclasses import replace

import pytest
import torch

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
from course.tools.study.rates import BATCH, RATES, make_optimizer


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
    size, rate = BATCH, RATES["cnn"]
    assert found == {
        (GLOBAL, FIXED): (size, rate),
        (LOCAL, FIXED): (4 * size, rate),
        (LOCAL, SCALED): (4 * size, pytest.approx(4 * rate)),
    }


def test_numbers_that_are_none_of_ranks_are_refused():
    with pytest.raises(ValueError, match="give 1 to 64 ranks"):
        plan(Choice(ranks=(0,)), cores=2, data=DRAWN)


@pytest.mark.parametrize(
    ("rule", "expected"),
    [(FIXED, [0.8, 0.6, 0.4, 0.2, 0, 0]), (SCALED, [0.4, 0.8 * 0.75 * 0.75, 0.4, 0.2, 0, 0])],
)
def test_the_rate_falls_along_a_line_to_zero_and_one_that_grew_climbs_first(rule, expected):
    """Two epochs of two steps; the last batch is shorter."""
    (case, *_) = plan(Choice(models=("cnn",), parts=(ACCURACY,), ranks=(2,), seeds=1), cores=2, data=MNIST)
    case = replace(case, images=3, batch_size=2, epochs=2, ranks=2, rate_rule=rule, learning_rate=0.8)
    parameter = torch.nn.Parameter(torch.zeros(3))
    optimizer, rates = make_optimizer(case, [parameter]), []
    for _ in expected:
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
    assert rates == pytest.approx(expected)
