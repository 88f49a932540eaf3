"""Exercise 15.3: what a resumed training must know besides its weights. The check imports torch."""

import io
from types import SimpleNamespace
from typing import Any

from mpi_classroom.exercises import Exercise, Wrong, WrongAnswer, changed, expect

BEFORE, AFTER = 3, 3  # steps before and after the restart


def _new(seed: int) -> tuple[Any, Any]:
    """What a job builds when it starts: a network with dropout, and SGD with momentum."""
    import torch

    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5)).double()
    return model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


def _train(model: Any, optimizer: Any, steps: int) -> list[float]:
    """The losses of some steps, each with new random inputs and a new random mask."""
    import torch

    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        inputs = torch.randn(8, 4, dtype=torch.float64)
        loss = torch.nn.functional.mse_loss(model(inputs).sum(1), inputs.sum(1))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def _check_resume(answer: SimpleNamespace, comm: Any, case: None) -> None:
    import torch

    model, optimizer = _new(comm.rank)
    _train(model, optimizer, BEFORE)
    file = io.BytesIO()
    saved = answer.save_state(model, optimizer)
    expect(isinstance(saved, dict), f"save_state returned {type(saved).__name__}, expected a dictionary.")
    torch.save(saved, file)
    weights = [value.clone() for value in model.state_dict().values()]
    expected = _train(model, optimizer, AFTER)

    file.seek(0)
    model, optimizer = _new(100 + comm.rank)  # as in a new process, which begins with other numbers
    answer.load_state(torch.load(file, weights_only=False), model, optimizer)
    same = all(torch.equal(*pair) for pair in zip(weights, model.state_dict().values(), strict=True))
    expect(same, "the weights after the restart are not those that were saved. Who loads them?")
    resumed = _train(model, optimizer, AFTER)
    first, *others = (abs(one - other) < 1e-12 for one, other in zip(resumed, expected, strict=True))
    if not first:
        raise Wrong(
            f"the weights are right, but the first loss after the restart is {resumed[0]:.4f}; undisturbed "
            f"it is {expected[0]:.4f}. What does a step draw?"
        )
    if not all(others):
        raise Wrong(
            f"the first loss after the restart is right, the last is {resumed[-1]:.4f}; undisturbed it is "
            f"{expected[-1]:.4f}. So the first update was a different one. Who made it, and from what?"
        )


_RESUME = '''\
import torch


def save_state(model, optimizer):
    """Return a dictionary of what is written to the checkpoint."""
    return {
        "weights": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "random": torch.get_rng_state(),
    }


def load_state(saved, model, optimizer):
    """Restore a training in a new process, which has just built `model` and `optimizer`."""
    model.load_state_dict(saved["weights"])
    optimizer.load_state_dict(saved["optimizer"])
    torch.set_rng_state(saved["random"])
'''
_OPTIMIZER = '    optimizer.load_state_dict(saved["optimizer"])\n'
_RANDOM = '    torch.set_rng_state(saved["random"])\n'
_WEIGHTS = '    model.load_state_dict(saved["weights"])\n'

RESUME = Exercise(
    id="15.3",
    title="Spot the bug: a resumed training",
    task="A colleague saves and restores a training with these two functions. The network has dropout; the "
    "optimizer is SGD with momentum. No error occurs, but the losses after a restart are not those of a "
    "training that was never interrupted. (The number of the step is saved elsewhere.)",
    objectives=(5,),
    targets=("weights-suffice-to-resume",),
    stub='''\
import torch


def save_state(model, optimizer):
    """Return a dictionary of what is written to the checkpoint."""
    return {"weights": model.state_dict()}


def load_state(saved, model, optimizer):
    """Restore a training in a new process, which has just built `model` and `optimizer`."""
    model.load_state_dict(saved["weights"])
''',
    hints=(
        "Go through one training step. What does it read that is neither a weight nor a constant?",
        "a step reads   weights ─ inputs, dropout masks ─ momentum\nsaved          weights",
        "optimizer.state_…()   and   torch.get_rng_…()",
    ),
    solution=_RESUME,
    check=_check_resume,
    cases=(None,),
    imports="import torch",
    seconds=20.0,
    wrong=(
        WrongAnswer(changed(_RESUME, (_OPTIMIZER, "")), "Who made it, and from what"),
        WrongAnswer(changed(_RESUME, (_RANDOM, "")), "What does a step draw"),
        WrongAnswer(changed(_RESUME, (_WEIGHTS, "")), "Who loads them"),
        WrongAnswer(changed(_RESUME, ("    return {", "    saved = {")), "expected a dictionary"),
    ),
    why="the weights were right and no error occurred. Which comparison would have shown the mistake at "
    "once?",
)
