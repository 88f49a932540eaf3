"""A barrier that knows who is missing.

Every rank reports to rank 0, which waits until the deadline and then tells the ranks that came which did
not. A rank that gives up withdraws its report; a verdict that comes too late has the number of an old
report. `roll_call` does the same before there is a communicator, through torch's store.
"""

import time
from collections.abc import Sequence
from datetime import timedelta

import torch.distributed as dist
from mpi4py import MPI

from .announce import OWN_TIMEOUT_SECONDS, WAIT_BEGAN, WAIT_ENDED, tell, wait_for_ranks
from .channel import Channel
from .errors import CollectiveTimeoutError

GONE = 0  # in place of a report's number
REPORT, VERDICT = 2, 3  # tags on the group's own communicator


def monitored_barrier(channel: Channel, seconds: float, wait_all_ranks: bool) -> None:
    """Return when all ranks have called it; CollectiveTimeoutError, naming the missing, after `seconds`.

    The errors are worded as Gloo's, which scripts look for.
    """
    channel.check_open()
    try:
        pass_barrier(channel, seconds, wait_all_ranks)
    except CollectiveTimeoutError:
        raise
    except BaseException as error:  # an interrupt, say: nobody can tell which reports are still under way
        raise channel.failure(error, lambda: "monitored_barrier") from None


def pass_barrier(channel: Channel, seconds: float, wait_all_ranks: bool) -> None:
    if channel.rank != 0:
        report(channel, seconds)
        return
    here = collect(channel, seconds)
    missing = sorted(set(range(1, channel.size)) - set(here))
    for rank, number in here.items():
        channel.comm.send((number, missing), rank, VERDICT)
    if not missing:
        return
    if seconds <= 0:
        raise CollectiveTimeoutError("Rank 0 timed out in monitoredBarrier after 0 ms")
    plural, named = ("s", missing) if wait_all_ranks and len(missing) > 1 else ("", missing[:1])
    raise CollectiveTimeoutError(
        f"Rank{plural} {listed(named)} failed to pass monitoredBarrier in {1000 * seconds:.0f} ms"
    )


def report(channel: Channel, seconds: float) -> None:
    """Report to rank 0 and wait for its verdict; CollectiveTimeoutError if a rank is missing."""
    comm = channel.comm
    channel.reports += 1
    comm.send(channel.reports, 0, REPORT)
    deadline = time.monotonic() + 1.5 * seconds + 1  # rank 0 may have begun to wait later, and speaks first
    told, missing = 0, [0]
    while told != channel.reports and wait_for_ranks(
        lambda: comm.Iprobe(0, VERDICT), deadline - time.monotonic()
    ):
        told, missing = comm.recv(source=0, tag=VERDICT)
    if told != channel.reports:
        comm.send(GONE, 0, REPORT)
        missing = [0]
    if missing:
        raise CollectiveTimeoutError(
            f"Rank {channel.rank} successfully reached monitoredBarrier, but received errors while waiting "
            f"for send/recv from rank 0: rank {listed(missing)} did not come within {seconds:g} s"
        )


def collect(channel: Channel, seconds: float) -> dict[int, int]:
    """Return, at rank 0, the ranks that report within `seconds`, each with the number of its report."""
    here: dict[int, int] = {}
    deadline = time.monotonic() + seconds
    while len(here) < channel.size - 1:
        if not wait_for_ranks(
            lambda: channel.comm.Iprobe(MPI.ANY_SOURCE, REPORT), deadline - time.monotonic()
        ):
            break
        status = MPI.Status()
        number = channel.comm.recv(source=MPI.ANY_SOURCE, tag=REPORT, status=status)
        here[status.source] = number
        if number == GONE:
            del here[status.source]
    return here


def roll_call(store: dist.Store, number: int, ranks: Sequence[int], me: int, seconds: float) -> None:
    """Return when all `ranks` have called new_group for the `number`-th time.

    Raises CollectiveTimeoutError, which names the missing, after `seconds`.

    MPI has no deadline for making a communicator. The first to be sure of the outcome says it for all: who
    comes late finds that it was given up, and does not wait for those who left.
    """
    name = f"new_group of ranks {list(ranks)}"
    keys = {rank: f"{name}, {number}: rank {rank}" for rank in ranks}
    store.set(keys[me], "here")
    try:
        if seconds > OWN_TIMEOUT_SECONDS:
            tell(WAIT_BEGAN)
        store.wait(list(keys.values()), timedelta(seconds=seconds))
        outcome = "complete"
    except RuntimeError:  # each kind of store has its own words for a timeout
        missing = [rank for rank, key in keys.items() if not store.check([key])]
        if not missing:
            raise
        outcome = f"rank {listed(missing)} did not come within {seconds:g} s"
    finally:
        tell(WAIT_ENDED)
    said = store.compare_set(f"{name}, {number}: outcome", "", outcome).decode()
    if said != "complete":
        raise CollectiveTimeoutError(f"{name}: {said}")


def listed(ranks: list[int]) -> str:
    return ", ".join(map(str, ranks))
