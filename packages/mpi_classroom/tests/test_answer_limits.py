"""What an answer may take while it is checked, and that nothing it started stays."""

import resource
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from mpi_classroom import processes
from mpi_classroom.answer_job import Verdict
from packages.mpi_classroom.tests.waiting import is_running

Check = Callable[[str], Verdict]
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems keep other limits")


def answer(*lines: str) -> str:
    """The source of an answer that does this."""
    return "\n    ".join(["import os, subprocess, sys\n\ndef answer(comm):", *lines, ""])


def test_an_answer_that_fills_memory_is_wrong_and_not_the_end_of_other_programs(check_answer: Check) -> None:
    found = check_answer(answer("kept = [np.zeros(2**27) for _ in range(100)]"))  # 1 GiB each, untouched
    assert found.state == "wrong" and "MemoryError: Unable to allocate" in found.text, found.text


def test_an_answer_that_fills_the_disk_is_wrong(check_answer: Check, tmp_path: Path) -> None:
    big = tmp_path / "big"
    limits = [resource.getrlimit(kind) for kind in (resource.RLIMIT_FSIZE, resource.RLIMIT_DATA)]
    found = check_answer(answer(f"with open({str(big)!r}, 'wb') as file:", "    file.truncate(2**33)"))
    assert found.state == "wrong" and "OSError: [Errno 27] File too large" in found.text, found.text
    assert big.stat().st_size == 0
    assert [resource.getrlimit(kind) for kind in (resource.RLIMIT_FSIZE, resource.RLIMIT_DATA)] == limits


DETACHED = (
    "subprocess.Popen(['sh', '-c', {program!r}], start_new_session=True, stdin=-3, stdout=-3, stderr=-3)"
)
DAEMON = [
    "if os.fork() == 0:",
    "    os.setsid()",
    "    if os.fork() == 0:",
    "        open({path!r}, 'a').write(f'{{os.getpid()}}\\n')",
    "        os.closerange(0, 1024)",
    "        os.execvp('sleep', ['sleep', '600'])",
    "    os._exit(0)",
]


BREEDER = "trap '' TERM; while :; do sleep 600 & sleep 0.05; done"


def test_a_daemon_and_a_program_that_goes_on_starting_others_end_with_the_check(
    check_answer: Check, tmp_path: Path
) -> None:
    path = tmp_path / "pids"
    daemon = [line.format(path=str(path)) for line in DAEMON]
    found = check_answer(answer(DETACHED.format(program=BREEDER), *daemon, "import time", "time.sleep(1)"))
    assert found.state == "right", found.text
    pids = [int(line) for line in path.read_text().split()]
    assert pids and not [pid for pid in pids if is_running(pid)]
    assert not [c for c in processes.running_clusters() if c.exercise]


@pytest.mark.slow
def test_an_answer_that_writes_without_end_is_ended(check_answer: Check) -> None:
    found = check_answer(answer("while True:", "    os.write(1, bytes(2**20))"))
    assert found.state == "wrong", found.text
    assert not [c for c in processes.running_clusters() if c.exercise]
