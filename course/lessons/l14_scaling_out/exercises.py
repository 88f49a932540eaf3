"""Exercises, questions and predictions of lesson 14, scaling out: four formulas, and what grows with n."""

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

# -------------------------------------------------------------------- 14.3 four formulas

Case = tuple[int, float, float, float]  # ranks, bytes, alpha, beta


def _check_forecasts(answer: SimpleNamespace, comm: Any, case: Case) -> None:
    n, nbytes, alpha, beta = case
    got = answer.forecasts(n, nbytes, alpha, beta)
    ways = {"ring", "halving", "tree", "hierarchy"}
    expect(isinstance(got, dict) and got.keys() == ways, "keep the four names of the ways.")
    log2, whole = n.bit_length() - 1, alpha + beta * nbytes
    bytes_of_halving = 2 * (n - 1) / n * beta * nbytes
    _compare("ring", n, got, 2 * (n - 1) * (alpha + beta * nbytes / n), {})
    there = log2 * alpha + bytes_of_halving / 2
    halving = {
        "that is the way there; the chunks must come back to all.": there,
        f"each message holds the whole array here. The first holds a half, the last 1/{n}.": 2 * log2 * whole,
        "whole arrays, one way: that is doubling, of lesson 04.": log2 * whole,
        f"these are the messages of the ring. Partners are 1, 2, 4 … away; how many are below {n}?": (
            2 * (n - 1) * alpha + bytes_of_halving
        ),
        f"each message holds 1/{n} of the array here. The first holds a half, the next a quarter.": (
            2 * log2 * (alpha + beta * nbytes / n)
        ),
        "that sends two whole arrays here. The first message holds a half, but the next only a quarter. "
        "Together they hold (n−1)/n of an array on the way there, and as much on the way back.": (
            2 * log2 * alpha + 2 * beta * nbytes
        ),
        "these are the bytes of the way there. On the way back, as many follow.": (
            2 * log2 * alpha + bytes_of_halving / 2
        ),
        "all bytes are there, but the messages of the way back are missing.": (
            log2 * alpha + bytes_of_halving
        ),
        "the messages have no latency here.": bytes_of_halving,
    }
    _compare("halving", n, got, 2 * log2 * alpha + bytes_of_halving, halving)
    tree = {
        "that is the way up to rank 0; how do the others get the sum?": log2 * whole,
        "rank 0 does not talk to all others. With how many does it?": 2 * (n - 1) * whole,
        "a message of the tree holds the whole array.": 2 * log2 * alpha + bytes_of_halving,
        "that holds for NCCL's two trees, which send many small pieces. This one sends the whole "
        "array again in every round.": 2 * log2 * alpha + 2 * beta * nbytes,
    }
    _compare("tree", n, got, 2 * log2 * whole, tree)
    nodes = max(1, n // 8)
    _compare("hierarchy", n, got, 2 * (nodes - 1) * (alpha + beta * nbytes / nodes), {})


def _compare(way: str, n: int, got: dict[str, Any], right: float, lookalikes: dict[str, float]) -> None:
    """Raise Wrong with the words of what `got[way]` looks like."""
    try:
        found = float(got[way])
    except (TypeError, ValueError):
        raise Wrong(f"{way}: {got[way]!r} is not a number of seconds.") from None
    if _near(found, right):
        return
    for words, value in lookalikes.items():
        if _near(found, value):
            raise Wrong(f"{way}: {words}")
    raise Wrong(f"{way} on {n:,} ranks: {found:.4g} s, expected {right:.4g} s.")


def _near(one: float, other: float) -> bool:
    return abs(one - other) <= 1e-6 * abs(other)


_FORECASTS = '''\
def forecasts(n, nbytes, alpha, beta):
    """Seconds of each way on n = 2, 4, 8 … ranks. Messages that travel at the same time count as one."""
    steps = n.bit_length() - 1  # log2(n)
    nodes = max(1, n // 8)  # machines of eight ranks; messages inside cost nothing here
    return {
        "ring": 2 * (n - 1) * (alpha + beta * nbytes / n),
        "halving": 2 * steps * alpha + 2 * (n - 1) / n * beta * nbytes,
        "tree": 2 * steps * (alpha + beta * nbytes),
        "hierarchy": 2 * (nodes - 1) * (alpha + beta * nbytes / nodes),
    }
'''
_HALVING, _TREE = (
    "2 * steps * alpha + 2 * (n - 1) / n * beta * nbytes",
    "2 * steps * (alpha + beta * nbytes)",
)
_STUB = changed(
    _FORECASTS,
    (_HALVING, "2 * steps * (alpha + beta * nbytes / 2)"),
    (_TREE, "2 * (n - 1) * (alpha + beta * nbytes)"),
)

FORECASTS = Exercise(
    id="14.3",
    title="Spot the bug: four formulas",
    task="On 2 ranks, a friend's formulas are right. On more, two are wrong. Correct them from the drawing.",
    objectives=(1, 2),
    targets=("traffic-grows-with-n", "fewest-bytes-wins"),
    stub=_STUB,
    hints=(
        "How many partners does a rank have on the way there, at distances 1, 2, 4 …? And on the way back?",
        "8 ranks    halving: ½, ¼, ⅛ there, ⅛, ¼, ½ back: 6 messages, 2 · ⅞ arrays\n"
        "           tree: 3 whole arrays up to rank 0, 3 down",
        '"halving": 2 * steps * … + 2 * (n - 1) / n * …,   "tree": 2 * steps * (…)',
    ),
    solution=_FORECASTS,
    check=_check_forecasts,
    cases=((4, 1e6, 0.013, 8e-8), (8, 4096, 2e-5, 1e-9), (2048, 1e8, 5e-6, 8e-11)),
    describe=lambda case: f"n = {case[0]:,}, {case[1]:,.0f} bytes",
    sizes=(3,),
    save="14_slow_link.py",
    wrong=(
        WrongAnswer(changed(_FORECASTS, (_HALVING, "steps * (alpha + beta * nbytes)")), "that is doubling"),
        WrongAnswer(changed(_FORECASTS, (_HALVING, _TREE)), "the whole array here"),
        WrongAnswer(
            changed(_FORECASTS, (_HALVING, "steps * alpha + (n - 1) / n * beta * nbytes")), "the way there"
        ),
        WrongAnswer(
            changed(_FORECASTS, (_HALVING, "2 * (n - 1) * alpha + 2 * (n - 1) / n * beta * nbytes")),
            "the messages of the ring",
        ),
        WrongAnswer(
            changed(_FORECASTS, (_HALVING, "2 * steps * (alpha + beta * nbytes / n)")), "the next a quarter"
        ),
        WrongAnswer(
            changed(_FORECASTS, (_HALVING, "2 * steps * (alpha + beta * nbytes / 2.0)")),
            "the next only a quarter",
        ),
        WrongAnswer(
            changed(_FORECASTS, (_HALVING, "2 * steps * alpha + (n - 1) / n * beta * nbytes")),
            "the bytes of the way there",
        ),
        WrongAnswer(
            changed(_FORECASTS, (_HALVING, "steps * alpha + 2 * (n - 1) / n * beta * nbytes")),
            "the messages of the way back are missing",
        ),
        WrongAnswer(changed(_FORECASTS, (_HALVING, "2 * (n - 1) / n * beta * nbytes")), "no latency"),
        WrongAnswer(
            changed(_FORECASTS, (_TREE, "steps * (alpha + beta * nbytes)")), "how do the others get the sum"
        ),
        WrongAnswer(
            changed(_FORECASTS, (_TREE, "2 * (n - 1) * (alpha + beta * nbytes)")), "does not talk to all"
        ),
        WrongAnswer(changed(_FORECASTS, (_TREE, _HALVING)), "a message of the tree holds the whole array"),
        WrongAnswer(
            changed(_FORECASTS, (_TREE, "2 * steps * alpha + 2 * beta * nbytes")), "many small pieces"
        ),
        WrongAnswer(changed(_FORECASTS, (_TREE, "None")), "is not a number of seconds"),
    ),
    why="the tree's messages are few and large. For which arrays does it take about as long as halving?",
)

# -------------------------------------------------------------------- questions

CLIPPING = Question(
    id="14.q3",
    question="To clip *sharded* gradients by their norm, the ranks also sum *one number* per step, in one "
    "ring of all ranks with equal links. On 8 ranks, this takes 0.3 ms. How long does it take on 1,024?",
    options=(
        Option(
            "about as long, because 8 bytes travel in 0.001 ms",
            reply="That counts the bytes, which are next to nothing here. But each of the ring's messages "
            "costs α, and 2,046 of them follow one another instead of 14.",
            belief="bandwidth-explains-small-messages",
        ),
        Option(
            "about 1 ms, because log₂ n grows from 3 to 10",
            reply="That would hold for a tree or doubling. In a ring, each rank sends only to its neighbour, "
            "so the sum needs 2(n−1) messages, one after another.",
            belief="two-to-four-predicts-2048",
        ),
        Option(
            "about 44 ms, because 14 messages become 2,046",
            reply="Nearly all of the 0.3 ms is latency, so the time grows like the messages: 0.3 ms · 2,046 "
            "/ 14 = 44 ms. That is why libraries sum one number by doubling or in a tree, where it grows "
            "only with log₂ n.",
            right=True,
        ),
    ),
    objectives=(2,),
)

GATHERED = Question(
    id="14.q4",
    question="A colleague's top-k sends 0.1 % of the gradients, each with an index of equal size. "
    "From how many ranks on does each rank receive more than in a plain ring?",
    options=(
        Option(
            "from no number of ranks",
            reply="That would hold if a rank only sent: its own picks stay 0.2 % of the bytes. But it also "
            "*receives* the picks of all n − 1 others.",
            belief="a-remedy-keeps-its-factor",
        ),
        Option(
            "from about 1,000 ranks",
            reply="With top-k, a rank receives (n−1) · 0.002 arrays, half of that indices. In the ring, it "
            "receives 2(n−1)/n. At n = 1,000, both are almost two arrays.",
            right=True,
        ),
        Option(
            "from about 500 ranks",
            reply="On 500 ranks, top-k receives one array. But in the ring, a rank receives almost two: one "
            "until the sums are complete, and one while they are passed on.",
            belief="what-gathers-never-pays",
        ),
    ),
    objectives=(3,),
)

THREE_LAUNCHERS = Question(
    id="14.q2",
    question="Your training script uses mpi4py and runs from a hostfile. You move it to a batch script, then "
    "to an MPIJob. What do you change in its Python code?",
    options=(
        Option(
            "the lines that read rank and size, as each launcher names them differently",
            reply="That holds for scripts that read variables such as SLURM_PROCID or RANK. Yours asks MPI, "
            "and mpiexec starts the ranks in all three cases.",
            belief="one-script-per-launcher",
        ),
        Option(
            "nothing, because MPI tells every process its rank and the number of ranks",
            reply="Rank and size come from `comm`, as mpiexec starts all three. What differs is who "
            "provides the nodes: your hostfile, Slurm, or Kubernetes.",
            right=True,
        ),
        Option(
            "the list of hosts, which the script reads first",
            reply="Then the script would have to start its ranks itself. mpiexec does that, and it gets the "
            "hosts from the hostfile, from Slurm, or from the MPI Operator.",
            belief="script-finds-its-hosts",
        ),
    ),
    objectives=(5,),
)

EXERCISES = (FORECASTS, CLIPPING, GATHERED, THREE_LAUNCHERS)

PREDICTIONS = (
    Prediction(
        id="14.p7",
        question="How many seconds does the ring need on 2,048?",
        objectives=(2,),
        targets=("two-to-four-predicts-2048", "bandwidth-explains-small-messages"),
    ),
    Prediction(
        id="14.p10",
        question="Of 42 ms lost per step, how many does the all-reduce take?",
        objectives=(1,),
        targets=("the-network-took-it",),
    ),
    Prediction(
        id="14.p8",
        question="Two processes: how many times the images per second of one?",
        objectives=(4,),
        targets=("one-job-fills-a-device",),
    ),
)
