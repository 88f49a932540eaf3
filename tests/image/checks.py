"""What the image promises, tried inside it as its own user and without a network.

    python checks.py COMMAND_JSON HEALTH_JSON

Both arguments are lists of words as the image's configuration holds them: what a container runs, and how
its health is asked. `build_and_check.sh` starts this through the image's entry point. Only the standard
library is used, and nothing is imported from the course: this looks at it from outside.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path

COURSE = Path("/course")
PORT = 8888
ADDRESS = f"http://127.0.0.1:{PORT}"
OFFLINE = os.environ | {"COURSE_OFFLINE": "1"}
RANKS = 4
# As in compose.yaml.
WRITABLE = {"/tmp", "/home/learner", "/course/build", "/course/my_course", "/course/data", "/dev/shm"}
PIDS = 4096
MEMORY = 6 << 30
THREADS = """
import os, threading
threading.stack_size(1 << 16)
for number in range(5000):
    try:
        threading.Thread(target=threading.Event().wait, daemon=True).start()
    except RuntimeError:
        break
print(number, flush=True)
os._exit(0)
"""
SUM_OVER_RANKS = """
from mpi4py import MPI
print(MPI.COMM_WORLD.size, MPI.COMM_WORLD.allreduce(10**MPI.COMM_WORLD.rank), flush=True)
"""
MNIST = """
from course_lib.data.mnist import load_mnist
print("      " + load_mnist().source)
"""


def run(
    command: list[str], seconds: float, show: bool = False, environment: Mapping[str, str] = OFFLINE
) -> tuple[int, str]:
    """Run `command`; its exit code and all it printed."""
    done = subprocess.run(
        command,
        env=environment,
        timeout=seconds,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    if show or done.returncode:
        print(done.stdout, end="")
    return done.returncode, done.stdout


def status(path: str, **headers: str) -> int:
    """The HTTP status that the server answers a request for `path` with."""
    request = urllib.request.Request(ADDRESS + path, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def processes() -> dict[int, str]:
    """The processes of this container by id, without PID 1, this one and those that have ended."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) not in (1, os.getpid()):
            words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
            if words:  # empty for a process that has ended and for the kernel's own
                found[int(entry.name)] = words
    return found


def check_user() -> None:
    """The user is number 1000, and PID 1 is tini."""
    assert os.getuid() == os.geteuid() == 1000, f"user {os.getuid()}"
    name = Path("/proc/1/comm").read_text().strip()
    assert name == "tini", f"PID 1 is {name}"


def check_files() -> None:
    """Lessons and data are inside; the learner's copy can be written, the packages cannot."""
    assert Path.cwd() == COURSE, Path.cwd()
    assert list(COURSE.glob("notebooks/0*.ipynb")), "no lesson in notebooks/"
    for folder in ("data", "my_course", "build"):
        assert os.access(COURSE / folder, os.W_OK), f"{folder} cannot be written"
    assert not os.access(sys.prefix, os.W_OK), f"{sys.prefix} can be written"
    assert not (COURSE / ".git").exists() and not (COURSE / ".venv").exists(), (
        "more than the course was copied"
    )


def check_locked_up() -> None:
    """No capability is left, none can be gained, and only what compose.yaml names can be written."""
    status_lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(status_lines[name], 16) == 0, f"{name} {status_lines[name].strip()}"
    assert status_lines["NoNewPrivs"].strip() == "1", "privileges can be gained"
    for folder in (COURSE, Path("/var/tmp")):  # their modes would allow it
        assert not os.access(folder, os.W_OK), f"{folder} can be written"
    mounts = {line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()}
    writable = {mount for mount in mounts if Path(mount).is_dir() and os.access(mount, os.W_OK)}
    assert writable - {"/dev/mqueue"} == WRITABLE, f"can be written: {sorted(writable)}"


def check_limits() -> None:
    """Processes, threads and memory are limited, where the one who started this could do so."""
    limited = os.environ["LIMITED"].split()
    if "pids" in limited:
        code, text = run([sys.executable, "-c", THREADS], 240)
        assert code == 0 and PIDS - 100 < int(text) < PIDS, f"{text} threads were started"
    if "memory" in limited:
        files = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
        found = [int(Path(file).read_text()) for file in files if Path(file).exists()]
        assert found == [MEMORY], f"limits of memory: {found}"
    print(f"      limited: {', '.join(limited) or 'nothing'}")


def check_network() -> None:
    """There is no network but loopback, so that all that follows works without."""
    interfaces = [line.split(":")[0].strip() for line in Path("/proc/net/dev").read_text().splitlines()[2:]]
    assert interfaces == ["lo"], f"interfaces: {interfaces}"


def check_ranks() -> None:
    """Four ranks are one world, as lessons start them and as one types it."""
    for start in (
        [sys.executable, "-m", "mpi_classroom.launch", str(RANKS)],
        ["mpiexec", "-n", "4", "python"],
    ):
        code, text = run([*start, "-c", SUM_OVER_RANKS], 240)
        answers = text.split("\n")[:-1]
        assert code == 0 and answers == [f"{RANKS} 1111"] * RANKS, answers


