"""Branches on several ranks, held to all of them in one process."""

import copy

import pytest
import torch
from mpi4py import MPI
from torch import nn

from course_lib.parallel import branches as module
from course_lib.parallel.branches import Branches, SummedBranches
from course_lib.theory.partition import balanced_ranges
from tests.ranks.tiled import close, numbers, randomised

KERNELS = (1, 3, 5, 3)


def four(widths: tuple[int, ...] = (2, 3, 1, 4)) -> nn.ModuleList:
    convolutions = zip(widths, KERNELS, strict=True)
    return randomised(nn.ModuleList(nn.Conv2d(2, w, k, padding=k // 2) for w, k in convolutions))  # type: ignore


def trains_alike(comm: MPI.Intracomm, kind: type[Branches], whole: nn.ModuleList) -> bool:
    costs = [1.0, 2.0, 3.0, 2.0]
    ours = kind(comm, list(whole), costs)
    whole = copy.deepcopy(whole)
    mine = nn.ModuleList(whole[index] for index in balanced_ranges(costs, comm.size)[comm.rank])
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9) for m in (ours, whole)]
    agree = True
    for step in range(3):
        for optimizer in optimizers:
            optimizer.zero_grad()
        inputs = [numbers(2, 2, 6, 5, seed=step).requires_grad_() for _ in range(2)]
        found = [branch(inputs[0]) for branch in whole]
        expected = torch.cat(found, dim=1) if kind is Branches else sum(found)
        got = ours(inputs[1])
        agree &= close(got, expected)
        for result in (expected, got):
            result.square().mean().backward()  # a sum would grow out of the tolerance
        agree &= close(inputs[1].grad, inputs[0].grad)
        agree &= all(close(a.grad, b.grad) for a, b in zip(ours.parameters(), mine.parameters(), strict=True))
        for optimizer in optimizers:
            optimizer.step()
    return agree and all(close(a, b) for a, b in zip(ours.parameters(), mine.parameters(), strict=True))


def test_joined_branches_equal_one_process(comm: MPI.Intracomm) -> None:
    assert trains_alike(comm, Branches, four())


def test_summed_branches_equal_one_process(comm: MPI.Intracomm) -> None:
    assert trains_alike(comm, SummedBranches, four((3, 3, 3, 3)))


def test_without_the_sum_of_the_inputs_gradient_it_is_wrong(
    comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "copy_to", lambda _, x: x)
    assert trains_alike(comm, Branches, four()) == (comm.size == 1)


def test_too_many_ranks_and_too_few_costs_are_refused(comm: MPI.Intracomm) -> None:
    with pytest.raises(ValueError, match="0 branches cannot be shared"):
        Branches(comm, [])
    with pytest.raises(ValueError, match="1 costs were given for 4 branches"):
        Branches(comm, list(four()), [1.0])
