"""Measured rows: the same on every rank, of the slowest rank, from functions that take turns."""

import pickle
import subprocess
import sys
import time

import pytest
from mpi4py import MPI

from course_lib.measure import measure, timed
from course_lib.rows import Row, count, predicted, published


def test_functions_take_turns_after_a_warm_up(comm: MPI.Intracomm) -> None:
    calls: list[str] = []
    measure(comm, {"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, repeat=3, warm=2)
    assert calls == ["a", "a", "b", "b", *["a", "b"] * 3]


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
    (row,) = measure(comm, lambda: time.sleep(pause), repeat=2, warm=0)
    found = comm.allgather((row.low, timed(comm, lambda: time.sleep(pause), repeat=2)))
    assert all(low >= 0.02 and seconds >= 0.02 for low, seconds in found)  # sleep never returns early
    assert "way" not in row.labels


def test_the_median_is_neither_the_least_nor_the_greatest(comm: MPI.Intracomm) -> None:
    pauses = iter([0.0, 0.02, 0.2])
    (row,) = measure(comm, lambda: time.sleep(next(pauses)), repeat=3, warm=0)
    assert row.low < row.value < row.high


def test_nothing_to_measure_is_refused_on_every_rank(comm: MPI.Intracomm) -> None:
    with pytest.raises(ValueError, match="0 functions, 10 runs: pass at least one"):
        measure(comm, {})
    with pytest.raises(ValueError, match="1 functions, 0 runs"):
        measure(comm, lambda: None, repeat=0)


def test_rows_say_how_their_number_is_known() -> None:
    assert predicted(2.0, ranks=4) == Row({"ranks": 4}, 2.0, 2.0, 2.0, "s", "predicted")
    row = published(3.0, source="Li 2020", ranks=4)
    assert (row.kind, row["source"], row["ranks"]) == ("published", "Li 2020", 4)
    sent = count(8, unit="bytes", way="ring")
    assert pickle.loads(pickle.dumps(sent)) == sent and (sent.unit, sent.kind) == ("bytes", "counted")


def test_rows_are_read_without_mpi() -> None:
    program = "import sys, course_lib.rows; sys.exit('mpi4py' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], timeout=60).returncode == 0
