"""All-reduce between nodes that are joined by slow links: by hand, hierarchically, and by MPI; and a model.

This machine plays the nodes (`mpi_classroom.network`): their links are really as slow as said, their cores
are those of the machine. `2 × 2` means two nodes with two ranks each.

    all-reduce   ours beside MPI_Allreduce, in jobs with Open MPI's hierarchical collectives (`han`, which it
                 takes between nodes) and in jobs without them (`--mca coll ^han`: it is flat), also in jobs
                 whose messages are all eager: see `course_lib/fast/collectives.py`. What a flat
                 one sends over the links depends on the placement of the ranks: neighbours on one node, or
                 ranks assigned to the nodes round-robin, as `mpiexec --map-by node` does
    sent         bytes that leave the node that sends most, as its network device counts them
    message      one message from node to node, beside what its bytes take at the rate of the link
    model        a link fitted to a ping-pong of two ranks at 100 Mbit/s and 1 Gbit/s alone, and what it says
                 of all-reduces at 250 and 500 Mbit/s: ring and hierarchy on two nodes with two ranks each;
                 ring, halving and tree on four nodes. What stays inside the nodes is measured, at other sizes
    rendezvous   the ring once more, with Open MPI's own settings: where its chunks are longer than 64 KiB,
                 each step begins with a question, and the answer waits behind what has started before it in
                 the other direction. The model knows nothing of that, so its error shows what it costs

Before each run all ranks pause, so that the token buckets of the links are full, as they are in training when
a gradient is ready.

    python -m benchmarks.several_machines [--quick] [--json FILE]
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.allreduce import KIB, MIB, Work, say_bytes
from benchmarks.harness import CannotMeasure, Row, Timing, main, on_lab, row
from benchmarks.parts.limited_link import (
    LimitedLink,
    Sample,
    device_nbytes,
    fit_limited_link,
    predict_link_seconds,
)
from course_lib.comm.allreduce import halving
from course_lib.comm.collectives import (
    hierarchical_allreduce,
    ring_allreduce,
    tree_broadcast,
    tree_reduce,
)
from course_lib.comm.ping_pong import PingPong, measure_ping_pong
from course_lib.comm.polling import wait_for
from course_lib.fast.collectives import EAGER_BYTES
from course_lib.fast.collectives import hierarchical_allreduce as fast_hierarchical_allreduce
from course_lib.measure import timed
from course_lib.theory.cost_model import (
    Cost,
    Machine,
    Step,
    Traffic,
    halving_allreduce_cost,
    ring_allreduce_cost,
    tree_broadcast_cost,
)
from course_lib.theory.hockney import Piecewise, fit_piecewise
from mpi_classroom.network import network
from mpi_classroom.network_commands import NetworkError, burst_nbytes, rate_words

if TYPE_CHECKING:
    from mpi4py import MPI

    from mpi_classroom.network import Lab

SHAPES = ((2, 2), (4, 1))  # nodes, ranks per node
RATES = ("100mbit", "1gbit")
SIZES = (4 * KIB, 64 * KIB, 512 * KIB, 4 * MIB)
FLAT = {"OMPI_MCA_coll": "^han"}
LONG_EAGER = {f"OMPI_MCA_btl_tcp_{name}": str(8 * MIB) for name in ("eager_limit", "max_send_size")}
PEERS: dict[str, dict[str, str]] = {  # what to call it, and the settings of the job in which it is MPI's
    "MPI_Allreduce, flat (--mca coll ^han)": FLAT,
    "MPI_Allreduce, flat, eager up to 8 MiB": FLAT | LONG_EAGER,
    "MPI_Allreduce, hierarchical (han)": {},
}
CONTENDERS = {
    "fast": "all-reduce, hierarchical, fast",
    "plain": "all-reduce, hierarchical",
    "ring": "all-reduce, ring",
}
IN_TURN, OF_RANKS_IN_TURN = "MPI, in turn", ", ranks placed in turn"
ALL = (*CONTENDERS, "MPI", IN_TURN)
FITTED_SIZES = (4, 64, KIB, 4 * KIB, 12 * KIB, 64 * KIB, 256 * KIB, MIB)
LOCAL_SIZES = (4 * KIB, 32 * KIB, 128 * KIB, 512 * KIB, 2 * MIB, 4 * MIB, 16 * MIB)
PREDICTED_RATES = ("250mbit", "500mbit")
PREDICTED_SIZES = (192 * KIB, 768 * KIB, 3 * MIB, 12 * MIB)
PREDICTION = "the model's prediction"
MODEL, RENDEZVOUS, SENT = "model:", "rendezvous:", "sent by the node that sends most, "
MODELLED = {**CONTENDERS, "halving": "all-reduce, halving and doubling", "tree": "all-reduce, tree"}
PREDICTED: dict[tuple[int, int], dict[tuple[str, str], dict[str, str]]] = {  # by shape: a job's settings
    (2, 2): {(MODEL, "fast"): {}, (MODEL, "ring"): LONG_EAGER, (RENDEZVOUS, "ring"): {}},
    (4, 1): {(MODEL, "ring"): LONG_EAGER, (MODEL, "halving"): LONG_EAGER, (MODEL, "tree"): {}},
}
SHOWN_RATES, SHOWN_SIZES = ("100mbit", "250mbit", "1gbit"), (4, 64 * KIB, MIB, 4 * MIB)
AT_RATE = "its bytes at the rate of the link"
ACCURACY = 20.0  # percent that the worst prediction may be off
PAUSE_SECONDS = 5e-3  # a bucket holds 1 ms of bytes

Timings = dict[str, dict[str, tuple[float, float]]]  # by bytes and contender: median and spread


# ---------------------------------------------------------------- on the ranks


def race(
    comm: MPI.Intracomm, sizes: Sequence[int], repetitions: int, contenders: Sequence[str]
) -> tuple[Timings, Timings]:
    """Seconds of each contender for each size, and the bytes that left the node that sent most."""
    inside, between = of_nodes(comm)
    in_turn = comm.Split(0, inside.rank * comm.size + comm.rank)
    seconds: Timings = {}
    sent: Timings = {}
    for nbytes in sizes:
        works = all_reduces(comm, in_turn, inside, between, np.zeros(nbytes // 4, np.float32))
        took: dict[str, list[float]] = {name: [] for name in contenders}
        nbytes_sent: dict[str, list[float]] = {name: [] for name in contenders}
        for name in contenders:
            works[name]()
        for _ in range(repetitions):
            for name in contenders:
                comm.Barrier()  # what was sent before has arrived
                before = device_nbytes()
                time.sleep(PAUSE_SECONDS)
                took[name].append(timed(comm, works[name], repeat=1))
                nbytes_sent[name].append(max(comm.allgather(device_nbytes() - before)))
        seconds[str(nbytes)] = {name: as_pair(values) for name, values in took.items()}
        sent[str(nbytes)] = {name: as_pair(values) for name, values in nbytes_sent.items()}
    return seconds, sent


def all_reduces(
    comm: MPI.Comm, in_turn: MPI.Comm, inside: MPI.Comm, between: MPI.Comm, buffer: np.ndarray
) -> dict[str, Work]:
    """What is compared, on one buffer of zeros, whose sums never overflow."""
    from mpi4py import MPI

    return {
        "fast": lambda: fast_hierarchical_allreduce(inside, between, buffer),
        "plain": lambda: hierarchical_allreduce(inside, between, buffer),
        "ring": lambda: ring_allreduce(comm, buffer),
        "halving": lambda: halving(comm, buffer),
        "tree": trees_of(comm, buffer),
        "MPI": lambda: comm.Allreduce(MPI.IN_PLACE, buffer),
        IN_TURN: lambda: in_turn.Allreduce(MPI.IN_PLACE, buffer),
    }


def of_nodes(comm: MPI.Intracomm) -> tuple[MPI.Comm, MPI.Comm]:
    """The communicator of this rank's node, and that of the leaders: COMM_NULL on the others."""
    from mpi4py import MPI

    inside = comm.Split_type(MPI.COMM_TYPE_SHARED)
    return inside, comm.Split(0 if inside.rank == 0 else MPI.UNDEFINED, comm.rank)


