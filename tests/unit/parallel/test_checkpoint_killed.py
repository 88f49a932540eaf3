"""A training is killed at random instants, again and again; it always goes on from a whole checkpoint."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from mpi4py import MPI

from course.paths import ROOT
from course_lib.parallel.checkpoint_folder import SAVING
from mpi_classroom.launch import end_job, mpiexec_command, rank_environment
from tests.unit.parallel.killed_training import build, optimizer_for, train_step

DEADLINE, STEPS = 180.0, 100_000
KILLS = int(os.environ.get("CHECKPOINT_KILLS", "5"))  # 200 before a release
LONGEST = 0.15  # seconds from a resume to the kill, beyond some steps


class Killed:
    """A training in a folder, job after job."""

    def __init__(self, folder: Path, stage: int, rng: random.Random) -> None:
        self.folder, self.stage, self.rng = folder, stage, rng
        self.log = folder.with_name("log")
        self.log.touch()
        self.hits = 0  # kills that left a checkpoint half written
        self.saved = 0

    def run(self, ranks: int, *, steps: int = STEPS, kill: str = "") -> list[dict[str, Any]]:
        """What a job tells until it ends: by itself, or when the whole of it or one rank is killed."""
        start = self.log.stat().st_size
        module = "tests.unit.parallel.killed_training"
        task = [str(self.folder), str(self.log), str(self.stage), str(steps)]
        environment = {**rank_environment(ranks), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        command = mpiexec_command(ranks, [sys.executable, "-m", "mpi4py", "-m", module, *task])
        with open(self.log.with_name("output"), "wb") as output:
            job = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
        try:
            if kill:
                self.kill(job, kill, start)
            code = job.wait(DEADLINE)  # a rank that is left must not hang
        finally:
            end_job(job)
        assert (code != 0) == bool(kill), self.log.with_name("output").read_text()
        self.hits += (self.folder / SAVING).exists()
        return self.check(self.told(start))

    def kill(self, job: "subprocess.Popen[bytes]", whom: str, start: int) -> None:
        """After some steps, at any instant: all processes of the job, or one of its ranks."""
        steps, end = self.rng.randrange(1, 9), time.monotonic() + DEADLINE
        while sum("step" in line for line in self.told(start)) < steps:
            assert job.poll() is None and time.monotonic() < end, self.log.with_name("output").read_text()
            time.sleep(0.002)
        time.sleep(self.rng.uniform(0, LONGEST))
        ranks = [line["pid"] for line in self.told(start) if "pid" in line]
        for pid in [self.rng.choice(ranks)] if whom == "one rank" else [*ranks, job.pid]:
            os.kill(pid, signal.SIGKILL)

    def told(self, start: int) -> list[dict[str, Any]]:
        """The whole lines since `start`."""
        with self.log.open("rb") as file:
            file.seek(start)
            return [json.loads(line) for line in file.read().splitlines(keepends=True) if line[-1:] == b"\n"]

    def check(self, lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """A job goes on from a whole checkpoint, the last that was saved or one that was about to be."""
        resumed = next(line for line in lines if "resumed" in line)
        assert resumed["refused"] == []
        assert resumed["resumed"] >= self.saved
        self.saved = max([resumed["resumed"], *(line["saved"] for line in lines if "saved" in line)])
        return lines


def losses(lines: Sequence[dict[str, Any]]) -> dict[int, float]:
    return {line["step"]: float.fromhex(line["loss"]) for line in lines if "step" in line}


def alone(stage: int, steps: int) -> list[float]:
    """The losses of one process that is never interrupted."""
    model = build(stage)
    optimizer = optimizer_for(MPI.COMM_SELF, model, stage)
    return [train_step(MPI.COMM_SELF, model, optimizer, step) for step in range(steps)]


def chain(tmp_path: Path, stage: int, kills: Sequence[tuple[int, str]], seed: int) -> Killed:
    """Kill a training as `kills` says, on so many ranks each: all losses are those of one process.

    Steps that are taken twice on as many ranks, before a kill and after it, have the same losses to the bit.
    """
    training = Killed(tmp_path / "checkpoints", stage, random.Random(seed))
    found = [(ranks, losses(training.run(ranks, kill=whom))) for ranks, whom in kills]
    last = max(max(each) for _, each in found) + 2
    found.append((kills[-1][0], losses(training.run(kills[-1][0], steps=last + 1))))
    expected = alone(stage, last + 1)
    for _, each in found:
        assert each == pytest.approx({step: expected[step] for step in each}, rel=0, abs=1e-12)
    for (ranks, before), (others, after) in pairwise(found):
        if ranks == others:
            assert all(after[step] == loss for step, loss in before.items() if step in after)
    return training


ALL, ONE = "the job", "one rank"


@pytest.mark.slow
@pytest.mark.timeout(60 * KILLS)
def test_many_kills(tmp_path: Path) -> None:
    """On one to four ranks, five kills per training; all stages. CHECKPOINT_KILLS says how many."""
    rng, hits = random.Random(0), 0
    for seed in range(-(-KILLS // 5)):
        counts = [2] * 5 if seed % 2 else [rng.randrange(1, 5) for _ in range(5)]
        kills = [(ranks, rng.choice([ALL, ONE])) for ranks in counts]
        folder = tmp_path / str(seed)
        folder.mkdir()
        hits += chain(folder, seed % 4, kills, seed).hits
    assert hits > 0  # else nothing was killed while it saved
