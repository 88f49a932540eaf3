"""Which reductions MPI does itself, and how the others are done.

MPI reduces what C has: float, double, integers, complex, bool. The short floats (half, bfloat16, float8) have
no MPI type; they travel as bytes and each rank adds its share in float32, so a sum is rounded once,
not once per rank. AVG is SUM and a division, PREMUL_SUM a multiplication and SUM.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from mpi4py import MPI

# Kinds of reduction are plain integers here: looking up torch's own enumeration takes microseconds.
NAMES = {
    getattr(dist.ReduceOp, name).value: name
    for name in ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM")
}
SUM, AVG, PRODUCT, MIN, MAX, BAND, BOR, BXOR, PREMUL_SUM = NAMES

ARITHMETIC = {SUM: MPI.SUM, AVG: MPI.SUM, PREMUL_SUM: MPI.SUM, PRODUCT: MPI.PROD}
ORDER = {MIN: MPI.MIN, MAX: MPI.MAX}
BITS = {BAND: MPI.BAND, BOR: MPI.BOR, BXOR: MPI.BXOR}
LOGIC = {SUM: MPI.LOR, MAX: MPI.LOR, BOR: MPI.LOR, PRODUCT: MPI.LAND, MIN: MPI.LAND, BAND: MPI.LAND} | {
    BXOR: MPI.LXOR
}

INTEGERS = {
    torch.uint8: MPI.UINT8_T, torch.uint16: MPI.UINT16_T, torch.uint32: MPI.UINT32_T,
    torch.uint64: MPI.UINT64_T, torch.int8: MPI.INT8_T, torch.int16: MPI.INT16_T,
    torch.int32: MPI.INT32_T, torch.int64: MPI.INT64_T,
}  # fmt: skip
UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)  # torch does not divide them, NumPy does
FLOATS = {torch.float32: MPI.FLOAT, torch.float64: MPI.DOUBLE}
COMPLEXES = {torch.complex64: MPI.C_FLOAT_COMPLEX, torch.complex128: MPI.C_DOUBLE_COMPLEX}

# (dtype, reduction) -> (MPI's type, MPI's operation)
NATIVE: dict[tuple[torch.dtype, int], tuple[MPI.Datatype, MPI.Op]] = {
    (dtype, op): (datatype, mpi_op)
    for dtypes, ops in [
        (INTEGERS, ARITHMETIC | ORDER | BITS),
        (FLOATS, ARITHMETIC | ORDER),
        (COMPLEXES, ARITHMETIC),
        ({torch.bool: MPI.C_BOOL}, LOGIC),
    ]
    for dtype, datatype in dtypes.items()
    for op, mpi_op in ops.items()
}

# Types that MPI lacks, and the one each is reduced in.
WIDER = {torch.float16: torch.float32, torch.bfloat16: torch.float32, torch.complex32: torch.complex64} | {
    getattr(torch, name): torch.float32
    for name in ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz")
}
COMBINE: dict[int, Callable[..., torch.Tensor]] = {
    SUM: torch.add, AVG: torch.add, PREMUL_SUM: torch.add, PRODUCT: torch.mul, MIN: torch.minimum,
    MAX: torch.maximum, BAND: torch.bitwise_and, BOR: torch.bitwise_or, BXOR: torch.bitwise_xor,
}  # fmt: skip


def kind_of(op: Any) -> int:
    """Return the kind of reduction of a ReduceOp, or of a plain ReduceOp.SUM."""
    kind: int = getattr(op, "op", op).value
    return kind


def refuse_unknown(dtype: torch.dtype, kind: int) -> None:
    """Raise TypeError when values of `dtype` cannot be reduced so."""
    wide = dtype in WIDER and kind not in BITS and not (dtype.is_complex and kind in ORDER)
    if not wide and (dtype, kind) not in NATIVE:
        raise TypeError(
            f"ReduceOp.{NAMES.get(kind, kind)} is not defined for {str(dtype).removeprefix('torch.')}"
        )


def scaled(tensor: torch.Tensor, op: Any) -> torch.Tensor:
    """Return what PREMUL_SUM adds up: `tensor` times this rank's factor."""
    _, factor = op.__getstate__()  # torch 2.12 tells it only to those who copy the operation
    return (tensor * factor).to(tensor.dtype)


def average(tensor: torch.Tensor, size: int) -> None:
    """Divide a sum by the number of ranks, in place; integers towards zero, as NCCL does."""
    if tensor.is_floating_point() or tensor.is_complex():
        tensor.detach().div_(size)
    elif tensor.dtype in UNSIGNED:
        values = tensor.numpy()
        values //= size
    else:
        tensor.div_(size, rounding_mode="trunc")


def combine(rows: Sequence[torch.Tensor], kind: int, into: torch.Tensor) -> None:
    """Reduce `rows`, one per rank, in the wider type if there is one, and round the result once."""
    wide = WIDER.get(into.dtype, into.dtype)
    total = rows[0].to(wide)
    for other in rows[1:]:
        total = COMBINE[kind](total, other.to(wide))
    if kind == AVG:
        average(total, len(rows))
    into.detach().copy_(total)
