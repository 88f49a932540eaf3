"""What ZeRO keeps and receives, counted.

    held_state(zero, model)                  StateBytes(weights=…, gradients=…, optimizer=…), to the byte

    receiving = Receiving(comm)
    zero = start(receiving, model, stage=2); …; receiving.nbytes

`theory/memory.py` has the formulas for the first, `formulas.py` for the second.
"""

from collections.abc import Iterable
from typing import Any

import torch
from mpi4py import MPI
from torch import nn

from course.lessons.l16_choose_your_strategy.planned import Zero, held
from course_lib.parallel.zero3 import Zero3
from course_lib.theory.memory import StateBytes


def held_bytes(tensors: Iterable[torch.Tensor | None]) -> int:
    """The bytes of memory behind `tensors`, once where they share it; a view keeps all of its memory."""
    storages = [tensor.untyped_storage() for tensor in tensors if tensor is not None]
    return sum({storage._cdata: storage.nbytes() for storage in storages}.values())


def held_state(zero: Zero, model: nn.Module) -> StateBytes:
    """The bytes of memory that this rank keeps between two steps, frozen parameters of `model` included."""
    kept = held(zero)
    weights = held_bytes([*kept["weights"], *model.parameters()])
    return StateBytes(weights, held_bytes(kept["gradients"]), held_bytes(kept["optimizer"]))


def gathered_bytes(zero: Zero3) -> int:
    """The bytes of full weights in memory at the moment, those that are being gathered included."""
    return sum(bucket.weights.flat.untyped_storage().nbytes() for bucket in zero.buckets)


def tensors_of(zero: Zero, model: nn.Module) -> list[torch.Tensor]:
    """All tensors that this rank keeps between two steps."""
    kept = [tensor for tensors in held(zero).values() for tensor in tensors]
    return [*kept, *zero.masters, *model.parameters(), *model.buffers()]


class Receiving(MPI.Intracomm):
    """A communicator that adds up, in `nbytes`, the bytes that this rank receives in data collectives.

    In a reduce-scatter a rank receives its own shard (n - 1) times, in an all-gather the n - 1 shards of the
    others; an all-reduce is both. The broadcast at the start does not count. MPI's algorithm may move more.
    """

    nbytes = 0

    def Reduce_scatter(self, sendbuf: Any, recvbuf: Any, *counts_and_op: Any) -> None:
        """Count this rank's shard of the other ranks' gradients."""
        self.nbytes += memoryview(recvbuf).nbytes * (self.size - 1)
        super().Reduce_scatter(sendbuf, recvbuf, *counts_and_op)

    def Sendrecv(
        self, sendbuf: Any, dest: int, sendtag: int = 0, recvbuf: Any = None, *source_and_tag: Any
    ) -> None:
        """Count the bytes received."""
        self.nbytes += memoryview(recvbuf).nbytes
        super().Sendrecv(sendbuf, dest, sendtag, recvbuf, *source_and_tag)

    def Allgatherv(self, sendbuf: Any, recvbuf: Any) -> None:
        """Count the bytes received."""
        self.nbytes += self.others(recvbuf)
        super().Allgatherv(sendbuf, recvbuf)

    def Iallgatherv(self, sendbuf: Any, recvbuf: Any) -> MPI.Request:
        """Count the bytes received."""
        self.nbytes += self.others(recvbuf)
        return super().Iallgatherv(sendbuf, recvbuf)

    def others(self, spec: Any) -> int:
        """The bytes of an all-gather [memory, counts, starts, datatype] that are not this rank's."""
        _, counts, *_, datatype = spec
        return int(datatype.Get_size() * (sum(counts) - counts[self.rank]))
