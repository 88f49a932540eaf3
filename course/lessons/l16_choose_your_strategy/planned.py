"""Training by a plan of the planner: what a rank holds at most, and how long a step takes.

    grid = grid_of(comm, plan)
    training = prepare(grid, shape, batch, plan)
    training.step(); peak_nbytes(training)

The optimizer is always one of `parallel/zero.py`, on the data axis (stage 0 with one rank is plain AdamW in
buckets).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from mpi4py import MPI
from torch import nn
from torch.nn import functional as F
from torch.optim import AdamW

from course.lessons.l16_choose_your_strategy.planner.memory import schedule_of, stages_of
from course.lessons.l16_choose_your_strategy.planner.models import TransformerShape
from course.lessons.l16_choose_your_strategy.planner.plan import AXES, Plan
from course_lib.comm.grid import make_grid
from course_lib.parallel.pipeline import Recomputed, run_schedule, split_batch
from course_lib.parallel.tensor_parallel import ParallelTransformer, vocabulary_cross_entropy
from course_lib.parallel.zero import MOMENTS, Zero0, Zero1, Zero2, offload_state
from course_lib.parallel.zero3 import Zero3
from course_lib.parallel.zero_shards import BUCKET_BYTES
from course_lib.theory.partition import even_range
from course_lib.training.loop import Batch, SummedLoss
from course_lib.training.memory_use import LiveBytes
from course_lib.training.transformer import build_transformer

Grid = dict[str, Any]  # the communicator of each axis
Zero = Zero0 | Zero1 | Zero2 | Zero3


@dataclass(frozen=True, slots=True)
class Training:
    """One rank's part of a training: a step, and the tensors that are there between two steps.

    `step` returns this rank's part of the loss of the global batch. `in_files` are tensors outside memory.
    """

    step: Callable[[], float]
    tensors: Callable[[], list[torch.Tensor]]
    in_files: Callable[[], list[torch.Tensor]] = list


def grid_of(comm: MPI.Intracomm, plan: Plan) -> Grid:
    """The communicators of the axes; neighbouring ranks are those of one tensor group."""
    return dict(make_grid(comm, **{axis: plan.ways(axis) for axis in reversed(AXES)}).axes)


def prepare(
    grid: Grid, shape: TransformerShape, batch: int, plan: Plan, folder: Path | None = None
) -> Training:
    """This rank's part of the training of `shape` on global batches of `batch` samples.

    `folder` is for the files of a plan that offloads.
    """
    samples = shard(batch_of(shape, batch), grid["data"])
    stages = stages_of(shape, batch, plan)
    lengths = [sum(layer.name != "loss" for layer in stage.layers) for stage in stages]
    mine = stages[grid["pipeline"].rank]
    first = sum(lengths[: mine.index])
    modules = layers_of(shape, grid, plan)[first : first + lengths[mine.index]]
    module, loss = wrapped(modules, plan), loss_of(shape, grid, plan)
    pieces = [one for one, layer in zip(modules, mine.layers, strict=False) if layer.gathered]
    zero = start(grid["data"], module, plan.zero, layers=pieces, bucket_bytes=plan.bucket_nbytes)
    if plan.offload:
        assert folder is not None
        offload_state(zero.optimizer, folder, MPI.COMM_WORLD.rank)

    def step() -> float:
        part = backward(grid, module, loss, samples, plan)
        zero.step()
        zero.zero_grad()
        return part

    def tensors() -> list[torch.Tensor]:
        kept = held(zero)
        moments = [] if plan.offload else kept["optimizer"]
        inputs = [samples.inputs, samples.targets]
        return [*kept["weights"], *kept["gradients"], *moments, *zero.masters, *module.parameters(), *inputs]

    def in_files() -> list[torch.Tensor]:
        states = zero.optimizer.state.values() if plan.offload else []
        return [state[name] for state in states for name in MOMENTS]

    return Training(step, tensors, in_files)


def start(
    comm: MPI.Intracomm,
    model: nn.Module,
    stage: int,
    make_optimizer: Any = AdamW,
    *,
    layers: Iterable[nn.Module] = (),
    bucket_bytes: int = BUCKET_BYTES,
) -> Zero:
    """An optimizer of this stage of ZeRO for `model`; stage 3 uses `layers`, the others `bucket_bytes`."""
    if stage == 3:
        return Zero3(comm, model, make_optimizer, layers=layers)
    kind: Any = {0: Zero0, 1: Zero1, 2: Zero2}[stage]
    made: Zero = kind(comm, model, make_optimizer, bucket_bytes=bucket_bytes)
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


def backward(grid: Grid, module: nn.Module, loss: SummedLoss, samples: Batch, plan: Plan) -> float:
    """Add the gradients of this data rank's samples to those of the module; returns their part of the loss.

    In a pipeline, only the last stage knows it; the others return 0.
    """
    parts = split_batch(samples, plan.microbatches)
    if plan.pipeline > 1:
        comm = grid["pipeline"]
        return run_schedule(comm, schedule_of(plan), {(0, comm.rank): module}, loss, parts).loss
    summed = 0.0
    for part in parts:
        mean = loss(module(part.inputs), part.targets) / part.global_size
        mean.backward()
        summed += mean.item()
    return summed


def wrapped(layers: list[nn.Module], plan: Plan) -> nn.Module:
    """The layers as one module; what is recomputed is wrapped."""
    if plan.recompute and plan.pipeline > 1:
        return Recomputed(nn.Sequential(*layers))
    if plan.recompute:
        layers = [layers[0], *map(Recomputed, layers[1:-2]), *layers[-2:]]  # a Transformer's blocks
    return nn.Sequential(*layers)


# ---------------------------------------------------------------- samples and models


def batch_of(shape: TransformerShape, batch: int) -> Batch:
    """Random samples, the same on all ranks: neither time nor memory depends on them."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(shape.vocabulary, (batch, shape.length + 1), generator=generator)
    return Batch(tokens[:, :-1], tokens[:, 1:], batch * shape.length)


