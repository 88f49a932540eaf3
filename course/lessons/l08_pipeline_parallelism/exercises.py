"""Exercises, questions and predictions of lesson 08: 1F1B, what is held, and the stage that sets the pace."""

from types import SimpleNamespace
from typing import Any

from course_lib.theory.schedules import one_f_one_b
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

# -------------------------------------------------------------------- 08.4 the 1F1B of any rank


def _check_1f1b(answer: SimpleNamespace, comm: Any, m: int) -> None:
    stage, stages = comm.rank, comm.size
    got = answer.one_f_one_b(stage, stages, m)
    expect(isinstance(got, list), f"returned {type(got).__name__}, expected a list of pairs.")
    wanted = [(action.kind, action.microbatch) for action in one_f_one_b(stages, m)[stage]]
    if got == wanted:
        return
    where = f"stage {stage} of {stages}, {m} micro-batch{'es' * (m > 1)}"
    strange = [each for each in got if each not in wanted]
    expect(
        not strange,
        f"{where}: {strange[:1]} is not among the passes of micro-batches 0 to {m - 1}. "
        "Is `warmup` ever larger than m?",
    )
    missing = [each for each in wanted if each not in got]
    expect(
        not missing,
        f"{where}: {missing[:1]} is missing. Each micro-batch needs one forward and one backward: which does "
        "`turns` leave out?",
    )
    expect(len(got) == len(wanted), f"{where}: a pass comes twice in {got}.")
    first = next(place for place, (kind, _) in enumerate(got) if kind == "B")
    right = next(place for place, (kind, _) in enumerate(wanted) if kind == "B")
    expect(
        first == right,
        f"{where}: forwards before the first backward: {first}, expected {right}. One for each later "
        "stage, and the forward of the first pair (or fewer if there are not so many micro-batches).",
    )
    if sorted(got[-right:]) == sorted(wanted[-right:]) and got[:-right] == wanted[:-right]:
        raise Wrong(
            f"{where}: the last backwards are {got[-right:]}. Expected the lowest micro-batch first: its "
            "gradient arrives first."
        )
    raise Wrong(f"{where}: the order is {got}. Expected a forward and a backward in turn, then backwards.")


_1F1B = '''\
def one_f_one_b(stage, stages, m):
    """The schedule 1F1B of one of the stages, for m micro-batches."""
    warmup = min(stages - 1 - stage, m)
    turns = [each for i in range(m - warmup) for each in (("F", warmup + i), ("B", i))]
    return [("F", i) for i in range(warmup)] + turns + [("B", i) for i in range(m - warmup, m)]
'''

ONE_F_ONE_B = Exercise(
    id="08.4",
    title="Spot the bugs: 1F1B",
    targets=("one-after-the-other",),
    task="**1F1B** (one forward, one backward) first fills the pipeline, then alternates. Two lines do "
    "not do what their comments say.",
    objectives=(3,),
    stub='''\
def one_f_one_b(stage, stages, m):
    """The schedule 1F1B of one of the stages, for m micro-batches."""
    warmup = 0  # first, one forward for each later stage, but at most m
    # then forwards and backwards alternate
    turns = [each for i in range(m - warmup) for each in (("F", warmup + i), ("B", i))]
    # in the end, the remaining backwards
    return [("F", i) for i in range(warmup)] + turns
''',
    hints=(
        "How many stages come after this one? And how many of the m backwards are missing in `turns`?",
        "3 stages, m = 4   warm-up   in turn              left over\n"
        "stage 0           F0 F1     F2 B0  F3 B1         B2 B3\n"
        "stage 1           F0        F1 B0  F2 B1  F3 B2  B3\n"
        "stage 2                     F0 B0  F1 B1  …",
        'warmup = min(stages - 1 - …, m)   and   … + [("B", i) for i in range(m - …, m)]',
    ),
    solution=_1F1B,
    check=_check_1f1b,
    cases=(4, 1, 2, 7),
    describe=lambda m: f"{m} micro-batch{'es' * (m > 1)}",
    sizes=(2, 3, 4, 1),
    save="08_pipeline.py",
    wrong=(
        WrongAnswer(changed(_1F1B, ("stages - 1 - stage", "stages - stage")), "forwards before the first"),
        WrongAnswer(changed(_1F1B, ("stages - 1 - stage", "stage")), "One for each later stage"),
        WrongAnswer(changed(_1F1B, (' + [("B", i) for i in range(m - warmup, m)]', "")), "is missing"),
        WrongAnswer(changed(_1F1B, ("min(stages - 1 - stage, m)", "0")), "expected 2"),
        WrongAnswer(changed(_1F1B, ("min(stages - 1 - stage, m)", "stages - 1 - stage")), "is not among"),
    ),
    why="which stage holds the most micro-batches, and how many would GPipe hold there?",
)

# -------------------------------------------------------------------- questions

OUT_OF_MEMORY = Question(
    id="08.q4",
    question="A pipeline of four equal stages runs GPipe with 8 micro-batches. Rank 0 runs "
    "out of memory in its sixth forward. Which change lets the pipeline train the same batch?",
    options=(
        Option(
            "cutting the batch into 16 micro-batches",
            reply="Each micro-batch is then half as large. But GPipe's first backward comes after its last "
            "forward, so rank 0 keeps all 16, and together they need as much memory as the 8 did.",
            belief="small-pieces-need-less",
        ),
        Option(
            "freeing rank 0's activations after each forward",
            reply="Then rank 0 could not run backward, because it needs the activations of its layers to "
            "compute the gradients of their weights. It would have to run each forward again.",
            belief="sent-is-not-needed",
        ),
        Option(
            "running the same micro-batches with 1F1B",
            reply="Rank 0 has three later stages to feed, so 1F1B runs four forwards there before the first "
            "backward and never keeps more than 4 micro-batches. Five did fit, so one "
            "micro-batch's memory is left. Backward and gradients must fit into it.",
            right=True,
        ),
    ),
    objectives=(3,),
)

THE_PACE = Question(
    id="08.q3",
    question="A forward and a backward of a micro-batch together take 1, 1, 1 and 3 ms on the four stages. "
    "Many micro-batches go through, and messages take no time. How often does the pipeline finish a "
    "micro-batch?",
    options=(
        Option(
            "every 1.5 ms",
            reply="That is the average of the four stages. But every micro-batch has to pass the last one, "
            "which needs 3 ms for it: 10 micro-batches keep it busy for 30 ms, not for 15.",
            belief="average-sets-the-pace",
        ),
        Option(
            "every 3 ms",
            reply="The last stage is never idle once the pipeline is full, and it cannot go faster. The "
            "others wait for it. Cut a model so that its most expensive stage is as cheap as possible.",
            right=True,
        ),
        Option(
            "every 6 ms",
            reply="One micro-batch does take 6 ms to pass all stages. But while the last stage works on it, "
            "the others already work on the next ones.",
            belief="one-after-the-other",
        ),
    ),
    objectives=(4,),
)

EXERCISES = (ONE_F_ONE_B, OUT_OF_MEMORY, THE_PACE)

PREDICTIONS = (
    Prediction(
        id="08.p6",
        question="One micro-batch: how many times as fast are two ranks?",
        objectives=(1, 2),
        targets=("stages-speed-up-one-batch",),
    ),
)
