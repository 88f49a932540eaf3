"""The rows of `benchmarks/allreduce.py`: what is compared with what, and what the labels say."""

import json
import subprocess
import sys

import pytest

from benchmarks.allreduce import BETWEEN, COSTS, FITTED, PAIRS, SIZES, size_rows
from course.paths import ROOT
from mpi_classroom.launch import available_cores


def test_each_pair_is_a_row_whose_ratio_says_how_many_times_faster_ours_is():
    timings = {"ring": (1e-3, 1e-4), "MPI_Allreduce": (2e-3, 0.0), "Gloo": (5e-3, 0.0), "memcpy": (1e-4, 0.0)}
    rows = size_rows(1, 4096, timings)
    assert [round(row.ratio, 6) for row in rows] == [2, 5, 0.1]
    assert [(row.case, row.unit, row.better) for row in rows] == 3 * [
        ("all-reduce, ring, 4 KiB", "us", "lower")
    ]
    assert rows[0].ours == pytest.approx(1000) and rows[0].peer_name == "MPI_Allreduce, in place"


def test_no_predicted_size_nor_its_part_was_fitted():
    assert SIZES[0] == 4 and SIZES[-1] == 64 * 2**20
    assert not set(FITTED) & {size // ranks for size in BETWEEN for ranks in (1, 2, 4)}
    assert {mine for mine, *_ in PAIRS} == set(COSTS)


@pytest.mark.release
def test_the_benchmark_prints_json_alone_on_standard_output():
    command = [sys.executable, "-m", "benchmarks.allreduce", "--quick", "--json", "-"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert {row["ranks"] for row in rows} == {2, 4}
    assert all(row["ratio"] == pytest.approx(row["peer"] / row["ours"]) for row in rows)
    crowded = [row for row in rows if row["ranks"] > available_cores()]
    assert all(row["case"].endswith("oversubscribed") for row in crowded)
    assert sum("median of what it is off by" in row["case"] for row in rows) == 2