def as_pair(values: Sequence[float]) -> tuple[float, float]:
    timing = Timing.of(values)
    return timing.median, timing.spread


def measure_link(
    comm: MPI.Intracomm, sizes: Sequence[int], repetitions: int
) -> list[tuple[int, float, float]]:
    """Bytes, median and spread of the seconds of a message between the leaders of two nodes.

    The other ranks wait inside MPI, as they do in an all-reduce.
    """
    from mpi4py import MPI

    _, between = of_nodes(comm)
    measured = []
    if between != MPI.COMM_NULL:
        for nbytes in sizes:
            there_and_back = ping_pong(between, np.zeros(nbytes, np.uint8))
            there_and_back()
            seconds = []
            for _ in range(repetitions):
                time.sleep(PAUSE_SECONDS)
                seconds.append(timed(between, there_and_back, repeat=1) / 2)
            measured.append((nbytes, *as_pair(seconds)))
    comm.Barrier()
    return measured


def ping_pong(two: MPI.Comm, buffer: np.ndarray) -> Work:
    """A message from rank 0 to rank 1, and back: at any time, one direction of the link is busy."""

    def there_and_back() -> None:
        if two.rank == 0:
            two.Send(buffer, 1)
        two.Recv(buffer, 1 - two.rank)
        if two.rank == 1:
            two.Send(buffer, 0)

    return there_and_back


