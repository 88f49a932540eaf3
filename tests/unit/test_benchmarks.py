"""The benchmarks' protocol: who runs when, what a ratio means, and what is saved."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from mpi4py import MPI

from benchmarks import harness, torch_mpi, torch_mpi_races, zero
from benchmarks.allreduce import size_rows
from benchmarks.harness import Row, Timing, on_ranks, row, time_alternately
from course.paths import ROOT

KEYS = {"case", "ranks", "ours", "peer", "peer_name", "ratio", "unit", "better"}


def greet(comm: MPI.Intracomm, name: str) -> dict[str, object]:
    return {"name": name, "sum": comm.allreduce(comm.rank)}


def fail(comm: MPI.Intracomm) -> None:
    raise ValueError(f"rank {comm.rank} has had enough")


def test_a_ratio_above_one_means_ours_is_better_whatever_the_unit():
    fast, slow = Timing(1.0, 0.1), Timing(4.0, 0.2)
    assert row("seconds", 1, fast, slow, "peer", unit="s").ratio == 4
    assert row("rate", 1, slow, fast, "peer", unit="GB/s").ratio == 4


def test_contenders_that_train_something_else_are_not_timed():
    zero.must_agree({"own 1": [5.0, 4.0], "peer": [5.0, 4.0001]})
    with pytest.raises(RuntimeError, match=r"peer .*one of us is wrong"):
        zero.must_agree({"own 1": [5.0, 4.0], "peer": [5.0, 4.01]})


def test_contenders_take_turns_after_a_warm_up():
    calls: list[str] = []
    timings = time_alternately(
        MPI.COMM_SELF,
        {"ours": lambda: calls.append("ours"), "peer": lambda: calls.append("peer")},
        repetitions=3,
    )
    assert calls == ["ours", "peer"] * 4
    assert set(timings) == {"ours", "peer"}


def test_each_pair_is_a_row_whose_ratio_says_how_many_times_faster_ours_is():
    timings = {"ring": (1e-3, 1e-4), "MPI_Allreduce": (2e-3, 0.0), "Gloo": (5e-3, 0.0), "memcpy": (1e-4, 0.0)}
    rows = size_rows(1, 4096, timings)
    assert [round(row.ratio, 6) for row in rows] == [2, 5, 0.1]
    assert [(row.case, row.unit, row.better) for row in rows] == 3 * [
        ("all-reduce, ring, 4 KiB", "us", "lower")
    ]
    assert rows[0].ours == pytest.approx(1000) and rows[0].peer_name == "MPI_Allreduce, in place"


def test_a_timing_is_the_median_and_the_spread():
    assert Timing.of([5.0, 1.0, 2.0]) == Timing(2.0, 4.0)
    assert Timing(2.0, 4.0).times(10) == Timing(20.0, 40.0)


def test_on_ranks_returns_what_rank_zero_returned():
    assert on_ranks(2, greet, name="Ada", timeout=60) == {"name": "Ada", "sum": 1}


def test_on_ranks_raises_with_the_ranks_own_words():
    with pytest.raises(RuntimeError, match=r"ValueError: rank \d has had enough"):
        on_ranks(2, fail, timeout=60)


def test_rows_are_saved_with_the_machine_and_the_command_beside_them(tmp_path: Path):
    rows = [row("case", 2, Timing(1, 0), Timing(2, 0), "peer")]
    harness.save(tmp_path / "results" / "x.json", rows, {"command": "python -m benchmarks.x"})
    saved = json.loads((tmp_path / "results" / "x.json").read_text())
    assert saved == [{name: getattr(rows[0], name) for name in Row.__slots__}]
    assert (
        json.loads((tmp_path / "results" / "x.machine.json").read_text())["command"]
        == "python -m benchmarks.x"
    )


@pytest.mark.release
@pytest.mark.parametrize(
    "name",
    [
        *("allreduce", "classroom", "deepspeed", "deepspeed_cifar", "pi", "pipeline"),
        *("spatial", "synthetic", "tensor_parallel", "zero"),
    ],
)
def test_a_benchmark_runs_and_prints_json_alone_on_standard_output(name: str) -> None:
    command = [sys.executable, "-m", f"benchmarks.{name}", "--quick", "--json", "-"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert rows and all(set(row) >= KEYS and row["ratio"] > 0 for row in rows)
    faster = {"lower": lambda row: row["peer"] / row["ours"], "higher": lambda row: row["ours"] / row["peer"]}
    assert all(row["ratio"] == pytest.approx(faster[row["better"]](row)) for row in rows)


@pytest.mark.release
def test_the_torch_benchmark_races_every_collective_over_both_backends():
    raced = on_ranks(2, torch_mpi_races.race_collectives, timeout=200, sizes=[4, 4096], rounds=1)
    rows = torch_mpi.collective_rows(raced)
    assert [r.case for r in rows if not r.case.endswith("4 KiB")] == [
        *(f"{name}, 4 B" for name in raced if name != "barrier"),
        "barrier",
    ]
    assert len(rows) == 23
    assert all((r.peer_name, r.unit, r.better) == ("Gloo", "us", "lower") for r in rows)
    assert all(r.ours > 0 and r.peer > 0 for r in rows)
