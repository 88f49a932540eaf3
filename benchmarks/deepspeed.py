"""DeepSpeed over mpi4py beside DeepSpeed over Gloo, stage by stage; and the bytes that a stage keeps.

Both backends alternate in one job: a world, an engine, a step to warm up, some steps to time, and the end of
that world, before the other has its turn. Everything of a turn travels over its backend. Each rank has its
share of the cores' threads, and the slowest rank counts. Nothing is compiled (see torch_mpi4py). With
many sequences per rank, computing takes most of a step on any backend; with one, communication counts.

The bytes of weights, gradients and optimizer are read off the tensors that a rank has between two
micro-batches, and stand beside those of stage 0, and beside the formulas.

    python -m benchmarks.deepspeed [--quick] [--json FILE]
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from benchmarks.harness import Row, Timing, main, on_ranks, row
from course_lib.comm.timing import seconds_of_each
from mpi_classroom.launch import threads_per_rank

if TYPE_CHECKING:
    from mpi4py import MPI

RANKS = 2
BATCHES = (8, 1)  # sequences per rank
LENGTH, WIDTH, HEADS, LAYERS = 128, 512, 8, 6  # of the Transformer
BUCKET = 4_000_000  # gradients that leave together: 16 MiB
STAGES = (1, 2, 3)
BACKENDS = ("mpi4py", "gloo")
EXACT = 0.0  # spread of what is counted


def measure(quick: bool) -> list[Row]:
    """All rows."""
    layers = 2 if quick else LAYERS
    sizes: dict[str, Any] = {"rounds": 2 if quick else 4, "steps": 2 if quick else 3, "layers": layers}
    raced = {batch: on_ranks(RANKS, race, timeout=900, batch=batch, **sizes) for batch in BATCHES}
    counted = on_ranks(RANKS, count, timeout=300, layers=layers)
    timed = [one for batch, times in raced.items() for one in time_rows(times, layers, batch)]
    return [*timed, *byte_rows(counted, layers)]


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


def byte_rows(counted: Mapping[str, Mapping[str, float]], layers: int) -> list[Row]:
    """What a rank keeps in each stage, beside stage 0 and beside the formula; what it sends, likewise."""
    rows = []
    for stage, bytes_of in counted.items():
        for name, peer in (
            ("keeps", "stage 0"),
            ("keeps", "the formula"),
            ("sends", "stage 0"),
            ("sends", "the formula"),
        ):
            other = counted["0"][name] if peer == "stage 0" else bytes_of[f"{name}, formula"]
            if peer == "the formula" or stage != "0":
                case = f"ZeRO-{stage}, bytes that a rank {name}: {the_model(layers)}"
                rows.append(
                    row(case, RANKS, Timing(bytes_of[name], EXACT), Timing(other, EXACT), peer, unit="bytes")
                )
    return rows


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

    from course_lib.parallel.deepspeed_engine import deepspeed_world, start_engine

    with deepspeed_world(comm, backend):
        engine = start_engine(transformer(layers), settings(stage, comm.size, batch))
        tokens = torch.randint(0, 256, (batch, LENGTH))

        def step() -> None:
            engine.backward(cross_entropy(engine(tokens).flatten(0, 1), tokens.flatten()))
            engine.step()

        step()
        return seconds_of_each(comm, step, steps)


def settings(stage: int, ranks: int, batch: int, accumulation: int = 1) -> dict[str, Any]:
    """The configuration of the race: gradients leave in buckets of 16 MiB."""
    from course_lib.parallel.deepspeed_config import stage_config

    return stage_config(stage, ranks, micro_batch=batch, accumulation=accumulation, bucket=BUCKET)


def transformer(layers: int) -> Any:
    from course_lib.training.transformer import build_transformer

    return build_transformer(length=LENGTH, width=WIDTH, heads=HEADS, layers=layers, seed=0)


def count(comm: MPI.Intracomm, layers: int) -> dict[str, dict[str, float]]:
    """Bytes that a rank keeps and sends in each stage, counted and by the formulas; micro-batches of one."""
    import torch
    from torch.nn.functional import cross_entropy

    from benchmarks.parts.deepspeed_counts import counted_messages, held_bytes, state_bytes, step_bytes
    from course_lib.parallel.deepspeed_config import STAGES as ALL
    from course_lib.parallel.deepspeed_engine import deepspeed_world, end_engine, start_engine

    found: dict[str, dict[str, float]] = {}
    tokens = torch.randint(0, 256, (1, LENGTH))
    with deepspeed_world(comm):
        for stage in ALL:
            model = transformer(layers)
            parameters = sum(weight.numel() for weight in model.parameters())
            config = settings(stage, comm.size, batch=1, accumulation=2)
            engine = start_engine(model, config)
            kept = []
            for _ in range(2):  # the first update prepares
                with counted_messages() as sent:
                    for _ in range(2):
                        engine.backward(cross_entropy(engine(tokens).flatten(0, 1), tokens.flatten()))
                        kept.append(held_bytes(engine).total)
                        engine.step()
            end_engine(engine)
            found[str(stage)] = {
                "keeps": comm.allreduce(kept[2]) / comm.size,
                "sends": comm.allreduce(sent.nbytes) / comm.size,
                "keeps, formula": state_bytes(config, parameters, comm.size).total,
                "sends, formula": step_bytes(config, parameters, comm.size),
            }
    return found


if __name__ == "__main__":
    main("DeepSpeed over mpi4py beside Gloo", measure)
