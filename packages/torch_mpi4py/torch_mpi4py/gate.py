"""The gate before every collective: has every rank come, and do all want the same?

Each rank shows a record of 48 bytes to all others. Only when all records are there and agree does the
collective begin. So a missing rank is noticed within the timeout, although MPI's own calls have none,
and ranks that disagree all get the same account of it, before anything is written.

    record = operation | dtype | root or reduction | shape | elements | what it expects of the others

Everything that decides how a collective runs is in the record or follows from it. What only this rank knows,
such as the strides of its tensor, must not decide anything: ranks that take different paths wait for each
other forever.
"""

import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from mpi4py import MPI

from .announce import wait_for_ranks
from .errors import CollectiveTimeoutError, MismatchError
from .tensors import DTYPE_CODE
from .waiting import wait_until

RECORD = struct.Struct("6q")
KINDS = [
    "refused", "all_reduce", "sparse_all_reduce", "broadcast", "reduce", "all_gather", "all_gather_single",
    "gather", "scatter", "reduce_scatter", "reduce_scatter_single", "all_to_all", "all_to_all_single",
    "barrier",
]  # fmt: skip
CODE = {name: code for code, name in enumerate(KINDS)}


def record(
    kind: str,
    dtype: torch.dtype | None,
    *,
    root_or_op: int = 0,
    shape: int = 0,
    elements: int = 0,
    expects: int = 0,
) -> bytes:
    """Return what this rank shows.

    `root_or_op`: the root or the reduction; `shape`: a hash that must be the same everywhere; `expects`: a
    hash of the `elements` that this rank expects of all ranks, 0 for no opinion.
    """
    code = DTYPE_CODE[dtype] if dtype is not None else -1
    return RECORD.pack(CODE[kind], code, root_or_op, shape, elements, expects)


REFUSED = record("refused", None)


class Gate:
    """Shows records around in `comm`, one collective at a time.

    After a timeout or an interrupt MPI may still use its buffers. `Channel.execute` then breaks the group and
    keeps the gate forever; nobody enters or closes it again.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        self.comm = comm
        self.mine, self.all = bytearray(RECORD.size), bytearray(RECORD.size * comm.size)
        self.request = comm.Allgather_init(self.mine, self.all)  # about half the time of an Iallgather each
        self.test = self.request.Test
        self.in_use: list[object] = []  # what `exchange_texts` lets MPI read and write

    def enter(self, mine: bytes, describe: Callable[[], str], seconds: float) -> None:
        """Return when all ranks have come with records that agree.

        Raises MismatchError on all ranks when they do not, CollectiveTimeoutError after `seconds`.
        """
        if self.comm.size == 1:
            if mine == REFUSED:
                raise MismatchError(describe())
            self.all[:] = mine
            return
        self.mine[:] = mine
        self.request.Start()
        if not (self.test() or wait_for_ranks(self.test, seconds)):
            raise CollectiveTimeoutError(
                f"{describe()}: timeout after {seconds:g} s, not all {self.comm.size} ranks came"
            )
        if self.all != mine * self.comm.size or mine == REFUSED:
            self.compare(describe, seconds)

    def compare(self, describe: Callable[[], str], seconds: float) -> None:
        """Records differ: is that in order (each says how many elements it has), or an error for all?"""
        records = list(RECORD.iter_unpack(self.all))
        if not agree(records):
            texts = "; ".join(
                f"rank {rank}: {text}" for rank, text in enumerate(self.exchange_texts(describe(), seconds))
            )
            raise MismatchError(f"the ranks do not ask for the same collective. {texts}")

    def exchange_texts(self, text: str, seconds: float) -> list[str]:
        """Return every rank's `text`, with a deadline, because a rank may have given up at the gate."""
        mine = np.frombuffer(text.encode(), dtype=np.uint8)
        length, lengths = np.array([mine.size]), np.empty(self.comm.size, dtype=np.int64)
        self.in_use = [length, lengths]
        self.in_use.append(request := self.comm.Iallgather(length, lengths))
        if wait_until(request.Test, seconds):
            texts = np.empty(int(lengths.sum()), dtype=np.uint8)
            self.in_use = [mine, texts]
            self.in_use.append(request := self.comm.Iallgatherv(mine, [texts, lengths.tolist()]))
            if wait_until(request.Test, seconds):
                return [part.tobytes().decode() for part in np.split(texts, np.cumsum(lengths)[:-1])]
        raise CollectiveTimeoutError(f"{text}: the ranks disagree, and one gave up before it said how")

    def elements(self) -> list[int]:
        """Return the number of elements that each rank has shown."""
        return [entry[4] for entry in RECORD.iter_unpack(self.all)]

    def close(self) -> None:
        self.request.Free()


def agree(records: Sequence[tuple[Any, ...]]) -> bool:
    """Tell whether these records, one per rank, describe one collective."""
    if len({entry[:4] for entry in records}) > 1 or records[0][0] == CODE["refused"]:
        return False
    sizes = expectation([entry[4] for entry in records])
    return all(entry[5] in (0, sizes) for entry in records)


def expectation(elements: Sequence[int]) -> int:
    """Return a hash, never 0, of the numbers of elements that a rank expects of the others."""
    return hash(tuple(elements)) or 1  # the hash of integers is the same in all processes


def describe(kind: str, tensors: Sequence[torch.Tensor], detail: str = "") -> str:
    """Return a collective in words: `all_reduce of float32 (3, 4), SUM`."""
    shown = ", ".join(f"{str(t.dtype).removeprefix('torch.')} {tuple(t.shape)}" for t in tensors[:4])
    more = f" and {len(tensors) - 4} more" if len(tensors) > 4 else ""
    return f"{kind}{' of ' if tensors else ''}{shown}{more}{', ' if detail else ''}{detail}"
