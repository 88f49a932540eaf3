"""Exercises of lesson 06, data parallelism by hand: start equal, add up gradients, stay equal.

torch is imported where a check needs it, so that exercises without it are checked sooner.
"""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from course.lessons.l06_data_parallel_by_hand.exercise_trace import TRACE
from course.lessons.l06_data_parallel_by_hand.exercise_wait import WAIT_FIRST
from course.lessons.l06_data_parallel_by_hand.quiz import PREDICTIONS as PREDICTIONS
from course.lessons.l06_data_parallel_by_hand.quiz import QUESTIONS
from mpi_classroom.exercises import (
    Exercise,
    Wrong,
    WrongAnswer,
    changed,
    expect,
    expect_array,
    missing_ranks,
)

TORCH = "import torch\nfrom torch import nn\nfrom torch.nn import functional as F"

# -------------------------------------------------------------------- 06.1 the gradient of the whole batch


def _check_gradients(answer: SimpleNamespace, comm: Any, lengths: Sequence[int]) -> None:
    _check_one_weight(answer, comm, lengths)
    _check_network(answer, comm, lengths)


def _check_one_weight(answer: SimpleNamespace, comm: Any, lengths: Sequence[int]) -> None:
    """One weight whose gradient on rank r is 10**r, so that the sum tells who is missing."""
    import torch

    size, total = comm.size, sum(lengths[: comm.size])
    parts = [10.0**rank if lengths[rank] else 0.0 for rank in range(size)]
    model = torch.nn.Linear(1, 1, bias=False, dtype=torch.float64)
    count = lengths[comm.rank]
    inputs = torch.full((count, 1), parts[comm.rank] * total / max(count, 1), dtype=torch.float64)
    before = model.weight.item()
    answer.batch_gradients(comm, model, lambda outputs, _: outputs.sum(), inputs, torch.zeros(count), total)
    expect(model.weight.item() == before, "changed the weights; this phase is about gradients only.")
    gradient = model.weight.grad
    if gradient is None:
        raise Wrong("got no gradient; was backward called?")
    got = gradient.item()
    if np.isclose(got, sum(parts)):
        return
    _explain_factor(got / sum(parts), size, total)
    expect(
        size == 1 or not np.isclose(got, parts[comm.rank]),
        "got the gradient of one shard only: nothing was added.",
    )
    shards = [part * total / max(length, 1) for part, length in zip(parts, lengths, strict=False)]
    if np.isnan(got) or np.isclose(got, sum(shards)) or np.isclose(got, sum(shards) / size):
        raise Wrong("divided by the images of a shard: every shard counts alike, however few images it has.")
    raise Wrong(f"got the gradient {got:g} in place of {sum(parts):g}: {missing_ranks(got, size)}.")


def _explain_factor(factor: float, size: int, total: int) -> None:
    """Raise Wrong when all gradients are wrong by a factor that has a name."""
    names = {
        f"got the means of the gradients; the sums are {size} times larger.": 1 / size,
        f"got gradients {total} times too large: by what is the loss of a batch divided?": total,
        "divided by the global batch twice: once is enough.": 1 / total,
    }
    for words, value in names.items():
        expect(value == 1 or not np.isclose(factor, value), words)


def _check_network(answer: SimpleNamespace, comm: Any, lengths: Sequence[int]) -> None:
    """A small network; the oracle is the whole batch in one process, averaged by torch."""
    import torch
    from torch.nn import functional as F

    torch.manual_seed(6)
    layers = torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2)
    model = torch.nn.Sequential(*layers).double()
    total, start = sum(lengths[: comm.size]), sum(lengths[: comm.rank])
    images, labels = torch.randn(total, 3, dtype=torch.float64), torch.randint(2, (total,))
    mine = slice(start, start + lengths[comm.rank])

    def loss_fn(outputs: Any, targets: Any) -> Any:
        return F.cross_entropy(outputs, targets, reduction="sum")

    loss = F.cross_entropy(model(images), labels)
    expected = torch.autograd.grad(loss, list(model.parameters()))
    answer.batch_gradients(comm, model, loss_fn, images[mine], labels[mine], total)
    for (name, parameter), gradient in zip(model.named_parameters(), expected, strict=True):
        right = parameter.grad is not None and torch.allclose(parameter.grad, gradient, rtol=1e-9)
        expect(right, f"got a wrong gradient of {name}. Does the loop come to every parameter?")


def _listed(lengths: Sequence[int]) -> str:
    return f"{lengths[0]}, {lengths[1]}, … images"


_GRADIENTS = '''\
def batch_gradients(comm, model, loss_fn, inputs, targets, global_size):
    """Leave in the parameters' .grad the gradients of the mean loss of all `global_size` images.

    `inputs` and `targets` are this rank's shard, maybe empty; `loss_fn` adds up its images' losses.
    """
    loss = loss_fn(model(inputs), targets) / global_size
    loss.backward()
    for parameter in model.parameters():
        gradient = parameter.grad.numpy()  # the same numbers, in the same memory
        comm.Allreduce(MPI.IN_PLACE, gradient)
'''

