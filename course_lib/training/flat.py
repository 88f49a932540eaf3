"""Many tensors in one flat stretch of memory, so that one message carries them all.

weight (2, 3)   bias (3)              flat (9)
┌ a b c ┐       g h i       ⇄        a b c d e f g h i
└ d e f ┘
"""

from collections.abc import Sequence

import torch


def flatten(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """A copy of all `tensors`, one after the other, in one flat bucket."""
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


@torch.no_grad()
def copy_back(bucket: torch.Tensor, tensors: Sequence[torch.Tensor]) -> None:
    """The reverse of `flatten`: overwrite the `tensors` with what is in the bucket."""
    pieces = bucket.split([tensor.numel() for tensor in tensors])
    for tensor, piece in zip(tensors, pieces, strict=True):
        tensor.copy_(piece.view_as(tensor))


def parts_of(bucket: torch.Tensor, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The parts of a flat bucket, each seen with the shape and the memory layout of one of the `tensors`."""
    pieces = bucket.split([tensor.numel() for tensor in tensors])
    return [
        piece.as_strided(tensor.size(), tensor.stride())
        for piece, tensor in zip(pieces, tensors, strict=True)
    ]
