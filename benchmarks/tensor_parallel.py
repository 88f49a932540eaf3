"""Our tensor parallelism beside DTensor: one training step of the same Transformer, on the same ranks.

A step is forward, loss, backward and an update by AdamW. All contenders are cut from one model, have the same
tokens and the same settings, and alternate; before any is timed, their losses of two steps are held to each
other. DTensor runs over Gloo, and over the course's own backend "mpi4py", in the same job. Each rank has its
share of the cores.

    python -m benchmarks.tensor_parallel [--quick] [--json FILE]
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import TYPE_CHECKING, Any

from benchmarks.harness import Row, Timing, main, on_ranks, row, time_alternately
from benchmarks.torch_mpi_races import groups

if TYPE_CHECKING:
    import torch
    from mpi4py import MPI
    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh

RANKS = 2
WIDTH, LENGTH, SEQUENCES, HEADS, LAYERS, VOCABULARY = 512, 128, 8, 8, 2, 256
ROUNDS = 15
Step = Callable[[], float]

OURS, SEQUENCE, GLOO, MPI4PY = "ours", "sequence", "DTensor over Gloo", "DTensor over mpi4py"


# ---------------------------------------------------------------- on the ranks


def race(comm: MPI.Intracomm, rounds: int, sequences: int) -> dict[str, list[float]]:
    """Median and spread, in seconds, of a step of each contender."""
    import torch
    from torch.distributed.device_mesh import DeviceMesh

    from course_lib.training.transformer import build_transformer

    whole = build_transformer(
        vocabulary=VOCABULARY, length=LENGTH, width=WIDTH, heads=HEADS, layers=LAYERS, seed=0
    )
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, VOCABULARY, (sequences, LENGTH + 1), generator=generator)
    with groups(comm) as both:
        gloo, mpi4py = (DeviceMesh.from_group(both[who], "cpu") for who in ("peer", "ours"))
        steps = {
            OURS: our_step(comm, whole, tokens, sequence=False),
            SEQUENCE: our_step(comm, whole, tokens, sequence=True),
            GLOO: dtensor_step(gloo, deepcopy(whole), tokens),
            MPI4PY: dtensor_step(mpi4py, deepcopy(whole), tokens),
        }
        must_agree({name: [step(), step()] for name, step in steps.items()})
        timings = time_alternately(comm, steps, repetitions=rounds)
    return {name: [timing.median, timing.spread] for name, timing in timings.items()}


def our_step(comm: MPI.Intracomm, whole: Any, tokens: torch.Tensor, *, sequence: bool) -> Step:
    """A step of ours; it returns the loss."""
    from course_lib.parallel.tensor_parallel import ParallelTransformer, vocabulary_cross_entropy

    net = ParallelTransformer(comm, whole, sequence=sequence)

    def backward() -> torch.Tensor:
        logits = net(tokens[:, :-1])
        loss = vocabulary_cross_entropy(comm, logits, tokens[:, 1:], VOCABULARY).mean()
        loss.backward()
        return loss.detach()

    return with_update(net, backward)


def dtensor_step(mesh: DeviceMesh, whole: Any, tokens: torch.Tensor) -> Step:
    """A step of PyTorch's, cut in the same places."""
    from course_lib.parallel.dtensor_parallel import dtensor_loss_backward, dtensor_transformer

    net = dtensor_transformer(mesh, whole)
    return with_update(net, lambda: dtensor_loss_backward(net(tokens[:, :-1]), tokens[:, 1:]))


def with_update(net: nn.Module, backward: Callable[[], torch.Tensor]) -> Step:
    import torch

    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)

    def step() -> float:
        optimizer.zero_grad()
        loss = backward()
        optimizer.step()
        return loss.item()

    return step


def must_agree(losses: dict[str, list[float]]) -> None:
    """All contenders train the same model: the losses of the first two steps are the same, to rounding."""
    first = losses[OURS]
    for name, theirs in losses.items():
        if any(abs(a - b) > 1e-4 * abs(a) for a, b in zip(first, theirs, strict=True)):
            raise RuntimeError(f"{name} has the losses {theirs} and we have {first}; one of us is wrong")


# ---------------------------------------------------------------- rows


def measure(quick: bool) -> list[Row]:
    """All rows."""
    batches = [SEQUENCES] if quick else [SEQUENCES, 1]
    return [
        line
        for sequences in batches
        for line in rows(on_ranks(RANKS, race, rounds=3 if quick else ROUNDS, sequences=sequences), sequences)
    ]


def rows(raced: dict[str, list[float]], sequences: int) -> list[Row]:
    """Each of ours beside each of DTensor's, in milliseconds."""
    timings = {name: Timing(*times).times(1e3) for name, times in raced.items()}
    model = f"a Transformer (width {WIDTH}, length {LENGTH}, batch {sequences}, {LAYERS} blocks)"
    cases = {
        OURS: f"tensor parallel, one step of {model}",
        SEQUENCE: f"tensor and sequence parallel, one step of {model}",
    }
    return [
        row(case, RANKS, timings[mine], timings[peer], peer, unit="ms")
        for mine, case in cases.items()
        for peer in (GLOO, MPI4PY)
    ]


if __name__ == "__main__":
    main("tensor parallelism beside DTensor", measure)
