"""Context parallelism: the sequence is sharded over the ranks, and keys and values go round in a ring.

    rank 0   queries 0 1 2    keys 0 1 2  →  keys 6 7  →  keys 3 4 5         a block comes from the left,
    rank 1   queries 3 4 5    keys 3 4 5  →  keys 0 1 2  →  keys 6 7         while ours goes to the right
    rank 2   queries 6 7      keys 6 7  →  keys 3 4 5  →  keys 0 1 2

No rank ever has all keys, nor a row of the attention matrix. Each keeps, for its queries, the largest score
so far, the sum of the exponentials, and the weighted sum of values, and scales the old ones down when a
larger score comes: the softmax is online. Liu, Zaharia and Abbeel (2023), "Ring Attention"; Milakov and
Gimelshein (2018), "Online normalizer calculation for softmax".
"""

from itertools import accumulate

import torch
from mpi4py import MPI

from course_lib.comm.regions import ring_shift


def ring_attention(
    comm: MPI.Intracomm, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, causal: bool = True
) -> torch.Tensor:
    """Attention of this rank's queries to all ranks' keys and values: (B, heads, T / size, width) each.

    The shards follow each other in the order of the ranks, and may differ in length. Blocks that are all in
    the future are computed and masked; so every rank's work is the same, and every gradient finds its way.
    """
    lengths = shard_lengths(comm, query)
    starts = [0, *accumulate(lengths)]
    mine = torch.arange(lengths[comm.rank]).unsqueeze(1) + starts[comm.rank]  # positions in the sequence
    block = torch.stack([key, value])
    top = query.new_full((*query.shape[:-1], 1), -torch.inf)  # the largest score so far
    total, mixed = torch.zeros_like(top), torch.zeros_like(query)
    for step in range(comm.size):
        owner = (comm.rank - step) % comm.size  # whose block it is
        scores = query @ block[0].mT / query.shape[-1] ** 0.5  # (B, heads, T of ours, T of the block)
        if causal:
            theirs = torch.arange(lengths[owner]) + starts[owner]
            scores = scores.masked_fill(theirs > mine, -torch.inf)
        before, top = top, torch.maximum(top, scores.detach().amax(-1, keepdim=True))
        shrink, weights = (before - top).exp(), (scores - top).exp()
        total = total * shrink + weights.sum(-1, keepdim=True)
        mixed = mixed * shrink + weights @ block[1]
        if step < comm.size - 1:
            coming = lengths[(owner - 1) % comm.size]
            block = ring_shift(comm, block, (*block.shape[:-2], coming, block.shape[-1]))
    return mixed / total


def shard_lengths(comm: MPI.Intracomm, query: torch.Tensor) -> list[int]:
    """How long each rank's part of the sequence is; ValueError on all ranks when one has none."""
    lengths = comm.allgather(query.shape[-2])
    if min(lengths) < 1:
        raise ValueError(
            f"a sequence of {sum(lengths)}, sharded as {lengths}, has no query for some rank; "
            f"use at most {sum(lengths)} ranks"
        )
    return lengths
