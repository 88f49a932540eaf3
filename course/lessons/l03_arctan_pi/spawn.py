"""Starting ranks from a running program: `Spawn`, with a deadline.

    parent ── Spawn ──> n workers        a communicator between two groups: the parent is the ROOT for them
           ── Bcast ──> how many intervals
           <── Reduce ─ their parts, added up
           ── Disconnect ──              each side goes its own way; a side that does not may wait for ever

The parent need not be started by mpiexec: a program of one process can call for help when it has found out
how much there is to do. But a worker that dies or hangs takes its parent along: Open MPI ends the parent, or
lets it wait for ever. So `spawned_pi` gives the parent a process of its own, with a deadline, and says in one
sentence what happened to the workers.

    python -m course.lessons.l03_arctan_pi.spawn 4 1000000     from the shell; or below `mpiexec -n 1`

MPI 4.1, chapter 11.8. The pair of programs is that of Davis (2022), repaired; the other half is `pi_worker`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from mpi_classroom.job_output import last_error, read_deaths
from mpi_classroom.launch import rank_environment, run_ranks

# With `-m mpi4py` an uncaught exception ends all; without it, the others wait for the one that raised.
PI_WORKER = ("-m", "mpi4py", "-m", "course.lessons.l03_arctan_pi.pi_worker")
LATE = 3  # the exit code of a parent whose deadline is over


class SpawnError(RuntimeError):
    """Spawned workers did not give an answer; the message says why, as far as MPI has told."""


@dataclass(frozen=True, slots=True)
class Spawned:
    """π from `workers` that were spawned for it; `seconds` from before `Spawn` to after `Disconnect`."""

    pi: float
    workers: int
    intervals: int
    seconds: float


def spawn_pi(workers: int, intervals: int, worker: Sequence[str] = PI_WORKER) -> float:
    """π by the midpoint rule, computed by `workers` processes `python *worker` that this process starts.

    There is no deadline: if a worker dies, this process ends or waits for ever. `spawned_pi` has one.
    """
    prepare_to_spawn(workers)  # before MPI starts here
    from mpi4py import MPI

    info = MPI.Info.Create({"map_by": ":OVERSUBSCRIBE"})  # there may be more workers than cores
    comm = MPI.COMM_SELF.Spawn(sys.executable, args=list(worker), maxprocs=workers, info=info)
    comm.Bcast(np.array(intervals, dtype=np.int64), root=MPI.ROOT)
    pi = np.zeros(())
    comm.Reduce(None, pi, root=MPI.ROOT)
    comm.Disconnect()
    return float(pi)


def prepare_to_spawn(workers: int) -> None:
    """Put into this process's environment what MPI needs to spawn: where `prte` is, and that root may.

    A process that mpiexec has not started has no daemon that starts others; MPI starts one, `prte`, and
    looks for it on PATH.
    """
    os.environ.update(rank_environment(workers, {}, connects=True))
    scripts = sysconfig.get_path("scripts")
    if scripts not in os.environ.get("PATH", "").split(os.pathsep):
        os.environ["PATH"] = os.pathsep.join([scripts, os.environ.get("PATH", os.defpath)])


# ------------------------------------------------------------------ with a deadline


def spawned_pi(
    workers: int, intervals: int, *, timeout: float = 30.0, worker: Sequence[str] = PI_WORKER
) -> Spawned:
    """As `spawn_pi`, but the parent is a process of its own, which has `timeout` seconds.

    Raises ValueError for fewer than one worker or interval, SpawnError when there is no answer by then.
    """
    if workers < 1 or intervals < 1:
        raise ValueError(f"{workers} workers for {intervals} intervals; give at least 1 of each")
    call = f"-m {__name__} {workers} {intervals} --json --timeout {timeout} --worker".split()
    try:
        done = run_ranks(1, [*call, *worker], timeout=timeout, connects=True)
    except subprocess.TimeoutExpired as expired:
        words = expired.stderr or b""  # bytes, even of a job that writes text
        errors = words if isinstance(words, str) else words.decode(errors="replace")
        raise SpawnError(what_happened(f"{late(workers, timeout)}\n{errors}", workers, timeout)) from None
    if done.returncode != 0:
        raise SpawnError(what_happened(done.stderr, workers, timeout))
    return Spawned(**json.loads(done.stdout.splitlines()[-1]))


def what_happened(errors: str, workers: int, timeout: float) -> str:
    """One sentence on workers that gave no answer, from what they and mpiexec wrote."""
    if raised := last_error(errors):
        return f"the {workers} spawned workers gave no answer: {raised}"
    for death in read_deaths(errors):
        worker = f"spawned worker {death.rank} of {workers}"
        if death.how == "signal":
            return f"{worker} was ended by signal {death.signal_words}"
        if death.how == "exit" and death.job > 1:  # job 1 is the parent's
            return f"{worker} left with exit code {death.exit_code} before its work was done"
    if late(workers, timeout) in errors:
        return late(workers, timeout)
    return (
        f"the connection to the {workers} spawned workers broke: {errors.strip() or 'MPI does not say why'}"
    )


def late(workers: int, timeout: float) -> str:
    """What a parent says whose deadline is over."""
    return (
        f"the {workers} spawned workers gave no answer within {timeout:g} s: "
        "one of them hangs, or waits for another"
    )


def give_up_after(seconds: float, sentence: str) -> threading.Timer:
    """End this process with `sentence`, also while it is blocked in MPI, unless cancelled in time."""

    def give_up() -> None:
        print(sentence, file=sys.stderr, flush=True)
        os._exit(LATE)

    timer = threading.Timer(seconds, give_up)
    timer.daemon = True
    timer.start()
    return timer


def main() -> None:
    """Spawn, and print the result."""
    parser = argparse.ArgumentParser(
        prog="python -m course.lessons.l03_arctan_pi.spawn", description="π by spawned ranks."
    )
    parser.add_argument("workers", type=int, help="how many processes to spawn")
    parser.add_argument("intervals", type=int, help="of the midpoint rule")
    parser.add_argument("--timeout", type=float, default=30.0, help="seconds until this gives up")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("--worker", nargs=argparse.REMAINDER, default=PI_WORKER, help="Python's arguments")
    given = parser.parse_args()
    timer = give_up_after(given.timeout, late(given.workers, given.timeout))
    start = time.perf_counter()
    pi = spawn_pi(given.workers, given.intervals, given.worker)
    result = Spawned(pi, given.workers, given.intervals, time.perf_counter() - start)
    timer.cancel()
    words = f"π ≈ {pi:.15f} from {result.workers} spawned workers, in {result.seconds:.2f} s"
    print(json.dumps(asdict(result)) if given.json else words, flush=True)


if __name__ == "__main__":
    main()
