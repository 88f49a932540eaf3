"""The halo exchange: a tile gets the pixels around it from its neighbours, and gives their gradients back.

    forward    rank 0  [ · · · a ]  ── a ──→  rank 1  a [ · · · · ]        a ghost is a copy of a
    backward   rank 0  [ · · · + ]  ←─ ∂a ──  rank 1  ∂a[ · · · · ]        … so its gradient is a's, too

The exchange H copies, so it is linear, and what gradients do is its transpose: ⟨Hx, y⟩ = ⟨x, Hᵀy⟩. Each
ghost's gradient goes back to where the pixel came from, and is *added* there. Without that the layers below
get wrong gradients, and no error. One dimension after the other brings the corners along. Hewett & Grady
(2020), "A Linear Algebraic Approach to Model Parallelism in Deep Learning".
"""

from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import torch
from mpi4py import MPI

from course_lib.theory.tiles import Halo, halo_of

HALO_TAG, RETURN_TAG = 5201, 5202

Pieces = list[tuple[int, torch.Tensor]]  # a rank, and what goes there or comes from there

# ---------------------------------------------------------------- rows, the same number everywhere


def with_ghost_rows(comm: MPI.Intracomm, x: torch.Tensor, width: int) -> torch.Tensor:
    """The strip `x` (N, C, h, W) with `width` rows of each neighbour, above and below.

    At the edges of the image they are zero, as its padding is.
    """
    above, below = neighbours(comm)
    top, bottom = (torch.zeros_like(x[:, :, :width]) for _ in range(2))
    upper, lower = x[:, :, :width].contiguous(), x[:, :, -width:].contiguous()
    comm.Sendrecv(upper.numpy(), above, recvbuf=bottom.numpy(), source=below)
    comm.Sendrecv(lower.numpy(), below, recvbuf=top.numpy(), source=above)
    return torch.cat([top, x, bottom], dim=2)  # (N, C, width + h + width, W)


def return_ghost_rows(comm: MPI.Intracomm, gradient: torch.Tensor, width: int) -> torch.Tensor:
    """The transpose of `with_ghost_rows`: gradients of ghosts go home, and are added to those of the rows.

    `gradient` (N, C, width + h + width, W); the result (N, C, h, W).
    """
    above, below = neighbours(comm)
    top, own, bottom = gradient.split([width, gradient.shape[2] - 2 * width, width], dim=2)
    to_upper, to_lower = (torch.zeros_like(top) for _ in range(2))
    comm.Sendrecv(top.contiguous().numpy(), above, recvbuf=to_lower.numpy(), source=below)
    comm.Sendrecv(bottom.contiguous().numpy(), below, recvbuf=to_upper.numpy(), source=above)
    total = own.clone()
    total[:, :, :width] += to_upper
    total[:, :, -width:] += to_lower
    return total


def neighbours(comm: MPI.Intracomm) -> tuple[int, int]:
    """The ranks before and after this one; `PROC_NULL`, who sends nothing, at the ends."""
    before = comm.rank - 1 if comm.rank > 0 else MPI.PROC_NULL
    return before, comm.rank + 1 if comm.rank + 1 < comm.size else MPI.PROC_NULL


class _GhostRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, comm: MPI.Intracomm, x: torch.Tensor, width: int) -> torch.Tensor:
        ctx.comm, ctx.width = comm, width
        return with_ghost_rows(comm, x.detach(), width)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[None, torch.Tensor, None]:
        return None, return_ghost_rows(ctx.comm, gradient, ctx.width), None


def ghost_rows(comm: MPI.Intracomm, x: torch.Tensor, width: int) -> torch.Tensor:
    """`with_ghost_rows`, and gradients flow back. All strips have at least `width` rows."""
    fewest = comm.allreduce(x.shape[2], MPI.MIN)
    if fewest < width:
        raise ValueError(f"a strip of {fewest} rows has no {width} rows to give; use `halo_exchange`")
    return _GhostRows.apply(comm, x, width)


# ---------------------------------------------------------------- any dimension, any pixels


def owned_ranges(comm: MPI.Intracomm, length: int) -> list[range]:
    """Which places each rank of `comm` has, when they follow each other and this one has `length`."""
    ends = [0, *accumulate(comm.allgather(length))]
    return [range(start, stop) for start, stop in pairwise(ends)]


class Exchange:
    """Messages under way; their buffers are MPI's until `finish`, which every one of them needs."""

    def __init__(self, comm: MPI.Intracomm, send: Pieces, receive: Pieces, tag: int) -> None:
        self.received = [tensor for _, tensor in receive]
        self.sent = [tensor.contiguous() for _, tensor in send]
        peers = [peer for peer, _ in receive]
        self.requests = [
            comm.Irecv(as_bytes(tensor), peer, tag)
            for peer, tensor in zip(peers, self.received, strict=True)
            if tensor.numel()
        ]
        self.requests += [
            comm.Isend(as_bytes(tensor), peer, tag)
            for (peer, _), tensor in zip(send, self.sent, strict=True)
            if tensor.numel()
        ]

    def finish(self) -> list[torch.Tensor]:
        """What came, in the order that it was asked for."""
        MPI.Request.Waitall(self.requests)
        return self.received


