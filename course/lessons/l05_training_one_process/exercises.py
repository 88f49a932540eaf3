"""Exercises of lesson 05, training in one process: a batch in pieces, and a backward pass with a mistake.

torch is imported where a check needs it, so that exercises without it are checked sooner.
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
STALE = 1000.0  # a gradient that is there before

# -------------------------------------------------------------------- 05.1 a batch in pieces


def _check_accumulate(answer: SimpleNamespace, comm: Any, lengths: Sequence[int]) -> None:
    _check_one_weight(answer, lengths)
    _check_network(answer, lengths, seed=comm.rank)


def _check_one_weight(answer: SimpleNamespace, lengths: Sequence[int]) -> None:
    """One weight; each image of micro-batch i has the gradient 10**i, so that the sum tells what was made."""
    import torch

    model = torch.nn.Linear(1, 1, bias=False, dtype=torch.float64)
    before = model.weight.item()
    model.weight.grad = torch.full_like(model.weight, STALE)
    parts = [torch.full((length, 1), 10.0**i, dtype=torch.float64) for i, length in enumerate(lengths)]
    microbatches = [(part, torch.zeros(len(part))) for part in parts]
    answer.accumulate(model, lambda outputs, _: outputs.mean(), microbatches, sum(lengths))
    expect(model.weight.item() == before, "changed the weights; this is about gradients only.")
    if model.weight.grad is None:
        raise Wrong("got no gradient; was backward called?")
    got, right = model.weight.grad.item(), sum(part.sum().item() for part in parts) / sum(lengths)
    if np.isclose(got, right):
        return
    expect(abs(got) < STALE, "gradients of an earlier step are still in; they have to go first.")
    for words, value in _lookalikes(lengths).items():
        expect(not np.isclose(got, value), words)
    raise Wrong(f"got the gradient {got:g} in place of {right:g}.")


def _lookalikes(lengths: Sequence[int]) -> Mapping[str, float]:
    """What a certain mistake gives, in words. A micro-batch's mean gradient is 10**i."""
    means, total = [10.0**i for i in range(len(lengths))], sum(lengths)
    sums = [length * mean for length, mean in zip(lengths, means, strict=True)]
    pieces = len(lengths)
    return {
        "got the mean of the means: every micro-batch counts alike, however few images it has.": sum(means)
        / pieces,
        f"got the sum of {pieces} means. Each is the gradient of a whole batch in size; weigh them.": sum(
            means
        ),
        f"got gradients {total} times too large: by what is the loss of a batch divided?": sum(sums),
        "divided twice: `loss_fn` gives a mean, so its sum has been divided once already.": sum(means)
        / total,
        "got the last micro-batch only; what does `zero_grad` do, and how often?": sums[-1] / total,
        "got the first micro-batch only.": sums[0] / total,
    }


def _check_network(answer: SimpleNamespace, lengths: Sequence[int], seed: int) -> None:
    """A small network; the oracle is the whole batch at once, averaged by torch."""
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

    `microbatches` is a list of (inputs, targets); `loss_fn` gives the mean loss of one of them.
    """
    model.zero_grad()
    for inputs, targets in microbatches:
        loss = loss_fn(model(inputs), targets) * len(targets) / batch_size
        loss.backward()  # adds to the gradients that are there
'''

ACCUMULATE = Exercise(
    id="05.1",
    title="A batch in pieces",
    task="`loss_fn` gives the *mean* loss of the images it is given, as PyTorch's losses do. The "
    "micro-batches need not be equal.",
    objectives=(3,),
    targets=("mean-of-means",),
    stub='''\
def accumulate(model, loss_fn, microbatches, batch_size):
    """Leave in the parameters' .grad the gradients of the mean loss of all `batch_size` images.

    `microbatches` is a list of (inputs, targets); `loss_fn` gives the mean loss of one of them.
    """
    model.zero_grad()
    for inputs, targets in microbatches:
        loss = loss_fn(model(inputs), targets)
        loss.backward()  # adds to the gradients that are there
''',
    hints=(
        "The loop and backward are right. Each micro-batch's loss is a mean over *its* images; how much of "
        "the batch's mean is that?",
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
            changed(_ACCUMULATE, ("    model.zero_grad()\n", "")), "gradients of an earlier step are still in"
        ),
    ),
    why="where all micro-batches are equal, the mean of the means is right, too. Why not use it?",
)

EXERCISES = (ACCUMULATE, *QUESTIONS, FIND_THE_BUG)
