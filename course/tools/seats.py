"""How much memory and how many cores a learner's seat takes, for who puts many of them on one machine.

    python -m course.tools.seats --users 8 --lesson 01 --lesson 07      minutes; nothing else should run
    python -m course.tools.seats --users 1 --lesson 07 --more
    python -m course.tools.seats --waiting                              a seat whose learner does nothing

Each user has what a learner of a hub has: a JupyterLab server, a kernel and four ranks. All users run the
cores of the lessons at once (with --more, whole lessons), without the pauses in which people read. Memory is
PSS, the proportional set size: a page that n processes share counts 1/n for each, so the sum is what the
machine has to hold. Linux only.
"""

import argparse
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
from jupyter_client.manager import start_new_kernel

from course.paths import ROOT
from course.tools.jupyter import port_in_use

MEGABYTE = 1e6
FIRST_PORT = 18800
START_SECONDS = 120.0  # that all servers have to start
DEADLINE = 7200  # seconds, as users wait for each other's cores
KERNEL_SECONDS = 180.0  # for one step of a waiting seat
WAITING = {  # what a learner has run, and is now reading about
    "four ranks with mpi4py": "from mpi_classroom.cluster import start_cluster\n"
    "cluster = start_cluster(n=4)\n"
    'get_ipython().run_cell_magic("px", "", "from mpi4py import MPI")',
    "PyTorch on the ranks": 'get_ipython().run_cell_magic("px", "", "import torch")',
    "PyTorch and matplotlib in the kernel": "import torch\nimport matplotlib.pyplot",
}


@dataclass(frozen=True, slots=True)
class Seats:
    """What was measured: bytes of PSS, seconds, cores in use on average."""

    users: int
    lessons: list[str]
    seconds: float
    cores_here: int
    cores_in_use: float
    idle_server_nbytes: int  # of one user
    peak_user_nbytes: int  # of the user that took most
    peak_all_nbytes: int
    failed: int


def seat_processes(homes: Sequence[Path]) -> dict[Path, list[psutil.Process]]:
    """The processes of each user: those whose COURSE_HOME is theirs, but for the run itself.

    What `course run` does in the measurement, a browser and the server do for a learner.
    """
    found: dict[Path, list[psutil.Process]] = {home: [] for home in homes}
    for process in psutil.process_iter():
        try:
            home = Path(process.environ().get("COURSE_HOME", ""))
            if home in found and "run" not in process.cmdline()[:5]:
                found[home].append(process)
        except (psutil.Error, OSError):
            continue
    return found


def pss(processes: Sequence[psutil.Process]) -> int:
    """The proportional set size of some processes, in bytes."""
    total = 0
    for process in processes:
        with contextlib.suppress(psutil.Error, OSError):
            total += process.memory_full_info().pss
    return total


@contextlib.contextmanager
def servers(homes: Sequence[Path]) -> Iterator[None]:
    """A JupyterLab server for each user."""
    command = [sys.executable, "-m", "course.tools.cli", "lab", "--no-browser"]
    running = []
    try:
        for number, home in enumerate(homes):
            home.mkdir(parents=True)
            port = FIRST_PORT + number
            running.append(start([*command, "--port", str(port)], home, home / "server.log"))
        end = time.monotonic() + START_SECONDS
        while not all(port_in_use(FIRST_PORT + number) for number in range(len(homes))):
            if time.monotonic() > end:
                raise TimeoutError(f"a server did not start; see {homes[0].parent}/user*/server.log")
            time.sleep(1)
        yield
    finally:
        for server in running:
            server.terminate()
        for server in running:
            server.wait(30)


def start(command: Sequence[str], home: Path, log: Path) -> "subprocess.Popen[bytes]":
    """Start a command as the user whose folder is `home`."""
    with log.open("wb") as file:
        return subprocess.Popen(
            command, cwd=ROOT, env=environment(home), stdout=file, stderr=subprocess.STDOUT
        )


