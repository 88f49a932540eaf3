"""Ring attention and experts on other ranks, held to full attention and to the mixture in one process."""

from collections.abc import Callable, Sequence

import pytest
import torch
from mpi4py import MPI
from torch import nn
from torch.nn import functional as F

from course_lib.comm.regions import all_to_all, ring_shift
from course_lib.parallel import context_parallel, expert_parallel
from course_lib.parallel.context_parallel import ring_attention
from course_lib.parallel.expert_parallel import Mixture, ParallelMixture
from course_lib.theory.partition import even_range
from tests.ranks.tiled import close, numbers


def same(ours: torch.Tensor | None, expected: torch.Tensor | None) -> bool:
    return ours is not None and close(ours, expected)


def everywhere(comm: MPI.Intracomm, verdict: bool) -> bool:
    return comm.allreduce(verdict, op=MPI.LAND)


def dealt(comm: MPI.Intracomm, lengths: Sequence[int]) -> slice:
    """This rank's part of a whole that is dealt in these lengths."""
    start = sum(lengths[: comm.rank])
    return slice(start, start + lengths[comm.rank])


# ---------------------------------------------------------------- ring attention


def ring_is_full(comm: MPI.Intracomm, lengths: Sequence[int]) -> bool:
    """Whether outputs and the gradients of queries, keys and values are those of full attention."""
    whole = (4 * numbers(3, 2, 2, sum(lengths), 5)).requires_grad_()
    expected = F.scaled_dot_product_attention(*whole, is_causal=True)
    expected.pow(2).sum().backward()
    mine = dealt(comm, lengths)
    parts = whole.detach()[..., mine, :].clone().requires_grad_()
    mixed = ring_attention(comm, *parts)
    mixed.pow(2).sum().backward()
    assert whole.grad is not None
    right = same(mixed, expected[..., mine, :]) and same(parts.grad, whole.grad[..., mine, :])
    return everywhere(comm, right)


@pytest.mark.parametrize("lengths", [[3, 3, 3, 3], [4, 3, 3, 3], [1, 5, 2, 3]], ids=str)
def test_ring_attention_is_full_attention(comm: MPI.Intracomm, lengths: list[int]) -> None:
    assert ring_is_full(comm, lengths[: comm.size])


def test_a_rank_without_queries_is_refused_by_all(comm: MPI.Intracomm) -> None:
    if comm.size == 1:
        return
    mine = numbers(3, 1, 1, int(comm.rank == 0), 4)
    with pytest.raises(ValueError, match=r"a sequence of 1, sharded as .*; use at most 1 ranks"):
        ring_attention(comm, *mine)


def shift_without_gradient(comm: MPI.Intracomm, x: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    return ring_shift(comm, x.detach(), shape)


def test_a_ring_that_loses_gradients_is_told_apart(
    comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(context_parallel, "ring_shift", shift_without_gradient)
    assert ring_is_full(comm, [3] * comm.size) == (comm.size == 1)


# ---------------------------------------------------------------- experts


def mixture(experts: int) -> Mixture:
    torch.manual_seed(0)
    nets = [nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 4)) for _ in range(experts)]
    return Mixture(4, nets).double()


def experts_are_the_mixture(comm: MPI.Intracomm, experts: int, counts: Sequence[int]) -> bool:
    """Whether three steps give the outputs, gradients and weights of the mixture of all ranks' tokens."""
    whole = mixture(experts)
    parallel = ParallelMixture(comm, whole)
    mine, here = dealt(comm, counts), even_range(experts, comm.size, comm.rank)
    optimizers = [torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9) for net in (whole, parallel)]
    right = True
    for step in range(3):
        x = numbers(sum(counts), 4, seed=step).requires_grad_()
        part = x.detach()[mine].clone().requires_grad_()
        for optimizer in optimizers:
            optimizer.zero_grad()
        y, expected = parallel(part), whole(x)
        for result in (y, expected):
            result.pow(2).sum().backward()
        assert x.grad is not None
        right &= same(y, expected[mine]) and same(part.grad, x.grad[mine])
        there = [*whole.router.parameters(), *whole.experts[here.start : here.stop].parameters()]
        pairs = list(zip(parallel.parameters(), there, strict=True))
        right &= all(same(p.grad, q.grad) for p, q in pairs)
        for optimizer in optimizers:
            optimizer.step()
        right &= all(same(p, q) for p, q in pairs)
    return everywhere(comm, right)


@pytest.mark.parametrize("counts", [[5, 5, 5, 5], [7, 1, 4, 2], [3, 0, 6, 1]], ids=str)
@pytest.mark.parametrize("experts", [2, 5])
def test_experts_on_other_ranks_are_the_mixture(comm: MPI.Intracomm, experts: int, counts: list[int]) -> None:
    assert experts_are_the_mixture(comm, experts, counts[: comm.size])


def back_in_the_wrong_order(
    comm: MPI.Intracomm, rows: torch.Tensor, send_counts: Sequence[int], receive_counts: Sequence[int]
) -> torch.Tensor:
    received = all_to_all(comm, rows, send_counts, receive_counts)
    return received.flip(0) if rows.is_floating_point() else received  # the choices come in order


def lost_on_the_way_back(
    comm: MPI.Intracomm, rows: torch.Tensor, send_counts: Sequence[int], receive_counts: Sequence[int]
) -> torch.Tensor:
    return all_to_all(comm, rows.detach(), send_counts, receive_counts)


@pytest.mark.parametrize("wrong", [back_in_the_wrong_order, lost_on_the_way_back])
def test_wrong_exchanges_are_told_apart(
    comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch, wrong: Callable[..., torch.Tensor]
) -> None:
    monkeypatch.setattr(expert_parallel, "all_to_all", wrong)
    assert not experts_are_the_mixture(comm, 2, [4, 6, 3, 5][: comm.size])


def test_the_mixture_asks_one_expert_a_token() -> None:
    """Against the definition, a token at a time."""
    net, x = mixture(3), numbers(6, 4)
    chances = net.router(x).softmax(-1)
    asked = [net.experts[int(c.argmax())] for c in chances]
    expected = [c.max() * ask(row) for c, ask, row in zip(chances, asked, x, strict=True)]
    assert same(net(x), torch.stack(expected))
