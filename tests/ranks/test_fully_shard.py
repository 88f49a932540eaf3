"""FSDP2 over "mpi4py" beside AdamW in one process, clipped, accumulated, with tied weights; and its bytes."""

from collections.abc import Iterator
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from mpi4py import MPI
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn import functional as F
from torch.optim import AdamW

import torch_mpi4py
from course.lessons.l11_zero_from_scratch.runs import held_bytes
from course_lib.theory.memory import ADAM_FP32, bytes_per_parameter
from course_lib.training.transformer import Transformer, build_transformer

STEPS, SEQUENCES, LENGTH, VOCABULARY = 5, 24, 6, 16
MAX_NORM, PASSES = 0.5, 2


@pytest.fixture(autouse=True)
def world(comm: MPI.Intracomm) -> Iterator[None]:
    torch_mpi4py.init_process_group(comm, timeout=timedelta(seconds=50))
    yield
    dist.destroy_process_group()


def tied(width: int = 24) -> Transformer:
    """A Transformer whose head is its embedding."""
    net = build_transformer(vocabulary=VOCABULARY, length=LENGTH, width=width, heads=4, layers=2, seed=0)
    net.head.weight = net.embedding.token.weight
    return net


def fsdp(net: Transformer) -> FSDPModule:
    """The tied weights belong to the root, as with `Zero3`."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in net.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(net, mesh=mesh)


def loss_of(net: nn.Module, tokens: torch.Tensor, divisor: float) -> torch.Tensor:
    logits = net(tokens[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="sum") / divisor / LENGTH


def train(net: nn.Module, rank: int, size: int, *, synchronize_first: bool = False) -> None:
    """FSDP's gradients are means over ranks, so the loss of a rank is divided by its own sequences."""
    optimizer = AdamW(net.parameters(), lr=0.01, weight_decay=0.1)
    draw = torch.Generator().manual_seed(1)
    for tokens in torch.randint(0, VOCABULARY, (STEPS, SEQUENCES, LENGTH + 1), generator=draw):
        mine = tokens[rank::size]
        for index in range(PASSES):
            if isinstance(net, FSDPModule):
                net.set_requires_gradient_sync(synchronize_first or index == PASSES - 1)
            loss_of(net, mine[index::PASSES], SEQUENCES / size).backward()
        nn.utils.clip_grad_norm_(net.parameters(), MAX_NORM)
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("synchronize_first", [False, True])
def test_fully_shard_equals_adamw(comm: MPI.Intracomm, synchronize_first: bool) -> None:
    sharded, alone = fsdp(tied().double()), tied().double()
    train(sharded, comm.rank, comm.size, synchronize_first=synchronize_first)
    train(alone, 0, 1)
    for mine, expected in zip(sharded.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(mine.full_tensor(), expected, rtol=0, atol=1e-10)


def test_fully_shard_holds_the_bytes_of_the_formula(comm: MPI.Intracomm) -> None:
    """AdamW's state without its numbers of steps, weights and gradients, all in float32."""
    net = fsdp(tied(width=96))  # large beside what is padded
    optimizer = AdamW(net.parameters())
    loss_of(net, torch.zeros(1, LENGTH + 1, dtype=torch.long), 1).backward()
    optimizer.step()
    moments = [state[name] for state in optimizer.state.values() for name in ("exp_avg", "exp_avg_sq")]
    parameters = list(net.parameters())
    held = [tensor.to_local() for tensor in [*parameters, *(p.grad for p in parameters), *moments]]
    expected = bytes_per_parameter(3, comm.size, ADAM_FP32) * sum(
        p.numel() for p in tied(width=96).parameters()
    )
    assert held_bytes(held) == pytest.approx(expected, rel=0.05)
