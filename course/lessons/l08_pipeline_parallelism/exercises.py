"""Exercises of lesson 08, pipeline parallelism: the 1F1B of one rank and of any rank, and losses that add up.

torch is imported only where a check needs it: exercises without it are checked sooner.
"""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from course.lessons.l08_pipeline_parallelism.quiz import PREDICTIONS as PREDICTIONS
from course.lessons.l08_pipeline_parallelism.quiz import QUESTIONS
from course_lib.theory.schedules import Action, makespan, one_f_one_b, peak_activations, simulate
from mpi_classroom.exercises import Exercise, Wrong, WrongAnswer, changed, expect

STAGES = 3

# -------------------------------------------------------------------- 08.1 rank 1's 1F1B, put in order


def _check_rank_1(answer: SimpleNamespace, comm: Any, microbatches: int) -> None:
    """All ranks look at what the function would do; if that can work, they run it with real messages."""
    done: list[Action] = []
    answer.rank_1(
        lambda i: done.append(Action("F", 1, i)), lambda i: done.append(Action("B", 1, i)), microbatches
    )
    _check_order(done, microbatches)
    peak = peak_activations(done)
    expect(
        peak <= min(STAGES - 1, microbatches),
        f"holds {peak} micro-batches at once, and {STAGES - 1} are enough: {done}. Which backward could come "
        "sooner?",
    )
    schedule = one_f_one_b(STAGES, microbatches)
    best, schedule[1] = makespan(simulate(schedule, 1, 2)), done
    try:
        took = makespan(simulate(schedule, 1, 2))
    except ValueError as error:
        raise Wrong(str(error)) from None
    expect(
        took <= best,
        f"the step lasts {took:g} times as long as a forward, with 1F1B {best:g} times: {done}. Rank 1 waits "
        "for a gradient while it could take the next micro-batch forward.",
    )
    _run(comm, schedule, microbatches)


def _check_order(done: Sequence[Action], microbatches: int) -> None:
    """Raise Wrong for an order that could not work."""
    seen: set[Action] = set()
    for action in done:
        i = action.microbatch
        expect(0 <= i < microbatches, f"calls {action}, but the micro-batches are 0 to {microbatches - 1}.")
        expect(action not in seen, f"does {action} twice: {list(done)}.")
        expect(
            action.kind == "F" or Action("F", 1, i) in seen,
            f"does {action} before F{i}, so there is nothing yet to go backward through: {list(done)}.",
        )
        seen.add(action)
    for i in range(microbatches):
        expect(Action("F", 1, i) in seen, f"never does F{i}, so rank 2 waits for its activations.")
        expect(Action("B", 1, i) in seen, f"never does B{i}, so rank 0 waits for its gradient.")


def _run(comm: Any, schedule: list[list[Action]], microbatches: int) -> None:
    """Run the schedule on three stages of one weight each: the model is their product, 2 · 3 · 5."""
    import torch

    from course_lib.parallel.pipeline import run_schedule, split_batch
    from course_lib.training.loop import Batch

    torch.ones(1, requires_grad=True).exp().backward(torch.ones(1))  # torch loads much at its first backward
    comm.Barrier()  # on some ranks that takes longer
    stage = torch.nn.Linear(1, 1, bias=False, dtype=torch.float64)
    torch.nn.init.constant_(stage.weight, (2.0, 3.0, 5.0)[comm.rank])
    batch = Batch(torch.ones(microbatches, 1, dtype=torch.float64), torch.zeros(microbatches), microbatches)
    parts = split_batch(batch, microbatches)
    run_schedule(comm, schedule, {(0, comm.rank): stage}, lambda outputs, _: outputs.sum(), parts)
    expected = 30.0 / (2.0, 3.0, 5.0)[comm.rank]
    got = stage.weight.grad
    if got is None or not np.isclose(got.item(), expected):
        raise Wrong(f"the gradient of the stage is {got}, expected {expected:g}.")


RANK_1 = Exercise(
    id="08.1",
    title="Put in order: what rank 1 does in 1F1B",
    task="Rank 1 has the middle one of three stages. `F(i)` takes micro-batch i forward and "
    "`B(i)` takes it backward, messages included. Two of the seven lines are not needed, and no line is used "
    "twice. The function begins:",
    objectives=(2, 4),
    stub='order("")\n',
    opening='''\
def rank_1(F, B, m):
    """Do in 1F1B what stage 1 of 3 has to do with micro-batches 0 to m - 1."""''',
    blocks={
        "P": "        B(i - 1)",
        "Q": "    B(m - 1)",
        "R": "    for i in range(m):",
        "S": "        F(i)",
        "T": "    F(0)",
        "U": "        B(i)",
        "V": "    for i in range(1, m):",
    },
    hints=(
        "How many stages come after rank 1? That many forwards are its warm-up. Then one forward and one "
        "backward follow in turn.",
        "rank 0  F0 F1 F2 B0 F3 B1 …\nrank 1     F0 F1 B0 F2 B1 …\nrank 2        F0 B0 F1 B1 …\n"
        "After F0: a forward and a backward in turn, and at the end one backward is left over.",
        'order("T V … … Q")',
    ),
    solution='order("T V S P Q")\n',
    check=_check_rank_1,
    cases=(4, 1, 2),
    describe=lambda m: f"{m} micro-batch{'es' * (m > 1)}",
    sizes=(STAGES,),
    imports="import torch",
    wrong=(
        WrongAnswer('order("R S U")', "Rank 1 waits for a gradient"),
        WrongAnswer('order("R S R U")', "holds 4 micro-batches at once"),
        WrongAnswer('order("T V S P")', "never does B3"),
        WrongAnswer('order("V S P Q")', "before F0"),
        WrongAnswer('order("T R S P Q")', "does F0 twice"),
    ),
    why="rank 1 holds at most two micro-batches. Which of your lines would change if five stages came after "
    "it, and how?",
)

