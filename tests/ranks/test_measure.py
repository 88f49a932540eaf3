"""Measured rows: the same on every rank, of the slowest rank, from functions that take turns."""

import time

import pytest
from mpi4py import MPI

from course_lib.measure import measure, timed


def test_functions_take_turns_after_a_warm_up(comm: MPI.Intracomm) -> None:
    calls: list[str] = []
    measure(comm, {"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, repeat=3)
    assert calls == ["a", "b"] * 4


def test_every_rank_gets_the_same_rows_with_all_labels(comm: MPI.Intracomm) -> None:
    rows = measure(comm, {"a": lambda: None, "b": lambda: None}, repeat=3, by="algorithm", bytes=8)
    assert comm.allgather(rows) == [rows] * comm.size
    assert [row.labels for row in rows] == [
        {"ranks": comm.size, "bytes": 8, "algorithm": name} for name in "ab"
    ]
    assert all(
        row.low <= row.value <= row.high and row.unit == "s" and row.kind == "measured" for row in rows
    )


def test_the_slowest_rank_counts(comm: MPI.Intracomm) -> None:
    pause = 0.02 if comm.rank == comm.size - 1 else 0.0
    (row,) = measure(comm, lambda: time.sleep(pause), repeat=2)
    found = comm.allgather((row.low, timed(comm, lambda: time.sleep(pause), repeat=2)))
    assert all(low >= 0.02 and seconds >= 0.02 for low, seconds in found)  # sleep never returns early
    assert "way" not in row.labels


def test_nothing_to_measure_is_refused_on_every_rank(comm: MPI.Intracomm) -> None:
    with pytest.raises(ValueError, match="0 functions, 10 runs: pass at least one"):
        measure(comm, {})
    with pytest.raises(ValueError, match="1 functions, 0 runs"):
        measure(comm, lambda: None, repeat=0)
