"""Exercises, questions and predictions of lesson 11, ZeRO from scratch.

torch is imported only where a check needs it: exercises without it are checked sooner.
"""

from types import SimpleNamespace
from typing import Any

import numpy as np

from mpi_classroom.exercises import (
    Exercise,
    Option,
    Prediction,
    Question,
    WrongAnswer,
    changed,
    expect_array,
)

# -------------------------------------------------------------------- 11.5 stage 1's update


def _check_update(answer: SimpleNamespace, comm: Any, length: int) -> None:
    """One step of SGD with rate 1 from zeros: number i of a tensor of rank r's gradient is (i + 1) · 10^r."""
    import torch
    from torch import nn

    from course_lib.parallel.plain_zero import own_slice

    model = nn.Linear(length, 1).double()
    for tensor in model.parameters():
        tensor.data.zero_()
        tensor.grad = torch.arange(1.0, tensor.numel() + 1).double().view_as(tensor) * 10.0**comm.rank
    mine = [nn.Parameter(own_slice(comm, tensor)) for tensor in model.parameters()]
    answer.update(comm, model, mine, torch.optim.SGD(mine, lr=1.0))
    counted = [np.arange(1.0, tensor.numel() + 1) for tensor in model.parameters()]
    own = np.concatenate(counted) * 10.0**comm.rank
    total = np.concatenate(counted) * sum(10.0**rank for rank in range(comm.size))
    here = [np.where(np.isin(each, np.array_split(each, comm.size)[comm.rank]), each, 0) for each in counted]
    lookalikes = {
        "no weight has moved: the optimizer took no step.": np.zeros(length + 1),
        "moved along the mean of the gradients; here the sum was asked for.": -total / comm.size,
    }
    if comm.size > 1:
        lookalikes |= {
            "only this rank's own slice is new. Who has the others?": -np.concatenate(here)
            * sum(10.0**rank for rank in range(comm.size)),
            "all weights moved along this rank's own gradient: nothing was added.": -own,
        }
    got = torch.cat([tensor.detach().view(-1) for tensor in model.parameters()]).numpy()
    expect_array(got, -total, lookalikes)


_UPDATE = '''\
def update(comm, model, mine, optimizer):
    """Sum the gradients, update this rank's slices, and gather the weights."""
    for full, part in zip(model.parameters(), mine, strict=True):
        sum_slice(comm, full, part)
    optimizer.step()
    optimizer.zero_grad()
    for full in model.parameters():
        gather(comm, full)
'''
_GATHERED = "    for full in model.parameters():\n        gather(comm, full)\n"
_STEP = "    optimizer.step()\n    optimizer.zero_grad()\n"

UPDATE = Exercise(
    id="11.5",
    title="Spot the bug",
    task="Somebody wrote `update` and tested it on one rank. After it, every rank must hold *all* new "
    "weights.",
    objectives=(1, 2),
    targets=("slices-follow-layers",),
    stub=changed(_UPDATE, (_GATHERED, "")),
    hints=(
        "Which numbers of a weight matrix are new on rank 1 after `optimizer.step()`? Where are the others?",
        "rank 0    new │ old │ old        rank 1    old │ new │ old        rank 2    old │ old │ new\n"
        "One of the functions above fills a tensor with the slices of all ranks.",
        "for … in model.parameters():   and below it   gather(comm, …)",
    ),
    solution=_UPDATE,
    check=_check_update,
    cases=(8, 7, 5),
    describe=lambda length: f"{length} weights and a bias",
    sizes=(2, 3, 4, 1),
    imports="import torch\nfrom course_lib.parallel.plain_zero import gather, sum_slice\n",
    save="11_zero.py",
    wrong=(
        WrongAnswer(
            changed(_UPDATE, (_STEP, ""), (_GATHERED, _GATHERED + _STEP)), "only this rank's own slice is new"
        ),
        WrongAnswer(changed(_UPDATE, ("    optimizer.step()\n", "")), "the optimizer took no step"),
        WrongAnswer(
            changed(
                _UPDATE,
                (_STEP, "    for part in mine:\n        part.grad /= comm.size\n" + _STEP),
            ),
            "here the sum was asked for",
        ),
        WrongAnswer(
            '''\
def update(comm, model, mine, optimizer):
    """Sum the gradients, update this rank's slices, and gather the weights."""
    for full in model.parameters():
        full.data -= full.grad
''',
            "nothing was added",
        ),
    ),
    why="a rank's optimizer never sees three quarters of the weights. Why is the step right all the same?",
)

