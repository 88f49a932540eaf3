"""The learning rate of a case: down along a line to zero; where it grew with the ranks, up to there first.

    fixed     η · (1 − s / S)                                   in step s of S
    scaled    the same with nη, times (1 + (n − 1) s / W) / n in the first W steps: from η up to nη

A rate that is n times larger from the first step on can ruin a training for good, before the weights are
anywhere near; so it is raised gradually, here in an epoch (Goyal and others, "Accurate, Large Minibatch SGD",
2017).
"""

from collections.abc import Iterable
from dataclasses import replace

from torch import nn
from torch.optim import SGD
from torch.optim.lr_scheduler import LambdaLR

from course.lessons.l07_ddp_on_mnist.study_results import SCALED, Case
from course_lib.training.recipes import RECIPES


def factor(step: int, steps: int, ranks: int, warm_up: int) -> float:
    """What the rate of a case is multiplied by in `step` of `steps`; `warm_up`: steps until n times η."""
    raised = (1 + (ranks - 1) * step / warm_up) / ranks if step < warm_up else 1.0
    return raised * max(0.0, 1 - step / steps)


def make_optimizer(case: Case, parameters: Iterable[nn.Parameter]) -> SGD:
    """SGD by the recipe of the case's model, with the batch, the rate and the epochs of the case."""
    recipe = replace(
        RECIPES[case.model],
        learning_rate=case.learning_rate,
        batch_size=case.batch_size,
        epochs=case.epochs,
    )
    if case.rate_rule != SCALED:
        return recipe.make_optimizer(parameters, case.images)
    optimizer = SGD(parameters, lr=recipe.learning_rate, momentum=recipe.momentum)
    steps = recipe.steps(case.images)
    schedule = LambdaLR(optimizer, lambda step: factor(step, steps, case.ranks, steps // case.epochs))
    optimizer.register_step_post_hook(lambda *_: schedule.step())
    return optimizer
