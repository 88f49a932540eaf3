"""The halo exchange: a tile receives the pixels around it from its neighbours, and returns their gradients.

    forward    rank 0  [ · · · p ]  ── p ──→  rank 1  p [ · · · · ]        the ghost is a copy of p
    backward   rank 0  [ · · · + ]  ←─ ∂p ──  rank 1  ∂p[ · · · · ]        … so its gradient belongs to p

A tile is the part of an image that one rank owns; a ghost is a copy of a pixel that another rank owns; the
ghosts around a tile are its halo. Over all ranks together the exchange only copies pixels, so it is a linear
map H, plus a constant (the `fill`), which has no gradient. Gradients go through its adjoint Hᵀ, for which
⟨Hx, y⟩ = ⟨x, Hᵀy⟩. Every copy becomes an addition: the gradient of each ghost returns to the rank that owns
the pixel, and is *added* there. Without that, the gradients of the layers before are silently wrong.

For two dimensions call it once per dimension, each with a communicator of the ranks in one row or column of
tiles (`comm/grid.py`): the second call sends the ghosts of the first, and so the corners.

First for strips of rows that all need the same number of ghost rows, as lessons show it; then along any
dimension, for any pixels. Autograd sees neither; `halo_exchange` wraps the second for training. A
convolution of the result has no padding along `dim`.

Hewett & Grady (2020), "A Linear Algebraic Approach to Model Parallelism in Deep Learning".
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import torch
from mpi4py import MPI

from course_lib.theory.tiles import Halo, halo_of
from course_lib.training.flat import as_bytes

# ---------------------------------------------------------------- rows, the same number everywhere

# Lessons show this form, so it hands tensors to mpi4py directly; mpi4py accepts contiguous CPU tensors.


def swap(comm: MPI.Intracomm, up: torch.Tensor, down: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Send `up` above and `down` below, of one shape; return what came from above and below, or zeros."""
    above, below = (r if 0 <= r < comm.size else MPI.PROC_NULL for r in (comm.rank - 1, comm.rank + 1))
    from_above, from_below = up.new_zeros(up.shape), up.new_zeros(up.shape)
    comm.Sendrecv(up.detach().contiguous(), above, recvbuf=from_below, source=below)
    comm.Sendrecv(down.detach().contiguous(), below, recvbuf=from_above, source=above)
    return from_above, from_below


def with_ghost_rows(comm: MPI.Intracomm, x: torch.Tensor, width: int) -> torch.Tensor:
    """`x` (N, C, h, W) with `width` rows of both neighbours. Every rank needs h >= width."""
    top, bottom = swap(comm, x.narrow(2, 0, width), x.narrow(2, x.shape[2] - width, width))
    return torch.cat([top, x, bottom], dim=2)  # (N, C, width + h + width, W)


def return_ghost_rows(comm: MPI.Intracomm, gradient: torch.Tensor, width: int) -> torch.Tensor:
    """The adjoint of `with_ghost_rows`: each ghost's gradient returns, and is added to its row's.

    `gradient` (N, C, width + h + width, W); the result (N, C, h, W).
    """
    height = gradient.shape[2] - 2 * width
    top, own, bottom = gradient.split([width, height, width], dim=2)
    total = own.clone()
    from_above, from_below = swap(comm, top, bottom)
    total[:, :, :width] += from_above
    total[:, :, height - width :] += from_below
    return total


# ---------------------------------------------------------------- any dimension, any pixels

# A `Halo` (`theory/tiles.py`) is what one rank does along one dimension. Its ranges are counted in the image:
# `owned` by this rank, `needed` by it, and `kept`, which is in both. `sends` are pairs (peer, what this rank
# owns and the peer needs), `receives` (peer, what this rank needs and the peer owns). Each rank derives its
# own `Halo` from the same ranges: what one rank sends is what its peer receives, and nobody asks for pixels.
# `in_tile` and `in_needed` turn a range into (start, length) in this rank's tile and in what it needs.

# MPI delivers messages of one tag in the order in which they were sent. That order is the same on all ranks:
# they run the same layers, and backward runs them in reverse. Gradients have a tag of their own, so
# that none is ever taken for pixels.
HALO_TAG, RETURN_TAG = 5201, 5202

Parts = list[tuple[int, torch.Tensor]]  # a rank, and the view of a tensor that is sent to or received from it


