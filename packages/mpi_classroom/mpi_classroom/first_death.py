"""Which rank of a job on several hosts died, also where mpiexec names its neighbour.

A rank that dies closes its connections. Open MPI then aborts every rank that was connected to it, and mpiexec
reports only the end of which it learns first. Aborts are delayed (`layout.ABORT_SECONDS`), so it mostly
learns first of the rank that died; on a busy machine, sometimes of another:

    mpiexec's words                                          the rank that died
    rank 2 exited on signal 9                                rank 2
    MPI_ABORT was invoked, rank 2 calling "abort"            rank 2, which called Abort
    Socket closed, reported by rank 0, calling "abort"       the first of the others to end
    rank 0 calling "abort"                                   the first to end, which may be rank 0

The hosts know when their ranks ended. If the first two ended too close to each other to tell, both are named.
"""

import math
from collections.abc import Callable, Collection, Mapping

from mpi_classroom.job_output import read_deaths, unexplained_abort
from mpi_classroom.snapshot import Death

APART_SECONDS = 0.1  # a busy host may notice so late that a process has ended

Ends = Mapping[int, tuple[float, float]]  # by rank: it ended after the first time, and before the second
UNKNOWN = (-math.inf, math.inf)


def find_deaths(output: str, ask_ends: Callable[[], Ends | None]) -> list[Death]:
    """The ranks that died, from the `output` of mpiexec and of the ranks.

    `ask_ends` asks the hosts when their ranks ended, in seconds of one clock. It is called only if the output
    does not say who died. It returns None if a host does not answer; then the result is empty.
    """
    followers = unexplained_abort(output)
    if followers is None:
        return read_deaths(output)
    first = ended_first(ask_ends() or {}, followers)
    if len(first) > 1:
        return [Death(rank, "perhaps") for rank in first]
    aborted = [death for death in read_deaths(output) if death.rank in first]
    return aborted or [Death(rank, "first") for rank in first]


def ended_first(ends: Ends, followers: Collection[int]) -> list[int]:
    """The rank that ended first, or those of which one did; `followers` ended because others had."""
    counted = {rank: end for rank, end in ends.items() if rank not in followers}
    latest = min((before for _, before in counted.values()), default=0.0) + APART_SECONDS
    return sorted(rank for rank, (after, _) in counted.items() if after < latest)