def shard(batch: Batch, data: MPI.Intracomm) -> Batch:
    """This data rank's samples, copied: the others' are not held."""
    mine = even_range(len(batch.targets), data.size, data.rank)
    part = slice(mine.start, mine.stop)
    tokens = torch.cat([batch.inputs[part], batch.targets[part][:, -1:]], dim=1)
    return Batch(tokens[:, :-1], tokens[:, 1:], batch.global_size)


def layers_of(shape: TransformerShape, grid: Grid, plan: Plan) -> list[nn.Module]:
    """The layers that stages are made of: those of the planner without the loss, as modules.

    Their initial weights are the same on all ranks.
    """
    whole = build_transformer(
        vocabulary=shape.vocabulary,
        length=shape.length,
        width=shape.width,
        heads=shape.heads,
        layers=shape.blocks,
        seed=0,
    )
    if plan.tensor == 1:
        return list(whole.stack())
    cut = ParallelTransformer(grid["tensor"], whole, sequence=plan.sequence)
    return [Entrance(cut), *cut.blocks, cut.norm, cut.head]


class Entrance(nn.Module):
    """The first layer of a Transformer that is cut: tokens to their vectors plus those of their positions."""

    def __init__(self, cut: ParallelTransformer) -> None:
        super().__init__()
        self.token, self.position, self.positions = cut.token, cut.position, cut.positions

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Tokens (B, T) to (B, T, width)."""
        return self.token(tokens) + self.positions(tokens.shape[1])


def loss_of(shape: TransformerShape, grid: Grid, plan: Plan) -> SummedLoss:
    """The cross entropy, summed over samples or tokens."""

    def of_shards(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return vocabulary_cross_entropy(grid["tensor"], logits, targets, shape.vocabulary).sum()

    def of_all(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(logits.flatten(0, -2), targets.flatten(), reduction="sum")

    return of_shards if plan.tensor > 1 else of_all


# ---------------------------------------------------------------- measuring


def peak_nbytes(training: Training) -> int:
    """The most bytes of tensors within a step; the first step, which makes Adam's state, is not looked at."""
    training.step()
    with LiveBytes(training.tensors(), in_files=training.in_files()) as memory:
        training.step()
    return memory.peak