# -------------------------------------------------------------------- 08.2 the schedule of any rank


def _check_schedule(answer: SimpleNamespace, comm: Any, microbatches: int) -> None:
    size, stage = comm.size, comm.rank
    got = answer.schedule_of(stage, size, microbatches)
    expect(isinstance(got, list), f"returned {type(got).__name__}, expected a list such as ['F0', 'B0'].")
    wanted = [repr(action) for action in one_f_one_b(size, microbatches)[stage]]
    if got == wanted:
        return
    where = f"stage {stage} of {size}, {microbatches} micro-batches"
    every = {f"{kind}{i}" for kind in "FB" for i in range(microbatches)}
    strange = [name for name in got if name not in every]
    expect(not strange, f"{where}: {strange[:1]} is no forward or backward of these micro-batches.")
    missing = [name for name in wanted if name not in got]
    expect(not missing, f"{where}: {missing[:1]} is missing in {got}.")
    expect(len(got) == len(wanted), f"{where}: an action comes twice in {got}.")
    warmup = next(place for place, name in enumerate(got) if name.startswith("B"))
    right = next(place for place, name in enumerate(wanted) if name.startswith("B"))
    expect(
        warmup == right,
        f"{where}: {warmup} forwards come before the first backward, expected {right}: one for each "
        "later stage and the one of the first pair, or fewer where micro-batches are fewer.",
    )
    raise Wrong(f"{where}: the order is {got}. After the warm-up, expected a forward and a backward in turn.")


_SCHEDULE = '''\
def schedule_of(stage, stages, microbatches):
    """List what `stage` of `stages` does in 1F1B, in order, such as ["F0", "B0"]."""
    warmup = min(stages - 1 - stage, microbatches)
    todo = [f"F{i}" for i in range(warmup)]
    for i in range(microbatches):
        if warmup + i < microbatches:
            todo.append(f"F{warmup + i}")
        todo.append(f"B{i}")
    return todo
'''

SCHEDULE = Exercise(
    id="08.2",
    title="The 1F1B of any rank",
    task="`warmup` is the number of forwards before forward and backward alternate: one for each later "
    "stage. Here it is wrong. And the loop has no forwards yet.",
    objectives=(2,),
    stub='''\
def schedule_of(stage, stages, microbatches):
    """List what `stage` of `stages` does in 1F1B, in order, such as ["F0", "B0"]."""
    warmup = 0
    todo = [f"F{i}" for i in range(warmup)]
    for i in range(microbatches):
        todo.append(f"B{i}")
    return todo
''',
    hints=(
        "Find two numbers: how many forwards come first, and which forward goes with backward i, as long as "
        "there is one left.",
        "3 stages, 4 micro-batches   warm-up   then forward and backward in turn   no forwards left\n"
        "stage 0                     F0 F1     F2 B0  F3 B1                        B2 B3\n"
        "stage 1                     F0        F1 B0  F2 B1  F3 B2                 B3\n"
        "stage 2                               F0 B0  F1 B1  F2 B2  F3 B3",
        "warmup = min(stages - 1 - …, microbatches)   and   if warmup + i < …: append F{warmup + i} first",
    ),
    solution=_SCHEDULE,
    check=_check_schedule,
    cases=(4, 1, 2, 7),
    describe=lambda m: f"{m} micro-batch{'es' * (m > 1)}",
    sizes=(2, 3, 4, 1),
    wrong=(
        WrongAnswer(
            changed(_SCHEDULE, ("stages - 1 - stage", "stages - stage")), "forwards come before the first"
        ),
        WrongAnswer(changed(_SCHEDULE, ("stages - 1 - stage", "stage")), "one for each later stage"),
        WrongAnswer(
            changed(_SCHEDULE, ("min(stages - 1 - stage, microbatches)", "microbatches")), "expected 2"
        ),
        WrongAnswer(
            changed(_SCHEDULE, ("        if warmup + i < microbatches:\n    ", "")),
            "is no forward or backward",
        ),
        WrongAnswer(
            changed(_SCHEDULE, ("min(stages - 1 - stage, microbatches)", "stages - 1 - stage")), "no forward"
        ),
    ),
    why="with 1F1B, stage 0 holds at most as many micro-batches as there are stages. How many does it hold "
    "with GPipe?",
)

