"""Spans of several ranks on one clock: the others wait for a slow rank for as long as it sleeps."""

import time
from dataclasses import replace

import numpy as np
import pytest
from mpi4py import MPI

from course_lib.comm import trace
from course_lib.comm.spans import Span, by_rank, totals
from course_lib.comm.trace import Recorder

ROUNDS = 10


def slow_round(comm: MPI.Intracomm, recorder: Recorder, slow: int) -> float:
    """One rank sleeps before a barrier; how long it really slept, on every rank."""
    comm.Barrier()
    before = time.perf_counter()
    with recorder.span("work"):
        time.sleep(0.3 if comm.rank == slow else 0.0)
        slept = time.perf_counter() - before
    with recorder.span("meet", kind="collective"):
        comm.Barrier()
    return comm.bcast(slept, root=slow)


def largest_miss(spans: list[Span], slow: int, slept: float) -> float:
    """How far the waits, and the slow rank's compute, are from what it slept; as a share of that."""
    seconds = totals(spans)
    waits = [mine["wait"] - (0 if rank == slow else slept) for rank, mine in seconds.items()]
    return max(abs(miss) for miss in (*waits, seconds[slow]["compute"] - slept)) / slept


@pytest.mark.parametrize("slow", [0, -1])
def test_the_others_wait_as_long_as_the_slow_rank_sleeps(comm: MPI.Intracomm, slow: int) -> None:
    """On a busy machine other ranks may come late too, for want of a core: one round of ten has to agree."""
    slow %= comm.size
    recorder, misses = Recorder(comm), []
    while len(misses) < ROUNDS and min(misses, default=1.0) >= 0.1:
        slept = slow_round(comm, recorder, slow)
        spans = recorder.gather()
        misses.append(comm.bcast(spans and largest_miss(spans, slow, slept)))
    assert min(misses) < 0.1, f"{misses}, clocks agree to {recorder.uncertainty} s"


def test_a_rank_that_is_said_to_compute_while_it_waits_would_be_caught(
    comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace, "split_collectives", lambda spans, uncertainty: as_transfer(spans))
    recorder, slow = Recorder(comm), comm.size - 1
    slept = slow_round(comm, recorder, slow)
    if spans := recorder.gather():
        assert (largest_miss(spans, slow, slept) > 0.9) == (comm.size > 1)


def as_transfer(spans: list[Span]) -> list[Span]:
    """Known wrong: all of a collective is transfer."""
    return [replace(span, kind="transfer") if span.kind == "collective" else span for span in spans]


def meet_often(comm: MPI.Intracomm, recorder: Recorder) -> list[list[Span]]:
    """Five barriers with pauses; of each, the waiting and transfer of all ranks, on rank 0."""
    for _ in range(5):
        time.sleep(0.05)
        with recorder.span("meet", kind="collective"):
            comm.Barrier()
    return list(by_rank(recorder.gather() or []).values())


def impossible(lanes: list[list[Span]]) -> list[float]:
    """By how many seconds a rank left each barrier before the last one came: above 0, clocks are wrong."""
    meetings = zip(*(meetings_of(lane) for lane in lanes), strict=True)
    return [max(start for start, _ in meeting) - min(end for _, end in meeting) for meeting in meetings]


def meetings_of(lane: list[Span]) -> list[tuple[float, float]]:
    """Start and end of each barrier of a rank: its waiting, if it had to, and its transfer."""
    ends = [span.end for span in lane if span.kind == "transfer"]
    starts = [span.start for span, before in zip(lane, [None, *lane], strict=False) if follows(span, before)]
    return list(zip(starts, ends, strict=True))


def follows(span: Span, before: Span | None) -> bool:
    return span.kind == "wait" or before is None or before.kind != "wait"


def test_clocks_that_differ_by_hours_and_drift_are_aligned(
    comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
) -> None:
    disturb_clock(comm, monkeypatch)
    recorder = Recorder(comm)
    lanes = meet_often(comm, recorder)
    assert all(early <= recorder.uncertainty for early in impossible(lanes))


def test_clocks_compared_only_before_would_be_caught(
    comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
) -> None:
    disturb_clock(comm, monkeypatch)
    monkeypatch.setattr(trace, "on_rank_0", lambda moments, before, _: np.array(moments) - before.ahead)
    recorder = Recorder(comm)
    lanes = meet_often(comm, recorder)
    if comm.rank == 0 and comm.size > 1:
        assert max(impossible(lanes)) > recorder.uncertainty


def disturb_clock(comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of rank r is r hours ahead and runs 5r % too fast."""
    real, faster = MPI.Wtime, 1 + 0.05 * comm.rank
    monkeypatch.setattr(MPI, "Wtime", lambda: 3600 * comm.rank + faster * real())


def test_collectives_that_not_all_recorded_are_named_on_all_ranks(comm: MPI.Intracomm) -> None:
    recorder, last = Recorder(comm), comm.size - 1
    for _ in range(1 if comm.rank == last else 2):
        with recorder.span("sum", kind="collective"):
            pass
    if comm.size > 1:
        told = f"rank {last} was 1 times in the collective 'sum', rank 0 2 times"
        with pytest.raises(ValueError, match=told):
            recorder.gather()
    with recorder.span("again"):
        pass
    spans = recorder.gather()
    assert spans is None or "again" in {span.name for span in spans}


def test_ranks_agree_on_how_uncertain_their_clocks_are(comm: MPI.Intracomm) -> None:
    recorder = Recorder(comm)
    recorder.gather()
    assert comm.allgather(recorder.uncertainty) == [recorder.uncertainty] * comm.size
    assert (recorder.uncertainty > 0) == (comm.size > 1)
