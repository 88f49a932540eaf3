"""Exercises, questions and predictions of lesson 02: a stream per rank, and counts that grow."""

from dataclasses import dataclass
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
    missing_ranks,
)

# -------------------------------------------------------------------- 02.4 a stream for every rank


@dataclass(frozen=True)
class _Place:
    """A rank that sends nothing: enough of a communicator to ask for another rank's stream."""

    rank: int
    size: int

    def Get_rank(self) -> int:
        return self.rank

    def Get_size(self) -> int:
        return self.size


def _check_stream(answer: SimpleNamespace, comm: Any, seed: int) -> None:
    ranks = range(comm.size)

    def first(rank: int, seed: int) -> tuple[float, ...]:
        """What begins the stream of a rank in the experiment with this seed."""
        rng = answer.stream(_Place(rank, comm.size), seed)
        expect(
            isinstance(rng, np.random.Generator),
            f"returned {type(rng).__name__}, expected a generator: np.random.default_rng(…).",
        )
        return tuple(rng.random(4))

    here = {first(rank, seed): rank for rank in ranks}
    for rank in ranks:
        got = first(rank, seed)
        expect(got in here, f"another call with seed {seed} gave other numbers. Can this run be repeated?")
        expect(here[got] == rank, f"ranks {rank} and {here[got]} draw the same numbers.")
    for other in range(seed + 1, seed + 5):
        for rank in ranks:
            where = here.get(first(rank, other))
            expect(
                where is None,
                f"rank {where} with seed {seed} draws what rank {rank} draws with seed {other}: "
                "two experiments share a stream.",
            )


_STREAM = '''\
def stream(comm, seed=0):
    """Return the random generator of this rank for the experiment with this seed."""
    return np.random.default_rng(np.random.SeedSequence(seed).spawn(comm.size)[comm.rank])
'''
_OWN = "np.random.SeedSequence(seed).spawn(comm.size)[comm.rank]"

STREAM = Exercise(
    id="02.4",
    title="A stream of its own",
    task="Return this rank's generator. Its numbers must be the same in every run, but different for each "
    "rank and seed. `np.random.SeedSequence(seed).spawn(n)` returns a list of n independent seeds.",
    objectives=(2,),
    stub=changed(_STREAM, (_OWN, "seed")),
    hints=(
        "All ranks call the function with the same seed. What does each rank know that the others do not?",
        "seed + comm.rank is not enough: rank 1 with seed 0 would throw the darts of rank 0 with seed 1.\n"
        "SeedSequence(0).spawn(4)   →   [ one,    two,    three,   four  ]     the same list on every rank\n"
        "                                rank 0  rank 1  rank 2   rank 3",
        "np.random.default_rng(np.random.SeedSequence(seed).spawn(…)[…])",
    ),
    solution=_STREAM,
    check=_check_stream,
    cases=(0, 7),
    describe=lambda seed: f"seed {seed}",
    sizes=(2, 3, 4, 1),
    save="02_pi.py",
    wrong=(
        WrongAnswer(changed(_STREAM, (_OWN, "int(seed)")), "draw the same numbers"),
        WrongAnswer(changed(_STREAM, (_OWN, "seed + comm.rank")), "two experiments share a stream"),
        WrongAnswer(
            changed(_STREAM, (_OWN, "comm.rank")), "rank 0 with seed 0 draws what rank 0 draws with seed 1"
        ),
        WrongAnswer(changed(_STREAM, (_OWN, "")), "Can this run be repeated?"),
        WrongAnswer(changed(_STREAM, (f"np.random.default_rng({_OWN})", _OWN)), "returned SeedSequence"),
    ),
    why="suppose each rank shuffled its training samples with its stream. How would you notice that all "
    "streams are the same?",
)

# -------------------------------------------------------------------- 02.3 counts that grow

_TURN = 2**32


def _check_total_darts(answer: SimpleNamespace, comm: Any, base: int) -> None:
    got = answer.total_darts(comm, base + 10**comm.rank)
    if comm.rank > 0:
        expect(got is None, f"returned {got!r}; only rank 0 has the total, the others return None.")
        return
    expect(isinstance(got, int | np.integer), f"returned {got!r}, expected a whole number.")
    expected = base * comm.size + int("1" * comm.size)
    off = expected - int(got)
    if off == 0:
        return
    expect(base > 0, f"got {got:,}: {missing_ranks(int(got), comm.size)}.")
    turns, rest = divmod(off, _TURN)
    expect(rest != 0, f"got {got:,}: too small by {turns} · 2³². How many bits does the count have?")
    expect(abs(off) > 512, f"got {got:,}, wrong in the last digits: 32 bits of a float keep about seven.")
    expect(False, f"got {got:,}, expected {expected:,}.")


_TOTAL = '''\
def total_darts(comm, darts):
    """Return on rank 0 how many darts all ranks have thrown together; None elsewhere."""
    mine = np.array(darts, dtype="int64")
    total = np.zeros_like(mine)
    comm.Reduce(mine, total, root=0)
    return int(total) if comm.rank == 0 else None
'''

