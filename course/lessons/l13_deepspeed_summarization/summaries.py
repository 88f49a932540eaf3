"""Summaries on several ranks: a loss over tokens, trained by DeepSpeed, and summaries written by all ranks.

    loss of the batch  =  sum over its tokens  /  tokens of the batch, on all ranks together

Summaries have different lengths, so ranks with equally many articles have unequal numbers of tokens. Each
rank divides its sum by the tokens of *all* ranks: then the parts add up to the loss of the batch. DeepSpeed
averages gradients over ranks, and the parts have to be added: `engine.backward` gets each part times the
number of ranks.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from mpi4py import MPI
from numpy.typing import NDArray
from torch.nn import functional as F

from course_lib.parallel.data_parallel import shard
from course_lib.training.summaries.decode import summarize
from course_lib.training.summaries.model import (
    IGNORED,
    TokenBatch,
    count_tokens,
    shifted_right,
    summed_loss,
    token_batch,
)
from course_lib.training.summaries.tokens import PAD, Encoded

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Labels = NDArray[np.int64]  # (B, S)
Share = Callable[[MPI.Intracomm, torch.Tensor, torch.Tensor], torch.Tensor]

# -------------------------------------------------------------------- the loss


def global_tokens(comm: MPI.Intracomm, labels: torch.Tensor) -> int:
    """The number of tokens in the labels (B, S) of all ranks together; the same on every rank."""
    count = np.array([count_tokens(labels)], np.int64)
    comm.Allreduce(MPI.IN_PLACE, count)
    return int(count[0])


def token_losses(
    model: Any, part: TokenBatch, *, smoothing: float = 0.0, read: Callable[[Labels], Labels] | None = None
) -> torch.Tensor:
    """The loss at every position (B, S) of `part`; what it is at padded positions means nothing.

    `read` makes what the decoder reads of the labels (B, S); without it, they are shifted as they should be.
    """
    labels = part.labels
    reads = shifted_right(labels) if read is None else torch.from_numpy(read(labels.numpy()))
    outputs = model(input_ids=part.articles, attention_mask=part.mask, decoder_input_ids=reads)
    logits, tokens = outputs.logits.flatten(0, 1), labels.clamp(min=0).flatten()
    losses = F.cross_entropy(logits, tokens, reduction="none", label_smoothing=smoothing)
    return losses.reshape(labels.shape)


def token_share(comm: MPI.Intracomm, summed: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """This rank's part of the mean loss over all tokens of all ranks; the parts add up to it."""
    return summed / max(global_tokens(comm, labels), 1)


def mean_share(comm: MPI.Intracomm, summed: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Known-wrong: a part of the mean of the ranks' means. Tokens on a rank with few of them weigh more."""
    return summed / max(count_tokens(labels), 1) / comm.size


# -------------------------------------------------------------------- training


def shortest_first(encoded: Encoded, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """The article `numbers`, ordered by how many tokens their summaries have; ties stay in order."""
    lengths = (encoded.summaries[numbers] != PAD).sum(axis=1)
    return numbers[np.argsort(lengths, kind="stable")]


def summary_step(
    comm: MPI.Intracomm, engine: Any, part: TokenBatch, smoothing: float = 0.0, share: Share = token_share
) -> float:
    """Train DeepSpeed's `engine` on this rank's part of a global batch; returns its part of the loss."""
    loss = share(comm, summed_loss(engine, part, smoothing=smoothing), part.labels)
    engine.backward(loss * comm.size)  # DeepSpeed averages over ranks; the parts have to be added
    engine.step()
    return loss.item()


def train_summaries(
    comm: MPI.Intracomm,
    engine: Any,
    encoded: Encoded,
    batches: Iterable[NDArray[np.int64]],
    *,
    smoothing: float = 0.0,
    share: Share = token_share,
) -> list[float]:
    """Train DeepSpeed's `engine` on global `batches` of article numbers, the same on all ranks.

    Returns the loss of every step.
    """
    parts = (token_batch(encoded, shard(comm, indices)) for indices in batches)
    losses = [summary_step(comm, engine, part, smoothing, share) for part in parts]
    return comm.allreduce(np.array(losses)).tolist()


# -------------------------------------------------------------------- what the decoder reads


def bens_reading(labels: Labels) -> Labels:
    """Known-wrong: the decoder reads the labels themselves, as in exercise 13.2."""
    return np.where(labels == IGNORED, PAD, labels)


def train_reading(
    comm: MPI.Intracomm,
    engine: Any,
    encoded: Encoded,
    batches: Iterable[NDArray[np.int64]],
    read: Callable[[Labels], Labels],
) -> list[float]:
    """`train_summaries` with a decoder that reads `read(labels)`."""
    losses = []
    for indices in batches:
        part = token_batch(encoded, shard(comm, indices))
        summed = token_losses(engine, part, read=read)[part.labels != IGNORED].sum()
        loss = token_share(comm, summed, part.labels)
        engine.backward(loss * comm.size)
        engine.step()
        losses.append(loss.item())
    return comm.allreduce(np.array(losses)).tolist()


# -------------------------------------------------------------------- writing


def summarize_together(
    comm: MPI.Intracomm,
    model: Any,
    tokenizer: "Tokenizer",
    encoded: Encoded,
    *,
    longest: int,
    beams: int = 1,
) -> list[str]:
    """A summary of every article of `encoded`, in their order, on every rank; each rank writes its shard."""
    mine = shard(comm, np.arange(len(encoded)))
    texts = summarize(model, tokenizer, encoded, mine, longest=longest, beams=beams)
    return [text for part in comm.allgather(texts) for text in part]


def global_batches(articles: int, size: int) -> Sequence[NDArray[np.int64]]:
    """The numbers of `articles` in global batches of `size`, in order; a short one at the end is left out."""
    if not 1 <= size <= articles:
        raise ValueError(f"{articles} articles have no batch of {size}; use 1 to {articles}")
    return np.arange(articles // size * size).reshape(-1, size)  # type: ignore[return-value]
