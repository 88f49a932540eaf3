"""An extractive summarizer: a small Transformer scores the sentences of an article, and the best are copied.

    features (B, S, 17) ─ linear ─ 2 Transformer layers ─ linear → one score per sentence (B, S)
    training   score → how probably the greedy oracle picks this sentence (binary cross entropy)
    summary    the 3 sentences with the highest scores, in the article's order

Attention lets a sentence see the others, so that a score can depend on what else there is. Articles are
padded to the longest of a batch; padding is neither attended to, nor counted in the loss, nor picked. Liu,
"Fine-tune BERT for Extractive Summarization" (2019), has the same layers over a large encoder.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional as F

from benchmarks.extraction.features import NUMBER
from benchmarks.extraction.prepared import Prepared
from benchmarks.extraction.rouge import sentences
from course_lib.data.cnn_dailymail import Article
from course_lib.training.loop import Batch
from course_lib.training.models import seeded

IGNORED = -100.0  # the target of padding
SCORED_TOGETHER = 50  # articles


@dataclass(frozen=True, slots=True)
class ExtractRecipe:
    """Sizes, steps and rates; the defaults were chosen on validation articles."""

    width: int = 32
    heads: int = 4
    layers: int = 2
    batch: int = 32  # articles in a global batch
    epochs: int = 20
    learning_rate: float = 2e-3
    warmup_steps: int = 30
    clip: float = 1.0
    picked: int = 3  # sentences of a summary


class Extractor(nn.Module):
    """One score per sentence; no dropout, so that any number of ranks computes the same."""

    def __init__(self, recipe: ExtractRecipe) -> None:
        super().__init__()
        width = recipe.width
        self.read = nn.Linear(NUMBER, width)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width,
                recipe.heads,
                2 * width,
                dropout=0.0,
                activation="gelu",
                batch_first=True,
                norm_first=True,
            )
            for _ in range(recipe.layers)
        )
        self.norm, self.score = nn.LayerNorm(width), nn.Linear(width, 1)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """(B, S, 1 + 17), the first number 1 for a sentence and 0 for padding, to scores (B, S)."""
        padding, x = inputs[..., 0] == 0, self.read(inputs[..., 1:])
        for block in self.blocks:
            x = block(x, src_key_padding_mask=padding)
        return self.score(self.norm(x)).squeeze(-1)


def build_extractor(recipe: ExtractRecipe, *, seed: int) -> Extractor:
    """An `Extractor` with random weights, the same for the same seed."""
    return seeded(lambda: Extractor(recipe), seed=seed, name="extractor")


def extract_batch(prepared: Prepared, articles: NDArray[np.integer], global_size: int) -> Batch:
    """The articles at these indices, padded to the longest: inputs (B, S, 1 + 17) and targets (B, S).

    `global_size` is the number of *sentences* of the global batch: the loss is a mean over sentences.
    """
    lengths = prepared.starts[articles + 1] - prepared.starts[articles]
    longest = int(lengths.max(initial=1))
    inputs = torch.zeros(len(articles), longest, 1 + NUMBER)
    targets = torch.full((len(articles), longest), IGNORED)
    for row, (article, length) in enumerate(zip(articles, lengths, strict=True)):
        own = slice(prepared.starts[article], prepared.starts[article] + length)
        inputs[row, :length, 0] = 1
        inputs[row, :length, 1:] = torch.from_numpy(prepared.features[own])
        targets[row, :length] = torch.from_numpy(prepared.labels[own].astype(np.float32))
    return Batch(inputs, targets, global_size)


def summed_loss(scores: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The binary cross entropy of `scores` and `targets` (B, S), summed over the sentences."""
    real = targets != IGNORED
    return F.binary_cross_entropy_with_logits(scores[real], targets[real], reduction="sum")


@torch.no_grad()
def score_sentences(
    model: nn.Module, prepared: Prepared, articles: NDArray[np.integer] | Sequence[int]
) -> list[NDArray[np.float32]]:
    """For each of the articles at these indices, the scores of its sentences."""
    order, found = np.asarray(articles, np.int64), list[NDArray[np.float32]]()
    for start in range(0, len(order), SCORED_TOGETHER):
        some = order[start : start + SCORED_TOGETHER]
        scores = model(extract_batch(prepared, some, 0).inputs).numpy()
        lengths = prepared.starts[some + 1] - prepared.starts[some]
        found += [row[:length] for row, length in zip(scores, lengths, strict=True)]
    return found


def pick(scores: NDArray[np.floating], number: int) -> list[int]:
    """The places of the `number` highest scores, in the article's order; of equal scores, the first."""
    best = np.argsort(-scores, kind="stable")[:number]
    return sorted(best.tolist())


def extract(article: Article, places: Sequence[int]) -> str:
    """The sentences of `article` at `places`, one per line."""
    parts = sentences(article.text)
    return "\n".join(parts[place] for place in places)
