"""Training in one process: what every form of distributed training has to equal.

A Transformer of two blocks, in float64, so that rounding does not hide an error. Twelve heads and twelve
sequences per batch can be distributed evenly over 1, 2, 3 and 4 ranks; the vocabulary of 16 cannot.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD, Optimizer

from course_lib.training.transformer import Transformer, build_transformer

VOCABULARY, LENGTH, SEQUENCES, STEPS = 16, 6, 12, 3
Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Trained:
    """The loss of every step, the gradients of the last one, and the weights after it."""

    losses: list[float]
    gradients: Tensors
    weights: Tensors


def model(seed: int = 0) -> Transformer:
    sizes = {"vocabulary": VOCABULARY, "length": LENGTH, "width": 24, "heads": 12, "layers": 2}
    return build_transformer(**sizes, seed=seed).double()


def batches(steps: int = STEPS) -> list[torch.Tensor]:
    """Tokens (SEQUENCES, LENGTH + 1) for each step; the last token of a row is predicted only."""
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(0, VOCABULARY, (SEQUENCES, LENGTH + 1), generator=generator) for _ in range(steps)]


def mean_loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The cross entropy of logits (B, T, VOCABULARY) and targets (B, T), over all their tokens."""
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def loss_of(net: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    return mean_loss(net(tokens[:, :-1]), tokens[:, 1:])


def sgd(parameters: Iterable[torch.Tensor]) -> Optimizer:
    """Linear in the gradient, so that a factor in it shows; Adam would divide it away."""
    return SGD(parameters, lr=0.5, momentum=0.9, foreach=False)


def gradients_of(net: nn.Module) -> Tensors:
    return {name: p.grad.detach().clone() for name, p in net.named_parameters() if p.grad is not None}


def weights_of(net: nn.Module) -> Tensors:
    return {name: p.detach().clone() for name, p in net.named_parameters()}


def train(
    net: nn.Module,
    optimizer: Optimizer,
    backward: Callable[[torch.Tensor], float] | None = None,
    steps: int = STEPS,
) -> Trained:
    """Three steps on whole batches; `backward(tokens)` puts gradients in place and returns the loss."""

    def whole(tokens: torch.Tensor) -> float:
        loss = loss_of(net, tokens)
        loss.backward()
        return loss.item()

    losses = []
    for tokens in batches(steps):
        optimizer.zero_grad()
        losses.append((backward or whole)(tokens))
        optimizer.step()
    return Trained(losses, gradients_of(net), weights_of(net))


def alone(
    make: Callable[[Iterable[torch.Tensor]], Optimizer] = sgd,
    steps: int = STEPS,
    dtype: torch.dtype = torch.float64,
) -> Trained:
    """The oracle: the same model on the same batches, in this process alone."""
    net = model().to(dtype)
    return train(net, make(net.parameters()), steps=steps)


def assert_same(got: Tensors, expected: Tensors, tolerance: float = 1e-10) -> None:
    """The same names, and under each the same numbers."""
    assert set(got) == set(expected)
    for name, tensor in expected.items():
        torch.testing.assert_close(
            got[name], tensor, rtol=0, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}"
        )


def assert_trained_alike(got: Trained, expected: Trained, tolerance: float = 1e-10) -> None:
    """Gradients and weights, of all parameters."""
    assert_same(got.gradients, expected.gradients, tolerance)
    assert_same(got.weights, expected.weights, tolerance)
