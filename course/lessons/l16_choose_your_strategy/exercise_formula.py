"""Exercise 16.2: the bytes of weights, gradients and Adam's state on each rank of a plan."""

from types import SimpleNamespace
from typing import Any

from mpi_classroom.exercises import Exercise, Wrong, WrongAnswer, changed, expect

Case = tuple[int, int, int, int]  # data, zero, pipeline, tensor
PARAMETERS = 240_000
CASES: tuple[Case, ...] = ((1, 0, 1, 1), (4, 0, 1, 1), (4, 1, 1, 1), (4, 2, 1, 1), (4, 3, 1, 1), (2, 2, 3, 4))


def _bytes(case: Case, *, sharded: int | None = None, cut: int | None = None) -> float:
    """Bytes per rank; `sharded` of the 16 bytes per parameter are sharded, the model is `cut` in so many."""
    data, zero, pipeline, tensor = case
    over = (0, 8, 12, 16)[zero] if sharded is None else sharded
    return PARAMETERS / (pipeline * tensor if cut is None else cut) * (16 - over + over / data)


def _check_memory(answer: SimpleNamespace, comm: Any, case: Case) -> None:
    data, zero, pipeline, tensor = case
    got = answer.memory_per_rank(PARAMETERS, data=data, zero=zero, pipeline=pipeline, tensor=tensor)
    expect(isinstance(got, int | float), f"returned {type(got).__name__}, expected bytes.")
    right, cut = _bytes(case), pipeline * tensor
    if abs(got - right) < 1:
        return
    lookalikes = {
        f"that is all 16 bytes per parameter over {data} data ranks. What does stage {zero} leave whole?": (
            _bytes(case, sharded=16)
        ),
        "nothing is sharded yet. What does this stage shard over the data ranks?": _bytes(case, sharded=0),
        "that is the state of the whole model. Which ranks share a layer, and which the layers?": (
            _bytes(case, cut=1)
        ),
        "the tensor ranks are missing: they share each layer.": _bytes(case, cut=pipeline),
        "the pipeline ranks are missing: each has some of the layers.": _bytes(case, cut=tensor),
    }
    for words, value in lookalikes.items():
        if abs(got - value) < 1:
            raise Wrong(words)
    raise Wrong(
        f"returned {got:,.0f} bytes, expected {right:,.0f}: {got * cut / PARAMETERS:.3g} bytes per parameter "
        f"on this rank, not {right * cut / PARAMETERS:.3g}."
    )


_MEMORY = '''\
def memory_per_rank(parameters, data, zero, pipeline, tensor):
    """Return the bytes of weights, gradients and Adam's state on each rank, in 32-bit numbers."""
    mine = parameters / (pipeline * tensor)
    weights, gradients, moments = 4 * mine, 4 * mine, 8 * mine
    if zero >= 1:
        moments /= data
    if zero >= 2:
        gradients /= data
    if zero >= 3:
        weights /= data
    return weights + gradients + moments
'''
_MINE = "    mine = parameters / (pipeline * tensor)\n"

FORMULA = Exercise(
    id="16.2",
    title="The state on each rank",
    task="Complete the formula for weights, gradients and Adam's two moments, in 32-bit numbers. `pipeline` "
    "stages and `tensor` ranks per stage share the model evenly; `data` ranks use stage `zero` of ZeRO.",
    objectives=(1,),
    stub=changed(
        _MEMORY,
        (_MINE, "    mine = ...  # parameters on this rank\n"),
        (
            "    if zero >= 2:\n        gradients /= data\n    if zero >= 3:\n        weights /= data\n",
            "    ...\n",
        ),
    ),
    hints=(
        "Which ranks have different parameters? And which of a parameter's 16 bytes does each stage of ZeRO "
        "shard over the data ranks?",
        "stage   weights 4   gradients 4   moments 8\n"
        "1                                 / data\n"
        "2                   / data        / data\n"
        "3       / data      / data        / data",
        "mine = parameters / (…)   and   if zero >= …: gradients /= …",
    ),
    solution=_MEMORY,
    check=_check_memory,
    cases=CASES,
    describe=lambda case: f"{case[0]} data ranks, ZeRO-{case[1]}, {case[2]} stages, {case[3]} tensor ranks",
    sizes=(3,),
    wrong=(
        WrongAnswer(changed(_MEMORY, (_MINE, "    mine = parameters\n")), "the state of the whole model"),
        WrongAnswer(changed(_MEMORY, ("(pipeline * tensor)", "pipeline")), "tensor ranks are missing"),
        WrongAnswer(changed(_MEMORY, ("(pipeline * tensor)", "tensor")), "pipeline ranks are missing"),
        WrongAnswer(changed(_MEMORY, ("pipeline * tensor", "pipeline + tensor")), "8 bytes per parameter"),
        WrongAnswer(
            changed(_MEMORY, ("zero >= 2", "zero >= 1"), ("zero >= 3", "zero >= 1")),
            "What does stage 1 leave",
        ),
        WrongAnswer(changed(_MEMORY, ("zero >= 1", "zero > 3")), "nothing is sharded yet"),
        WrongAnswer(changed(_MEMORY, ("8 * mine", "4 * mine")), "12 bytes per parameter"),
    ),
    why="these are the bytes between two steps. What comes on top within a step, and which of the four "
    "numbers makes less of that?",
)
