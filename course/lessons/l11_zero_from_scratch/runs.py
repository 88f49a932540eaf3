"""What ZeRO keeps and moves, measured: the memory behind its tensors, and the bytes that it receives.

    zero = start(comm, model, stage=2)
    held_state(zero, model)                  StateBytes(weights=…, gradients=…, optimizer=…), to the byte

    moving = Moving(comm)
    zero = start(moving, model, stage=2); …; moving.nbytes

`theory/memory.py` has the formulas for both.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

import torch
from mpi4py import MPI
from torch import nn
from torch.nn import functional as F
from torch.optim import AdamW

from course_lib.parallel.zero import BUCKET_BYTES, MakeOptimizer, Zero0, Zero1, Zero2, Zero3
from course_lib.theory.memory import STAGES, StateBytes

Zero = Zero0 | Zero1 | Zero2 | Zero3


def start(
    comm: MPI.Intracomm,
    model: nn.Module,
    stage: int,
    make_optimizer: MakeOptimizer = AdamW,
    *,
    layers: Iterable[nn.Module] = (),
    bucket_bytes: int = BUCKET_BYTES,
    **settings: Any,
) -> Zero:
    """An optimizer of this stage for `model`; stage 3 goes by `layers`, the others by `bucket_bytes`.

    `settings` go to the stage. Raises ValueError for a stage that there is not.
    """
    if stage not in STAGES:
        raise ValueError(f"there is no stage {stage}; use 0 (data parallelism), 1, 2 or 3")
    if stage == 3:
        return Zero3(comm, model, make_optimizer, layers=layers, **settings)
    kind: Any = (Zero0, Zero1, Zero2)[stage]
    made: Zero = kind(comm, model, make_optimizer, bucket_bytes=bucket_bytes, **settings)
    return made


def held(zero: Zero) -> dict[str, list[torch.Tensor]]:
    """The tensors that this rank keeps between two steps: weights, gradients, optimizer state."""
    state = [
        value
        for each in zero.optimizer.state.values()
        for value in each.values()
        if torch.is_tensor(value) and value.dim()  # not the number of steps
    ]
    masters = [bucket.master for bucket in zero.trained if bucket.master.dtype != bucket.shard.dtype]
    return {
        "weights": [tensor for bucket in zero.buckets for tensor in (bucket.shard, bucket.weights.flat)],
        "gradients": [bucket.gradient_shard for bucket in zero.trained],
        "optimizer": [*state, *masters],
    }


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


# ------------------------------------------------------------------ a few steps, and what they need


def text_loss(comm: MPI.Intracomm, model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """This rank's part of the mean loss over all ranks' `tokens` (B, T + 1); B is the same on all ranks."""
    logits, targets = model(tokens[:, :-1]), tokens[:, 1:]
    total = F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), reduction="sum")
    return total / (targets.numel() * comm.size)


def train(
    comm: MPI.Intracomm, model: nn.Module, tokens: torch.Tensor, stage: int, *, steps: int = 3
) -> dict[str, Any]:
    """Train a copy of the Transformer `model` on this rank's `tokens`, and count what that needs.

    Returns `loss` of the last step, over all ranks' tokens; `held`, a StateBytes, between two steps; `moved`,
    the bytes received per step.
    """
    model, moving = copy.deepcopy(model), Moving(comm)
    zero = start(moving, model, stage, layers=model.blocks)  # type: ignore[arg-type]
    for _ in range(steps):
        loss = text_loss(comm, model, tokens)
        loss.backward()
        zero.step()
        zero.zero_grad()
    last = comm.allreduce(loss.item())
    return {"loss": last, "held": held_state(zero, model), "moved": moving.nbytes // steps}


# ------------------------------------------------------------------ messages


class Moving(MPI.Intracomm):
    """A communicator that adds up, in `nbytes`, the bytes that this rank receives in data collectives.

    In a reduce-scatter a rank receives its own shard (n - 1) times, in an all-gather the n - 1 shards of the
    others; an all-reduce is both. The broadcast at the start does not count. MPI's algorithm may move more.
    """

    nbytes = 0

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
