"""The learning rate of every step, against the formula."""

import pytest
import torch
from rows import a_case

from course.lessons.l07_ddp_on_mnist.study_results import ACCURACY, LOCAL, OWN_MPI, SCALED
from course.tools.study.rates import factor, make_optimizer


def rates_of(case):
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = make_optimizer(case, [weight])
    weight.grad = torch.zeros(1)
    found = []
    for _ in range(case.epochs * -(-case.images // case.batch_size)):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
    return found


def test_a_fixed_rate_falls_along_a_line():
    case = a_case(images=1280, epochs=2)
    assert rates_of(case) == pytest.approx([case.learning_rate * (1 - step / 20) for step in range(20)])


def test_a_scaled_rate_begins_like_the_fixed_one_and_is_raised_in_the_first_epoch():
    case = a_case(OWN_MPI, 4, part=ACCURACY, batch_rule=LOCAL, rate_rule=SCALED, images=5120, epochs=5)
    rates = rates_of(case)
    assert len(rates) == 50
    assert rates[0] == pytest.approx(case.learning_rate / 4)
    assert rates[5] == pytest.approx(case.learning_rate * 2.5 / 4 * (1 - 5 / 50))
    assert rates[10:] == pytest.approx([case.learning_rate * (1 - step / 50) for step in range(10, 50)])
    assert max(rates) == rates[10]


def test_one_rank_has_nothing_to_warm_up_for():
    assert [factor(step, 10, 1, 5) for step in (0, 3, 9)] == pytest.approx([1.0, 0.7, 0.1])