# -------------------------------------------------------------------- 08.3 a loss that is too large


def _check_accumulate(answer: SimpleNamespace, comm: Any, lengths: Sequence[int]) -> None:
    import torch
    from torch.nn import functional as F

    torch.manual_seed(8)
    layers = torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2)
    model = torch.nn.Sequential(*layers).double()
    inputs, targets = torch.randn(sum(lengths), 3, dtype=torch.float64), torch.randint(2, (sum(lengths),))
    parts = list(zip(inputs.split(list(lengths)), targets.split(list(lengths)), strict=True))
    weights = [p.detach().clone() for p in model.parameters()]
    answer.accumulate(model, F.cross_entropy, parts)
    got = [p.grad for p in model.parameters() if p.grad is not None]
    if len(got) < len(weights):
        raise Wrong("a parameter has no gradient; was backward called?")
    moved = any(not torch.equal(p, before) for p, before in zip(model.parameters(), weights, strict=True))
    expect(not moved, "changed the weights; leave them, only .grad is asked for.")

    def of(shares: Sequence[float]) -> list[Any]:
        losses = [s * F.cross_entropy(model(x), y) for s, (x, y) in zip(shares, parts, strict=True)]
        return list(torch.autograd.grad(torch.stack(losses).sum(), list(model.parameters())))

    def same(shares: Sequence[float]) -> bool:
        return all(torch.allclose(a, b, rtol=1e-9) for a, b in zip(got, of(shares), strict=True))

    count, total = len(lengths), sum(lengths)
    if same([length / total for length in lengths]):
        return
    expect(not same([1.0] * count), f"got about {count} times the gradient: the means were added up.")
    expect(
        not same([1 / count] * count),
        f"got the mean of the means: micro-batches of {lengths[0]} and {lengths[-1]} samples weigh the same.",
    )
    expect(not same([*[0.0] * (count - 1), 1.0]), "got the gradient of the last micro-batch only.")
    expect(
        not same([1 / total] * count),
        "the mean over a micro-batch was divided by the size of the batch: divided twice.",
    )
    expect(
        not same([float(n) for n in lengths]),
        "got the gradient of the sum over the batch, expected that of the mean.",
    )
    raise Wrong("the gradient is not that of the mean loss of the whole batch.")


_ACCUMULATE = '''\
def accumulate(model, loss_fn, microbatches):
    """Leave the gradient of the batch's mean loss in .grad; `loss_fn` returns the mean of its samples."""
    total = sum(len(targets) for _, targets in microbatches)
    for inputs, targets in microbatches:
        loss = loss_fn(model(inputs), targets) * len(targets) / total
        loss.backward()
'''

ACCUMULATE = Exercise(
    id="08.3",
    title="Spot the bug",
    task="Somebody accumulates the gradients of micro-batches. With one micro-batch the training converges. "
    "With eight it diverges.",
    objectives=(5,),
    targets=("backward-adds-means",),
    stub='''\
def accumulate(model, loss_fn, microbatches):
    """Leave the gradient of the batch's mean loss in .grad; `loss_fn` returns the mean of its samples."""
    total = sum(len(targets) for _, targets in microbatches)
    for inputs, targets in microbatches:
        loss = loss_fn(model(inputs), targets)
        loss.backward()
''',
    hints=(
        "Every backward adds to .grad. What do the gradients of eight means add up to?",
        "mean of the batch = (a + b + c + d + e) / 5\n"
        "micro-batch 0: (a + b + c) / 3        micro-batch 1: (d + e) / 2\n"
        "By what must you multiply each, so that the two add up to the first line?",
        "loss = loss_fn(model(inputs), targets) * len(…) / …",
    ),
    solution=_ACCUMULATE,
    check=_check_accumulate,
    cases=((2, 2), (3, 2, 2), (4, 1)),
    describe=lambda lengths: f"micro-batches of {', '.join(map(str, lengths))} samples",
    sizes=(3,),
    imports="import torch",
    wrong=(
        WrongAnswer(
            changed(_ACCUMULATE, ("* len(targets) / total", "/ len(microbatches)")), "weigh the same"
        ),
        WrongAnswer(changed(_ACCUMULATE, ("* len(targets) / total", "/ total")), "divided twice"),
        WrongAnswer(changed(_ACCUMULATE, (" / total", "")), "gradient of the sum"),
        WrongAnswer(
            changed(_ACCUMULATE, ("        loss = ", "        model.zero_grad()\n        loss = ")),
            "gradient",
        ),
    ),
    why="the lesson's loss is a sum over samples, divided by the size of the global batch. Why need nothing "
    "be weighed there?",
)

EXERCISES = (RANK_1, *QUESTIONS, SCHEDULE, ACCUMULATE)
