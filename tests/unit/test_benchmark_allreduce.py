"""The rows of `benchmarks/allreduce.py`: what is compared with what, and what the labels say."""

import json
import subprocess
import sys

import pytest

from benchmarks.allreduce import BETWEEN, COSTS, FITTED, PAIRS, SIZES, label, model_rows, say_bytes, size_rows
from course.paths import ROOT
from mpi_classroom.launch import available_cores

CROWD = available_cores() + 1


def test_each_pair_is_a_row_whose_ratio_says_how_many_times_faster_ours_is():
    timings = {"ring": (1e-3, 1e-4), "MPI_Allreduce": (2e-3, 0.0), "Gloo": (5e-3, 0.0), "memcpy": (1e-4, 0.0)}
    rows = size_rows(1, 4096, timings)
    assert [round(row.ratio, 6) for row in rows] == [2, 5, 0.1]
    assert [(row.case, row.unit, row.better) for row in rows] == 3 * [
        ("all-reduce, ring, 4 KiB", "us", "lower")
    ]
    assert rows[0].ours == pytest.approx(1000) and rows[0].peer_name == "MPI_Allreduce, in place"


def test_what_the_model_is_off_by_is_counted_over_sizes_and_collectives():
    predicted = {"12": {"ring": (1.0, 0.0, 1.1), "tree": (1.0, 0.0, 0.5)}, "48": {"ring": (1.0, 0.0, 1.2)}}
    *each, off = model_rows(1, predicted)
    assert [row.ratio for row in each] == pytest.approx([1.1, 0.5, 1.2])
    assert off.ours == pytest.approx(20) and off.peer == 35 and off.better == "lower"
    assert off.ratio == pytest.approx(35 / 20)


def test_rows_of_more_ranks_than_cores_say_that_they_are_oversubscribed():
    assert label("ring", 1, 4 * 2**20) == "ring, 4 MiB"
    assert label("ring", CROWD, 12) == "ring, 12 B, oversubscribed"
    assert [say_bytes(n) for n in (4, 1024, 3 * 2**18)] == ["4 B", "1 KiB", "768 KiB"]


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
