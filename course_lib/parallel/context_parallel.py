"""Context parallelism: the sequence is sharded over the ranks, and keys and values go round in a ring.

    rank 0   queries 0 1 2    keys 0 1 2  →  keys 6 7  →  keys 3 4 5         a block comes from the left,
    rank 1   queries 3 4 5    keys 3 4 5  →  keys 0 1 2  →  keys 6 7         while ours goes to the right
    rank 2   queries 6 7      keys 6 7  →  keys 3 4 5  →  keys 0 1 2

No rank ever has all keys, nor a row of the attention matrix. Each keeps, for its queries, the largest score
so far, the sum of the exponentials, and the weighted sum of values, and scales the old ones down when a
larger score comes: the softmax is online. Liu, Zaharia and Abbeel (2023), "Ring Attention"; Milakov and
Gimelshein (2018), "Online normalizer calculation for softmax".
"""

import torch
from mpi4py.MPI import Intracomm

from course_lib.comm.regions import ring_shift


def add_block(
    so_far: tuple[torch.Tensor, torch.Tensor, torch.Tensor], scores: torch.Tensor, value: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The largest score, the sum of exponentials and the mixed values so far, with one block added.

    `scores` (…, T of ours, T of the block), `value` (…, T of the block, width). The softmax is online:
    when a larger score comes, both sums are scaled down.
    """
    top, total, mixed = so_far
    larger = torch.maximum(top, scores.detach().amax(-1, keepdim=True))
    shrink, weights = (top - larger).exp(), (scores - larger).exp()
    return larger, total * shrink + weights.sum(-1, keepdim=True), mixed * shrink + weights @ value


def ring_attention(
    comm: Intracomm, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
) -> torch.Tensor:
    """Causal attention of this rank's queries to all ranks' keys, values: (B, heads, T / size, width) each.

    Shards follow each other in rank order and may differ in length. Future blocks are computed and masked.
    """
    lengths = shard_lengths(comm, query)
    positions = torch.arange(sum(lengths)).split(lengths)  # by rank
    block = torch.stack([key, value])
    so_far = query.new_tensor(-torch.inf), query.new_zeros(()), query.new_zeros(())  # add_block broadcasts
    for step in range(comm.size):
        owner = (comm.rank - step) % comm.size  # whose block it is
        scores = query @ block[0].mT / query.shape[-1] ** 0.5  # (B, heads, T of ours, T of the block)
        future = positions[owner] > positions[comm.rank].unsqueeze(1)
        so_far = add_block(so_far, scores.masked_fill(future, -torch.inf), block[1])
        if step < comm.size - 1:  # lengths[owner - 1] is that of our left neighbour's block
            block = ring_shift(comm, block, (*block.shape[:-2], lengths[owner - 1], block.shape[-1]))
    return so_far[2] / so_far[1]


def shard_lengths(comm: Intracomm, query: torch.Tensor) -> list[int]:
    """How long each rank's part of the sequence is; ValueError on all ranks when one has none."""
    lengths = comm.allgather(query.shape[-2])
    if min(lengths) < 1:
        raise ValueError(
            f"a sequence of {sum(lengths)}, sharded as {lengths}, has no query for some rank; "
            f"use at most {sum(lengths)} ranks"
        )
    return lengths
