"""Runs of a short lesson and of a benchmark; in each, one process is killed at a random moment.

    python -m tests.notebooks.killed_runs FOLDER KILLS SEED

It prints a line per run, which begins with LEFT where a process or a file is still there half a minute later.
It must be started with a /dev/shm and process numbers of its own: all that it sees there counts as left.
"""

import contextlib
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import psutil

from course.lessons.l01_mpi_basics.exercises import SHIFT
from course.paths import ROOT

RUN_SECONDS, LEFT_SECONDS = 660.0, 30.0  # a lesson ends itself after 600 s
BUSY = """
import time
from mpi4py import MPI
MPI.COMM_WORLD.Barrier()
end = time.monotonic() + 4
while time.monotonic() < end:  # without MPI, which notices that mpiexec is gone
    pass
"""
CELLS = (
    "from mpi_classroom.cluster import start_cluster\n\ncluster = start_cluster(n=3)",
    "%%px --setup\nimport time\nfrom mpi4py import MPI\n\ncomm = MPI.COMM_WORLD",
    f"%%exercise {SHIFT.id}\n{SHIFT.solution}",
    "%%px\nfor _ in range(300):\n    comm.Barrier()\n    time.sleep(0.01)",
    f"from mpi_classroom.launch import run_ranks\n\nrun_ranks(2, ['-c', {BUSY!r}], timeout=60).returncode",
)
LESSON = """
import sys
from pathlib import Path
from course import paths
from course.tools.cli import app
paths.NOTEBOOKS, paths.BUILD = Path(sys.argv[1], "notebooks"), Path(sys.argv[1], "build")
app(["run", "01"])
"""
# Who is killed: words of its command line, whether it is mpiexec, and the most seconds after it has started.
LESSON_KILLS = {
    "course run": ("course.tools.cli import app", False, 12.0),
    "the kernel": ("ipykernel_launcher", False, 14.0),
    "the controller": ("ipyparallel.controller", False, 10.0),
    "mpiexec of the cluster": ("ipyparallel.engine", True, 10.0),
    "a rank of the cluster": ("ipyparallel.engine", False, 10.0),
    "mpiexec of an exercise": ("mpi_classroom.judge", True, 2.0),
    "a rank of an exercise": ("mpi_classroom.judge", False, 2.0),
    "mpiexec of a job": ("time.monotonic", True, 4.0),
    "a rank of a job": ("time.monotonic", False, 4.0),
}
BENCHMARK_KILLS = {
    "the parent of a benchmark": ("benchmarks.pi", False, 8.0),
    "mpiexec of a benchmark": ("benchmarks.harness", True, 4.0),
}


class Runs:
    """Runs in `folder`, and what they leave."""

    def __init__(self, folder: Path, rng: random.Random) -> None:
        self.folder, self.rng = folder, rng
        for name in ("notebooks", "build", "tmp", "home"):
            (folder / name).mkdir()
        cells = [nbformat.v4.new_markdown_cell("# 01 · Short")]
        cells += [nbformat.v4.new_code_cell(cell) for cell in CELLS]
        nbformat.write(nbformat.v4.new_notebook(cells=cells), folder / "notebooks" / "01_short.ipynb")
        os.environ |= {"TMPDIR": str(folder / "tmp"), "HOME": str(folder / "home")}
        self.lesson = [sys.executable, "-c", LESSON, str(folder)]
        self.benchmark = [sys.executable, "-m", "benchmarks.pi", "--quick"]

    def files(self) -> set[str]:
        """All files and folders that a run may leave behind."""
        places = [self.folder / name for name in ("notebooks", "build", "tmp", "home/.local")]
        return {str(path) for place in (*places, Path("/dev/shm")) for path in place.rglob("*")}

    def run(self, whom: str = "") -> bool:
        """Run a lesson or a benchmark in which `whom` is killed; return whether it was there to be killed."""
        command = self.benchmark if whom in BENCHMARK_KILLS else self.lesson
        with open(self.folder / "output", "wb") as output:
            run = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=output, start_new_session=True)
        killed = self.kill(run, whom) if whom else False
        with contextlib.suppress(subprocess.TimeoutExpired):  # what still runs is left
            run.wait(RUN_SECONDS)
        return killed

    def kill(self, run: "subprocess.Popen[bytes]", whom: str) -> bool:
        words, launches, seconds = (LESSON_KILLS | BENCHMARK_KILLS)[whom]
        wait, began = self.rng.uniform(0, seconds), 0.0
        while run.poll() is None:
            found = [process for process in others() if plays(process, words, launches)]
            began = began or (time.monotonic() if found else 0.0)
            if found and time.monotonic() - began > wait:
                self.rng.choice(found).kill()
                return True
            time.sleep(0.01)
        return False

    def left(self, before: set[str]) -> list[str]:
        """The processes, which are then ended, and the files that are still there after `LEFT_SECONDS`."""
        end = time.monotonic() + LEFT_SECONDS
        while (others() or self.files() - before) and time.monotonic() < end:
            time.sleep(0.1)
        left = sorted(self.files() - before)
        for process in others():
            with contextlib.suppress(psutil.NoSuchProcess):
                left.append(" ".join(process.cmdline())[:200])
                process.kill()
        return left


def others() -> list[psutil.Process]:
    """All living processes but this one; zombies among them, children of this one, are reaped."""
    living = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, ChildProcessError):
            if process.status() == psutil.STATUS_ZOMBIE:
                os.waitpid(process.pid, os.WNOHANG)
            elif process.pid != os.getpid():
                living.append(process)
    return living


def plays(process: psutil.Process, words: str, launches: bool) -> bool:
    """Whether `words` are in the command line of a process that is mpiexec, or that is not."""
    try:
        return words in " ".join(process.cmdline()) and launches == (process.name() == "prterun")
    except psutil.Error:
        return False


def main(folder: Path, kills: int, seed: int) -> None:
    """Kill so often, each role in turn; the first run, which fills caches, is not counted."""
    rng = random.Random(seed)
    runs = Runs(folder, rng)
    runs.run()
    before, done = runs.files(), 0
    everyone = [*LESSON_KILLS, *BENCHMARK_KILLS]
    while done < kills:
        whom = everyone[done % len(everyone)]
        began = time.monotonic()
        killed = runs.run(whom)
        left = runs.left(before)
        seconds = f"{time.monotonic() - began:.0f} s"
        print("LEFT" if left else "ok", whom, "killed" if killed else "not met", seconds, *left, flush=True)
        before |= set(left)
        done += killed or bool(left)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
