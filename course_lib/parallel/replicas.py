"""Silent errors: which replica holds a wrong number, and in which tensor.

    rank 0   weight 3f…   bias a1…       Replicas that started equal and took the same steps are equal to the
    rank 1   weight 3f…   bias a1…       last bit. Each rank sends a hash per tensor; where they differ, the
    rank 2   weight 9c…   bias a1…  ←    majority is right: rank 2's weight is not what the others hold.

A bit that flips in memory raises nothing and hangs nothing. In data parallelism the summed gradients carry
what it does to all ranks; the wrong weight stays on its own rank, so hashes find it after any later step.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass

import torch
from mpi4py import MPI
from torch import nn


@dataclass(frozen=True, slots=True)
class Difference:
    """A tensor that is not the same on all ranks, and the ranks outside the majority.

    Without a majority, as of two ranks, `ranks` are all of them: the hashes cannot say which one is wrong.
    """

    tensor: str
    ranks: tuple[int, ...]
    has_majority: bool


def hash_tensors(model: nn.Module) -> dict[str, str]:
    """By name, 16 hexadecimal digits that depend on every bit of a parameter or buffer of `model`."""
    return {
        name: hashlib.sha256(tensor.contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()[:16]
        for name, tensor in ((name, tensor.reshape(-1)) for name, tensor in model.state_dict().items())
    }


def compare_replicas(comm: MPI.Intracomm, model: nn.Module) -> list[Difference]:
    """The tensors of `model` in which the ranks differ, the same list on all ranks; empty if equal."""
    everyone = comm.allgather(hash_tensors(model))
    found = []
    for name in everyone[0]:
        hashes = [theirs.get(name) for theirs in everyone]
        (common, votes), *_ = Counter(hashes).most_common()
        if votes < comm.size:
            has_majority = 2 * votes > comm.size
            outside = (rank for rank, each in enumerate(hashes) if each != common or not has_majority)
            found.append(Difference(name, tuple(outside), has_majority))
    return found


@torch.no_grad()
def flip_bit(tensor: torch.Tensor, element: int, bit: int) -> None:
    """Flip one bit of an element of `tensor`, in place: bit 0 is its lowest, in a float32 bit 31 the sign."""
    integers = {2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    width = 8 * tensor.element_size()
    if not 0 <= bit < width:
        raise ValueError(f"bit {bit} of a number of {width} bits; use 0 to {width - 1}")
    mask = 1 << bit if bit < width - 1 else -(1 << bit)  # the highest bit is the integer's sign
    tensor.view(-1).view(integers)[element] ^= mask