TOTAL_DARTS = Exercise(
    id="02.3",
    title="Spot the bug: the dart counter",
    task="This function should add up the darts of all ranks, and small tests pass. When is it wrong? Repair "
    "it.",
    objectives=(4,),
    targets=("counts-fit-32-bits",),
    stub='''\
def total_darts(comm, darts):
    """Return on rank 0 how many darts all ranks have thrown together; None elsewhere."""
    mine = np.array(darts, dtype="i")
    total = np.zeros_like(mine)
    comm.Reduce(mine, total, root=0)
    return int(total) if comm.rank == 0 else None
''',
    hints=(
        'The program is right while the numbers are small. What does "i" say about the numbers in an array?',
        "A signed integer of 32 bits counts up to 2³¹ − 1 = 2,147,483,647. Two ranks with 1.5 billion darts "
        "each have more than that together, so MPI's sum wraps around to a wrong number, without an error. "
        "(If one rank's count is too large, NumPy refuses a Python `int`, but silently wraps an `np.int64`.)",
        'mine = np.array(darts, dtype="…")',
    ),
    solution=_TOTAL,
    check=_check_total_darts,
    cases=(0, 1_500_000_000, 5_000_000_000),
    describe=lambda base: f"{base:,} darts and a few on every rank" if base else "a few darts",
    sizes=(2, 3, 4, 1),
    wrong=(
        WrongAnswer(
            changed(_TOTAL, ('darts, dtype="int64")', 'darts).astype("int32")')), "too small by 1 · 2³²"
        ),
        WrongAnswer(changed(_TOTAL, ("int64", "uint32")), "raised OverflowError"),
        WrongAnswer(changed(_TOTAL, ("int64", "float32")), "wrong in the last digits"),
        WrongAnswer(
            changed(_TOTAL, ("np.array(darts,", "np.array(darts if comm.rank else 0,")),
            "rank 0's contribution is missing",
        ),
        WrongAnswer(changed(_TOTAL, (" if comm.rank == 0 else None", "")), "only rank 0 has the total"),
    ),
    why="no error was raised when the sum overflowed. How would you have noticed in a long run?",
)

# -------------------------------------------------------------------- questions and predictions

SAME_BATCH = Question(
    id="02.q3",
    question="Eight ranks train a network on 1,000 samples. Before step s, each rank shuffles them with "
    "`default_rng(s)` and takes the first 64 as its batch. How many different samples does a step use?",
    options=(
        Option(
            "512",
            reply="512 would need eight parts without overlap. But all ranks use the same seed, so all "
            "shuffle alike, and their first 64 samples are the same.",
            belief="same-seed-adds-samples",
        ),
        Option(
            "64",
            reply="All ranks use the same seed, so they shuffle alike and take the same 64. The mean loss "
            "still falls and hides this. Compare the ranks' samples. The common shuffle can stay, if "
            "rank r takes the 64 samples from number 64·r on.",
            right=True,
        ),
        Option(
            "about 411",
            reply="That would be right if each rank shuffled with a stream of its own. Then each would miss "
            "a given sample with probability 0.936, and 1000 · (1 − 0.936⁸) is 411. Here all ranks shuffle "
            "alike.",
            belief="same-seed-adds-samples",
        ),
    ),
    objectives=(1,),
)

WHAT_GAINED = Question(
    id="02.q4",
    question="A team moves its training from one GPU in float32 to eight GPUs in bfloat16. The training "
    "is 13 times as fast. Which further run shows what the eight GPUs gained?",
    options=(
        Option(
            "eight GPUs in bfloat16, once more",
            reply="That shows how repeatable the 13 is, but not what it is made of. It could be 8 from the "
            "GPUs times 1.6 from bfloat16, or 4 times 3.25.",
            belief="the-rest-is-the-other",
        ),
        Option(
            "one GPU in bfloat16, the same total batch",
            reply="Then the number of GPUs is the only difference between this run and the run on eight. "
            "(If the batch does not fit, accumulate gradients: lesson 05.)",
            right=True,
        ),
        Option(
            "one GPU in float32, a larger batch",
            reply="Compared with eight GPUs in bfloat16, the precision would still differ, and the batch "
            "would differ, too. So you could say even less about the GPUs.",
            belief="the-rest-is-the-other",
        ),
    ),
    objectives=(4,),
)

EXERCISES = (STREAM, SAME_BATCH, TOTAL_DARTS, WHAT_GAINED)

PREDICTIONS = (
    Prediction(
        id="02.p6",
        question="How many times as fast as the loop are whole arrays?",
        objectives=(4,),
        targets=("n-ranks-n-times",),
    ),
    Prediction(
        id="02.p4",
        question="Error of four ranks, if that of one is 1?",
        objectives=(1, 3),
        targets=("same-seed-adds-samples",),
    ),
    Prediction(
        id="02.p7",
        question="Error of four ranks with your streams, if that of one is 1?",
        objectives=(2,),
        targets=("n-times-the-samples-an-nth",),
    ),
    Prediction(
        id="02.p8",
        question="Speed-up 1.98 on 2 ranks: how much, at most, on 1024?",
        objectives=(5,),
        targets=("two-to-four-predicts-2048",),
    ),
    Prediction(
        id="02.p3",
        question="5% serial, 1024 ranks: what is the largest speed-up?",
        objectives=(5,),
        targets=("n-ranks-n-times",),
    ),
)
