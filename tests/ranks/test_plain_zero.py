"""ZeRO on one screen against Adam in one process, in float64, with sizes that no number of ranks divides."""

from collections.abc import Callable

import pytest
import torch
from mpi4py import MPI
from torch import nn

from course_lib.parallel import plain_zero
from course_lib.parallel.plain_zero import gather_in_time, own_shard, sum_in_backward, update
from course_lib.theory.partition import even_range

SAMPLES, STEPS = 12, 5
INPUTS = torch.linspace(-1, 1, 5 * SAMPLES, dtype=torch.float64).sin().view(SAMPLES, 5)


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.LayerNorm(7), nn.Linear(7, 3)).double()


def loss_of(model: nn.Module, samples: range) -> torch.Tensor:
    return model(INPUTS[samples.start : samples.stop]).square().sum() / SAMPLES


def one_process() -> list[torch.Tensor]:
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, range(SAMPLES)).backward()
        optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]


def sharded(comm: MPI.Intracomm, stage: int) -> tuple[nn.Sequential, list[nn.Parameter]]:
    """A net, and this rank's shards of it."""
    model = net()
    mine = [nn.Parameter(own_shard(comm, full)) for full in model.parameters()]
    if stage >= 2:
        sum_in_backward(comm, model, mine)
    if stage == 3:
        gather_in_time(comm, model, mine)
    return model, mine


def trained(comm: MPI.Intracomm, stage: int) -> list[torch.Tensor]:
    """All weights after some steps in this stage."""
    model, mine = sharded(comm, stage)
    optimizer = torch.optim.Adam(mine, lr=0.01)
    for _ in range(STEPS):
        loss_of(model, even_range(SAMPLES, comm.size, comm.rank)).backward()
        update(comm, model, mine, optimizer)
    gathered = [torch.cat(comm.allgather(part.detach())) for part in mine]
    return [all_of.view(full.shape) for all_of, full in zip(gathered, model.parameters(), strict=True)]


def equal(comm: MPI.Intracomm, stage: int) -> bool:
    pairs = zip(trained(comm, stage), one_process(), strict=True)
    close = all(torch.allclose(ours, theirs, rtol=0, atol=1e-12) for ours, theirs in pairs)
    return bool(comm.allreduce(close, MPI.LAND))


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_each_stage_is_the_training_of_one_process(comm: MPI.Intracomm, stage: int) -> None:
    assert equal(comm, stage)


def own_only(comm: MPI.Intracomm, full: torch.Tensor, mine: torch.Tensor) -> None:
    """A sum that adds nothing."""
    assert full.grad is not None
    mine.grad = plain_zero.own_shard(comm, full.grad).clone()
    full.grad = None


@pytest.mark.parametrize(("name", "wrong"), [("sum_shard", own_only), ("gather", lambda *_: None)])
def test_what_does_not_add_or_does_not_gather_is_another_training(
    comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch, name: str, wrong: Callable[..., None]
) -> None:
    monkeypatch.setattr(plain_zero, name, wrong)
    assert equal(comm, 1) == (comm.size == 1)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_a_stage_keeps_shards_of_what_it_shards(comm: MPI.Intracomm, stage: int) -> None:
    model, mine = sharded(comm, stage)
    loss_of(model, even_range(SAMPLES, comm.size, comm.rank)).backward()
    full = list(model.parameters())
    assert all((each.grad is None) == (stage >= 2) for each in full)
    assert all((each.untyped_storage().nbytes() == 0) == (stage == 3) for each in full)
    assert comm.allreduce(sum(each.numel() for each in mine)) == sum(each.numel() for each in full)
