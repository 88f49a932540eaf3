"""JupyterLab on this machine as `course lab` starts it, with a learner's folder and settings of its own."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.request import ProxyHandler, Request, build_opener

import psutil

from course.paths import NOTEBOOKS
from course.tools.copies import update_copies
from mpi_classroom import processes
from tests.ports import free_port

START_SECONDS = 60
END_SECONDS = 30
MARK = "MPI_CLASSROOM_BROWSER_TEST"  # in the environment of everything that the server starts
TOKEN = "browser-test"
urlopen = build_opener(ProxyHandler({})).open  # this machine is asked directly, whatever the proxy

# The command itself, with its folder elsewhere.
PROGRAM = """
import sys
from pathlib import Path
from course.tools import cli
from course import paths
paths.NOTEBOOKS, paths.MY_COURSE = Path(sys.argv.pop(1)), Path(sys.argv.pop(1))
cli.app()
"""
# What a kernel runs before the first cell: its notes on progress go to that folder, too.
STARTUP = "from pathlib import Path\nfrom course import paths\npaths.MY_COURSE = Path({folder!r})\n"


@dataclass(frozen=True, slots=True)
class Server:
    """A JupyterLab that answers."""

    address: str  # http://localhost:8888
    folder: Path  # the learner's copies
    mark: str

    def lesson(self, name: str) -> str:
        """The address of a lesson, in a workspace of its own."""
        return f"{self.address}/lab/workspaces/{uuid.uuid4().hex}/tree/{name}?token={TOKEN}"

    def fresh_copy(self, number: str) -> Path:
        """The learner's copy of the lesson `number`, as if nothing had been done in it yet."""
        (path,) = self.folder.glob(f"{number}_*.ipynb")
        path.unlink()
        update_copies(NOTEBOOKS, self.folder)
        return path

    def progress(self, *numbers: str) -> str:
        """What `course progress` shows the learner, of the lessons with these numbers or of all."""
        command = [sys.executable, "-c", PROGRAM, str(NOTEBOOKS), str(self.folder), "progress", *numbers]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    def shut_kernels_down(self) -> None:
        """Shut all kernels down, as a learner does who has done with a lesson."""
        with urlopen(f"{self.address}/api/kernels?token={TOKEN}", timeout=END_SECONDS) as answer:
            kernels = [kernel["id"] for kernel in json.load(answer)]
        for kernel in kernels:
            address = f"{self.address}/api/kernels/{kernel}?token={TOKEN}"
            urlopen(Request(address, method="DELETE"), timeout=END_SECONDS).close()

    def expect_left(self, count: int, after: str) -> None:
        """Return once no more than `count` processes are left; fail when there are after a while."""
        deadline = time.monotonic() + END_SECONDS
        while len(left := self.processes()) > count:
            names = [f"{pid} {' '.join(psutil.Process(pid).cmdline())[:80]}" for pid in left]
            assert time.monotonic() < deadline, f"{after} and left behind: {names}"
            time.sleep(0.1)

    def processes(self) -> list[int]:
        """The pids of everything it started that is alive: kernels, engines, programs of exercises."""
        return [process.pid for process, env in processes.marked_processes(MARK) if env[MARK] == self.mark]


@contextlib.contextmanager
def course_lab(home: Path) -> Iterator[Server]:
    """JupyterLab on fresh copies in `home`; on leaving it is ended, and what it started must be gone."""
    port, mark, folder = free_port(), uuid.uuid4().hex, home / "my_course"
    startup = home / "ipython" / "profile_default" / "startup" / "00-folder.py"
    startup.parent.mkdir(parents=True)
    startup.write_text(STARTUP.format(folder=str(folder)))
    environment = {name: value for name, value in os.environ.items() if name != "IPP_NONINTERACTIVE"} | {
        "IPYTHONDIR": str(home / "ipython"),
        "JUPYTER_CONFIG_DIR": str(home / "jupyter"),
        "JUPYTER_DATA_DIR": str(home / "jupyter"),
        "JUPYTER_RUNTIME_DIR": str(home / "runtime"),
        MARK: mark,
    }
    command = [sys.executable, "-c", PROGRAM, str(NOTEBOOKS), str(folder), "lab", "--no-browser"]
    command += ["--port", str(port), "--", f"--IdentityProvider.token={TOKEN}", "--ServerApp.port_retries=0"]
    server = Server(f"http://localhost:{port}", folder, mark)
    with (home / "server.log").open("wb") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
        try:
            wait_until_it_answers(server, process, home / "server.log")
            yield server
            end(server, process)
        finally:
            process.kill()
            process.wait()
            processes.end_marked(MARK, mark)


def wait_until_it_answers(server: Server, process: subprocess.Popen[bytes], log: Path) -> None:
    """Return when the server answers; fail with the end of its log when it ended or takes too long."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError), urlopen(f"{server.address}/api/status?token={TOKEN}", timeout=5):
            return
        time.sleep(0.1)
    raise AssertionError(f"JupyterLab does not answer. Its log ends:\n{log.read_text()[-2000:]}")


def end(server: Server, process: subprocess.Popen[bytes]) -> None:
    """End the server, and see that it takes kernels and clusters with it."""
    process.send_signal(signal.SIGTERM)
    process.wait(END_SECONDS)
    server.expect_left(0, "JupyterLab has ended")
