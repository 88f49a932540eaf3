"""Exercises, questions and predictions of lesson 04: what each rank sends, a tree, two mistakes."""

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

# -------------------------------------------------------------------- 04.2 put the tree together


def _check_tree(answer: SimpleNamespace, comm: Any, length: int) -> None:
    buffer = np.full(length, 10.0**comm.rank)
    answer.tree_broadcast(comm, buffer)
    wrong = {}
    for rank in range(1, comm.size):
        words = "kept its own numbers: it received no message."
        if rank != comm.rank:
            words = f"holds the numbers of rank {rank}, which sent before it had received."
        wrong[words] = np.full(length, 10.0**rank)
    expect_array(buffer, np.ones(length), wrong)


TREE = Exercise(
    id="04.2",
    objectives=(4,),
    title="Put in order: a broadcast along a tree",
    task="Which lines, in which order, finish this function? You need five of the seven.",
    stub='order("")\n',
    opening='''\
def tree_broadcast(comm, buffer):
    """Copy `buffer` of rank 0 to up to 8 ranks; in every round, twice as many have it."""''',
    blocks={
        "A": "            comm.Recv(buffer, source=comm.rank - have)",
        "B": "        if comm.rank < have and comm.rank + have < comm.size:",
        "C": "    for have in (4, 2, 1):",
        "D": "        elif have <= comm.rank < 2 * have:",
        "E": "            comm.Send(buffer, dest=comm.rank + have)",
        "F": "        if comm.rank == 0 and have < comm.size:",
        "G": "    for have in (1, 2, 4):",
    },
    hints=(
        "How many ranks have the numbers at the start? Which ranks can send in the second round?",
        "have = 1    0 → 1\nhave = 2    0 → 2   1 → 3\nhave = 4    0 → 4   1 → 5   2 → 6   3 → 7",
        'order("G … E … A")',
    ),
    solution='order("G B E D A")\n',
    check=_check_tree,
    cases=(1, 1_000_000),
    describe=lambda length: f"{length:,} number{'s' * (length > 1)}",
    sizes=(2, 3, 4, 1),
    wrong=(
        WrongAnswer('order("C B E D A")', "which sent before it had received"),
        WrongAnswer('order("G F E D A")', "waiting in Recv from rank 1"),
        WrongAnswer('order("G B E")', "kept its own numbers"),
        WrongAnswer('order("G B A D E")', "raised"),
        WrongAnswer('order("G D A B E")', "is not Python"),
    ),
    why="rank 0 sends three times to reach seven others. How often would it send to reach a thousand?",
)

# -------------------------------------------------------------------- 04.3 two mistakes


def _check_centred(answer: SimpleNamespace, comm: Any, length: int) -> None:
    ranks = range(comm.size)
    everyone = [np.arange(length) + 10.0**rank for rank in ranks]
    scales = [np.array([2.0 + 3 * rank]) for rank in ranks]
    mine, scale, mean = everyone[comm.rank], scales[comm.rank].copy(), np.mean(everyone, axis=0)
    got = answer.centred(comm, mine.copy(), scale)
    lookalikes: dict[str, Any] = {}
    if comm.size > 1:
        rooted = "used zeros, not the sum: after Reduce, only the root has it."
        lookalikes |= {
            rooted: mine * scales[0],
            f"{rooted} And the scale is its own, not rank 0's.": mine * scales[comm.rank],
            "has the right mean, but not the scale of rank 0: did this rank call Bcast as well?": (
                (mine - mean) * scales[comm.rank]
            ),
            "subtracted the sum; subtract the mean.": (mine - mean * comm.size) * scales[0],
            "used the scale of the last rank.": (mine - mean) * scales[-1],
            "subtracted its own numbers, not the mean over all ranks.": np.zeros(length),
        }
    right = (mine - mean) * scales[0]
    expect_array(got, right, {words: v for words, v in lookalikes.items() if not np.allclose(v, right)})


_CENTRED = '''\
def centred(comm, mine, scale):
    """Return `mine` minus the mean over all ranks, times the `scale` (an array) of rank 0."""
    comm.Bcast(scale, root=0)
    total = np.zeros_like(mine)
    comm.Allreduce(mine, total)
    return (mine - total / comm.size) * scale
'''

