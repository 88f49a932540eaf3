"""Lesson 15's program under Slurm: before its time limit it saves, goes back into the queue, and goes on."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from course.paths import NOTEBOOKS
from mpi_classroom.launch import find_mpiexec
from mpi_classroom.network import Lab
from packages.mpi_classroom.tests.waiting import until

PROGRAM = NOTEBOOKS / "code" / "15_resume.py"
COMMAND = "mpiexec python -m mpi4py code/15_resume.py FOLDER"
SLOWLY = """
import runpy, sys, time
from pathlib import Path
mine = runpy.run_path(sys.argv[1])
for done, loss in mine["train"](Path(sys.argv[2], "training.pt")):
    if mine["comm"].rank == 0:
        print(f"step {done}, loss {loss:.6f}", flush=True)
    time.sleep(0.4)
"""


def batch_lines(training: str) -> str:
    """The batch script that the program's docstring gives, which runs `training` instead."""
    wrapped = re.search(r"--wrap '\n(.*?)'\n", PROGRAM.read_text(), re.DOTALL)
    assert wrapped and COMMAND in wrapped[1]
    return wrapped[1].replace(COMMAND, training)


@pytest.mark.parametrize(("training", "code"), [("true", 0), ("sh -c 'exit 3'", 3)])
def test_a_job_that_was_not_asked_to_stop_ends_as_its_training_did(training: str, code: int) -> None:
    assert subprocess.run(["bash", "-c", batch_lines(training)], check=False).returncode == code


@pytest.mark.slow
def test_a_job_that_is_asked_to_stop_saves_and_goes_on_from_that_step(slurm_lab: Lab, tmp_path: Path) -> None:
    (tmp_path / "slowly.py").write_text(SLOWLY)
    slowly = f"{find_mpiexec()} {sys.executable} {tmp_path / 'slowly.py'} {PROGRAM} {tmp_path}"
    (tmp_path / "job.sh").write_text(f"#!/bin/sh\n{batch_lines(slowly)}\n")
    out = tmp_path / "out"
    options = ["--parsable", "-n", "2", "--requeue", "--open-mode=append", f"--output={out}"]
    job = in_lab(slurm_lab, ["sbatch", *options, str(tmp_path / "job.sh")]).strip()
    until(lambda: "step 25," in said(out), 90)
    in_lab(slurm_lab, ["scancel", "--batch", "--signal=USR1", job])
    until(lambda: "step 60," in said(out), 120)
    steps = [int(each) for each in re.findall(r"^step (\d+)", said(out), re.MULTILINE)]
    assert steps == list(range(1, 61))  # no step was taken twice


def in_lab(lab: Lab, command: list[str]) -> str:
    """What the command prints on the lab's head."""
    done = subprocess.run(lab.on("head", command), env=lab.environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def said(out: Path) -> str:
    return out.read_text() if out.exists() else ""
