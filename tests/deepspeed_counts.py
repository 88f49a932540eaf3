"""What a DeepSpeed engine keeps and sends: by formula, and counted.

    state_bytes(config, 62_006, 4)      what a rank keeps      step_bytes(…)        what it sends in a step
    held_bytes(engine)                  the same, counted      counted_messages()   the same, counted

The formulas are those of ZeRO (Rajbhandari and others, 2020) as DeepSpeed 0.19 carries them out: from stage 1
on, its optimizer works on a copy of a rank's slice of the weights.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.parts.deepspeed_engine import Config, kept, tensors_in
from course_lib.theory.memory import StateBytes

EACH = 4  # bytes of a weight, of a gradient, of a number in a message
MOMENTS = 2  # numbers that AdamW keeps for each parameter

# ---------------------------------------------------------------- by formula


def state_bytes(config: Config, parameters: int, ranks: int) -> StateBytes:
    """Bytes of weights, gradients and optimizer that one of `ranks` keeps, while micro-batches add up.

    Activations and buffers come on top: in stage 3 a bucket of gradients is there all the time. In stage 2
    a rank keeps the gradients of its slice parameter by parameter: `touched` is what that comes to.
    """
    stage = config["zero_optimization"]["stage"]
    of_optimizer = EACH * parameters * (MOMENTS + (stage > 0))
    share = -(-parameters // ranks)
    return StateBytes(
        weights=EACH * (share if stage == 3 else parameters),
        gradients=EACH * (share if stage >= 2 else parameters),
        optimizer=-(-of_optimizer // ranks) if stage else of_optimizer,
    )


def step_bytes(config: Config, parameters: int, ranks: int) -> float:
    """Bytes that one of `ranks` sends for an update, on average over the ranks.

        stage 0   all-reduce of the gradients: their size twice, once for an update
        stage 1   a sum at each owner, once for an update; then the new weights to all
        stage 2   a sum at each owner, for every micro-batch; then the new weights to all
        stage 3   the same sums, and all weights twice for every micro-batch: forward and backward

    All of it times (ranks − 1) / ranks: nobody sends to itself.
    """
    micro_batches, stage = config["gradient_accumulation_steps"], config["zero_optimization"]["stage"]
    times = {0: 2, 1: 2, 2: micro_batches + 1, 3: 3 * micro_batches}[stage]
    return times * EACH * parameters * (ranks - 1) / ranks


# ---------------------------------------------------------------- counted


def held_bytes(engine: Any) -> StateBytes:
    """Bytes of weights, gradients and optimizer that this rank keeps now, read off the tensors themselves."""
    seen: set[int] = set()

    def count(things: Any) -> int:
        storages = {each.data_ptr(): each.nbytes() for each in map(storage_of, tensors_in(things))}
        new = storages.keys() - seen
        seen.update(new)
        return sum(storages[place] for place in new)

    return StateBytes(**{name: count(things) for name, things in kept(engine).items()})


def storage_of(tensor: torch.Tensor) -> torch.UntypedStorage:
    """The memory of a tensor, which others may share."""
    return tensor.untyped_storage()


class Sent:
    """What this rank has sent: `nbytes`, and by operation."""

    def __init__(self) -> None:
        self.by_operation: dict[str, float] = {}

    @property
    def nbytes(self) -> float:
        """All of it."""
        return sum(self.by_operation.values())


@contextlib.contextmanager
def counted_messages() -> Iterator[Sent]:
    """`with counted_messages() as sent:` what DeepSpeed itself says it has asked for, in bytes on the wire.

    DeepSpeed notes the size of every collective; how much of it a rank sends is `share_sent`.
    """
    from deepspeed.comm import comm as world

    log, sent = world.comms_logger, Sent()
    log.reset_data()
    log.enabled = log.prof_all = True
    try:
        yield sent
    finally:
        log.enabled = log.prof_all = False
        for operation, sizes in log.comms_dict.items():
            nbytes = sum(size * calls for size, (calls, *_) in sizes.items())
            sent.by_operation[operation] = nbytes * share_sent(operation, dist.get_world_size())
        log.reset_data()


def share_sent(operation: str, ranks: int) -> float:
    """How often a rank sends the size that DeepSpeed notes, on average over the ranks.

    That size is the full vector for an all-reduce and for a reduce to an owner; for an all-gather it is the
    rank's own shard.
    """
    others = ranks - 1
    return {"all_reduce": 2 * others / ranks, "all_gather_into_tensor": float(others)}.get(
        operation, others / ranks
    )