CENTRED = Exercise(
    id="04.3",
    objectives=(5,),
    targets=("only-root-calls", "reduce-fills-every-rank"),
    title="Spot the bugs",
    task="Every rank should subtract the mean over all ranks from its own numbers, and multiply the result "
    "by rank 0's `scale`. While arrays are small, Open MPI runs this code on four ranks without an error, "
    "and rank 0's result is right. The other ranks' results are not. Find out why, and repair the function.",
    stub='''\
def centred(comm, mine, scale):
    """Return `mine` minus the mean over all ranks, times the `scale` (an array) of rank 0."""
    if comm.rank == 0:
        comm.Bcast(scale, root=0)
    total = np.zeros_like(mine)
    comm.Reduce(mine, total, root=0)
    return (mine - total / comm.size) * scale
''',
    hints=(
        "The result is right on rank 0. What do `scale` and `total` hold on rank 1 before the last line?",
        "          scale                      total\n"
        "rank 0    rank 0's: right            the sum\n"
        "rank 1    did it receive one?        did the sum reach it?",
        "All ranks must make the first call. The second must leave its result on all of them: "
        "comm.…reduce(mine, total)",
    ),
    solution=_CENTRED,
    check=_check_centred,
    cases=(1, 3),
    describe=lambda length: f"{length} number{'s' * (length > 1)}",
    sizes=(2, 3, 4, 1),
    wrong=(
        WrongAnswer(
            changed(_CENTRED, ("comm.Allreduce(mine, total)", "comm.Reduce(mine, total, root=0)")),
            "only the root has it",
        ),
        WrongAnswer(
            changed(_CENTRED, ("    comm.Bcast(scale, root=0)\n", "")),
            "did this rank call Bcast as well?",
        ),
        WrongAnswer(
            changed(
                _CENTRED,
                ("    comm.Bcast(scale, root=0)\n", ""),
                ("comm.Allreduce(mine, total)", "comm.Reduce(mine, total, root=0)"),
            ),
            "And the scale is its own",
        ),
        WrongAnswer(
            changed(_CENTRED, ("comm.Bcast(scale, root=0)", "comm.Bcast(scale, root=comm.size - 1)")),
            "the scale of the last rank",
        ),
        WrongAnswer(changed(_CENTRED, (" / comm.size", "")), "subtracted the sum"),
    ),
    why="MPI forbids rank 0 to call `Bcast` while the others call `Reduce`. Open MPI noticed nothing, "
    "ran on and returned numbers. Why is that worse than a hang?",
)

# -------------------------------------------------------------------- 04.4 count


def _check_counts(answer: SimpleNamespace, comm: Any, n: int) -> None:
    steps, both = int(np.log2(n)), 2 * (n - 1)
    try:
        pairs = np.array(answer.counts(n), float)
    except (TypeError, ValueError):
        pairs = np.zeros(0)
    expect(pairs.shape == (2, 2), "returned something other than (messages, arrays), (messages, arrays).")
    ring, doubling = pairs
    typical: dict[str, tuple[float, float]] = {
        "in the ring, a message holds a chunk of the array, 1/n of it.": (both, both),
        "that is one half of the ring: the second loop sends chunks too.": (n - 1, (n - 1) / n),
        "in each loop, a rank sends one chunk per step. How many steps does `range(n - 1)` have?": (
            2 * n,
            2,
        ),
        "in the ring, that is what all ranks send together. What does one rank send?": (n * both, both),
    }
    _right("ring", n, ring, (both, both / n), typical)
    typical = {
        "by doubling, a message holds the whole array.": (steps, steps / n),
        "by doubling, each of these messages holds a whole array. How many arrays in all?": (steps, 1),
        "by doubling, partners are 1, 2, 4 … away. How many of these numbers are below n?": (n - 1, n - 1),
        "by doubling, how often must you double 1 to reach n?": (n / 2, n / 2),
        "by doubling, that is what all ranks send together. What does one rank send?": (n * steps, n * steps),
    }
    _right("doubling", n, doubling, (steps, steps), typical)


def _right(way: str, n: int, got: np.ndarray, expected: tuple[float, float], typical: dict[str, Any]) -> None:
    """Compare one pair; what was filmed on four ranks is typical of both."""
    filmed = {"ring": (6, 1.5), "doubling": (2, 2)}[way]
    known = {words: np.array(pair) for words, pair in typical.items() if not np.allclose(pair, expected)}
    if n != 4:
        known[f"{way}: these are the numbers for four ranks; how do they depend on n?"] = np.array(filmed)
    expect_array(got, np.array(expected), known)


_COUNTS = '''\
def counts(n):
    """(messages, arrays) that each of n = 2, 4, 8 … ranks sends in the ring, and by doubling."""
    return (2 * (n - 1), 2 * (n - 1) / n), (n.bit_length() - 1, n.bit_length() - 1)
'''

