"""The rows of `benchmarks/tensor_parallel.py`, and that contenders who disagree are not timed."""

import json
import subprocess
import sys

import pytest

from benchmarks.tensor_parallel import (
    GLOO,
    LENGTH,
    MPI4PY,
    OURS,
    SEQUENCE,
    SEQUENCES,
    WIDTH,
    must_agree,
    rows,
)
from course.paths import ROOT


def test_ours_stands_beside_each_of_dtensors():
    raced = {OURS: [0.1, 0.01], SEQUENCE: [0.2, 0.01], GLOO: [0.3, 0.02], MPI4PY: [0.4, 0.02]}
    found = rows(raced, 8)
    assert [(row.peer_name, round(row.ratio, 6)) for row in found] == [
        (GLOO, 3),
        (MPI4PY, 4),
        (GLOO, 1.5),
        (MPI4PY, 2),
    ]
    assert all(row.unit == "ms" and row.better == "lower" and row.ranks == 2 for row in found)
    assert found[0].ours == pytest.approx(100) and "width 512, length 128, batch 8" in found[0].case


def test_the_model_is_the_one_that_is_promised():
    assert (WIDTH, LENGTH, SEQUENCES) == (512, 128, 8)


def test_contenders_that_train_another_model_are_not_timed():
    must_agree({OURS: [5.0, 4.0], GLOO: [5.0, 4.0001]})
    with pytest.raises(RuntimeError, match="one of us is wrong"):
        must_agree({OURS: [5.0, 4.0], GLOO: [5.0, 4.1]})


@pytest.mark.release
def test_the_benchmark_prints_json_alone_on_standard_output():
    command = [sys.executable, "-m", "benchmarks.tensor_parallel", "--quick", "--json", "-"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert {row["peer_name"] for row in found} == {GLOO, MPI4PY}
    assert all(row["ratio"] == pytest.approx(row["peer"] / row["ours"]) for row in found)
