"""Exercises of lesson 05, training in one process: a batch in pieces, and a backward pass with a bug.

torch is imported only where a check needs it: exercises without it are checked sooner.
"""

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from course.lessons.l05_training_one_process.exercise_backward import FIND_THE_BUG
from course.lessons.l05_training_one_process.quiz import PREDICTIONS as PREDICTIONS
from course.lessons.l05_training_one_process.quiz import QUESTIONS
from mpi_classroom.exercises import Exercise, Wrong, WrongAnswer, changed, expect

TORCH = "import torch\nfrom torch import nn\nfrom torch.nn import functional as F"
STALE = 1000.0  # a gradient left over from an earlier step

# -------------------------------------------------------------------- 05.1 a batch in pieces


def _check_accumulate(answer: SimpleNamespace, comm: Any, lengths: Sequence[int]) -> None:
    _check_one_weight(answer, lengths)
    _check_network(answer, lengths, seed=comm.rank)


def _check_one_weight(answer: SimpleNamespace, lengths: Sequence[int]) -> None:
    """One weight. Each image of micro-batch i has the gradient 10**i, so the sum says what was computed."""
    import torch

    model = torch.nn.Linear(1, 1, bias=False, dtype=torch.float64)
    before = model.weight.item()
    model.weight.grad = torch.full_like(model.weight, STALE)
    parts = [torch.full((length, 1), 10.0**i, dtype=torch.float64) for i, length in enumerate(lengths)]
    microbatches = [(part, torch.zeros(len(part))) for part in parts]
    answer.accumulate(model, lambda outputs, _: outputs.mean(), microbatches, sum(lengths))
    expect(
        model.weight.item() == before,
        "changed the weights. Leave the update to the optimizer: only gradients are asked for.",
    )
    if model.weight.grad is None:
        raise Wrong("there is no gradient afterwards. Was backward called?")
    got, right = model.weight.grad.item(), sum(part.sum().item() for part in parts) / sum(lengths)
    if np.isclose(got, right):
        return
    expect(abs(got) < STALE, "the gradients of an earlier step are still included. What clears them?")
    for words, value in _lookalikes(lengths).items():
        expect(not np.isclose(got, value), words)
    raise Wrong(f"got the gradient {got:g}, expected {right:g}.")


def _lookalikes(lengths: Sequence[int]) -> Mapping[str, float]:
    """The gradients that known mistakes give, with the reply to each. Micro-batch i has the mean 10**i."""
    means, total = [10.0**i for i in range(len(lengths))], sum(lengths)
    sums = [length * mean for length, mean in zip(lengths, means, strict=True)]
    pieces = len(lengths)
    return {
        "got the mean of the means: a micro-batch with one image weighs as much as one with many.": sum(means)
        / pieces,
        f"got the sum of {pieces} means. What share of the batch does each micro-batch have?": sum(means),
        f"got gradients {total} times too large. By what is the loss of a batch divided?": sum(sums),
        "divided twice: `loss_fn` returns a mean, so it has already divided once.": sum(means) / total,
        "got the last micro-batch only. What does `zero_grad` do, and how often is it called?": sums[-1]
        / total,
        "got the first micro-batch only.": sums[0] / total,
    }


def _check_network(answer: SimpleNamespace, lengths: Sequence[int], seed: int) -> None:
    """A small network. The oracle is the full batch at once, averaged by torch."""
    import torch
    from torch.nn import functional as F

    torch.manual_seed(seed)
    layers = torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2)
    model = torch.nn.Sequential(*layers).double()
    total = sum(lengths)
    images, labels = torch.randn(total, 3, dtype=torch.float64), torch.randint(2, (total,))
    expected = torch.autograd.grad(F.cross_entropy(model(images), labels), list(model.parameters()))
    microbatches = list(zip(images.split(list(lengths)), labels.split(list(lengths)), strict=True))
    answer.accumulate(model, F.cross_entropy, microbatches, total)
    for (name, parameter), gradient in zip(model.named_parameters(), expected, strict=True):
        right = parameter.grad is not None and torch.allclose(parameter.grad, gradient, rtol=1e-9)
        expect(right, f"got a wrong gradient of {name}.")


def _listed(lengths: Sequence[int]) -> str:
    return f"micro-batches of {' + '.join(map(str, lengths))} images"


_ACCUMULATE = '''\
def accumulate(model, loss_fn, microbatches, batch_size):
    """Leave in the parameters' .grad the gradients of the mean loss of all `batch_size` images.

    `microbatches` is a list of (inputs, targets); `loss_fn` returns the mean loss of one of them.
    """
    model.zero_grad()
    for inputs, targets in microbatches:
        loss = loss_fn(model(inputs), targets) * len(targets) / batch_size
        loss.backward()  # adds to the gradients that are there
'''

ACCUMULATE = Exercise(
    id="05.1",
    title="A batch in pieces",
    task="Compute the gradient of the *whole* batch, one micro-batch at a time. `loss_fn` returns the *mean* "
    "loss over the images it is given, as PyTorch's losses do. The micro-batches may differ in size. One "
    "line "
    "of the stub is not right yet.",
    objectives=(3,),
    targets=("mean-of-means",),
    stub='''\
def accumulate(model, loss_fn, microbatches, batch_size):
    """Leave in the parameters' .grad the gradients of the mean loss of all `batch_size` images.

    `microbatches` is a list of (inputs, targets); `loss_fn` returns the mean loss of one of them.
    """
    model.zero_grad()
    for inputs, targets in microbatches:
        loss = loss_fn(model(inputs), targets)  # is this its share of the batch's loss?
        loss.backward()  # adds to the gradients that are there
''',
    hints=(
        "The loop and backward are right. Each loss is a mean over *its* micro-batch. What share of the "
        "batch's mean is that?",
        "mean of the batch = (a + b + c + d + e) / 5\n"
        "first piece   (a + b + c) / 3   is 3/5 of it\n"
        "second piece  (d + e) / 2       is 2/5 of it",
        "loss = loss_fn(model(inputs), targets) * … / …",
    ),
    solution=_ACCUMULATE,
    check=_check_accumulate,
    cases=((2, 2), (3, 1), (4, 3, 1)),
    describe=_listed,
    imports=TORCH,
    wrong=(
        WrongAnswer(
            changed(_ACCUMULATE, ("* len(targets) / batch_size", "/ len(microbatches)")),
            "got the mean of the means",
        ),
        WrongAnswer(changed(_ACCUMULATE, ("* len(targets) / batch_size", "* 1")), "got the sum of 2 means"),
        WrongAnswer(changed(_ACCUMULATE, (" / batch_size", "")), "4 times too large"),
        WrongAnswer(changed(_ACCUMULATE, ("* len(targets) / batch_size", "/ batch_size")), "divided twice"),
        WrongAnswer(
            changed(
                _ACCUMULATE,
                ("    model.zero_grad()\n", ""),
                ("microbatches:\n", "microbatches:\n        model.zero_grad()\n"),
            ),
            "got the last micro-batch only",
        ),
        WrongAnswer(
            changed(_ACCUMULATE, ("    model.zero_grad()\n", "")),
            "gradients of an earlier step are still included",
        ),
    ),
    why="when all micro-batches have the same size, the mean of the means is right too. When does that "
    "go wrong "
    "without anybody noticing?",
)

EXERCISES = (ACCUMULATE, *QUESTIONS, FIND_THE_BUG)
