"""A stage of ZeRO by its number, and the tensors that a rank keeps in any of them.

zero = start(comm, model, stage=2)
held(zero)                  {"weights": […], "gradients": […], "optimizer": […]}
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from mpi4py import MPI
from torch import nn
from torch.optim import AdamW

from course_lib.parallel.zero import Zero0, Zero1, Zero2
from course_lib.parallel.zero3 import Zero3
from course_lib.parallel.zero_shards import BUCKET_BYTES, MakeOptimizer
from course_lib.theory.memory import STAGES

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
    """An optimizer of this stage for `model`; stage 3 uses `layers`, the others `bucket_bytes`.

    `settings` are passed on to the stage. Raises ValueError for an unknown stage.
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
    masters = [bucket.master for bucket in zero.buckets if bucket.master.dtype != bucket.shard.dtype]
    return {
        "weights": [tensor for bucket in zero.buckets for tensor in (bucket.shard, bucket.weights.flat)],
        "gradients": [bucket.gradient_shard for bucket in zero.buckets],
        "optimizer": [*state, *masters],
    }
