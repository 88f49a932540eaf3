"""Training in each stage of ZeRO, and what it keeps and receives, counted: for tests and the study.

    zero = start(comm, model, stage=2)
    held_state(zero, model)                  StateBytes(weights=…, gradients=…, optimizer=…), to the byte

    receiving = Receiving(comm)
    zero = start(receiving, model, stage=2); …; receiving.nbytes

`theory/memory.py` has the formulas for both.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from mpi4py import MPI
from torch import nn
from torch.nn import functional as F
from torch.optim import AdamW

from course_lib.parallel import zero as library
from course_lib.parallel.zero3 import Zero3
from course_lib.parallel.zero_stages import Zero, held, start
from course_lib.theory.memory import StateBytes
from course_lib.theory.partition import even_range
from course_lib.training.memory_use import LiveBytes

SMALL_BUCKETS = 200_000  # bytes: about as large as a block of the lesson's Transformer


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


def kept_activations(zero: Zero, model: nn.Module, forward: Callable[[], torch.Tensor]) -> int:
    """The bytes, weights left out, that `forward()` keeps for its backward pass, which runs as well."""
    storages = [tensor.untyped_storage() for tensor in tensors_of(zero, model)]
    theirs = {storage._cdata: storage for storage in storages}  # kept alive: no other gets its address
    kept: dict[int, torch.UntypedStorage] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in theirs:
            kept[storage._cdata] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        forward().backward()
    return sum(storage.nbytes() for storage in kept.values())


# ------------------------------------------------------------------ training, and what it needs


@dataclass(frozen=True, slots=True)
class Training:
    """What a training needed: the loss of each step, over all ranks; bytes held; bytes received per step."""

    losses: list[float]
    held: StateBytes
    received: int


@dataclass(frozen=True, slots=True)
class Look:
    """What was live on one rank in one step, in bytes.

    `live`: all tensors, after each operation; `held`: weights, gradients and optimizer state between steps;
    `activations`: what forward keeps for backward, weights left out.
    """

    live: list[int]
    held: int
    activations: int

    @property
    def peak(self) -> int:
        """The most that was live."""
        return max(self.live)


def text_batches(
    comm: MPI.Intracomm, steps: int, *, sequences: int = 8, length: int = 32
) -> Iterator[torch.Tensor]:
    """This rank's part (B, length + 1) of each global batch of `sequences` pieces of a text.

    The text is the file with the library's ZeRO, as bytes; the global batch of a step is the same on any
    number of ranks.
    """
    text = torch.tensor(list(Path(library.__file__).read_bytes()))
    mine = even_range(sequences, comm.size, comm.rank)
    for step in range(steps):
        random = torch.Generator().manual_seed(step)
        starts = torch.randint(len(text) - length, (sequences,), generator=random).tolist()
        yield torch.stack([text[start : start + length + 1] for start in starts[mine.start : mine.stop]])


def text_loss(comm: MPI.Intracomm, model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """This rank's part of the mean loss over all ranks' `tokens` (B, T + 1); B is the same on all ranks."""
    logits, targets = model(tokens[:, :-1]), tokens[:, 1:]
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))  # 16 bits are too few for a loss
    total = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")
    return total / (targets.numel() * comm.size)


def train(
    comm: MPI.Intracomm,
    model: nn.Module,
    batches: Iterable[torch.Tensor],
    stage: int,
    *,
    lr: float = 3e-3,
) -> Training:
    """Train a copy of the Transformer `model` with AdamW on this rank's `batches`."""
    model, receiving = copy.deepcopy(model), Receiving(comm)
    zero = start(
        receiving,
        model,
        stage,
        lambda shards: AdamW(shards, lr=lr),
        layers=blocks_of(model),
        bucket_bytes=SMALL_BUCKETS,
    )
    losses = []
    for tokens in batches:
        loss = text_loss(comm, model, tokens)
        loss.backward()
        zero.step()
        zero.zero_grad()
        losses.append(loss.item())
    summed = [comm.allreduce(loss) for loss in losses]
    return Training(summed, held_state(zero, model), receiving.nbytes // max(len(losses), 1))


def blocks_of(model: nn.Module) -> Sequence[nn.Module]:
    """The blocks of a Transformer: what stage 3 gathers one at a time."""
    return list(model.blocks)  # type: ignore[arg-type]


def look_into_step(comm: MPI.Intracomm, model: nn.Module, tokens: torch.Tensor, stage: int) -> Look:
    """Take two steps with a copy of `model`. The first makes the optimizer state, the second is recorded."""
    model = copy.deepcopy(model)
    zero = start(comm, model, stage, layers=blocks_of(model), bucket_bytes=SMALL_BUCKETS)
    activations = kept_activations(zero, model, lambda: text_loss(comm, model, tokens))
    zero.step()
    zero.zero_grad()
    with LiveBytes(tensors_of(zero, model)) as memory:
        text_loss(comm, model, tokens).backward()
        zero.step()
    return Look(memory.history, held_state(zero, model).total, activations)


# ------------------------------------------------------------------ messages


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
