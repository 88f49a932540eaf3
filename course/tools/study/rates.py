"""How the three models of MNIST are trained well in five epochs, and the learning rate of a case.

The rate goes down along a line to zero: big steps at first go far; small ones at the end stop the last
batches from pulling the weights about (Li, Yumer & Ramanan, "Budgeted Training", 2020). Where it grew with
the ranks, it goes up to there first.

    fixed     η · (1 − s / S)                                   in step s of S
    scaled    the same with nη, times (1 + (n − 1) s / W) / n in the first W steps: from η up to nη

A rate that is n times larger from the first step on can ruin a training for good, before the weights are
anywhere near; so it is raised gradually, here in an epoch (Goyal and others, "Accurate, Large Minibatch SGD",
2017).
"""

from collections.abc import Iterable

from torch import nn
from torch.optim import SGD
from torch.optim.lr_scheduler import LambdaLR

from course.lessons.l07_ddp_on_mnist.study_results import SCALED, Case

RATES = {"mlp": 0.05, "cnn": 0.05, "lstm": 0.1}  # η with a global batch of BATCH
BATCH, MOMENTUM = 128, 0.9


def factor(step: int, steps: int, ranks: int, warm_up: int) -> float:
    """What the rate of a case is multiplied by in `step` of `steps`; `warm_up`: steps until n times η."""
    raised = (1 + (ranks - 1) * step / warm_up) / ranks if step < warm_up else 1.0
    return raised * max(0.0, 1 - step / steps)


def make_optimizer(case: Case, parameters: Iterable[nn.Parameter]) -> SGD:
    """SGD with the batch, the rate and the epochs of the case; each of its steps moves the rate on."""
    in_epoch = -(-case.images // case.batch_size)  # the last batch may be shorter
    steps, warm_up = case.epochs * in_epoch, in_epoch if case.rate_rule == SCALED else 0
    optimizer = SGD(parameters, lr=case.learning_rate, momentum=MOMENTUM)
    schedule = LambdaLR(optimizer, lambda step: factor(step, steps, case.ranks, warm_up))
    optimizer.register_step_post_hook(lambda *_: schedule.step())
    return optimizer
