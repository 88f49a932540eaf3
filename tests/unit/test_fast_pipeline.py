"""Gradients that add up in place are those of autograd; whoever waits for a gradient still gets it."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from course_lib.fast.pipeline import AccumulateInPlace, accumulate_in_place


def model() -> nn.Sequential:
    torch.manual_seed(0)
    layers = nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 6, bias=False), nn.Tanh(), nn.Linear(6, 2)
    return nn.Sequential(*layers).double()


def inputs(*shape: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(*shape, generator=generator, dtype=torch.float64) for _ in range(3)]


@pytest.mark.parametrize("shape", [(4, 5), (2, 3, 5), (5,), (0, 5)])
def test_gradients_of_weights_biases_and_inputs_are_those_of_autograd(shape: tuple[int, ...]) -> None:
    ours, theirs = model(), model()
    for given in inputs(*shape):
        mine, other = given.clone().requires_grad_(), given.clone().requires_grad_()
        with AccumulateInPlace():
            out = ours(mine)
        out.square().sum().backward()
        theirs(other).square().sum().backward()
        assert torch.allclose(mine.grad, other.grad, rtol=0, atol=1e-12)
    for parameter, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.allclose(parameter.grad, other.grad, rtol=0, atol=1e-12)


def test_the_second_gradient_is_added_in_the_memory_of_the_first() -> None:
    net = model()
    for given in inputs(4, 5):
        with AccumulateInPlace():
            out = net(given)
        out.sum().backward()
        places = [parameter.grad.data_ptr() for parameter in net.parameters()]
    with AccumulateInPlace():
        net(given).sum().backward()
    assert [parameter.grad.data_ptr() for parameter in net.parameters()] == places


def test_products_that_are_deferred_come_when_they_are_asked_for() -> None:
    ours, theirs, deferred = model(), model(), []
    for given in inputs(4, 5):
        mine = given.clone().requires_grad_()
        with accumulate_in_place(ours, deferred=deferred):
            out = ours(mine)
        before = [None if p.grad is None else p.grad.clone() for p in ours.parameters() if p.dim() == 2]
        out.square().sum().backward()
        assert mine.grad is not None and len(deferred) == 3
        after = [p.grad for p in ours.parameters() if p.dim() == 2]
        for one, other in zip(before, after, strict=True):
            assert other is None if one is None else torch.equal(one, other), "not yet"
        while deferred:
            deferred.pop()()
        theirs(given).square().sum().backward()
    for parameter, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.allclose(parameter.grad, other.grad, rtol=0, atol=1e-12)


def test_one_weight_used_twice_gets_both_gradients() -> None:
    shared = nn.Linear(4, 4).double()
    same, (given, *_) = copy.deepcopy(shared), inputs(3, 4)
    with AccumulateInPlace():
        shared(torch.tanh(shared(given))).sum().backward()
    same(torch.tanh(same(given))).sum().backward()
    assert torch.allclose(shared.weight.grad, same.weight.grad, rtol=0, atol=1e-12)


def test_frozen_weights_get_no_gradient() -> None:
    net = model()
    net[0].weight.requires_grad_(False)
    with AccumulateInPlace():
        net(inputs(4, 5)[0]).sum().backward()
    assert net[0].weight.grad is None and net[0].bias.grad is not None


def test_hooks_of_a_weight_are_called() -> None:
    net, called = model(), []
    net[0].weight.register_hook(lambda gradient: called.append("hook"))
    net[2].weight.register_post_accumulate_grad_hook(lambda parameter: called.append("after"))
    with AccumulateInPlace():
        net(inputs(4, 5)[0]).sum().backward()
    assert sorted(called) == ["after", "hook"]


def test_autocast_is_left_to_autograd() -> None:
    net, given = model().float(), torch.ones(4, 5)
    with torch.autocast("cpu", torch.bfloat16), AccumulateInPlace():
        out = net(given)
    out.float().sum().backward()
    assert all(parameter.grad is not None for parameter in net.parameters())


def test_ddp_inside_is_left_to_autograd() -> None:
    class Wrapped(DistributedDataParallel):
        def __init__(self) -> None:
            nn.Module.__init__(self)

    assert isinstance(accumulate_in_place(model()), AccumulateInPlace)
    assert not isinstance(accumulate_in_place(nn.Sequential(Wrapped())), AccumulateInPlace)
