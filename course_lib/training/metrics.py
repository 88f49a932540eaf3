"""How good a model is, in counts that add up.

The scores of two shards add up to the score of the whole. Their accuracies do not average to the accuracy
of the whole unless the shards are equally long: so shards send counts, and the division comes last.
"""

from dataclasses import dataclass

import torch


def count_correct(logits: torch.Tensor, labels: torch.Tensor) -> int:
    """How many rows of `logits` (B, classes) have their largest entry at `labels` (B)."""
    return int((logits.argmax(dim=1) == labels).sum())


@dataclass(frozen=True, slots=True)
class Score:
    """What a model did on some samples: how many it got right, and its loss summed over them."""

    correct: int = 0
    samples: int = 0
    loss: float = 0.0

    def __add__(self, other: "Score") -> "Score":
        return Score(self.correct + other.correct, self.samples + other.samples, self.loss + other.loss)

    @property
    def accuracy(self) -> float:
        """The fraction that is correct; ValueError when there are no samples."""
        return self.correct / self._counted()

    @property
    def mean_loss(self) -> float:
        """The loss per sample; ValueError when there are no samples."""
        return self.loss / self._counted()

    def _counted(self) -> int:
        if self.samples < 1:
            raise ValueError(
                "0 samples have no accuracy and no mean loss; add the scores of all shards first"
            )
        return self.samples


@dataclass(frozen=True, slots=True)
class Report:
    """An epoch of all ranks: the global loss of every step, the slowest rank's seconds, the test score."""

    ranks: int
    losses: tuple[float, ...]
    samples: int
    seconds: float
    score: Score
