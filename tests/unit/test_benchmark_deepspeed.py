"""The benchmarks of DeepSpeed: what their rows say, and that they run."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks import deepspeed, deepspeed_cifar
from course.paths import ROOT
from course_lib.data.dataset import Dataset


def test_bytes_stand_beside_stage_0_and_beside_the_formula() -> None:
    one = {"keeps": 16.0, "sends": 8.0, "keeps, formula": 16.0, "sends, formula": 8.0}
    rows = deepspeed.byte_rows({"0": one, "2": one | {"keeps": 4.0}}, layers=2)
    assert [(r.peer_name, r.ratio) for r in rows if "ZeRO-2" in r.case and "keeps" in r.case] == [
        ("stage 0", 4),
        ("the formula", 4),
    ]
    assert all(r.unit == "bytes" and r.better == "lower" for r in rows)


def a_curve(**changes: object) -> dict[str, object]:
    return {
        "data": "CIFAR-10, 40000 images",
        "epochs": 6,
        "seed": 0,
        "validation": [50.0, 62.0],
        "test": 61.0,
        "cpu_seconds": 10.0,
    } | changes


def test_each_seed_has_rows_and_each_kind_of_row_a_mean() -> None:
    rows = [
        each
        for seed, right in ((1, 62.0), (0, 60.0))
        for each in deepspeed_cifar.seed_rows(
            a_curve(seed=seed, validation=[right]), a_curve(seed=seed, cpu_seconds=20.0)
        )
    ]
    rows = deepspeed_cifar.with_means(rows)
    means = {each.case: each for each in rows if each.case.startswith(deepspeed_cifar.MEAN)}
    assert [each.case.split(", ")[-2] for each in rows[:3]] == ["seed 0"] * 3 and len(rows) == 9
    validation = means["mean over the seeds, validation"]
    assert (validation.ours, validation.ours_spread, validation.better) == (61.0, 2.0, "higher")
    assert means["mean over the seeds, CPU time per rank"].ratio == 2.0
    assert deepspeed_cifar.with_means(rows) == rows
    without = deepspeed_cifar.seed_rows(a_curve(test=None), a_curve(test=None))
    assert [deepspeed_cifar.kind_of(each) for each in without] == ["validation", "CPU time per rank"]


def test_curves_are_saved_beside_the_rows(tmp_path: Path) -> None:
    path, curves = tmp_path / "x.json", [a_curve(), a_curve(seed=1)]
    deepspeed_cifar.save_curves(path, curves)
    assert deepspeed_cifar.read_json(tmp_path / "x.curves.json") == curves
    assert deepspeed_cifar.read_json(tmp_path / "none.json") == []
    assert deepspeed_cifar.means([1.0, 3.0, 5.0], 2) == [2.0, 5.0]


def images(count: int, first: int) -> tuple[np.ndarray, np.ndarray]:
    numbers = np.arange(first, first + count)
    return np.broadcast_to((numbers % 251)[:, None, None, None], (count, 3, 32, 32)).astype(np.uint8), numbers


@pytest.mark.parametrize("complete", (True, False))
def test_the_fifth_batch_validates_and_the_test_images_are_apart(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, complete: bool
) -> None:
    """Whether CIFAR-10 is there with its test batch or without: then a file has the test images."""
    train = 5 if complete else 4
    data = Dataset("CIFAR-10", True, *images(train * 10, 0), *images(10, train * 10))
    monkeypatch.setattr(deepspeed_cifar, "FIFTH", 10)
    monkeypatch.setattr("course_lib.data.cifar10.load_cifar10", lambda: data)
    found = deepspeed_cifar.the_images(None, None, None)
    assert found.data.train_labels.tolist() == list(range(40))
    assert found.data.test_labels.tolist() == list(range(40, 50))
    assert (found.test.test_labels.tolist() if found.test else None) == (
        list(range(50, 60)) if complete else None
    )
    file = tmp_path / "more.bin"
    file.write_bytes(bytes([7]) + bytes(3072))
    found = deepspeed_cifar.the_images(20, 5, str(file))
    assert found.test is not None and found.test.test_labels.tolist() == [7]
    assert len(found.data.train_labels) == 20 and found.data.test_labels.tolist() == list(range(40, 45))


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("deepspeed", marks=pytest.mark.release),
        pytest.param("deepspeed_cifar", marks=pytest.mark.release),
    ],
)
def test_the_benchmark_prints_json_alone_on_standard_output(name: str) -> None:
    command = [sys.executable, "-m", f"benchmarks.{name}", "--quick", "--json", "-"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-2000:]
    assert all(each["ratio"] > 0 for each in json.loads(done.stdout))