def check_data() -> None:
    """The embedded digits load without a network, whether or not that is said in COURSE_OFFLINE."""
    unsaid = {name: value for name, value in OFFLINE.items() if name != "COURSE_OFFLINE"}
    for environment in (OFFLINE, unsaid):
        before = time.monotonic()
        code, _ = run([sys.executable, "-c", MNIST], 240, show=True, environment=environment)
        assert code == 0, f"exit code {code}"
        print(f"      {time.monotonic() - before:.1f} s")


def check_doctor() -> None:
    """The doctor of the course is green."""
    code, _ = run(["course", "doctor"], 480, show=True)
    assert code == 0, f"exit code {code}"


def check_lessons() -> None:
    """Lessons 00 and 01 run from their first cell to their last, and leave no process behind."""
    code, _ = run(["course", "run", "--more", "00", "01"], 900, show=True)
    assert code == 0, f"exit code {code}"
    deadline = time.monotonic() + 60
    while processes() and time.monotonic() < deadline:
        time.sleep(0.5)
    assert not processes(), f"left behind: {processes()}"


def check_live_view() -> None:
    """The live view of lesson 00 has left its last frame: four lanes as a picture, with alt text."""
    notebook = json.loads((COURSE / "build" / "00_start_here.ipynb").read_text())
    shown = [cell for cell in notebook["cells"] if "".join(cell["source"]).strip() == "cluster.dashboard()"]
    outputs = [output.get("data", {}) for cell in shown for output in cell["outputs"]]
    page = "".join("".join(data.get("text/html", "")) for data in outputs)
    found = re.fullmatch(
        r'<img alt="(Timeline[^"]*)" src="data:image/png;base64,([^"]+)"[^>]*>', page.strip()
    )
    assert found, f"no picture: {page[:200]}"
    assert all(f"rank {rank}: " in found[1] for rank in range(RANKS)), found[1]
    assert len(found[2]) > 10_000, f"{len(found[2])} characters of picture"
    print(f"      {found[1][:110]} …")


def check_server() -> None:
    """The server answers to its token only, on all interfaces, and the health check tells whether it does."""
    command, health = (json.loads(word) for word in sys.argv[1:])
    print("      " + " ".join(command))
    try_server(command, health)


def try_server(command: list[str], health: list[str]) -> None:
    """Start `command`, wait until `health` is content, and look at what it answers."""
    kind, *healthy = health
    assert kind == "CMD", kind
    assert subprocess.run(healthy, capture_output=True, timeout=60).returncode, "healthy without a server"
    with tempfile.TemporaryFile("w+") as log:
        server = subprocess.Popen(command, env=OFFLINE, stdout=log, stderr=subprocess.STDOUT)
        try:
            well = wait_until_healthy(server, healthy, 240)
            log.seek(0)
            check_token(well, log.read())
        finally:
            server.terminate()
            server.wait(60)


def wait_until_healthy(server: "subprocess.Popen[bytes]", healthy: list[str], seconds: float) -> bool:
    """Ask for its health until it is well, has ended or `seconds` are over; whether it is well."""
    deadline = time.monotonic() + seconds
    while server.poll() is None and time.monotonic() < deadline:
        if subprocess.run(healthy, capture_output=True, timeout=60).returncode == 0:
            return True
        time.sleep(0.5)
    return False


def check_token(healthy: bool, log: str) -> None:
    """The log shows a token of 48 hexadecimal digits; it opens what nothing else opens."""
    assert healthy, f"the server did not become healthy; its log:\n{log}"
    found = re.search(r"http://127\.0\.0\.1:8888/\S*\?token=([0-9a-f]{48})\b", log)
    assert found, f"no address with a token in the log:\n{log}"
    assert status("/api/contents") == 403, "open without a token"
    assert status("/api/contents", Authorization="token " + "0" * 48) == 403, "open to a wrong token"
    assert status("/api/contents", Authorization=f"token {found[1]}") == 200, "closed to its own token"
    listening = Path("/proc/net/tcp").read_text()
    assert f" 00000000:{PORT:04X} 00000000:0000 0A" in listening, f"not listening on 0.0.0.0:{PORT}"


CHECKS: tuple[Callable[[], None], ...] = (
    check_user,
    check_network,
    check_files,
    check_locked_up,
    check_limits,
    check_ranks,
    check_doctor,
    check_data,
    check_server,
    check_lessons,
    check_live_view,
)


def main() -> int:
    """Run all checks; 0 when they all hold."""
    failed = 0
    for check in CHECKS:
        sentence = (check.__doc__ or "").strip()
        try:
            check()
            print(f"ok    {sentence}", flush=True)
        except (AssertionError, OSError, subprocess.TimeoutExpired) as error:
            failed += 1
            print(f"FAIL  {sentence}\n      {error}", flush=True)
    return min(failed, 1)


if __name__ == "__main__":
    raise SystemExit(main())
