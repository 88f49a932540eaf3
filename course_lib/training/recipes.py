"""How the three MNIST models are trained well in five epochs: batch, learning rate, and its decay.

    learning rate      η · (1 − s / S)  in step s of S: along a straight line to zero

The steps are SGD with momentum. Big steps at first go far; small ones at the end stop the last batches from
pulling the weights about (Li, Yumer & Ramanan, "Budgeted Training", 2020). A recipe speaks of the *global*
batch, whoever computes which part of it: a fixed batch on each of n ranks is another recipe,
`replace(recipe, batch_size=n * recipe.batch_size)`.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil

from torch import nn
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import LambdaLR


@dataclass(frozen=True, slots=True)
class Recipe:
    """The settings of training besides model, data and seed; `batch_size` is the global batch."""

    learning_rate: float
    momentum: float = 0.9
    batch_size: int = 128
    epochs: int = 5

    def steps(self, samples: int) -> int:
        """The steps of all epochs over `samples` samples; the last batch of an epoch may be shorter."""
        return self.epochs * ceil(samples / self.batch_size)

    def make_optimizer(self, parameters: Iterable[nn.Parameter], samples: int) -> SGD:
        """SGD on `parameters`; its learning rate decays to zero over all epochs of `samples` samples."""
        optimizer = SGD(parameters, lr=self.learning_rate, momentum=self.momentum)
        decay_learning_rate(optimizer, self.steps(samples))
        return optimizer


RECIPES = {"mlp": Recipe(0.05), "cnn": Recipe(0.05), "lstm": Recipe(0.1)}


def decay_learning_rate(optimizer: Optimizer, steps: int) -> LambdaLR:
    """Let each `optimizer.step()` lower the learning rate: along a line, to 0 after `steps`.

    Whoever calls the optimizer need not know. The scheduler is returned for checkpoints: it has a state, too.
    """
    if steps < 1:
        raise ValueError(f"the learning rate cannot decay over {steps} steps; give the steps of all epochs")
    scheduler = LambdaLR(optimizer, lambda step: max(0.0, 1 - step / steps))
    optimizer.register_step_post_hook(lambda *_: scheduler.step())
    return scheduler
