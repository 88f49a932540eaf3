"""What ZeRO holds and moves, to the byte, against the formulas; and what is there within a step."""

from collections.abc import Callable
from typing import Any

import formulas
import pytest
import torch
from mpi4py import MPI
from torch import nn
from torch.optim import SGD, AdamW

from course.lessons.l16_choose_your_strategy.planned import start
from course_lib.fast.zero import Zero3
from course_lib.theory.memory import ADAM_FP32, STAGES, StateBytes
from course_lib.training.kept import kept_bytes
from course_lib.training.memory_use import LiveBytes
from course_lib.training.transformer import build_transformer
from tests.ranks.test_zero import BUCKET, WIDTH, Net
from tests.zero_counts import Receiving, gathered_bytes, held_state, tensors_of

BLOCKS = [332, 332, 332]  # numbers: 11·13 + 13, 13·11 + 11, 11 + 11
TIED, FROZEN = 5 * WIDTH, WIDTH * WIDTH + WIDTH
SIZES = [TIED, *[143, 13, 143, 11, 11, 11] * 3]  # of the trained parameters, in their order


def trained(comm: MPI.Intracomm, stage: int, make: Callable[..., Any], dtype: torch.dtype) -> tuple[Any, Net]:
    """Two steps of a new net, after which all state is there."""
    torch.manual_seed(comm.rank)
    model = Net().to(dtype)
    zero = start(comm, model, stage, make, layers=model.blocks, bucket_bytes=BUCKET)
    for _ in range(2):
        model(torch.randint(5, (4,))).float().square().sum().backward()
        zero.step()
        zero.zero_grad()
    return zero, model


def buffers_of(stage: int, weight_bytes: int) -> list[int]:
    """The flat buffers of the trained parameters."""
    return [TIED, *BLOCKS] if stage == 3 else formulas.bucket_lengths(SIZES, BUCKET, weight_bytes)


OPTIMIZERS: dict[str, tuple[Callable[..., Any], int]] = {  # and how many numbers it keeps of each parameter
    "AdamW": (AdamW, 2),
    "momentum": (lambda shards: SGD(shards, lr=0.1, momentum=0.9), 1),
    "SGD": (lambda shards: SGD(shards, lr=0.1), 0),
}


def per_parameter(dtype: torch.dtype, kept: int) -> StateBytes:
    """What a parameter needs by itself; the numbers are written out, not asked of the theory."""
    if dtype == torch.bfloat16:
        return StateBytes(2, 2, 4 + 4 * kept)  # a float32 master, and float32 state
    return StateBytes(dtype.itemsize, dtype.itemsize, dtype.itemsize * kept)


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_bytes_held_are_those_of_the_theory(comm: MPI.Intracomm, stage: int, dtype: torch.dtype) -> None:
    for make, kept in OPTIMIZERS.values():
        zero, model = trained(comm, stage, make, dtype)
        each = per_parameter(dtype, kept)
        expected = formulas.held_state(
            buffers_of(stage, dtype.itemsize), stage, comm.size, comm.rank, each, frozen=FROZEN
        )
        assert held_state(zero, model) == expected


# ------------------------------------------------------------------ all that is live, not only what is named


def words() -> tuple[nn.Module, Callable[[], torch.Tensor], list[int], int]:
    """A Transformer, a pass through it, the numbers in each of its blocks, and in the rest."""
    model = build_transformer(vocabulary=40, length=8, width=48, layers=4, seed=0)
    tokens = torch.randint(40, (2, 8), generator=torch.manual_seed(0))
    blocks = [sum(p.numel() for p in block.parameters()) for block in model.blocks]
    rest = sum(p.numel() for p in model.parameters()) - sum(blocks)
    return model, lambda: model(tokens).square().sum(), blocks, rest


@pytest.mark.parametrize("stage", STAGES)
def test_nothing_else_is_live_between_steps(comm: MPI.Intracomm, stage: int) -> None:
    with LiveBytes() as live:
        model, loss, _, _ = words()
        zero = start(comm, model, stage, layers=model.blocks)
        for _ in range(2):
            loss().backward()
            zero.step()
            zero.zero_grad()
        held = held_state(zero, model).total
        assert held <= live.live <= held + 2000  # tokens, numbers of steps


@pytest.mark.parametrize("stage", STAGES)
def test_a_step_needs_no_more_than_the_theory_says(comm: MPI.Intracomm, stage: int) -> None:
    """At its peak: what is held, the activations, and the buffers of the theory."""
    model, loss, blocks, rest = words()
    activations = kept_bytes(model, loss)
    sizes = [p.numel() for p in model.parameters()]
    zero = start(comm, model, stage, layers=model.blocks)
    loss().backward()
    zero.step()
    zero.zero_grad()
    held = held_state(zero, model).total
    with LiveBytes(tensors_of(zero, model)) as live:
        loss().backward()
        zero.step()
    buckets = formulas.bucket_lengths(sizes, 4 * 2**20)
    buffers = (
        formulas.step_buffers(blocks, 3, comm.size, rest=rest)
        if stage == 3
        else formulas.step_buffers(buckets, stage, comm.size)
    )
    updating = 2 * 4 * max(len(master) for master in zero.masters)  # within AdamW: two of a shard's length
    passing = 100_000  # what an operation makes of activations, and lets go of
    assert held < live.peak <= held + max(activations + buffers, updating) + passing


@pytest.mark.parametrize("prefetch", [False, True])
def test_stage_3_is_within_a_layer_of_its_shards(comm: MPI.Intracomm, *, prefetch: bool) -> None:
    """Full weights at any moment of a step: one layer, two with prefetch, besides the rest."""
    model, loss, blocks, rest = words()
    zero = Zero3(comm, model, layers=model.blocks, prefetch=prefetch)
    seen: list[int] = []
    with LiveBytes(look=lambda: seen.append(gathered_bytes(zero))):
        for _ in range(2):
            loss().backward()
            zero.step()
            zero.zero_grad()
    one, two = 4 * (rest + blocks[0]), 4 * (rest + 2 * blocks[0])
    assert max(seen) == (two if prefetch else one)
    expected = formulas.gathered_weights(blocks, ADAM_FP32, rest=rest, prefetch=prefetch)
    assert max(seen) == expected
    assert seen[-1] == 0


# ------------------------------------------------------------------ what is moved


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_bytes_moved_are_those_of_the_theory(comm: MPI.Intracomm, stage: int, dtype: torch.dtype) -> None:
    model, _, _, _ = words()
    model = model.to(dtype)
    tokens = torch.randint(40, (2, 8))
    receiving = Receiving(comm)
    zero = start(receiving, model, stage, layers=model.blocks)
    model(tokens).float().square().sum().backward()
    zero.step()
    parameters = sum(p.numel() for p in words()[0].parameters())
    each = per_parameter(dtype, 2)
    assert comm.allreduce(receiving.nbytes) == formulas.moved_bytes(parameters, stage, comm.size, each)


def test_stage_0_clips_by_the_norm_that_the_others_take(comm: MPI.Intracomm) -> None:
    norms = []
    for stage in STAGES:
        model, loss, _, _ = words()
        zero = start(comm, model.double(), stage, layers=model.blocks)
        zero.max_norm = 0.5
        loss().backward()
        norms.append(zero.step())
    assert norms == pytest.approx([norms[1]] * 4, rel=1e-12)
    assert norms[0] is not None and norms[0] > 0.5
