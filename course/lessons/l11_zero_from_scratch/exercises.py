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
    expect,
    expect_array,
)

# -------------------------------------------------------------------- 11.5 stage 1's update


def _check_update(answer: SimpleNamespace, comm: Any, length: int) -> None:
    """One step of SGD with rate 1 from zeros: number i of a tensor of rank r's gradient is (i + 1) · 10^r."""
    import torch
    from torch import nn

    from course_lib.parallel.plain_zero import own_shard

    model = nn.Linear(length, 1).double()
    for tensor in model.parameters():
        tensor.data.zero_()
        tensor.grad = torch.arange(1.0, tensor.numel() + 1).double().view_as(tensor) * 10.0**comm.rank
    mine = [nn.Parameter(own_shard(comm, tensor)) for tensor in model.parameters()]
    answer.update(comm, model, mine, torch.optim.SGD(mine, lr=1.0))
    counted = [np.arange(1.0, tensor.numel() + 1) for tensor in model.parameters()]
    own = np.concatenate(counted) * 10.0**comm.rank
    total = np.concatenate(counted) * sum(10.0**rank for rank in range(comm.size))
    here = [np.where(np.isin(each, np.array_split(each, comm.size)[comm.rank]), each, 0) for each in counted]
    lookalikes = {
        "no weight has moved: the optimizer took no step.": np.zeros(length + 1),
        "the weights moved along the mean gradient; here the sum was asked for. Your loss may still look "
        "right: Adam divides a constant factor out again, SGD does not.": -total / comm.size,
    }
    if comm.size > 1:
        lookalikes |= {
            "only this rank's own shard is new. "
            "Who updates the other shards, and in which line?": -np.concatenate(here)
            * sum(10.0**rank for rank in range(comm.size)),
            "all weights moved along this rank's own gradient: nothing was added.": -own,
        }
    got = torch.cat([tensor.detach().view(-1) for tensor in model.parameters()]).numpy()
    expect_array(got, -total, lookalikes)
    kept = sum(part.grad is not None for part in mine)
    expect(not kept, f"the weights are right, but {kept} shards still keep a gradient that nobody needs.")


