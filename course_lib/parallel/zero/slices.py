"""Who owns which part of a row of parameters, and the two collectives that follow from it.

bucket    [ w w w w w w w | b b | w w w ]      parameters, one after the other
slices    [ rank 0 | rank 1 | rank 2    ]      contiguous, even to one element, across their borders

reduce_scatter   everyone has a whole row of gradients  →  rank r has the sum of slice r
all_gather       rank r has slice r of the new weights  →  everyone has the whole row
"""

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from mpi4py import MPI
from torch import nn

from course_lib.theory.partition import even_ranges, fused_ranges

BUCKET_BYTES = 4 * 2**20
SHORT = (torch.float16, torch.bfloat16)
TAG = 11


def slices_of(flat: torch.Tensor, parts: int) -> list[torch.Tensor]:
    """`flat`, cut into `parts` slices as even as can be; views."""
    return [flat[part.start : part.stop] for part in even_ranges(flat.numel(), parts)]


def buckets_of(parameters: Iterable[nn.Parameter], bucket_bytes: int) -> list[list[nn.Parameter]]:
    """The trainable `parameters`, last first as backward reaches them, in buckets of up to `bucket_bytes`."""
    last_first = [parameter for parameter in parameters if parameter.requires_grad][::-1]
    if not last_first:
        raise ValueError("there is nothing to train: no parameter requires a gradient")
    fused = fused_ranges([parameter.nbytes for parameter in last_first], bucket_bytes)
    return [last_first[part.start : part.stop] for part in fused]


def raw(tensor: torch.Tensor) -> MPI.memory:
    """The bytes of a contiguous tensor, which MPI moves whatever they mean.

    Not by way of NumPy: torch does not resize a tensor's memory once NumPy has seen it.
    """
    return MPI.memory.fromaddress(tensor.data_ptr(), tensor.nbytes)


@torch.no_grad()
def reduce_scatter(comm: MPI.Intracomm, flat: torch.Tensor) -> torch.Tensor:
    """Sum this rank's slice of `flat` over `comm`, in place, and return it; the rest stays.

    Pairwise exchange: n - 1 messages of one slice each. 16-bit numbers are summed in float32.
    """
    parts = slices_of(flat, comm.size)
    mine = parts[comm.rank]
    total = mine.float() if flat.dtype in SHORT else mine
    received = torch.empty_like(mine)
    for distance in range(1, comm.size):
        to, source = (comm.rank + distance) % comm.size, (comm.rank - distance) % comm.size
        comm.Sendrecv(raw(parts[to]), to, TAG, raw(received), source, TAG)
        total += received
    if total is not mine:
        mine.copy_(total)
    return mine


def all_gather(comm: MPI.Intracomm, flat: torch.Tensor) -> None:
    """Fill `flat` with the slices of all ranks, each of which has its own in place."""
    comm.Allgatherv(MPI.IN_PLACE, gather_spec(comm, flat))


def gather_spec(comm: MPI.Intracomm, flat: torch.Tensor) -> list[object]:
    counts = [part.nbytes for part in slices_of(flat, comm.size)]
    return [raw(flat), counts, [sum(counts[:rank]) for rank in range(comm.size)], MPI.BYTE]


@torch.no_grad()
def clip_gradients(comm: MPI.Intracomm, slices: Sequence[torch.Tensor], max_norm: float) -> float:
    """Scale the gradients of this rank's `slices` so that the norm of *all* gradients is at most `max_norm`.

    Returns that norm before clipping: the same on all ranks, which scale by the same factor. The norm of a
    rank's own slices would be a smaller number, and another one on every rank.
    """
    gradients = [piece.grad for piece in slices if piece.grad is not None]
    squares = sum(float(gradient.double().square().sum()) for gradient in gradients)
    norm = float(np.sqrt(comm.allreduce(squares)))
    factor = max_norm / (norm + 1e-6)  # as torch.nn.utils.clip_grad_norm_
    if factor < 1:
        for gradient in gradients:
            gradient *= factor
    return norm


def held_bytes(tensors: Iterable[torch.Tensor | None]) -> int:
    """The bytes of memory behind `tensors`, once where they share it; a view holds all it is cut from."""
    storages = [tensor.untyped_storage() for tensor in tensors if tensor is not None]
    return sum({storage._cdata: storage.nbytes() for storage in storages}.values())
