"""Exercises, questions and predictions of lesson 16, Choose your strategy."""

import math
from types import SimpleNamespace
from typing import Any

from mpi_classroom.exercises import (
    Exercise,
    Option,
    Prediction,
    Question,
    Wrong,
    WrongAnswer,
    changed,
    expect,
)

JOB = {"params": 6.9e9, "depth": 32, "width": 4096, "seq": 2048, "batch": 64}
NVLINK, SLOW = ({"gpus": 8, "capacity": 72e9, "rate": 218e12, "link": link} for link in (235e9, 10e9))
Case = tuple[str, dict[str, float], dict[str, int]]  # its name, the node, the plan
CASES: tuple[Case, ...] = (
    ("ZeRO-3 on NVLink", NVLINK, {"data": 8, "zero": 3, "microbatches": 8}),
    ("tensor on NVLink", NVLINK, {"tensor": 8, "microbatches": 8}),
    ("ZeRO-3 on a slow link", SLOW, {"data": 8, "zero": 3, "microbatches": 8}),
    ("ZeRO-1 on a slow link", SLOW, {"data": 8, "zero": 1, "microbatches": 8}),
    ("ZeRO-1 and tensor on NVLink", NVLINK, {"data": 4, "zero": 1, "tensor": 2, "microbatches": 4}),
    ("data on a slow link", SLOW, {"data": 8, "microbatches": 4}),
    (
        "ZeRO-3, pipeline and tensor",
        SLOW,
        {"data": 2, "zero": 3, "pipeline": 2, "tensor": 2, "microbatches": 16},
    ),
    ("a pipeline", NVLINK, {"pipeline": 8, "microbatches": 64}),
)

# -------------------------------------------------------------------- 16.7 what hides


def _check_step(answer: SimpleNamespace, comm: Any, case: Case) -> None:
    _, node, plan = case
    got = answer.step(**JOB, **node, **plan)
    expect(isinstance(got, dict) and "total" in got, "returned no total; keep the line `return locals()`.")
    right = reference(**JOB, **node, **plan)
    if math.isclose(got["total"], right["total"], rel_tol=1e-6):
        return
    names = ("computing", "idle", "tensor_messages", "data_messages", "cover")
    computing, idle, tensor, data, cover = (right[name] for name in names)
    busy = computing + idle
    lookalikes = {
        "nothing hides yet. Behind what can the data ranks' messages hide?": busy + data + tensor,
        "your step hides tensor messages, too. Can the next product run before its input is there?": busy
        + max(0, data + tensor - cover),
        "the messages are shorter than `cover`, so your step is shorter than without any messages. "
        "What is left of a message that hides altogether?": busy + data - cover + tensor,
        "on this link, the messages take longer than `cover`, so a part is exposed. "
        "In your step, all are gone.": busy + tensor,
        "`exposed` is the longer of messages and `cover`, but computing is counted already.": busy
        + max(data, cover)
        + tensor,
        "that is the computing with no message beside it, and computing is counted already. What is left of "
        "the messages?": busy + max(0, cover - data) + tensor,
    }
    for words, value in lookalikes.items():
        if math.isclose(got["total"], value, rel_tol=1e-6):
            raise Wrong(f"{got['total']:.2f} s: {words}")
    raise Wrong(
        f"{got['total']:.2f} s, expected {right['total']:.2f}: computing {computing:.2f}, idle {idle:.2f}, "
        f"tensor_messages {tensor:.2f}, data_messages {data:.2f}, cover {cover:.2f}."
    )


_STEP = '''\
def step(
    params, depth, width, seq, batch, rate, link, data=1, zero=0, pipeline=1, tensor=1, microbatches=1, **_
):
    """Return a dict: `total` seconds per step and its parts."""
    tokens = seq * batch / data  # in a data rank's step
    # flop per token: 6 per parameter, and attention (no causal mask)
    computing = (6 * params + 12 * depth * width * seq) * tokens / pipeline / tensor / rate
    # 4 all-reduces per block; each sends 2 (t - 1) / t vectors of 2 * width bytes per token; none hidden
    tensor_messages = 4 * depth / pipeline * 2 * (tensor - 1) / tensor * 2 * width * tokens / link
    # stages wait while pipelines fill and drain (1F1B, equal stages; their messages left out)
    idle = (computing + tensor_messages) * (pipeline - 1) / microbatches
    # ring trips of 2-byte numbers: all-reduce 2 per step; ZeRO-3 3 per micro-batch (lesson 11)
    trips = 3 * microbatches if zero == 3 else 2
    data_messages = trips * 2 * params / pipeline / tensor * (data - 1) / data / link
    # ZeRO-3 sends during all computing; others in the last micro-batch's backward (2/3 of its computing)
    # (simplified: so does ZeRO-1's all-gather)
    cover = computing if zero == 3 else computing * 2 / 3 / microbatches
    exposed = max(0, data_messages - cover)
    total = computing + idle + tensor_messages + exposed
    return locals()
'''