def as_bytes(tensor: torch.Tensor) -> np.ndarray:
    """The memory of a contiguous `tensor`, for MPI: NumPy has no bfloat16."""
    return tensor.view(-1).view(torch.uint8).numpy()


def shaped(x: torch.Tensor, dim: int, length: int) -> list[int]:
    """The shape of `x` with `length` in `dim`."""
    return [*x.shape[:dim], length, *x.shape[dim + 1 :]]


class Ghosts:
    """The ghosts of one dimension on their way; `own` maps places that others need to this rank's pixels."""

    def __init__(self, comm: MPI.Intracomm, x: torch.Tensor, dim: int, halo: Halo, gives: Pieces) -> None:
        self.like, self.dim, self.halo = x, dim, halo
        room = [(peer, x.new_empty(shaped(x, dim, len(places)))) for peer, places in halo.gets]
        self.exchange = Exchange(comm, gives, room, HALO_TAG)

    def finish(self, fill: float = 0.0) -> tuple[torch.Tensor, torch.Tensor]:
        """The ghosts before the tile and those after it; `fill` where there is no image."""
        halo = self.halo
        before, after = (
            self.like.new_full(shaped(self.like, self.dim, length), fill)
            for length in (halo.before, halo.after)
        )
        for (_, places), tensor in zip(halo.gets, self.exchange.finish(), strict=True):
            block, start = side_of(halo, places, before, after)
            block.narrow(self.dim, start, len(places)).copy_(tensor)
        return before, after


def side_of(halo: Halo, places: range, before: torch.Tensor, after: torch.Tensor) -> tuple[torch.Tensor, int]:
    """The block of ghosts that has `places`, and where they begin in it."""
    if places.stop <= halo.kept.start:
        return before, places.start - halo.needed.start
    return after, places.start - halo.kept.stop


def own_pieces(x: torch.Tensor, dim: int, halo: Halo) -> Pieces:
    """What this rank gives to whom: views of its tile `x`."""
    return [(peer, x.narrow(dim, *halo.of_own(places))) for peer, places in halo.gives]


def start_return(
    comm: MPI.Intracomm, before: torch.Tensor, after: torch.Tensor, dim: int, halo: Halo
) -> Exchange:
    """Send the gradients of the ghosts home. What comes back is that of `halo.gives`, in its order."""
    send = []
    for peer, places in halo.gets:
        block, start = side_of(halo, places, before, after)
        send.append((peer, block.narrow(dim, start, len(places))))
    room = [(peer, before.new_empty(shaped(before, dim, len(places)))) for peer, places in halo.gives]
    return Exchange(comm, send, room, RETURN_TAG)


def add_returned(
    gradient: torch.Tensor, dim: int, halo: Halo, returned: Iterable[torch.Tensor]
) -> torch.Tensor:
    """Add what came home to the gradient of the tile, in place."""
    for (_, places), tensor in zip(halo.gives, returned, strict=True):
        gradient.narrow(dim, *halo.of_own(places)).add_(tensor)
    return gradient


class _HaloExchange(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, comm: MPI.Intracomm, x: torch.Tensor, dim: int, halo: Halo, fill: float
    ) -> torch.Tensor:
        ctx.comm, ctx.dim, ctx.halo = comm, dim, halo
        ghosts = Ghosts(comm, x, dim, halo, own_pieces(x, dim, halo))
        before, after = ghosts.finish(fill)
        return torch.cat([before, x.narrow(dim, *halo.of_own(halo.kept)), after], dim)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[None, torch.Tensor, None, None, None]:
        dim, halo = ctx.dim, ctx.halo
        before, kept, after = gradient.split([halo.before, len(halo.kept), halo.after], dim)
        exchange = start_return(ctx.comm, before, after, dim, halo)
        mine = gradient.new_zeros(shaped(gradient, dim, len(halo.owned)))
        mine.narrow(dim, *halo.of_own(halo.kept)).copy_(kept)
        return None, add_returned(mine, dim, halo, exchange.finish()), None, None, None


def halo_exchange(
    comm: MPI.Intracomm,
    x: torch.Tensor,
    dim: int,
    needed: Sequence[range],
    *,
    owned: Sequence[range] | None = None,
    fill: float = 0.0,
) -> torch.Tensor:
    """The places `needed[rank]` along `dim` of an image of which this rank has the tile `x`.

    `owned` are the places of all tiles, one after the other; without it they are asked for. What is needed
    outside the image is `fill`. Halos may be wider than tiles, tiles may be empty, and a tile need not need
    all that it has. Gradients flow back to where the pixels came from. All ranks call it with the same
    `needed`.
    """
    owned = owned or owned_ranges(comm, x.shape[dim])
    halo = halo_of(owned, needed, comm.rank)
    if x.shape[dim] != len(halo.owned):
        raise ValueError(f"a tile of {x.shape[dim]} pixels was said to have {len(halo.owned)}")
    return x if halo.is_nothing else _HaloExchange.apply(comm, x, dim, halo, fill)
