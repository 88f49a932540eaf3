"""Spawned workers: the pair of programs that lesson 03 writes adds up what one process does."""

import subprocess
import sys
from pathlib import Path

import pytest

from course.paths import NOTEBOOKS
from course_lib.pi import midpoint_loop

CODE = NOTEBOOKS / "code"
PARENT, WORKER = CODE / "spawn_pi.py", CODE / "cpi.py"


def run(parent: Path, workers: int, strips: int) -> subprocess.CompletedProcess[str]:
    """The parent below our mpiexec, as the lesson starts it, with a deadline."""
    mpiexec = [str(Path(sys.executable).with_name("mpiexec")), "--timeout", "40", "-n", "1"]
    command = [*mpiexec, sys.executable, str(parent), str(workers), str(strips)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(("workers", "strips"), [(3, 1000), (3, 2)])
def test_spawned_workers_add_up_what_one_process_does(workers: int, strips: int) -> None:
    done = run(PARENT, workers, strips)
    assert done.returncode == 0, done.stderr
    assert f"π ≈ {midpoint_loop(strips):.9f}; {workers} workers: " in done.stdout


def test_a_worker_that_raises_ends_its_parent(tmp_path: Path) -> None:
    (tmp_path / PARENT.name).write_text(PARENT.read_text())
    raising = WORKER.read_text().replace(
        "    parent.Reduce", "    raise ValueError('enough')\n    parent.Reduce"
    )
    assert raising != WORKER.read_text()
    (tmp_path / WORKER.name).write_text(raising)
    done = run(tmp_path / PARENT.name, 2, 1000)
    assert done.returncode != 0 and "ValueError: enough" in done.stderr + done.stdout
