"""Exercise 16.3: the seconds of a block that ranks inside a node, or on several nodes, share."""

from types import SimpleNamespace
from typing import Any

from mpi_classroom.exercises import Exercise, Wrong, WrongAnswer, changed, expect

Case = tuple[int, int]  # ranks that share the block, ranks per node
COMPUTE, NBYTES = 0.004, 32e6  # seconds on one rank, bytes of an all-reduce
INSIDE, BETWEEN = 300e9, 25e9  # bytes per second


def _seconds(ways: int, rate: float, *, times: float = 4) -> float:
    return COMPUTE / ways + times * 2 * (ways - 1) / ways * NBYTES / rate


def _check_block(answer: SimpleNamespace, comm: Any, case: Case) -> None:
    ways, per_node = case
    got = answer.block_seconds(COMPUTE, NBYTES, ways, per_node, INSIDE, BETWEEN)
    expect(isinstance(got, int | float), f"returned {type(got).__name__}, expected seconds.")
    right = _seconds(ways, INSIDE if ways <= per_node else BETWEEN)
    if abs(got - right) < 1e-9:
        return
    nodes = -(-ways // per_node)
    inside, between = _seconds(ways, INSIDE), _seconds(ways, BETWEEN)
    if abs(got - inside) < 1e-9:
        raise Wrong(
            f"{1e3 * got:.3f} ms, but {ways} ranks are on {nodes} nodes. In each round of the ring every "
            "rank sends to the next one. On which link is the slowest message of a round?"
        )
    if abs(got - between) < 1e-9:
        raise Wrong(
            f"{1e3 * got:.3f} ms, but all {ways} ranks are on one node. Which link do their messages take?"
        )
    if abs(got - _seconds(ways, (INSIDE + BETWEEN) / 2)) < 1e-9:
        raise Wrong(
            "that is the mean of the two rates. Does a round end with its mean message, or with its last?"
        )
    raise Wrong(f"returned {1e3 * got:.4g} ms, expected {1e3 * right:.4g} ms.")


_BLOCK = '''\
def block_seconds(compute, nbytes, ways, per_node, inside, between):
    """Return the seconds of a Transformer block on `ways` neighbouring ranks, forward and backward.

    One rank alone computes `compute` seconds. The ranks have four all-reduces of `nbytes`, each a ring.
    A node has `per_node` ranks; `inside` and `between` are bytes per second in a node and between two.
    """
    sent = 2 * (ways - 1) / ways * nbytes
    rate = inside if ways <= per_node else between
    return compute / ways + 4 * sent / rate
'''
_RATE = "    rate = inside if ways <= per_node else between\n"
_STUB = changed(_BLOCK, (_RATE, ""), ("4 * sent / rate", "4 * sent / inside"))

LINKS = Exercise(
    id="16.3",
    title="Spot the bug: the more ranks, the faster",
    task="A colleague computes how long a Transformer block takes when ranks share it by tensor parallelism. "
    "Her example: 4 ms on one GPU, all-reduces of 32 MB, nodes of 8 GPUs, 300 GB/s inside a node and 25 GB/s "
    "between two. She concludes that 16 ranks are faster than 8. In truth, 16 ranks take about eight times "
    "as long as 8. Correct the function.",
    objectives=(5,),
    targets=("tensor-parallel-across-nodes",),
    stub=_STUB,
    hints=(
        "Where are the 16 ranks? Draw them as a ring, and mark the messages that leave a node.",
        "node 0   0 → 1 → … → 7 ─┐\n"
        "         ↑              │  between two nodes\n"
        "node 1   15 ← … ← 8  ←──┘      a round ends when the last message has arrived",
        "rate = inside if ways <= … else …",
    ),
    solution=_BLOCK,
    check=_check_block,
    cases=((4, 8), (8, 8), (16, 8), (8, 4)),
    describe=lambda case: f"{case[0]} ranks that share a block, {case[1]} ranks per node",
    sizes=(3,),
    wrong=(
        WrongAnswer(changed(_STUB, ("nbytes\n", "nbytes * 1.0\n")), "the slowest message of a round"),
        WrongAnswer(changed(_STUB, ("/ inside", "/ between")), "all 4 ranks are on one node"),
        WrongAnswer(changed(_BLOCK, ("ways <= per_node", "ways < per_node")), "all 8 ranks are on one node"),
        WrongAnswer(changed(_BLOCK, (" else between", " else (inside + between) / 2")), "its mean message"),
        WrongAnswer(changed(_BLOCK, ("4 * sent", "2 * sent")), "expected"),
    ),
    why="with a link between nodes that is as fast as the one inside, 16 ranks would still not be twice as "
    "fast as 8. Which part of the time does not get smaller?",
)
