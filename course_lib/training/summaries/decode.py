"""Writing a summary: the decoder's most probable tokens, one after the other.

Greedy decoding takes the best token each time. Beam search keeps the `beams` best beginnings, by the sum of
their log-probabilities, and so can take back a first word that led nowhere.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from course_lib.training.summaries.model import TokenBatch, token_batch
from course_lib.training.summaries.tokens import END, PAD, Encoded, to_text

if TYPE_CHECKING:
    from tokenizers import Tokenizer

DECODED_TOGETHER = 50  # articles


@torch.no_grad()
def write(model: Any, batch: TokenBatch, *, longest: int, beams: int = 1) -> list[list[int]]:
    """The summaries (B lists of at most `longest` tokens) that `model`, a T5, writes; `beams` 1 is greedy."""
    training = model.training
    model.eval()
    written = model.generate(
        input_ids=batch.articles,
        attention_mask=batch.mask,
        max_new_tokens=longest,
        num_beams=beams,
        do_sample=False,
        early_stopping=beams > 1,
        pad_token_id=PAD,
        eos_token_id=END,
    )
    model.train(training)
    return written[:, 1:].tolist()  # the first is the token that the decoder starts from


def summarize(
    model: Any,
    tokenizer: "Tokenizer",
    encoded: Encoded,
    indices: NDArray[np.integer] | Sequence[int],
    *,
    longest: int,
    beams: int = 1,
) -> list[str]:
    """The texts that `model` writes for the articles at `indices`, maybe none."""
    order, texts = np.asarray(indices, np.int64), list[str]()
    for start in range(0, len(order), DECODED_TOGETHER):
        batch = token_batch(encoded, order[start : start + DECODED_TOGETHER])
        texts += [to_text(tokenizer, row) for row in write(model, batch, longest=longest, beams=beams)]
    return texts
