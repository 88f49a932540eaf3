"""The benchmarks' protocol: who runs when, what a ratio means, and what is saved."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from mpi4py import MPI

from benchmarks import harness, torch_mpi, torch_mpi_races
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
    assert (
        row("s", 1, fast, slow, "", unit="s").better,
        row("r", 1, slow, fast, "", unit="GB/s").better,
    ) == (
        "lower",
        "higher",
    )


def test_contenders_take_turns_after_a_warm_up():
    calls: list[str] = []
    timings = time_alternately(
        MPI.COMM_SELF,
        {"ours": lambda: calls.append("ours"), "peer": lambda: calls.append("peer")},
        repetitions=3,
    )
    assert calls == ["ours", "peer"] * 4
    assert set(timings) == {"ours", "peer"}


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
    assert saved == [dict(zip(Row.__slots__, vars_of(rows[0]), strict=True))]
    assert (
        json.loads((tmp_path / "results" / "x.machine.json").read_text())["command"]
        == "python -m benchmarks.x"
    )


def vars_of(a_row: Row) -> list[object]:
    return [getattr(a_row, name) for name in Row.__slots__]


@pytest.mark.release
def test_the_pi_benchmark_prints_json_alone_on_standard_output():
    command = [sys.executable, "-m", "benchmarks.pi", "--quick", "--json", "-"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert [r["ranks"] for r in rows] == [1, 2, 2] * 3 + [2]
    assert all(set(r) >= KEYS for r in rows)
    assert all(r["ratio"] == pytest.approx(r["peer"] / r["ours"]) for r in rows)
    assert "NumPy's share" in done.stderr


@pytest.mark.release
@pytest.mark.parametrize("name", ["classroom", "data_parallel", "pipeline", "spatial", "synthetic", "zero"])
def test_a_benchmark_runs_and_prints_json_alone_on_standard_output(name: str) -> None:
    command = [sys.executable, "-m", f"benchmarks.{name}", "--quick", "--json", "-"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert rows and all(set(row) >= KEYS and row["ratio"] > 0 for row in rows)


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
