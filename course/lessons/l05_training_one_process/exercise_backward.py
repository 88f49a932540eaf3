"""Exercise 05.2: a backward pass by hand whose loss falls although two of its four gradients are wrong."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np

from mpi_classroom.exercises import Exercise, Wrong, WrongAnswer, changed, expect

_BACKWARD = '''\
def backward(weights, images, labels):
    """The gradients of the mean loss of a batch, of each of the weights."""
    hidden, probabilities = forward(weights, images)
    wanted = np.eye(probabilities.shape[1])[labels]  # a 1 at the label, in each row
    at_logits = (probabilities - wanted) / len(labels)
    at_hidden = (at_logits @ weights["w2"].T) * (hidden > 0)  # relu passes on what was positive
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
    expect(isinstance(gradients, Mapping), "the result has to be the dict of the four gradients.")
    for name, values in weights.items():
        shape = np.shape(gradients.get(name))
        expect(
            shape == values.shape, f"the gradient of {name} has the shape {shape}; {name} has {values.shape}."
        )
    errors = gradient_errors(lambda: mean_loss(weights, images, labels), weights, gradients)
    wrong = [name for name, error in errors.items() if error > TOLERANCE]
    if wrong:
        raise Wrong(_reply(weights, gradients, wrong, images, labels))


def _reply(weights: Any, gradients: Any, wrong: list[str], images: Any, labels: Any) -> str:
    """What to say of the gradients that are wrong: by a factor, or which of them."""
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
        return f"{names}: {size}, all of it. Is the mean of the batch taken once?"
    fine = [name for name in weights if name not in wrong]
    others = f"; not so {_listed(fine)}. What lies between?" if fine else "."
    are = "are" if len(wrong) > 1 else "is"
    return f"the differences of the loss say that {names} {are} wrong{others}"


def _listed(names: list[str]) -> str:
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last


FIND_THE_BUG = Exercise(
    id="05.2",
    title="Spot the bug: the loss falls all the same",
    task="This backward pass has a mistake. Run the cell as it is, and then the two below it; come"
    " back when you know which gradients are wrong.",
    objectives=(4,),
    targets=("falling-loss-right-gradient",),
    stub=_STUB,
    hints=(
        "Which of the four gradients are wrong? What do those two share that the others do not?",
        "logits ──→ at_logits ──→ w2, b2   right\n"
        "              │\n"
        "              └──→ at_hidden ──→ w1, b1   wrong\n"
        "and `hidden` comes out of a relu: it is 0 where nothing may pass, and never below.",
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
    why="training went on with those gradients. What would you have seen, and would you have suspected them?",
)
