"""A tensor as MPI sees it: an address, a count, a type.

Movement needs no arithmetic, so every element of 1, 2, 4, 8 or 16 bytes travels as a plain type of that
size: bfloat16 and float8 move although MPI has never heard of them. A tensor whose memory is not the
row of its values (strided, conjugated lazily, negated lazily) goes through a copy. MPI counts with 32 bits:
a larger tensor is one element of a type made for it, or, in reductions, several pieces.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from mpi4py import MPI
from numpy.typing import NDArray

from .errors import LayoutError

DTYPES = dict.fromkeys(value for value in vars(torch).values() if isinstance(value, torch.dtype))
DTYPE_CODE = {dtype: code for code, dtype in enumerate(DTYPES)}  # the same on all ranks
MAX_COUNT = 2**31 - 1  # the tests lower it
UNITS = {1: MPI.BYTE, 2: MPI.INT16_T, 4: MPI.INT32_T, 8: MPI.INT64_T, 16: MPI.C_DOUBLE_COMPLEX}

Spec = list[Any]  # [memory, count, datatype], what mpi4py takes for a buffer
at = MPI.memory.fromaddress


def is_plain(tensor: torch.Tensor) -> bool:
    """Tell whether the values lie in memory one after the other, as they are."""
    return tensor.is_contiguous() and not tensor.is_neg() and not tensor.is_conj()


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """Return `tensor` if it is plain, else a plain copy."""
    if is_plain(tensor):
        return tensor
    return tensor.detach().resolve_conj().resolve_neg().contiguous()


def place_for(tensor: torch.Tensor) -> torch.Tensor:
    """Return where to receive what `write_back` brings to `tensor`: itself if it is plain, else a new one."""
    return tensor if is_plain(tensor) else torch.empty(tensor.shape, dtype=tensor.dtype)


def write_back(tensor: torch.Tensor, values: torch.Tensor) -> None:
    """Copy what came into `values` to `tensor`, unless it came there at once.

    In an expanded tensor many elements are one place in memory: it holds `values` only where these are the
    same. Raises LayoutError otherwise.
    """
    if (
        values is tensor or values.data_ptr() == tensor.data_ptr()
    ):  # a view of it; torch refuses to copy those
        return
    tensor, values = tensor.detach(), values.detach().view(tensor.shape)
    for dim, (stride, size) in enumerate(zip(tensor.stride(), tensor.shape, strict=True)):
        if stride == 0 and size > 1 and tensor.numel():
            first = values.narrow(dim, 0, 1)
            if not same_values(values, first.expand_as(values)):
                raise LayoutError(
                    f"the result differs along dimension {dim}, and the tensor {tuple(tensor.shape)} "
                    f"is expanded there: its elements share memory; pass a copy made by .contiguous()"
                )
            tensor, values = tensor.narrow(dim, 0, 1), first
    tensor.copy_(values)


def same_values(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Compare bit by bit: also values that are not a number, and types that torch does not compare."""
    return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


def spec(tensor: torch.Tensor, datatype: MPI.Datatype | None = None) -> Spec:
    """Return a plain tensor of at most MAX_COUNT elements as a buffer of MPI; `datatype` is for reductions.

    The buffer holds the address alone: keep a reference to the tensor until MPI is done.
    """
    return [
        at(tensor.data_ptr(), tensor.nbytes),
        tensor.numel(),
        UNITS[tensor.itemsize] if datatype is None else datatype,
    ]


def as_message(tensor: torch.Tensor, made: list[MPI.Datatype]) -> Spec:
    """Return a plain tensor of any size as the buffer of one message.

    A type that a large one needs is appended to `made`, see `free_all`.
    """
    if tensor.numel() <= MAX_COUNT:
        return spec(tensor)
    made.append(large_type(UNITS[tensor.itemsize], tensor.numel()))
    return [at(tensor.data_ptr(), tensor.nbytes), 1, made[-1]]


LABEL_BYTES = 8


def labelled(tensor: torch.Tensor, label: NDArray[np.int64], made: list[MPI.Datatype]) -> Spec:
    """Return a plain tensor of any size, with one number behind it, as the buffer of one message: no copy.

    Its type is appended to `made`, see `free_all`.
    """
    values, count, unit = as_message(tensor, made)
    addresses = [MPI.Get_address(values), MPI.Get_address(label)]
    made.append(MPI.Datatype.Create_struct([count, 1], addresses, [unit, MPI.INT64_T]).Commit())
    return [MPI.BOTTOM, 1, made[-1]]


def large_type(unit: MPI.Datatype, count: int) -> MPI.Datatype:
    """Return a type of which one element is `count` elements of `unit`."""
    blocks, rest = divmod(count, MAX_COUNT)
    block = unit.Create_contiguous(MAX_COUNT)
    datatype = MPI.Datatype.Create_struct([blocks, rest], [0, blocks * block.Get_extent()[1]], [block, unit])
    block.Free()
    return datatype.Commit()


def free_all(made: list[MPI.Datatype]) -> None:
    """Free the types of messages that have begun: MPI keeps each until its messages are done."""
    for datatype in made:
        datatype.Free()


def pieces(tensor: torch.Tensor) -> Sequence[torch.Tensor]:
    """Cut a plain tensor into flat pieces of at most MAX_COUNT elements."""
    if tensor.numel() <= MAX_COUNT:
        return (tensor,)
    return tensor.detach().view(-1).split(MAX_COUNT)
