"""What sweeps and baselines found, as plain data: figures draw it without torch."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Trial:
    """A training with this learning rate and batch, and the mean loss of the test images after it.

    `losses` are those of its steps. The loss is infinite when training diverged: numbers went beyond floats.
    """

    learning_rate: float
    batch_size: int
    losses: tuple[float, ...]
    samples: int
    loss: float

    @property
    def steps(self) -> int:
        """How often the weights were changed."""
        return len(self.losses)

    @property
    def diverged(self) -> bool:
        """Whether the numbers went beyond floats."""
        return math.isinf(self.loss)


@dataclass(frozen=True, slots=True)
class Reached:
    """What it took to bring the loss of the test images down to `target`; None where it was not reached."""

    learning_rate: float
    batch_size: int
    target: float
    samples: int | None

    @property
    def steps(self) -> int | None:
        """How often the weights were changed."""
        return None if self.samples is None else math.ceil(self.samples / self.batch_size)


@dataclass(frozen=True, slots=True)
class Baseline:
    """How many images a second the model `name` is trained on, with so many threads."""

    name: str
    threads: int
    images_per_second: float