_UPDATE = '''\
def update(comm, model, mine, optimizer):
    """One step of the optimizer, from the gradients of all ranks."""
    for full, part in zip(model.parameters(), mine, strict=True):
        sum_shard(comm, full, part)
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
    task="Make `update` right on any number of ranks.",
    objectives=(1,),
    targets=("slices-follow-layers",),
    stub=changed(_UPDATE, (_GATHERED, "")),
    hints=(
        "Which numbers of a weight matrix are new on rank 1 after `optimizer.step()`? Where are the others?",
        "rank 0    new │ old │ old        rank 1    old │ new │ old        rank 2    old │ old │ new\n"
        "One of the functions above fills a tensor with the shards of all ranks.",
        "for … in model.parameters():   and below it   gather(comm, …)",
    ),
    solution=_UPDATE,
    check=_check_update,
    cases=(8, 7, 5),
    describe=lambda length: f"{length} weights and a bias",
    sizes=(2, 3, 4, 1),
    imports="import torch\nimport torch._dynamo  # else an optimizer's first step imports it, for seconds\n"
    "from course_lib.parallel.plain_zero import gather, sum_shard\n",
    save="11_zero.py",
    wrong=(
        WrongAnswer(
            changed(_UPDATE, (_STEP, ""), (_GATHERED, _GATHERED + _STEP)), "only this rank's own shard is new"
        ),
        WrongAnswer(changed(_UPDATE, ("    optimizer.step()\n", "")), "the optimizer took no step"),
        WrongAnswer(changed(_UPDATE, ("    optimizer.zero_grad()\n", "")), "still keep a gradient"),
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
    """One step of the optimizer, from the gradients of all ranks."""
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
    question="Each of 64 GPUs has 80 GB, and accumulates gradients over four micro-batches. Stage 0 would "
    "need 14 GB for weights, 14 for gradients, 84 for Adam, and 60 for a micro-batch's activations. Which "
    "is the lowest stage that fits?",
    options=(
        Option(
            "stage 1: it cuts the largest part",
            reply="Adam's state is the largest part, but cutting it is not enough. Weights, gradients and "
            "activations stay as they are. In the second micro-batch, 14 + 14 + 84 / 64 + 60 is 89 GB.",
            belief="every-stage-an-nth",
        ),
        Option(
            "stage 2: the weights need no cutting",
            reply="Stage 2 needs 14 + (14 + 84) / 64 + 60, which is 76 GB. Stage 1 keeps the full gradients "
            "between micro-batches and needs 89 GB. Buffers and fragmentation take some GB, too, so measure "
            "before you rely on the last 4.",
            right=True,
        ),
        Option(
            "stage 3: it cuts the activations, too",
            reply="That would mean 3 GB in all. But activations belong to a rank's own samples, so no stage "
            "cuts them, and 60 GB stay. Stage 3 would fit, but is it the lowest? Add up stage 2.",
            belief="zero-shards-activations",
        ),
    ),
    objectives=(2, 5),
)

WHO_COMPUTES = Question(
    id="11.q1",
    question="One GPU computes for 8 s on a batch of 32 samples, so ¼ s per sample. Now four GPUs share the "
    "batch, in stage 3. Leave out the messages. How long does each GPU compute, and what does it compute?",
    options=(
        Option(
            "½ s: a quarter of all layers, on 8 samples",
            reply="That would mean a rank computes with its shard only. It doesn't: before a layer runs, "
            "each rank gathers all weights of the layer, and runs the full layer on its 8 samples.",
            belief="zero-splits-computation",
        ),
        Option(
            "2 s: all layers in full, on 8 samples",
            reply="Every rank runs the full model on its own samples, as in data parallelism. ZeRO divides "
            "what is kept and updated, not what forward and backward compute.",
            right=True,
        ),
        Option(
            "2 s: the layers that it owns, on 32 samples",
            reply="That would be a pipeline, as in lesson 08: ranks own layers and send activations. "
            "In stage 3, every rank owns a shard of every layer, and ranks send weights.",
            belief="owner-runs-the-layer",
        ),
    ),
    objectives=(1,),
)

KEEP_GATHERED = Question(
    id="11.q6",
    question="With `reshard_after_forward=False`, FSDP2 keeps a layer's gathered weights after forward, and "
    "frees them after backward. What changes, compared with our stage 3?",
    options=(
        Option(
            "nothing: backward needs all of these weights anyway",
            reply="Backward does need all of these weights, but only one layer at a time. With this setting, "
            "all layers are gathered when backward begins. In our stage 3, at most one layer is.",
            belief="stage-3-is-free",
        ),
        Option(
            "a higher peak, fewer bytes sent: backward gathers nothing",
            reply="When backward begins, all weights are there, as in stage 2, so backward gathers nothing. "
            "With one backward per step, a rank then sends as much as in stage 2: one all-gather and one "
            "reduce-scatter.",
            right=True,
        ),
        Option(
            "a lower peak, more bytes sent: weights stay longer",
            reply="Weights that stay longer occupy memory longer, so the peak rises. Backward need not "
            "gather them again, so a rank sends less.",
            belief="gather-grows-with-n",
        ),
    ),
    objectives=(3, 4),
)

EXERCISES = (UPDATE, WHO_COMPUTES, KEEP_GATHERED, WHICH_STAGE)

PREDICTIONS = (
    Prediction(
        id="11.p10",
        question="The lowest stage that fits into 184 MiB?",
        objectives=(2,),
        targets=("every-stage-an-nth",),
    ),
    Prediction(
        id="11.p9",
        question="How many times as many bytes does a rank send in stage 3 as in stage 2?",
        objectives=(3,),
        targets=("stage-3-is-free", "gather-grows-with-n"),
    ),
)
