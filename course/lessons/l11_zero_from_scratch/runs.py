"""What ZeRO holds and moves, measured: the memory behind its tensors, and the bytes of its messages.

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

from course_lib.parallel.zero.slices import BUCKET_BYTES, held_bytes
from course_lib.parallel.zero.stage0 import Zero0
from course_lib.parallel.zero.stage1 import MakeOptimizer, Zero1
from course_lib.parallel.zero.stage2 import Zero2
from course_lib.parallel.zero.stage3 import Zero3
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


def held_state(zero: Zero, model: nn.Module) -> StateBytes:
    """The bytes of memory that this rank holds between two steps, frozen parameters of `model` included."""
    kept = {what: list(tensors) for what, tensors in zero.held().items()}
    weights = held_bytes([*kept["weights"], *model.parameters()])
    return StateBytes(weights, held_bytes(kept["gradients"]), held_bytes(kept["optimizer"]))


def whole_weights(zero: Zero3) -> int:
    """The bytes of weights that are whole at the moment, or on their way to be."""
    return sum(row.weights.untyped_storage().nbytes() for row in zero.rows)


def tensors_of(zero: Zero, model: nn.Module) -> list[torch.Tensor]:
    """All tensors that are held between two steps."""
    kept = [tensor for tensors in zero.held().values() for tensor in tensors if tensor is not None]
    return [*kept, *zero.masters, *model.parameters(), *model.buffers()]


def kept_activations(zero: Zero, model: nn.Module, forward: Callable[[], torch.Tensor]) -> int:
    """The bytes, weights left out, that `forward()` keeps for its backward pass, which runs as well."""
    rows = [row.weights for row in zero.rows] if isinstance(zero, Zero3) else []
    held = [tensor.untyped_storage() for tensor in [*tensors_of(zero, model), *rows]]
    theirs = {storage._cdata: storage for storage in held}  # kept alive: no other gets its address
    kept: dict[int, torch.UntypedStorage] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in theirs:
            kept[storage._cdata] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        forward().backward()
    return sum(storage.nbytes() for storage in kept.values())


# ------------------------------------------------------------------ a few steps, and what they took


def text_loss(comm: MPI.Intracomm, model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """This rank's part of the mean loss over all ranks' `tokens` (B, T + 1), as many on each rank."""
    logits, targets = model(tokens[:, :-1]), tokens[:, 1:]
    total = F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), reduction="sum")
    return total / (targets.numel() * comm.size)


def train(
    comm: MPI.Intracomm, model: nn.Module, tokens: torch.Tensor, stage: int, *, steps: int = 3
) -> dict[str, Any]:
    """Train a copy of the Transformer `model` on this rank's `tokens`, and say what that took.

    `loss` of the last step, over all ranks' tokens; `held`, a StateBytes, between two steps; `moved`, the
    bytes received in a step.
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

    A reduce-scatter of m bytes brings it (n - 1) times its own part, or as many parts of the sum; an
    all-gather brings it everything but its part; an all-reduce is both. The broadcast at the start does not
    count. The algorithm that MPI takes may move more.
    """

    nbytes = 0

    def Sendrecv(
        self, sendbuf: Any, dest: int, sendtag: int = 0, recvbuf: Any = None, *source_and_tag: Any
    ) -> None:
        """Counts what comes."""
        self.nbytes += memoryview(recvbuf).nbytes
        super().Sendrecv(sendbuf, dest, sendtag, recvbuf, *source_and_tag)

    def Irecv(self, buf: Any, *args: Any, **kwargs: Any) -> MPI.Request:
        """Counts what comes."""
        self.nbytes += memoryview(buf).nbytes
        return super().Irecv(buf, *args, **kwargs)

    def Allgatherv(self, sendbuf: Any, recvbuf: Any) -> None:
        """Counts what comes."""
        self.nbytes += self.others(recvbuf)
        super().Allgatherv(sendbuf, recvbuf)

    def Iallgatherv(self, sendbuf: Any, recvbuf: Any) -> MPI.Request:
        """Counts what comes."""
        self.nbytes += self.others(recvbuf)
        return super().Iallgatherv(sendbuf, recvbuf)

    def others(self, spec: Any) -> int:
        """The bytes of an all-gather [memory, counts, starts, datatype] that are not this rank's."""
        _, counts, *_, datatype = spec
        return int(datatype.Get_size() * (sum(counts) - counts[self.rank]))
