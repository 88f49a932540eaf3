"""DeepSpeed over mpi4py beside DeepSpeed over Gloo, stage by stage.

Both backends alternate in one job: a world, an engine, a step to warm up, some steps to time, and the end of
that world, before the other has its turn. Everything of a turn travels over its backend. Each rank has its
share of the cores' threads, and the slowest rank counts. Nothing is compiled (see torch_mpi4py). With
many sequences per rank, computing takes most of a step on any backend; with one, communication counts.

    python -m benchmarks.deepspeed [--quick] [--json FILE]
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from benchmarks.harness import Row, Timing, main, on_ranks, row
from benchmarks.torch_mpi_races import LENGTH, WIDTH, transformer
from course_lib.measure import timed
from mpi_classroom.launch import threads_per_rank

if TYPE_CHECKING:
    from mpi4py import MPI

RANKS = 2
BATCHES = (8, 1)  # sequences per rank
LAYERS = 6  # of the Transformer
BUCKET = 4_000_000  # gradients that leave together: 16 MiB
STAGES = (1, 2, 3)
BACKENDS = ("mpi4py", "gloo")


def measure(quick: bool) -> list[Row]:
    """All rows."""
    layers = 2 if quick else LAYERS
    sizes: dict[str, Any] = {"rounds": 2 if quick else 4, "steps": 2 if quick else 3, "layers": layers}
    raced = {batch: on_ranks(RANKS, race, timeout=900, batch=batch, **sizes) for batch in BATCHES}
    return [one for batch, times in raced.items() for one in time_rows(times, layers, batch)]


def time_rows(raced: Mapping[str, Mapping[str, list[float]]], layers: int, batch: int) -> list[Row]:
    """Milliseconds of a step."""
    return [
        row(
            f"ZeRO-{stage}, one step of {the_model(layers)}, sequences per rank: {batch}",
            RANKS,
            Timing.of(times[BACKENDS[0]]).times(1e3),
            Timing.of(times[BACKENDS[1]]).times(1e3),
            "DeepSpeed over Gloo",
            unit="ms",
        )
        for stage, times in raced.items()
    ]


def the_model(layers: int) -> str:
    return f"a Transformer (width {WIDTH}, length {LENGTH}, {layers} blocks)"


# ---------------------------------------------------------------- on the ranks


def race(
    comm: MPI.Intracomm, rounds: int, steps: int, layers: int, batch: int
) -> dict[str, dict[str, list[float]]]:
    """Seconds of a step over both backends, for each stage: a figure for every round, of the slowest rank."""
    import torch

    torch.set_num_threads(threads_per_rank(comm.size))
    found: dict[str, dict[str, list[float]]] = {str(s): {b: [] for b in BACKENDS} for s in STAGES}
    for _ in range(rounds):
        for stage in STAGES:
            for backend in BACKENDS:
                found[str(stage)][backend] += a_turn(comm, backend, stage, steps, layers, batch)
    return found


def a_turn(comm: MPI.Intracomm, backend: str, stage: int, steps: int, layers: int, batch: int) -> list[float]:
    """Seconds of some steps in a new world."""
    import torch
    from torch.nn.functional import cross_entropy

    from benchmarks.parts.deepspeed_engine import deepspeed_world, start_engine

    with deepspeed_world(comm, backend):
        engine = start_engine(transformer(layers), settings(stage, comm.size, batch))
        tokens = torch.randint(0, 256, (batch, LENGTH))

        def step() -> None:
            engine.backward(cross_entropy(engine(tokens).flatten(0, 1), tokens.flatten()))
            engine.step()

        step()
        return [timed(comm, step, 1) for _ in range(steps)]


def settings(stage: int, ranks: int, batch: int) -> dict[str, Any]:
    """The configuration of the race: gradients leave in buckets of 16 MiB."""
    from benchmarks.parts.deepspeed_engine import stage_config

    return stage_config(stage, ranks, micro_batch=batch, bucket=BUCKET)


if __name__ == "__main__":
    main("DeepSpeed over mpi4py beside Gloo", measure)
