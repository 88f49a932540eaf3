"""Exercise 05.2: a backward pass whose loss falls although two of its four gradients are wrong."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np

from mpi_classroom.exercises import Exercise, Wrong, WrongAnswer, changed, expect

_BACKWARD = '''\
def backward(weights, images, labels):
    """The gradient of a batch's mean loss with respect to each of the weights."""
    hidden, probabilities = forward(weights, images)
    wanted = np.eye(probabilities.shape[1])[labels]  # a 1 at the label, in each row
    at_logits = (probabilities - wanted) / len(labels)
    at_hidden = (at_logits @ weights["w2"].T) * (hidden > 0)  # back through the relu
    return {
        "w1": images.T @ at_hidden,
        "b1": at_hidden.sum(axis=0),
        "w2": hidden.T @ at_logits,
        "b2": at_logits.sum(axis=0),
    }
'''
_STUB = changed(_BACKWARD, ("(hidden > 0)", "(hidden >= 0)"))


def _check_backward(answer: SimpleNamespace, comm: Any, samples: int) -> None:
    from course_lib.training.by_hand import initial_weights, mean_loss
    from course_lib.training.gradient_check import TOLERANCE, gradient_errors

    rng = np.random.default_rng(comm.rank)
    weights = initial_weights(4, 6, 3, seed=comm.rank)
    images, labels = rng.normal(size=(samples, 4)), rng.integers(0, 3, samples)
    gradients = answer.backward(weights, images, labels)
    expect(isinstance(gradients, Mapping), "return a dict with the four gradients.")
    for name, values in weights.items():
        shape = np.shape(gradients.get(name))
        expect(
            shape == values.shape, f"the gradient of {name} has shape {shape}, but {name} has {values.shape}."
        )
    errors = gradient_errors(lambda: mean_loss(weights, images, labels), weights, gradients)
    wrong = [name for name, error in errors.items() if error > TOLERANCE]
    if wrong:
        raise Wrong(_reply(weights, gradients, wrong, images, labels))


def _reply(weights: Any, gradients: Any, wrong: list[str], images: Any, labels: Any) -> str:
    """The reply to wrong gradients: the factor they are off by, or which of them are wrong."""
    from course_lib.training.by_hand import backward

    right, names = backward(weights, images, labels), _listed(wrong)
    expect(
        any(np.any(gradients[name]) for name in wrong),
        f"{names}: all zero. Which numbers does the mask let through?",
    )
    of_all = [np.vdot(gradients[name], right[name]) / np.vdot(right[name], right[name]) for name in wrong]
    factor = of_all[0]
    if all(np.allclose(gradients[name], factor * right[name]) for name in wrong):
        size = f"{factor:g} times too large" if factor > 1 else f"{1 / factor:g} times too small"
        return f"{names}: {size} everywhere. Is the mean over the batch taken exactly once?"
    fine = [name for name in weights if name not in wrong]
    others = f", but not {_listed(fine)}. Which step lies between them?" if fine else "."
    are = "are" if len(wrong) > 1 else "is"
    return f"central differences of the loss say that {names} {are} wrong{others}"


def _listed(names: list[str]) -> str:
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last


FIND_THE_BUG = Exercise(
    id="05.2",
    title="Spot the bug",
    task="Somebody wrote this backward pass, and it is not right. Run the cell as it is, then the cells "
    "below it, down to the list of errors. Come back when you know which gradients are wrong.",
    objectives=(4,),
    targets=("falling-loss-right-gradient",),
    stub=_STUB,
    hints=(
        "Which of the four gradients are wrong? What do they depend on that the others do not?",
        "logits ──→ at_logits ──→ w2, b2   right\n"
        "              │\n"
        "              └──→ at_hidden ──→ w1, b1   wrong\n"
        "`hidden` is the output of a relu: it is never negative, and 0 where no gradient may pass.",
        "at_hidden = (at_logits @ …) * (hidden … 0)",
    ),
    solution=_BACKWARD,
    check=_check_backward,
    cases=(5, 8),
    describe=lambda samples: f"a batch of {samples} images",
    imports="from course_lib.training.by_hand import forward",
    wrong=(
        WrongAnswer(changed(_BACKWARD, ("(hidden > 0)", "(hidden > -1)")), "w1 and b1 are wrong"),
        WrongAnswer(changed(_BACKWARD, ("(hidden > 0)", "(hidden < 0)")), "all zero"),
        WrongAnswer(
            changed(_BACKWARD, ("at_hidden.sum(axis=0)", "at_hidden.mean(axis=0)")), "b1: 5 times too small"
        ),
        WrongAnswer(changed(_BACKWARD, (" / len(labels)", "")), "5 times too large"),
    ),
    why="the training ran with these gradients. What would have made you suspect them?",
)
