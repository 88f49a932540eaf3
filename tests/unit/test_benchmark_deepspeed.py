"""The benchmarks of DeepSpeed: what their rows say, and that they run."""

import json
import subprocess
import sys

import pytest

from benchmarks import deepspeed, deepspeed_cifar
from course.paths import ROOT


def test_bytes_stand_beside_stage_0_and_beside_the_formula() -> None:
    one = {"keeps": 16.0, "sends": 8.0, "keeps, formula": 16.0, "sends, formula": 8.0}
    rows = deepspeed.byte_rows({"0": one, "2": one | {"keeps": 4.0}}, layers=2)
    assert [(r.peer_name, r.ratio) for r in rows if "ZeRO-2" in r.case and "keeps" in r.case] == [
        ("stage 0", 4),
        ("the formula", 4),
    ]
    assert all(r.unit == "bytes" and r.better == "lower" for r in rows)


def test_rows_of_other_seeds_stay_and_the_mean_is_of_all(tmp_path) -> None:
    row = deepspeed_cifar.a_row
    rows = deepspeed_cifar.with_mean([row("seed 1", 62.0, 60.0), row("seed 0", 60.0, 61.0)])
    assert [each.case for each in rows] == ["seed 0", "seed 1", deepspeed_cifar.MEAN]
    assert rows[-1].ours == 61.0 and rows[-1].ours_spread == 2.0 and rows[-1].better == "higher"
    assert deepspeed_cifar.with_mean(rows) == rows
    deepspeed_cifar.save(tmp_path / "rows.json", rows, {})
    assert deepspeed_cifar.rows_in(tmp_path / "rows.json") == rows
    assert deepspeed_cifar.rows_in(tmp_path / "none.json") == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ("deepspeed", "deepspeed_cifar"))
def test_the_benchmark_prints_json_alone_on_standard_output(name: str) -> None:
    command = [sys.executable, "-m", f"benchmarks.{name}", "--quick", "--json", "-"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-2000:]
    assert all(each["ratio"] > 0 for each in json.loads(done.stdout))
