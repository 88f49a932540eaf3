"""The files that start lesson 07's script on a cluster: what they do, tried without Slurm and Kubernetes."""

import os
import subprocess
from pathlib import Path

import pytest

from course.paths import NOTEBOOKS

CODE = NOTEBOOKS / "code"


@pytest.fixture
def submit(tmp_path: Path):
    """Runs the batch script as Slurm would, with an mpiexec that ends well, with or without weights."""

    def run(*, trains: bool, restarts: int) -> tuple[int, str]:
        tools = {
            "python3": "",
            "mpiexec": "mkdir -p run-7; touch run-7/weights.pt" if trains else "",
            "scontrol": "",
        }
        for name, script in tools.items():
            (tmp_path / name).write_text(f'#!/bin/sh\necho "{name} $*" >> said\n{script}\n')
            (tmp_path / name).chmod(0o755)
        slurm = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-4]", "SLURM_CPUS_PER_TASK": "1"}
        given = slurm | {"SLURM_RESTART_COUNT": str(restarts)} | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
        batch = ["bash", str(CODE / "train_mnist_ddp.sbatch"), "--epochs", "5"]
        done = subprocess.run(batch, env=given, cwd=tmp_path, capture_output=True, text=True, timeout=30)
        assert f"start {restarts + 1} of job 7 on n[1-4]" in done.stdout
        return done.returncode, (tmp_path / "said").read_text()

    return run


def test_a_job_that_has_its_weights_is_completed(submit):
    code, said = submit(trains=True, restarts=0)
    assert code == 0
    assert said.endswith("--checkpoint run-7/last.pt --save run-7/weights.pt --epochs 5\n")
    assert "scontrol" not in said


@pytest.mark.parametrize(("restarts", "requeued"), [(0, True), (2, True), (3, False)])
def test_a_job_without_weights_is_requeued_three_times_whatever_mpiexec_says(submit, restarts, requeued):
    code, said = submit(trains=False, restarts=restarts)
    assert code == 1
    assert ("scontrol requeue 7" in said) == requeued
