"""A small T5: the encoder reads the article, the decoder writes the summary token by token.

    article (B, A) → encoder ──────────┐ cross-attention
    <pad> s₁ s₂ …  → decoder ──────────┴→ logits (B, S, vocabulary), compared with s₁ s₂ … END

The decoder sees the summary shifted by one, so that position t predicts token t from the tokens before it.
What was padded has the label −100 and counts neither in the loss nor in the number of tokens. Raffel et al.,
"Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer" (2020).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional as F

from course_lib.training.models import seeded
from course_lib.training.summaries.quiet import be_quiet
from course_lib.training.summaries.tokens import END, PAD, Encoded

IGNORED = -100  # the label of what is no token: the libraries' common value


@dataclass(frozen=True, slots=True)
class Shape:
    """How large a T5 is."""

    vocabulary: int
    width: int = 128
    heads: int = 4
    inner: int = 256
    encoder_layers: int = 2
    decoder_layers: int = 2


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """Articles (B, A), which of their positions hold tokens (B, A), and labels (B, S)."""

    articles: torch.Tensor
    mask: torch.Tensor
    labels: torch.Tensor

    @property
    def tokens(self) -> int:
        """How many labels count."""
        return count_tokens(self.labels)


def count_tokens(labels: torch.Tensor) -> int:
    """How many of `labels` (B, S) are tokens of a summary, not padding."""
    return int((labels != IGNORED).sum())


def build_t5(shape: Shape, *, seed: int) -> nn.Module:
    """A T5 of this shape with random weights, the same for the same seed; no dropout."""
    be_quiet()
    from transformers import T5ForConditionalGeneration

    return seeded(lambda: T5ForConditionalGeneration(t5_config(shape)), seed=seed, name="t5")


def t5_config(shape: Shape) -> Any:
    """The configuration of `transformers` for this shape."""
    be_quiet()
    from transformers import T5Config

    settings: dict[str, Any] = {
        "vocab_size": shape.vocabulary,
        "d_model": shape.width,
        "d_kv": shape.width // shape.heads,
        "d_ff": shape.inner,
        "num_heads": shape.heads,
        "num_layers": shape.encoder_layers,
        "num_decoder_layers": shape.decoder_layers,
        "dropout_rate": 0.0,
        "pad_token_id": PAD,
        "eos_token_id": END,
        "decoder_start_token_id": PAD,
        "use_cache": True,
    }
    return T5Config(**settings)


def token_batch(encoded: Encoded, indices: NDArray[np.integer]) -> TokenBatch:
    """The articles at `indices`, cut to the longest of them; maybe none."""
    articles, summaries = (
        trimmed(table[indices].astype(np.int64)) for table in (encoded.articles, encoded.summaries)
    )
    return TokenBatch(articles, articles != PAD, summaries.masked_fill(summaries == PAD, IGNORED))


def trimmed(table: NDArray[np.int64]) -> torch.Tensor:
    """`table` (B, T) without the columns at its end that only pad; at least one column stays."""
    used = np.flatnonzero((table != PAD).any(axis=0))
    return torch.from_numpy(table[:, : used[-1] + 1 if used.size else 1])


def shifted_right(labels: torch.Tensor) -> torch.Tensor:
    """What the decoder reads (B, S) to predict `labels` (B, S): PAD to start with, then all but the last."""
    read = labels.roll(1, dims=1)
    read[:, 0] = PAD
    return read.masked_fill(read == IGNORED, PAD)


def summed_cross_entropy(
    logits: torch.Tensor, labels: torch.Tensor, *, smoothing: float = 0.0
) -> torch.Tensor:
    """The cross entropy of `logits` (B, S, vocabulary) summed over the tokens in `labels` (B, S).

    `smoothing` takes that share of each label and spreads it over all tokens of the vocabulary.
    """
    return F.cross_entropy(
        logits.flatten(0, 1),
        labels.flatten(),
        ignore_index=IGNORED,
        reduction="sum",
        label_smoothing=smoothing,
    )


def summed_loss(model: nn.Module, batch: TokenBatch, *, smoothing: float = 0.0) -> torch.Tensor:
    """The loss of `batch`, summed over its tokens; divide it once, by the tokens of the global batch."""
    read = shifted_right(batch.labels)
    outputs = model(input_ids=batch.articles, attention_mask=batch.mask, decoder_input_ids=read)
    return summed_cross_entropy(outputs.logits, batch.labels, smoothing=smoothing)
