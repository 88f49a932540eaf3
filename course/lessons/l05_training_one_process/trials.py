"""The results of sweeps and baselines as plain data, which figures draw without torch."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Trial:
    """One training with this learning rate and batch size.

    `losses` has the loss of each step, `loss` the mean loss on test images afterwards. It is infinite when
    the training diverged: the numbers left the range of floats.
    """

    learning_rate: float
    batch_size: int
    losses: tuple[float, ...]
    samples: int
    loss: float

    @property
    def steps(self) -> int:
        """How often the weights were updated."""
        return len(self.losses)

    @property
    def diverged(self) -> bool:
        """Whether the numbers left the range of floats."""
        return math.isinf(self.loss)


@dataclass(frozen=True, slots=True)
class Reached:
    """The samples and steps it took to bring the test loss down to `target`; None where it was not reached.

    Steps are updates of the weights: an epoch may end with one for a shorter batch. `diverged` says whether
    the target was not reached because the numbers left the range of floats.
    """

    learning_rate: float
    batch_size: int
    target: float
    samples: int | None = None
    steps: int | None = None
    diverged: bool = False


@dataclass(frozen=True, slots=True)
class Baseline:
    """How many images per second the model `name` is trained on, by so many ranks of so many threads each."""

    name: str
    threads: int
    images_per_second: float
    ranks: int = 1
