"""Pipelines with more ranks than cores: stages that sleep as long as they would compute, and real messages.

A rank that sleeps needs no core, so a laptop with two cores shows what four ranks would do on four. All is
measured except the computing, so such figures are called emulated.
"""

from collections.abc import Callable, Mapping

import torch
from mpi4py import MPI

from course_lib.comm.spans import Span, duration
from course_lib.comm.trace import Recorder
from course_lib.parallel.pipeline import Modules, StepResult, run_schedule, split_batch
from course_lib.theory.schedules import Action, Actions, Schedule, microbatch_count
from course_lib.training.layers import Sleep
from course_lib.training.loop import Batch

Pass = Callable[[int], None]
Program = Callable[[Pass, Pass, int], None]

NUMBERS = 1000  # in the activations of a micro-batch


def emulate(
    comm: MPI.Intracomm, schedule: Schedule, forward_seconds: float, backward_seconds: float
) -> tuple[StepResult, list[Span] | None]:
    """Run `schedule` with stages that sleep for the given seconds per micro-batch; a warm-up first.

    Returns this rank's step, and on rank 0 the spans of all ranks (None elsewhere). All ranks call it.
    """
    count = microbatch_count(schedule)
    parts = split_batch(Batch(torch.ones(count, NUMBERS), torch.zeros(count), count), count)
    mine = {(action.replica, action.stage) for action in schedule[comm.rank]}
    quick: Modules = {key: Sleep(0, 0) for key in mine}
    run_schedule(comm, schedule, quick, _summed, parts)
    slow: Modules = {key: Sleep(forward_seconds, backward_seconds) for key in mine}
    recorder = Recorder(comm)
    comm.Barrier()
    step = run_schedule(comm, schedule, slow, _summed, parts, recorder)
    return step, recorder.gather()


def shortest(
    comm: MPI.Intracomm,
    schedules: Mapping[str, Schedule],
    forward_seconds: float,
    backward_seconds: float,
    times: int = 3,
) -> dict[str, list[Span]]:
    """Emulate the schedules in turn, `times` times each, and return the spans of each one's shortest run.

    By name, on rank 0; empty elsewhere. Seconds are per micro-batch. All ranks call it.
    """
    runs: dict[str, list[list[Span]]] = {}
    for _ in range(times):
        for name, schedule in schedules.items():
            _, spans = emulate(comm, schedule, forward_seconds, backward_seconds)
            if spans is not None:
                runs.setdefault(name, []).append(spans)
    return {name: min(found, key=duration) for name, found in runs.items()}


def noted(program: Program, stage: int, microbatches: int) -> Actions:
    """What `program(F, B, microbatches)` does on `stage`: the actions that it calls, in order."""
    done: Actions = []
    program(
        lambda i: done.append(Action("F", stage, i)),
        lambda i: done.append(Action("B", stage, i)),
        microbatches,
    )
    return done


def largest_difference(one: torch.nn.Module, other: torch.nn.Module) -> float:
    """The largest difference between the gradients of two modules with the same layers; none counts as 0."""

    def gradient(weight: torch.nn.Parameter) -> torch.Tensor:
        return torch.zeros_like(weight) if weight.grad is None else weight.grad

    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return max((gradient(p) - gradient(q)).abs().max().item() for p, q in pairs)


def _summed(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return outputs.sum()
