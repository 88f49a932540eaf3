"""Sentences and tables of lesson 15, from what was measured. The kernel imports it: neither MPI nor torch."""

import textwrap
from collections.abc import Mapping, Sequence

from course.lessons.l15_when_things_fail.jobs import CallTimes, ElasticRun, Failure, SurvivorRun, first_notice
from course.lessons.l15_when_things_fail.kill_points import HALF, LOST, Instant
from mpi_classroom.figures import say_seconds

EQUAL = 1e-12  # losses in float64 that took the same steps
WIDTH = 88  # characters of a line


def explain_blame(failures: Mapping[str, Failure]) -> str:
    """For which failures the last message names the guilty rank; whom it names in the others."""
    guilty = next(iter(failures.values())).guilty
    right = [how for how, failure in failures.items() if failure.blamed == guilty]
    words = [f"It names rank {guilty} when rank {guilty} {' or '.join(right)}."] if right else []
    for how, failure in failures.items():
        if failure.blamed is None:
            words.append(f"When it {how}, no message comes.")
        elif failure.blamed != guilty:
            rank, _ = first_notice(failure) or (failure.blamed, 0.0)
            names = f"the message names rank {failure.blamed}"
            if rank == failure.blamed:
                words.append(f"When it {how}, {names}, which only waited.")
            else:
                words.append(f"When it {how}, rank {rank} notices first, but {names}; both only waited.")
    return " ".join(words)


def failure_table(failures: Mapping[str, Failure]) -> str:
    """A row per failure: who noticed first, within which time and how, and whom the last message names.

    mpiexec has noticed when it ends the first of the other ranks.
    """
    lines = [f"{'rank 1 …':11}{'first noticed by':19}{'within':10}{'how':16}last message names"]
    for how, failure in failures.items():
        first, named = first_notice(failure), failure.blamed
        by, after, way = "nobody", "–", "–"
        if first is not None:
            rank, seconds = first
            by, way = f"rank {rank}", "its timeout"
            if failure.noticed[rank].was_ended:
                by, way = "mpiexec", f"rank {failure.guilty} ended"
            after = f"{seconds:.2f} s"
        lines.append(f"{how:11}{by:19}{after:10}{way:16}{'nobody' if named is None else f'rank {named}'}")
    return "\n".join(lines)


def stack_table(failure: Failure) -> str:
    """Where each rank stood while all waited."""
    return "\n".join(f"rank {rank}  {where}" for rank, where in sorted(failure.stacks.items()))


def count_damaged(instants: Sequence[Instant]) -> int:
    """After how many kills the file holds neither all old bytes nor all new ones."""
    return sum(each.after_kill in (HALF, LOST) for each in instants)


def explain_resume(killed: Mapping[int, float], resumed: Mapping[int, float]) -> str:
    """How many steps were computed twice, and why."""
    twice = len(killed.keys() & resumed.keys())
    return (
        f"The kill came after {len(killed)} steps, the last save after {min(resumed)}. So {twice} steps were "
        "lost, and computed again."
    )


def count_right(losses: Sequence[float], never: Sequence[float]) -> int:
    """How many of the losses after the restart, the second half, are those of the uninterrupted training."""
    half = len(never) // 2
    return sum(abs(one - other) < EQUAL for one, other in zip(losses[half:], never[half:], strict=True))


def right_table(losses: Mapping[str, Sequence[float]], never: Sequence[float]) -> str:
    """A row per restart: how many of the losses after it are right, and the last loss."""
    half = len(never) // 2
    lines = [f"{'restored':20} {f'right of {half}':>12} {'last loss':>11}"]
    for name, values in losses.items():
        lines.append(f"{name:20} {count_right(values, never):>12} {values[-1]:>11.6f}")
    lines.append(f"{'never interrupted':20} {half:>12} {never[-1]:>11.6f}")
    return "\n".join(lines)


def explain_survivors(run: SurvivorRun) -> str:
    """When the survivors noticed the death and went on; or why this MPI does not let them."""
    if run.missing:
        return run.missing
    left = run.steps[-1].ranks
    first = next(step.step for step in run.steps if step.ranks == left)
    return (
        f"After the death of rank {run.victim}, a survivor got an error within "
        f"{say_seconds(run.noticed_seconds)}. After {say_seconds(run.shrunk_seconds)} the {left} survivors "
        f"had their own communicator, and after {say_seconds(run.recovered_seconds)} they had finished step "
        f"{first}. No step was lost."
    )


def explain_elastic(run: ElasticRun) -> str:
    """How long torchrun and the new workers took to come back, and how many steps were computed twice."""
    loading = run.loaded_seconds - run.restarted_seconds
    return (
        f"A worker was killed in step {run.killed_in_step}. {say_seconds(run.noticed_seconds)} later the "
        f"other one was ended, and after {say_seconds(run.restarted_seconds)} two new ones had started. "
        f"Importing torch and meeting took them {say_seconds(loading)}. After "
        f"{say_seconds(run.recovered_seconds)} step {run.killed_in_step} was done; {run.repeated_steps} "
        "steps were computed twice."
    )


def call_table(times: Mapping[str, CallTimes]) -> str:
    """Seconds per call, and how an error and a missed deadline come back, of both kinds of remote call."""
    lines = []
    for name, found in times.items():
        lines.append(f"{name:6} {say_seconds(found.seconds):>8} per call")
        for what, words in (("an error:", found.error), ("too late:", found.late)):
            lines.append(textwrap.fill(f"{'':6} {what}  {words}", WIDTH, subsequent_indent=" " * 18))
    return "\n".join(lines)