BATCH_GRADIENTS = Exercise(
    id="06.1",
    title="The gradient of the whole batch",
    task="The shards need not be equal, and one may be empty.",
    objectives=(3,),
    stub='''\
def batch_gradients(comm, model, loss_fn, inputs, targets, global_size):
    """Leave in the parameters' .grad the gradients of the mean loss of all `global_size` images.

    `inputs` and `targets` are this rank's shard, maybe empty; `loss_fn` adds up its images' losses.
    """
    loss = loss_fn(model(inputs), targets)
    loss.backward()
    for parameter in model.parameters():
        gradient = parameter.grad.numpy()  # the same numbers, in the same memory
''',
    hints=(
        "Two things are missing. One prepares the loss, so that shards only have to be added; the other "
        "adds.",
        "loss of the batch = (a + b + c + d + e) / 5\n"
        "rank 0  (a + b + c) / 5 ─┐\n"
        "rank 1  (d + e) / 5     ─┴─ the sum of the two has the gradient of the batch",
        "loss = loss_fn(model(inputs), targets) / …   and   comm.Allreduce(MPI.IN_PLACE, …)",
    ),
    solution=_GRADIENTS,
    check=_check_gradients,
    cases=((3, 3, 3, 3), (3, 2, 2, 1), (2, 0, 1, 4)),
    describe=lambda lengths: "an empty shard on rank 1" if 0 in lengths else f"shards of {_listed(lengths)}",
    sizes=(2, 3, 4, 1),  # alone, the gradient of the shard is that of the batch
    imports=TORCH,
    wrong=(
        WrongAnswer(
            changed(_GRADIENTS, ("gradient)\n", "gradient)\n        parameter.grad /= comm.size\n")),
            "got the means of the gradients; the sums are 2 times larger",
        ),
        WrongAnswer(changed(_GRADIENTS, (" / global_size", "")), "6 times too large"),
        WrongAnswer(
            changed(
                _GRADIENTS,
                ("/ global_size", "/ len(inputs)"),
                ("gradient)\n", "gradient)\n        parameter.grad /= comm.size\n"),
            ),
            "every shard counts alike",
        ),
        WrongAnswer(
            changed(_GRADIENTS, ("parameter.grad.numpy()", "np.array(parameter.grad)")),
            "the gradient of one shard only",
        ),
        WrongAnswer(
            changed(_GRADIENTS, ("parameter.grad.numpy()", "parameter.detach().numpy()")),
            "changed the weights",
        ),
        WrongAnswer(
            changed(_GRADIENTS, ("in model.parameters()", "in list(model.parameters())[:1]")),
            "got a wrong gradient of 0.bias",
        ),
    ),
    why="a rank with an empty shard could return at once. Why does it have to call Allreduce all the same?",
)

# -------------------------------------------------------------------- 06.2 start equal


def _check_start_equal(answer: SimpleNamespace, comm: Any, case: None) -> None:
    import torch

    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 1)).double()
    own = [np.full(tuple(p.shape), 10.0**comm.rank) + index for index, p in enumerate(model.parameters())]
    with torch.no_grad():
        for parameter, value in zip(model.parameters(), own, strict=True):
            parameter.copy_(torch.from_numpy(value))
    answer.start_equal(comm, model)
    ranks = np.arange(comm.size)
    for index, (name, parameter) in enumerate(model.named_parameters()):
        lookalikes = {
            f"kept its own {name}: nothing came from rank 0, or it went somewhere else.": own[index],
            f"got the sum of all ranks' {name}.": np.full_like(own[index], (10.0**ranks + index).sum()),
            f"got the mean of all ranks' {name}; nobody asked for an average.": np.full_like(
                own[index], (10.0**ranks + index).mean()
            ),
            f"got the {name} of rank {comm.size - 1}.": np.full_like(own[index], 10.0 ** ranks[-1] + index),
        }
        expected = np.full_like(own[index], 1.0 + index)
        expect_array(parameter.detach().numpy(), expected, lookalikes)


_START = '''\
def start_equal(comm, model):
    """Give the model of every rank the weights of rank 0."""
    for parameter in model.parameters():
        weights = parameter.detach().numpy()
        comm.Bcast(weights, root=0)
'''

START_EQUAL = Exercise(
    id="06.2",
    title="Spot the bug: the broadcast that changes nothing",
    task="This is somebody's phase 1. It runs, and `replicas_agree` says False.",
    objectives=(1,),
    targets=("copy-is-the-tensor",),
    stub='''\
def start_equal(comm, model):
    """Give the model of every rank the weights of rank 0."""
    for parameter in model.parameters():
        weights = np.array(parameter.detach())
        comm.Bcast(weights, root=0)
''',
    hints=(
        "Bcast works: on every rank, `weights` holds the numbers of rank 0 afterwards. Where are they then?",
        "parameter  ── np.array copies ──→  weights  ←── Bcast fills\n"
        "parameter  ── .numpy() shows ───→  the same memory",
        "weights = parameter.detach().…()",
    ),
    solution=_START,
    check=_check_start_equal,
    cases=(None,),
    sizes=(2, 3, 4, 1),
    imports=TORCH,
    wrong=(
        WrongAnswer(
            changed(_START, ("comm.Bcast(weights, root=0)", "comm.Allreduce(MPI.IN_PLACE, weights)")),
            "got the sum of all ranks' 0.weight",
        ),
        WrongAnswer(
            changed(
                _START,
                (
                    "comm.Bcast(weights, root=0)",
                    "comm.Allreduce(MPI.IN_PLACE, weights)\n        weights /= comm.size",
                ),
            ),
            "nobody asked for an average",
        ),
        WrongAnswer(changed(_START, ("detach()", "detach().clone()")), "kept its own 0.weight"),
        WrongAnswer(changed(_START, ("root=0", "root=comm.size - 1")), "got the 0.weight of rank 1"),
    ),
    why="nothing failed, and training would have run on. Which line of the lesson would have told you?",
)

EXERCISES = (BATCH_GRADIENTS, *QUESTIONS, START_EQUAL, TRACE, WAIT_FIRST)
