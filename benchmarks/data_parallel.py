"""Data parallelism by hand: the course's own gradient buckets beside one rank and beside PyTorch's DDP.

One job of two ranks with one thread each alternates between: our overlapped buckets, our one bucket, DDP over
mpi4py, DDP over Gloo; and rank 0 alone trains on the same global batches. All train the same models on the
same images; the slowest rank counts. Efficiency is the throughput of two ranks over twice that of one.

    python -m benchmarks.data_parallel [--quick] [--json FILE]

With COURSE_DATA set to a folder that has it, on the real MNIST, else on drawn digits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from benchmarks.harness import Row, Timing, main, on_ranks, row
from benchmarks.torch_mpi_races import IMAGES, Times, Work, alternate, ddp_steps, groups, indices_of

if TYPE_CHECKING:
    from mpi4py import MPI

RANKS = 2
STEPS = {"cnn": 20, "mlp": 200}  # a round
ROUNDS = 9
OURS, SIMPLE, ALONE = "overlapped buckets", "one bucket", "one rank"
PEERS = {"ours": "DDP over mpi4py", "peer": "DDP over Gloo"}  # by the names of `groups`


def measure(quick: bool) -> list[Row]:
    """All rows."""
    raced = on_ranks(RANKS, race, timeout=900, rounds=3 if quick else ROUNDS, share=0.1 if quick else 1.0)
    return [r for name in STEPS for r in rows_of(f"{name}, {raced['data']}", raced[name])]


def rows_of(case: str, images_per_s: Mapping[str, list[float]]) -> list[Row]:
    """Efficiency first, then ours beside each peer."""
    found = {who: Timing.of(values) for who, values in images_per_s.items()}
    ideal = found[ALONE].times(RANKS)
    rows = [
        row(f"{case}: efficiency, {ours}", RANKS, found[ours], ideal, f"{RANKS} × one rank", unit="images/s")
        for ours in (OURS, SIMPLE)
    ]
    rivals = [(OURS, peer) for peer in PEERS.values()] + [(SIMPLE, PEERS["ours"]), (OURS, SIMPLE)]
    return rows + [
        row(f"{case}: {ours}", RANKS, found[ours], found[peer], peer, unit="images/s")
        for ours, peer in rivals
    ]


# ---------------------------------------------------------------- on the ranks


def race(comm: MPI.Intracomm, rounds: int, share: float) -> dict[str, Any]:
    """Images per second of every contender, by model; `share` of the usual steps per round."""
    import torch

    from course_lib.data.mnist import load_mnist

    data = load_mnist()
    found: dict[str, Any] = {"data": data.name}
    with groups(comm) as both:
        torch.set_num_threads(1)
        for name, usual in STEPS.items():
            steps = max(2, int(usual * share))
            mine = indices_of(comm.rank, comm.size, len(data.train_labels), steps)
            contenders = {PEERS[who]: ddp_steps(name, group, data, mine) for who, group in both.items()}
            contenders |= {engine: our_steps(comm, name, engine, data, mine) for engine in (OURS, SIMPLE)}
            contenders[ALONE] = one_rank_steps(comm, name, data, steps)
            found[name] = images_per_s(alternate(comm, contenders, rounds), IMAGES * comm.size * steps)
    return found


def images_per_s(seconds: Times, images: int) -> dict[str, list[float]]:
    return {who: [images / one for one in each] for who, each in seconds.items()}


def our_steps(comm: MPI.Intracomm, name: str, engine: str, data: Any, indices: list[Any]) -> Work:
    """A function that trains a model of its own on this rank's images, the `indices` of each step."""
    from course.lessons.l06_data_parallel_by_hand.engines import ENGINES

    return training(name, lambda model: ENGINES[engine](comm, model), data, indices, IMAGES * comm.size)


def one_rank_steps(comm: MPI.Intracomm, name: str, data: Any, steps: int) -> Work:
    """The same on rank 0 alone, with the images of all ranks in every step; the others do nothing."""
    import numpy as np

    from course_lib.training.loop import do_nothing

    if comm.rank > 0:
        return do_nothing
    shards = [indices_of(rank, comm.size, len(data.train_labels), steps) for rank in range(comm.size)]
    whole = [np.concatenate(parts) for parts in zip(*shards, strict=True)]
    return training(name, lambda model: do_nothing, data, whole, IMAGES * comm.size)


def training(
    name: str,
    engine: Callable[[Any], Callable[[], object]],
    data: Any,
    indices: list[Any],
    global_size: int,
) -> Work:
    """A function that takes one step on the images of each of the `indices`."""
    from torch.optim import SGD

    from course_lib.training.loop import image_batch, make_step, summed_cross_entropy
    from course_lib.training.models import build

    model = build(name, seed=0)
    step = make_step(model, summed_cross_entropy, SGD(model.parameters(), lr=0.01), engine(model))
    batches = [image_batch(data.train_images, data.train_labels, mine, global_size) for mine in indices]

    def run() -> None:
        for batch in batches:
            step(batch)

    return run


if __name__ == "__main__":
    main("Data parallelism by hand beside one rank and beside DDP", measure)
