"""Our fast pipeline over MPI beside torch.distributed.pipelining over Gloo.

Two stages on two ranks, with the same cut, micro-batches and loss, alternate in one job: a Transformer of
width 512, length 128, a batch of 8 sequences as 8 micro-batches of one. PyTorch's pipelining also runs over
the course's MPI backend, to separate messages from the rest; the plain pipeline shows the effect of the
optimisations of `course_lib.fast`; and the uncut model runs in one process, on one thread and on as many as
there are cores.

    python -m benchmarks.pipeline [--quick] [--json FILE]
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from benchmarks.harness import Row, Timing, main, on_ranks, row
from benchmarks.torch_mpi_races import groups
from course_lib.measure import timed
from mpi_classroom.launch import available_cores

if TYPE_CHECKING:
    import torch
    from mpi4py import MPI
    from torch import nn

    from course_lib.training.loop import Batch

RANKS, MICROBATCHES = 2, 8
WIDTH, LENGTH, HEADS, BLOCKS, VOCABULARY = 512, 128, 8, 4, 256
NAMES = {"gpipe": "GPipe", "one_f_one_b": "1F1B"}
PEERS = {
    "Gloo": "torch.distributed.pipelining, Gloo",
    "mpi4py": "torch.distributed.pipelining, mpi4py",
    "plain": "the plain pipeline",
}

Work = Callable[[], object]

# ---------------------------------------------------------------- on the ranks


def token_loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The cross entropy of all tokens, added up."""
    from torch.nn import functional as F

    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")


def build(blocks: int = BLOCKS) -> tuple[nn.Sequential, Batch]:
    """The uncut model, and a batch of 8 sequences."""
    import torch

    from course_lib.training.loop import Batch
    from course_lib.training.transformer import build_transformer

    sizes = {"vocabulary": VOCABULARY, "length": LENGTH, "width": WIDTH, "heads": HEADS, "layers": blocks}
    tokens = torch.randint(VOCABULARY, (MICROBATCHES, LENGTH + 1), generator=torch.Generator().manual_seed(0))
    batch = Batch(tokens[:, :-1], tokens[:, 1:], MICROBATCHES * LENGTH)
    return build_transformer(**sizes, seed=0).stack(), batch


def ours(comm: MPI.Intracomm, stage: nn.Module, batch: Batch, name: str, *, plain: bool = False) -> Work:
    """Forward and backward of the batch with a schedule of ours, by the fast pipeline or the plain one."""
    from course_lib.fast import pipeline as fast
    from course_lib.parallel.pipeline import run_schedule, split_batch
    from course_lib.theory import schedules

    run = run_schedule if plain else fast.run_schedule
    schedule = getattr(schedules, name)(comm.size, MICROBATCHES)
    parts = split_batch(batch, MICROBATCHES)

    def step() -> None:
        stage.zero_grad()
        run(comm, schedule, {(0, comm.rank): stage}, token_loss, parts)

    return step


def torchs(group: Any, stage: nn.Module, batch: Batch, name: str) -> Work:
    """The same with PyTorch's pipelining on `group`; the loss is divided as ours is, and nothing else."""
    import torch
    from torch.distributed import pipelining

    place = pipelining.PipelineStage(stage, group.rank(), group.size(), torch.device("cpu"), group=group)
    kind = {"gpipe": pipelining.ScheduleGPipe, "one_f_one_b": pipelining.Schedule1F1B}[name]

    def loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return token_loss(logits, targets) / batch.global_size

    schedule = kind(place, MICROBATCHES, loss_fn=loss, scale_grads=False)
    inputs = (batch.inputs,) if group.rank() == 0 else ()
    targets: dict[str, Any] = {"target": batch.targets} if group.rank() == group.size() - 1 else {}

    def step() -> None:
        stage.zero_grad()
        schedule.step(*inputs, **targets, return_outputs=False)

    return step


def uncut(comm: MPI.Intracomm, model: nn.Module, batch: Batch, threads: int) -> Work:
    """Forward and backward of the whole batch at once, on rank 0 alone; the others sleep meanwhile."""
    import torch

    def step() -> None:
        if comm.rank == 0:
            torch.set_num_threads(threads)
            model.zero_grad()
            (token_loss(model(batch.inputs), batch.targets) / batch.global_size).backward()
            torch.set_num_threads(1)
        done = comm.Ibarrier()
        while not done.Test():
            time.sleep(1e-3)  # a rank that waits in MPI would take a core from the threads

    return step


def race(comm: MPI.Intracomm, rounds: int, blocks: int) -> dict[str, list[float]]:
    """Milliseconds of a step of every contender, in every round; a warm-up of two steps first."""
    import torch

    from course_lib.parallel.pipeline import split_layers

    model, batch = build(blocks)
    alone = copy.deepcopy(model) if comm.rank == 0 else model
    stage = split_layers(model, comm.size)[comm.rank]
    with groups(comm) as found:
        works: dict[str, Work] = {}
        torch.set_num_threads(1)
        backends = {"Gloo": found["peer"], "mpi4py": found["ours"]}
        for name in NAMES:
            works[name] = ours(comm, stage, batch, name)
            works[f"{name} plain"] = ours(comm, stage, batch, name, plain=True)
            for backend, group in backends.items():
                works[f"{name} {backend}"] = torchs(group, stage, batch, name)
        for threads in sorted({1, available_cores()}):
            works[f"uncut {threads}"] = uncut(comm, alone, batch, threads)
        times: dict[str, list[float]] = {name: [] for name in works}
        for turn in range(2 + rounds):
            for name, work in works.items():
                seconds = timed(comm, work, 1)
                times[name] += [1e3 * seconds] if turn >= 2 else []
    return times


# ---------------------------------------------------------------- rows


def measure(quick: bool) -> list[Row]:
    """All rows."""
    rounds, blocks = (3, 2) if quick else (15, BLOCKS)
    times = on_ranks(RANKS, race, timeout=900, rounds=rounds, blocks=blocks)
    model = f"Transformer (width {WIDTH}, length {LENGTH}, {blocks} blocks)"
    return race_rows(times, model)


def race_rows(times: Mapping[str, list[float]], model: str) -> list[Row]:
    """Each schedule beside PyTorch's over both backends and the plain one; 1F1B beside the uncut model."""
    timings = {name: Timing.of(values) for name, values in times.items()}
    rows = [
        row(f"{said}, {model}", RANKS, timings[name], timings[f"{name} {peer}"], PEERS[peer], unit="ms")
        for name, said in NAMES.items()
        for peer in PEERS
    ]
    for name in times:
        if name.startswith("uncut"):
            peer = f"uncut, one process, threads: {name.split()[1]}"
            rows.append(row(f"1F1B, {model}", RANKS, timings["one_f_one_b"], timings[name], peer, unit="ms"))
    return rows


if __name__ == "__main__":
    main("Pipelines over MPI beside PyTorch's over Gloo", measure)
