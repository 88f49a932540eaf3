"""The rows of `benchmarks/allreduce.py`: what is compared with what, and what the labels say."""

import json
import subprocess
import sys

import pytest

from benchmarks.allreduce import BETWEEN, COSTS, FITTED, PAIRS, SIZES, label, model_rows, say_bytes, size_rows
from course.lessons.l04_collectives.reference import (
    Reference,
    all_reduces,
    misses,
    ratios,
    say_alike,
    say_closest,
    table,
)
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


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("peer", ["the model's prediction", "MPI_Allreduce, in place"])
def test_lesson_04_finds_its_rows_in_the_committed_results(ranks, peer):
    times = all_reduces(ranks, peer)
    first = min(times["ring"])
    assert ratios(times)[first] == times["doubling"][first].ours / times["ring"][first].ours
    lines = table("a title", times, [first], "peer").splitlines()
    assert lines[0] == "a title" and lines[1].split() == ["µs", "ring", "(peer)", "doubling", "(peer)"]
    assert lines[2].startswith(f"{label('', 1, first).removeprefix(', '):>8}") and len(lines) == 3


TIMES = {
    "ring": {4: Reference(10.0, 5.0), 16: Reference(20.0, 20.0)},
    "doubling": {4: Reference(5.0, 5.0), 16: Reference(22.0, 11.0)},
}


def test_a_table_without_a_peer_has_the_ratio_of_the_two():
    lines = table("a title", TIMES, [4, 16]).splitlines()
    assert [line.split() for line in lines[1:]] == [
        ["µs", "ring", "doubling", "ratio"],
        ["4", "B", "10", "5", "0.50"],
        ["16", "B", "20", "22", "1.10"],
    ]
    assert len({len(line) for line in lines[1:]}) == 1


def test_where_the_two_are_closest_and_how_far_each_is_off():
    assert say_closest(TIMES) == "closest at 16 B, ring 20 µs and doubling 22 µs"
    assert misses(TIMES) == {"ring": {4: 2.0, 16: 1.0}, "doubling": {4: 1.0, 16: 2.0}}


def test_at_how_many_sizes_the_two_take_nearly_the_same_time():
    assert say_alike(TIMES) == "ring and doubling differ by less than 15% at 1 of 2 sizes"