def halo_exchange(
    comm: MPI.Intracomm,
    x: torch.Tensor,
    dim: int,
    needed: Sequence[range],
    *,
    owned: Sequence[range] | None = None,
    fill: float = 0.0,
) -> torch.Tensor:
    """The pixels `needed[comm.rank]` of the whole image, of which `x` is this rank's tile.

    "Pixels" are positions along `dim`. `owned[r]` are those of rank r's tile, consecutive from rank to rank;
    without it the ranks all-gather the lengths of their tiles. What is needed outside the image is `fill`.

    Halos may be wider than tiles, tiles may be empty, and a tile may need only a part of what it has. The
    result is `x` itself if nothing changes, so do not write to it. Gradients flow back to the ranks that own
    the pixels. All ranks call it with the same `needed` and `owned`, and `x` requires gradients on all of
    them or on none.

    Raises ValueError when `owned` and `needed` differ in length; and when `owned` and the length of `x`
    differ, but on that rank alone: the others wait.
    """
    owned = owned_ranges(comm, x.shape[dim]) if owned is None else owned
    halo = halo_of(owned, needed, comm.rank)
    if x.shape[dim] != len(halo.owned):
        raise ValueError(f"this tile has {x.shape[dim]} pixels, but `owned` says {len(halo.owned)}")
    # Then this rank sends nothing and receives nothing, so no peer waits for it, in forward or in backward.
    return x if halo.changes_nothing else _HaloExchange.apply(comm, x, dim, halo, fill)


def owned_ranges(comm: MPI.Intracomm, length: int) -> list[range]:
    """Which pixels each rank of `comm` has, when tiles are consecutive and this one has `length`."""
    ends = [0, *accumulate(comm.allgather(length))]
    return [range(start, stop) for start, stop in pairwise(ends)]


class _HaloExchange(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, comm: MPI.Intracomm, x: torch.Tensor, dim: int, halo: Halo, fill: float
    ) -> torch.Tensor:
        ctx.comm, ctx.dim, ctx.halo = comm, dim, halo
        return with_halo(comm, x, dim, halo, fill)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[None, torch.Tensor, None, None, None]:
        return None, return_halo(ctx.comm, gradient, ctx.dim, ctx.halo), None, None, None


def with_halo(comm: MPI.Intracomm, x: torch.Tensor, dim: int, halo: Halo, fill: float) -> torch.Tensor:
    """All that this tile needs along `dim`: pixels of its own, ghosts, and `fill` outside the image."""
    wide = x.new_full(shaped(x, dim, len(halo.needed)), fill)
    wide.narrow(dim, *halo.in_needed(halo.kept)).copy_(x.narrow(dim, *halo.in_tile(halo.kept)))
    own, ghosts = own_parts(x, dim, halo), ghost_parts(wide, dim, halo)
    received = exchange(comm, own, ghosts, HALO_TAG)
    for (_, target), ghost in zip(ghosts, received, strict=True):
        target.copy_(ghost)
    return wide


def return_halo(comm: MPI.Intracomm, gradient: torch.Tensor, dim: int, halo: Halo) -> torch.Tensor:
    """The adjoint of `with_halo`: the gradients of ghosts return to their owners, and are added there."""
    total = gradient.new_zeros(shaped(gradient, dim, len(halo.owned)))
    total.narrow(dim, *halo.in_tile(halo.kept)).copy_(gradient.narrow(dim, *halo.in_needed(halo.kept)))
    own, ghosts = own_parts(total, dim, halo), ghost_parts(gradient, dim, halo)
    returned = exchange(comm, ghosts, own, RETURN_TAG)
    for (_, target), gradient_of_ghost in zip(own, returned, strict=True):
        target.add_(gradient_of_ghost)
    return total


def own_parts(x: torch.Tensor, dim: int, halo: Halo) -> Parts:
    """The parts of this rank's tile `x` that other ranks need."""
    return [(peer, x.narrow(dim, *halo.in_tile(wanted))) for peer, wanted in halo.sends]


def ghost_parts(wide: torch.Tensor, dim: int, halo: Halo) -> Parts:
    """The parts of what this rank needs that other ranks own."""
    return [(peer, wide.narrow(dim, *halo.in_needed(wanted))) for peer, wanted in halo.receives]


def exchange(comm: MPI.Intracomm, send: Parts, receive: Parts, tag: int) -> list[torch.Tensor]:
    """Send the parts `send`; return what was received in new tensors, shaped like the parts `receive`.

    New ones, because the parts may be non-contiguous, and a backward adds to them instead of overwriting. All
    receives and sends begin before any is waited for, so ranks may list their peers in any order.
    """
    sent = [(peer, part.contiguous()) for peer, part in send]
    received = [(peer, part.new_empty(part.shape)) for peer, part in receive]
    requests = [comm.Irecv(as_bytes(part), peer, tag) for peer, part in received]
    requests += [comm.Isend(as_bytes(part), peer, tag) for peer, part in sent]
    MPI.Request.Waitall(requests)
    return [part for _, part in received]


def shaped(x: torch.Tensor, dim: int, length: int) -> list[int]:
    """The shape of `x`, with `length` in `dim`."""
    shape = list(x.shape)
    shape[dim] = length
    return shape