# -------------------------------------------------------------------- questions

WHICH_STAGE = Question(
    id="11.q4",
    question="On 64 GPUs of 80 GB, a model's weights take 14 GB per GPU, its gradients 14 GB, Adam's state "
    "84 GB, and the activations of a batch 30 GB. The network between the machines is slow. Which stage do "
    "you try first?",
    options=(
        Option(
            "stage 1: only its optimizer state is cut",
            reply="14 + 14 + 84 / 64 + 30 is 59 GB: it fits, and sends no more than data parallelism does.",
            right=True,
        ),
        Option(
            "stage 3: all model states become a 64th",
            reply="It fits, with room to spare, but gathers all weights twice per step, on a slow network. "
            "What does stage 1 need?",
            belief="zero-shards-activations",
        ),
        Option(
            "none: 30 GB plus a 64th is too much",
            reply="A 64th of what? Stage 1 cuts Adam's 84 GB alone; weights, gradients and activations stay. "
            "Add them up.",
            belief="every-stage-an-nth",
        ),
    ),
    objectives=(2, 3),
)

WHO_COMPUTES = Question(
    id="11.q1",
    question="Four ranks train with stage 3, each on 8 samples of its own. What does each rank compute in a "
    "step?",
    options=(
        Option(
            "a quarter of every layer, on its own samples",
            reply="That would mean a rank computes with its slice only. It doesn't: before a layer runs, "
            "each rank gathers all of the layer's weights, and computes as one process would.",
            belief="zero-splits-computation",
        ),
        Option(
            "all layers that it owns, on all samples",
            reply="That would be a pipeline, as in lesson 08: its ranks own layers, and activations "
            "travel. In ZeRO every rank owns a slice of every layer, and weights travel.",
            belief="owner-runs-the-layer",
        ),
        Option(
            "all layers in full, on its own samples",
            reply="Every rank runs the full model on its own samples, as in data parallelism. Owners keep "
            "and update numbers; computing is not divided among them.",
            right=True,
        ),
    ),
    objectives=(1,),
)

WHICH_NORM = Question(
    id="11.q5",
    question="In stage 2, a colleague clips with `clip_grad_norm_(mine, 1.0)` before the update, on every "
    "rank. What happens?",
    options=(
        Option(
            "the training of one process, for the norm is that of sums",
            reply="The sums are right, but each rank takes the norm of *its* slices. Clipping needs the norm "
            "of all gradients.",
            belief="own-norm-is-the-norm",
        ),
        Option(
            "another training, for each rank scales its slices by itself",
            reply="Every rank finds another norm, and all are too small. Add up the squares over all ranks, "
            "then take the root.",
            right=True,
        ),
        Option(
            "an error, since MPI finds slices of different norms",
            reply="MPI gathers numbers and knows nothing of norms. Nothing fails, and the direction of the "
            "step is wrong.",
            belief="own-norm-is-the-norm",
        ),
    ),
    objectives=(1,),
)

KEEP_GATHERED = Question(
    id="11.q6",
    question="With `reshard_after_forward=False`, FSDP2 frees a layer's weights only after backward. What do "
    "you trade, compared with stage 3?",
    options=(
        Option(
            "a higher peak for fewer bytes: one gather less per step",
            reply="When backward begins, all weights are there, as in stage 2, and it sends as much: one "
            "gather and one reduce-scatter.",
            right=True,
        ),
        Option(
            "nothing: backward needs all of these weights anyway",
            reply="Backward needs them layer by layer. When it begins, all layers are gathered now; in stage "
            "3 it is one.",
            belief="stage-3-is-free",
        ),
        Option(
            "a lower peak for more bytes: weights stay longer",
            reply="What stays longer makes the peak higher, not lower, and need not be sent again.",
            belief="gather-grows-with-n",
        ),
    ),
    objectives=(4, 5),
)

EXERCISES = (UPDATE, WHICH_STAGE, WHO_COMPUTES, WHICH_NORM, KEEP_GATHERED)

PREDICTIONS = (
    Prediction(
        id="11.p9",
        question="How many times as many bytes does a rank send in stage 3 as in stage 2?",
        objectives=(4,),
        targets=("stage-3-is-free", "gather-grows-with-n"),
    ),
)
