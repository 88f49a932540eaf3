"""The GPU day: every part has a row, a deadline and, where it has no number, a reason."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import gpu, gpu_parts
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


def test_without_the_service_for_sharing_its_parts_say_so(
    job: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu.shutil, "which", lambda name: None)
    (row,) = gpu.measure(Part("sharing", 2, mps=True), "cuda", False, 7)
    assert row["reason"] == "nvidia-cuda-mps-control is not installed; it comes with NVIDIA's driver"


def test_every_part_can_be_called_and_sharing_is_measured_on_one_two_and_four() -> None:
    parts = gpu.parts_for(2)
    assert {part.name for part in parts if not part.script} == set(gpu_parts.PARTS)
    assert all((gpu.CODE / part.script[0]).is_file() for part in parts if part.script)
    assert [p.title for p in parts if p.name == "sharing"] == [
        "sharing",
        *["sharing on 2", "sharing on 4", "sharing on 2 with MPS", "sharing on 4 with MPS"],
    ]
    assert [p.ranks for p in parts if p.name == "nccl"] == [2]


def test_the_network_is_resnet_50() -> None:
    assert sum(weight.numel() for weight in gpu_parts.resnet50().parameters()) == 25_557_032


def test_without_a_gpu_the_command_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "number_of_gpus", lambda: 0)
    with pytest.raises(SystemExit, match="PyTorch sees no GPU"):
        gpu.main([])


@pytest.mark.slow
@pytest.mark.timeout(420)
def test_on_a_cpu_every_part_has_rows_and_only_those_without_a_gpu_have_no_number(tmp_path: Path) -> None:
    out = tmp_path / "gpu.json"
    line = [sys.executable, "-m", "benchmarks.gpu", "--device", "cpu", "--small", "--minutes", "6"]
    subprocess.run([*line, "--out", str(out)], cwd=ROOT, check=True, timeout=400)
    rows = json.loads(out.read_text())["rows"]
    assert {row["part"] for row in rows} == {part.title for part in gpu.parts_for(0)}
    reasons = {row["part"]: row["labels"]["reason"] for row in rows if "reason" in row["labels"]}
    late = {part for part, reason in reasons.items() if reason.startswith("not done after")}
    assert set(reasons) - late == {"nccl", "sharing on 2 with MPS", "sharing on 4 with MPS"}
