"""The GPU day: every part has a row, a deadline and, where it has no number, a reason."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import gpu
from benchmarks.gpu import Part
from course.paths import ROOT

FIRST = 'gpu row: {"labels": {"case": "a"}, "value": 1.0, "low": 1.0, "high": 2.0}'


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """What the processes of a part do: `job["does"]` is returned, or raised."""
    job: dict[str, object] = {}

    def run(ranks: int, command: list[str], **how: object) -> object:
        job.update(ranks=ranks, command=command)
        if isinstance(job["does"], Exception):
            raise job["does"]
        return job["does"]

    monkeypatch.setattr(gpu, "run_ranks", run)
    return job


def ended(code: int, out: str = "", errors: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.CompletedProcess([], code, out, errors)


def test_a_part_that_is_not_done_in_time_keeps_the_rows_that_it_has_printed(job: dict[str, object]) -> None:
    job["does"] = subprocess.TimeoutExpired("mpiexec", 7, output=f"{FIRST}\n{FIRST[:40]}".encode())
    first, last = gpu.measure(Part("staged", 2), "cuda", False, 7)
    assert first.value == 1 and first["case"] == "a"
    assert math.isnan(last.value) and last["reason"] == "not done after 7 s"
    assert job["ranks"] == 2


def test_a_part_that_fails_has_a_row_with_the_name_of_the_error(job: dict[str, object]) -> None:
    errors = "Traceback …\nRuntimeError: CUDA error: no kernel image\nprte: job 1\nErrorcode: 1\n"
    job["does"] = ended(1, FIRST, errors)
    assert [row.labels for row in gpu.measure(Part("memory"), "cuda", False, 7)] == [
        {"case": "a"},
        {"reason": "RuntimeError: CUDA error: no kernel image"},
    ]
    job["does"] = ended(0)
    assert gpu.measure(Part("memory"), "cuda", False, 7)[0]["reason"] == "it printed nothing"


@pytest.mark.release
@pytest.mark.timeout(420)
def test_on_a_cpu_every_part_has_rows_and_only_those_without_a_gpu_have_no_number(tmp_path: Path) -> None:
    out = tmp_path / "gpu.json"
    line = [sys.executable, "-m", "benchmarks.gpu", "--device", "cpu", "--small", "--minutes", "6"]
    subprocess.run([*line, "--out", str(out)], cwd=ROOT, check=True, timeout=400)
    rows = json.loads(out.read_text())["rows"]
    assert {row["part"] for row in rows} == {part.title for part in gpu.parts_for(0)}
    reasons = {row["part"]: row["labels"]["reason"] for row in rows if "reason" in row["labels"]}
    late = {part for part, reason in reasons.items() if reason.startswith("not done after")}
    assert set(reasons) - late == {"nccl", "sharing on 2 with MPS", "sharing on 4 with MPS"} - late