def environment(home: Path) -> dict[str, str]:
    """The environment of the user whose folder is `home`."""
    return os.environ | {"COURSE_HOME": str(home), "COURSE_OFFLINE": "1"}


def waiting(folder: Path) -> dict[str, int]:
    """Bytes of PSS of a server, a kernel and its ranks after each step of WAITING."""
    home, taken = folder / "user", {}
    with servers([home]):
        kernel, client = start_new_kernel(START_SECONDS, env=environment(home), cwd=str(ROOT))
        try:
            for name, code in WAITING.items():
                reply = client.execute_interactive(code, timeout=KERNEL_SECONDS, output_hook=lambda _: None)
                if reply["content"]["status"] != "ok":
                    raise RuntimeError(f"{name}: {reply['content'].get('evalue')}")
                taken[name] = pss(seat_processes([home])[home])
            client.execute_interactive("cluster.stop()", timeout=KERNEL_SECONDS, output_hook=lambda _: None)
        finally:
            client.stop_channels()
            kernel.shutdown_kernel()
    return taken


def measure(users: int, lessons: Sequence[str], folder: Path, *, more: bool = False) -> Seats:
    """Let `users` run `lessons` at once, More too if asked, and sample until the last has ended."""
    homes = [folder / f"user{number}" for number in range(users)]
    peak_user = peak_all = 0
    with servers(homes):
        idle = max(pss(found) for found in seat_processes(homes).values())
        deadlines = ["--cell-seconds", str(DEADLINE), "--lesson-seconds", str(DEADLINE)]
        whole = ["--more"] if more else []
        command = [sys.executable, "-m", "course.tools.cli", "run", *whole, *deadlines, *lessons]
        began, busy = time.monotonic(), busy_seconds()
        runs = [start(command, home, home / "run.log") for home in homes]
        while any(run.poll() is None for run in runs):
            taken = [pss(found) for found in seat_processes(homes).values()]
            peak_user, peak_all = max(peak_user, *taken), max(peak_all, sum(taken))
            time.sleep(1)
        seconds = time.monotonic() - began
        cores = (busy_seconds() - busy) / seconds
    failed = sum(run.returncode != 0 for run in runs)
    here = psutil.cpu_count() or 1
    return Seats(users, list(lessons), seconds, here, cores, idle, peak_user, peak_all, failed)


def busy_seconds() -> float:
    """The seconds that all cores of the machine have worked since it started."""
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system)


def words(seats: Seats) -> list[str]:
    """The result in a few lines."""
    return [
        f"{seats.users} users ran {', '.join(seats.lessons)} at once in {seats.seconds:.0f} s; "
        f"{seats.failed} of the runs failed.",
        f"Memory: an idle server {seats.idle_server_nbytes / MEGABYTE:.0f} MB, one user at most "
        f"{seats.peak_user_nbytes / MEGABYTE:.0f} MB, all at most {seats.peak_all_nbytes / MEGABYTE:.0f} MB.",
        f"Cores in use, on average: {seats.cores_in_use:.1f} of {seats.cores_here}.",
    ]


def main() -> int:
    """Measure, print, and write JSON where asked; 0 when every run succeeded."""
    parser = argparse.ArgumentParser(description="Measure what learners' seats take.")
    parser.add_argument("--users", type=int, default=8)
    parser.add_argument("--lesson", action="append", help="again for more (default: 01, 07)")
    parser.add_argument("--more", action="store_true", help="whole lessons, not their cores only")
    parser.add_argument("--waiting", action="store_true", help="one seat whose learner runs no cell")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="seats-"))
    if arguments.waiting:
        for name, nbytes in waiting(folder).items():
            print(f"{name}: {nbytes / MEGABYTE:.0f} MB")
        shutil.rmtree(folder)
        return 0
    seats = measure(arguments.users, arguments.lesson or ["01", "07"], folder, more=arguments.more)
    print("\n".join(words(seats)))
    if seats.failed:
        print(f"What they printed is in {folder}.")
        return 1
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