def measure_inside(comm: MPI.Intracomm, sizes: Sequence[int], repetitions: int) -> dict[str, Any]:
    """What the ranks of a node need, while those of the other nodes do the same.

    "samples": messages and sums, a `PingPong`; "trees": per size, seconds of the two trees of a hierarchical
    all-reduce.
    """
    inside, _ = of_nodes(comm)
    samples = measure_ping_pong(inside, sizes, repetitions=repetitions)
    wait_for(comm.Ibarrier(), 600, "the measurement inside the nodes")
    assert samples is not None
    trees = []
    for nbytes in sizes:
        both_trees = trees_of(inside, np.zeros(nbytes // 4, np.float32))
        both_trees()
        took = []
        for _ in range(repetitions):
            comm.Barrier()
            time.sleep(PAUSE_SECONDS)  # as before an all-reduce: ranks that have slept are slower at first
            took.append(timed(comm, both_trees, repeat=1))
        trees.append(statistics.median(took))
    return {"samples": asdict(samples), "trees": trees}


def trees_of(comm: MPI.Comm, buffer: np.ndarray) -> Work:
    """An all-reduce by trees, up and down: what a hierarchical one does inside a node."""

    def both_trees() -> None:
        tree_reduce(comm, buffer)
        tree_broadcast(comm, buffer)

    return both_trees


# ---------------------------------------------------------------- rows


def measure(quick: bool) -> list[Row]:
    """The rows of each part."""
    try:
        with network(1, rate="1gbit"):
            pass
    except NetworkError as reason:
        raise CannotMeasure(f"it needs a lab of several nodes; {reason}") from None
    return [each for part in PARTS for each in part(quick)]


def all_reduce_rows(quick: bool) -> list[Row]:
    """The all-reduces of every shape, rate and size."""
    rows: list[Row] = []
    for nodes, slots in SHAPES[:1] if quick else SHAPES:
        with network(nodes, slots=slots) as lab:
            for rate in RATES[1:] if quick else RATES:
                lab.limit(rate)
                for peer, settings in PEERS.items():
                    sizes = SIZES[1:3] if quick else SIZES
                    seconds, sent = race_in(lab, settings, sizes, 3 if quick else 7, ALL)
                    rows += race_rows(lab, peer, seconds, sent)
    return rows


def race_in(
    lab: Lab,
    settings: Mapping[str, str],
    sizes: Sequence[int],
    repetitions: int,
    contenders: Sequence[str],
) -> tuple[Timings, Timings]:
    """`race` as a job in the lab, with these settings of Open MPI."""
    arguments = {"sizes": list(sizes), "repetitions": repetitions, "contenders": list(contenders)}
    seconds, sent = on_lab(lab, race, timeout=600, settings=settings, **arguments)
    return seconds, sent


def race_rows(lab: Lab, peer: str, seconds: Timings, sent: Timings) -> list[Row]:
    """Each of ours beside MPI, in milliseconds; for the longest buffer also in bytes that were sent."""
    rows = [
        each for nbytes, found in seconds.items() for each in compare(lab, peer, "", nbytes, found, 1e3, "ms")
    ]
    longest = max(seconds, key=int)
    return [*rows, *compare(lab, peer, SENT, longest, sent[longest], 1, "bytes")]


def compare(
    lab: Lab,
    peer: str,
    prefix: str,
    nbytes: str,
    found: Mapping[str, tuple[float, float]],
    factor: float,
    unit: str,
) -> list[Row]:
    """Each of ours beside MPI; the fast one also beside MPI on ranks that are placed in turn."""
    values = {name: Timing(*value).times(factor) for name, value in found.items()}
    pairs = [(name, "MPI", peer) for name in CONTENDERS]
    if lab.slots > 1:
        pairs.append(("fast", IN_TURN, peer + OF_RANKS_IN_TURN))
    return [
        row(
            f"{place_of(lab)}: {prefix}{CONTENDERS[name]}, {say_bytes(int(nbytes))}",
            lab.size,
            values[name],
            values[theirs],
            who,
            unit=unit,
        )
        for name, theirs, who in pairs
    ]


def message_rows(quick: bool) -> list[Row]:
    """What a message from node to node takes, in milliseconds."""
    rows = []
    with network(2) as lab:
        for rate in SHOWN_RATES[-1:] if quick else SHOWN_RATES:
            lab.limit(rate)
            sizes, repetitions = list(SHOWN_SIZES[:3] if quick else SHOWN_SIZES), 3 if quick else 7
            measured = on_lab(lab, measure_link, timeout=600, sizes=sizes, repetitions=repetitions)
            rows += [message_row(lab, *each) for each in measured]
    return rows


def message_row(lab: Lab, nbytes: int, median: float, spread: float) -> Row:
    """A message beside the time that its bytes alone take at the rate of the link."""
    assert lab.rate is not None
    case = message_case(len(lab.nodes), lab.slots, lab.rate, nbytes)
    alone = Timing(8e3 * nbytes / lab.rate, 0)
    return row(case, lab.size, Timing(median, spread).times(1e3), alone, AT_RATE, unit="ms")


def message_case(nodes: int, slots: int, rate: int, nbytes: int) -> str:
    """What its row is called."""
    return f"{where(nodes, slots, rate)}: a message of {say_bytes(nbytes)} from node to node"


def model_rows(quick: bool) -> list[Row]:
    """What the fitted link says of rates and sizes that were not fitted, beside what they take."""
    repetitions = 3 if quick else 7
    samples: list[Sample] = []
    with network(2, slots=2) as lab:
        inside = Inside.of(on_lab(lab, measure_inside, sizes=list(LOCAL_SIZES), repetitions=repetitions))
        for rate in RATES:
            lab.limit(rate)
            arguments = {"sizes": list(FITTED_SIZES), "repetitions": repetitions}
            samples += samples_of(
                lab, on_lab(lab, measure_link, timeout=600, settings=LONG_EAGER, **arguments)
            )
    link = fit_limited_link(samples)
    rows: list[Row] = []
    for (nodes, slots), jobs in PREDICTED.items():
        with network(nodes, slots=slots) as lab:
            for rate in PREDICTED_RATES[:1] if quick else PREDICTED_RATES:
                lab.limit(rate)
                sizes = PREDICTED_SIZES[1:2] if quick else PREDICTED_SIZES
                for (kind, name), settings in jobs.items():
                    seconds, _ = race_in(lab, settings, sizes, repetitions, [name])
                    rows += prediction_rows(lab, kind, link, inside, seconds)
    return [*rows, worst(rows)]


@dataclass(frozen=True, slots=True)
class Inside:
    """What a node's ranks need: for messages and sums, and for the trees of a hierarchical all-reduce."""

    machine: Machine
    trees: Piecewise

    @classmethod
    def of(cls, measured: Mapping[str, Any]) -> Inside:
        """From what `measure_inside` returns."""
        samples = PingPong(**measured["samples"])
        return cls(samples.machine(1), fit_piecewise(samples.nbytes, measured["trees"], regimes=2))


def samples_of(lab: Lab, measured: Sequence[tuple[int, float, float]]) -> list[Sample]:
    """What was measured, as the fit takes it."""
    assert lab.rate is not None
    return [Sample(lab.rate, burst_nbytes(lab.rate), nbytes, median) for nbytes, median, _ in measured]


def prediction_rows(lab: Lab, kind: str, link: LimitedLink, inside: Inside, seconds: Timings) -> list[Row]:
    """Measured beside predicted, in milliseconds."""
    rows = []
    limited = link.at(lab.rate, burst_nbytes(lab.rate)) if lab.rate else link
    for nbytes, timings in seconds.items():
        said = predictions(len(lab.nodes), lab.slots, int(nbytes), limited, inside)
        for name, timing in timings.items():
            case = f"{kind} {place_of(lab)}: {MODELLED[name]}, {say_bytes(int(nbytes))}"
            ms, predicted = Timing(*timing).times(1e3), Timing(said[name], 0).times(1e3)
            rows.append(row(case, lab.size, ms, predicted, PREDICTION, unit="ms"))
    return rows


def predictions(
    nodes: int, slots: int, nbytes: int, link: LimitedLink, inside: Inside
) -> Mapping[str, float]:
    """Seconds of each all-reduce; in each step of the ring a message crosses every link in each direction.

    In each step of `halving` and `tree`, too, where each node has one rank: with more, they are left out.
    So is the plain hierarchical form: when it sends in both directions, one may wait for the other.
    """
    ranks = nodes * slots

    def across(cost: Cost) -> float:
        return predict_link_seconds(cost, link, inside.machine)

    between = ring_allreduce_cost(nodes, nbytes, piece_nbytes=EAGER_BYTES)
    pieces = between.steps[0].pieces  # here also in the second half, which copies
    in_pieces = replace(between, steps=tuple(replace(step, pieces=pieces) for step in between.steps))
    seconds = {"ring": across(ring_allreduce_cost(ranks, nbytes))}
    seconds["fast"] = across(in_pieces) + inside.trees.seconds(nbytes)
    if slots == 1:
        rounds = ranks.bit_length() - 1
        up = Step(1, nbytes, both_ways=False, summed=True)  # each rank sends once: its bucket is full
        seconds["halving"] = across(halving_allreduce_cost(ranks, nbytes))
        seconds["tree"] = rounds * across(Cost((up,), Traffic(), Traffic())) + across(
            tree_broadcast_cost(ranks, nbytes)
        )
    return seconds


def worst(rows: Sequence[Row]) -> Row:
    """How far the worst prediction is off, beside how far it may be."""
    misses = [100 * abs(each.ratio - 1) for each in rows if each.case.startswith(MODEL)]
    off, case = max(misses), f"{MODEL} what the worst of {len(misses)} predictions is off by"
    spread = off - min(misses)
    return Row(
        case,
        rows[-1].ranks,
        off,
        ACCURACY,
        "what it may be off by",
        ACCURACY / off,
        "%",
        "lower",
        spread,
        0.0,
    )


def place_of(lab: Lab) -> str:
    """The shape of a lab and the rate of its links."""
    return where(len(lab.nodes), lab.slots, lab.rate)


def where(nodes: int, slots: int, rate: int | None) -> str:
    """The same in numbers: `2 × 2, 100 Mbit/s`."""
    return f"{nodes} × {slots}, {rate_words(rate).removeprefix('at ')}"


PARTS: tuple[Callable[[bool], list[Row]], ...] = (all_reduce_rows, message_rows, model_rows)

if __name__ == "__main__":
    main("All-reduce between nodes on slow links: ours beside MPI's, and a model of the link", measure)