def reference(**given: float) -> dict[str, float]:
    """What the course's solution says."""
    names: dict[str, Any] = {}
    exec(_STEP, names)
    return dict(names["step"](**given))


_EXPOSED = "    exposed = max(0, data_messages - cover)\n"


def _exposed(line: str) -> str:
    return changed(_STEP, (_EXPOSED, f"    exposed = {line}\n"))


HIDE = Exercise(
    id="16.7",
    title="Spot the bug: a friend in a hurry",
    task="Data ranks' messages can hide behind `cover` seconds of computing. The rest is **exposed**: the "
    "GPU waits for it. ZeRO-3 computes for 3.4 s and sends for 1.2 s, so a step takes at most 4.6 s. A "
    "friend's `step` returns 6.7 s. Correct one line.",
    objectives=(1, 2),
    targets=("messages-hide-or-not",),
    stub=_exposed("max(data_messages, cover)"),
    hints=(
        "Messages of 9 s run beside a backward of 6 s. How much longer is the step? With messages of 3 s?",
        "backward ██████\nmessages █████████   3 left\n\nbackward ██████\nmessages ███         0 left",
        "exposed = max(…, data_messages - …)",
    ),
    solution=_STEP,
    check=_check_step,
    cases=CASES,
    describe=lambda case: case[0],
    sizes=(3,),
    save="16_plan.py",
    wrong=(
        WrongAnswer(_exposed("data_messages - cover"), "shorter than without any"),
        WrongAnswer(_exposed("0"), "are gone"),
        WrongAnswer(_exposed("data_messages"), "nothing hides yet"),
        WrongAnswer(_exposed("max(0, cover - data_messages)"), "with no message beside it"),
        WrongAnswer(
            changed(
                _STEP,
                (_EXPOSED, "    exposed = max(0, data_messages + tensor_messages - cover)\n"),
                ("tensor_messages + exposed", "exposed"),
            ),
            "Can the next product run",
        ),
    ),
    why="In forward, FSDP gathers a layer while computing the one before. Which layer's gather cannot hide?",
)

# -------------------------------------------------------------------- questions

TWO_NODES = Question(
    id="16.q6",
    question="Two nodes of eight A100s train our Transformer on 256 sequences per step. Each GPU "
    "sends 235 GB/s inside its node, 3 GB/s outside. What do you try first?",
    options=(
        Option(
            "ZeRO-3 inside nodes, data between them",
            reply="This is hybrid sharding (HSDP). Inside nodes, ZeRO-3's messages hide on the fast link, "
            "and states take 14 GB per GPU. Between nodes, each GPU all-reduces only its eighth of the "
            "gradients, once per step (FSDP2: `set_requires_all_reduce`): 0.6 s in 16 bits. With four "
            "micro-batches, the last one's backward takes 1.1 s, so even this message can hide.",
            right=True,
        ),
        Option(
            "tensor inside nodes, data between them",
            reply="This plan fits, and tensor groups stay on the fast link. But per step, the GPUs compute "
            "for 6.7 s, and wait at least 2 s more for the sums inside blocks. Our program hides none of "
            "these messages (Megatron-LM and TorchTitan can hide a part).",
            belief="messages-hide-or-not",
        ),
        Option(
            "ZeRO-3 over all GPUs",
            reply="This plan saves 7 GB per GPU, but the other two fit already. Per micro-batch, two "
            "all-gathers and a reduce-scatter cross the slow link, and the plan needs "
            "four micro-batches to fit. If "
            "one network card per node sends, they take 13 s per micro-batch; if all eight send, 1.6 s. "
            "Then four micro-batches need 6.5 s of messages beside 6.7 s of computing: too close to trust.",
            belief="most-saving-is-best",
        ),
    ),
    objectives=(2, 3),
)

EXERCISES = (HIDE, TWO_NODES)

PREDICTIONS = (
    Prediction(
        id="16.p7",
        question="Hours that cards pays with tensor parallelism?",
        objectives=(3,),
        targets=("one-plan-for-every-machine",),
    ),
    Prediction(
        id="16.p6",
        question="How many times as long as data parallelism does the pipeline take here?",
        objectives=(4,),
        targets=("ranks-are-devices",),
    ),
    Prediction(
        id="16.p8",
        question="How many % less did tensor 2 reach than pipeline 2?",
        objectives=(5,),
        targets=("right-order-right-size",),
    ),
)