COUNTS = Exercise(
    id="04.4",
    title="Count",
    task="How many messages does one rank send? How many arrays in all (fractions allowed)? Write formulas "
    "for n = 2, 4, 8 … ranks.",
    objectives=(1, 2, 3),
    targets=("traffic-grows-with-n", "traffic-is-shared-out", "fewest-bytes-wins"),
    stub='''\
def counts(n):
    """(messages, arrays) that each of n = 2, 4, 8 … ranks sends in the ring, and by doubling."""
    return (0, 0), (0, 0)
''',
    hints=(
        "Look at the loops of `ring` and `doubling`. How often does each loop run, and how much does it "
        "send each time?",
        "ring       4 ranks: 3 + 3 messages of ¼      8 ranks: 7 + 7 messages of …\n"
        "doubling   4 ranks: partners 1, 2 away       8 ranks: partners 1, 2, … away",
        "return (2 * (…), 2 * (…) / n), (n.bit_length() - …, …)",
    ),
    solution=_COUNTS,
    check=_check_counts,
    cases=(8, 2, 4, 2048),
    describe=lambda n: f"n = {n}",
    save="04_allreduce.py",
    wrong=(
        WrongAnswer(changed(_COUNTS, ("2 * (n - 1) / n)", "2 * (n - 1))")), "1/n of it"),
        WrongAnswer(changed(_COUNTS, ("(2 * (n - 1), 2 * (n - 1) / n)", "(n - 1, (n - 1) / n)")), "one half"),
        WrongAnswer(
            changed(_COUNTS, ("(2 * (n - 1), 2 * (n - 1) / n)", "(2 * n, 2)")), "How many steps does"
        ),
        WrongAnswer(
            changed(_COUNTS, ("(n.bit_length() - 1, n.bit_length() - 1)", "(n.bit_length() - 1, 1)")),
            "How many arrays in all",
        ),
        WrongAnswer(
            changed(_COUNTS, ("(n.bit_length() - 1, n.bit_length() - 1)", "(n - 1, n - 1)")), "below n"
        ),
        WrongAnswer(
            changed(_COUNTS, ("n.bit_length() - 1)\n", "(n.bit_length() - 1) / n)\n")),
            "holds the whole array",
        ),
        WrongAnswer(
            changed(_COUNTS, ("(n.bit_length() - 1, n.bit_length() - 1)", "(n / 2, n / 2)")), "double 1"
        ),
        WrongAnswer(
            changed(_COUNTS, ("(2 * (n - 1), 2 * (n - 1) / n)", "(6, 1.5)")), "numbers for four ranks"
        ),
        WrongAnswer(
            changed(_COUNTS, ("(2 * (n - 1), 2 * (n - 1) / n)", "(2 * (n - 1) * n, 2 * (n - 1))")),
            "in the ring, that is what all ranks send together",
        ),
        WrongAnswer("def counts(n):\n    return 2 * (n - 1), n.bit_length() - 1\n", "something other than"),
    ),
    why="in the ring, a rank sends fewer than two arrays, however large n is. What grows instead?",
)

# -------------------------------------------------------------------- questions

AFTER_REDUCE = Question(
    id="04.q5",
    question="You write a script that must run on Gloo and on NCCL. Its eight ranks call "
    "`dist.reduce(loss, dst=0)`. What may the script expect in `loss` on ranks 1 to 7?",
    options=(
        Option(
            "the sum over all eight",
            reply="That is what `all_reduce` leaves. `reduce` guarantees the sum on rank 0 only.",
            belief="reduce-fills-every-rank",
        ),
        Option(
            "nothing that it can rely on",
            reply="PyTorch guarantees nothing there, so `loss` may hold a partial sum or the rank's own "
            "loss. If each rank then uses `loss` to decide whether to stop, some ranks may stop while the "
            "others wait for them.",
            right=True,
        ),
        Option(
            "the loss that each had before",
            reply="MPI kept it, and so did Gloo on two ranks. But on four ranks, Gloo used the tensors of "
            "ranks 1 and 2 as work space, and left partial sums in them.",
            belief="others-stay-as-they-were",
        ),
    ),
    objectives=(5,),
)

EXERCISES = (COUNTS, TREE, AFTER_REDUCE, CENTRED)

PREDICTIONS = (
    Prediction(
        id="04.p3",
        question="How many kB does the ring send between the two nodes, all ranks together?",
        objectives=(4,),
        targets=("placement-does-not-matter",),
    ),
)
