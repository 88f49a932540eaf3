"""The rows of `benchmarks/tensor_parallel.py`, and that contenders who disagree are not timed."""

import json
import subprocess
import sys

import pytest

from benchmarks.tensor_parallel import (
    GLOO,
    MPI4PY,
    OURS,
    must_agree,
)
from course.paths import ROOT


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
