"""Whoever is killed: when a run has ended, no process and no file of it is left."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from course.paths import ROOT

KILLS = int(os.environ.get("RANDOM_KILLS", "7"))
OWN = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
ENTER = 'mount -t tmpfs none /dev/shm && exec "$@"'


def own_machine() -> list[str]:
    """How a command begins that gets a /dev/shm and process numbers of its own; [] without the right."""
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    command = [*OWN, *user, "sh", "-c", ENTER, "sh"]
    try:
        allowed = subprocess.run([*command, "true"], capture_output=True, timeout=20).returncode == 0
    except OSError:
        allowed = False
    return command if allowed else []


@pytest.mark.release
@pytest.mark.timeout(3600)
def test_random_kills_leave_neither_a_process_nor_a_file(tmp_path: Path) -> None:
    command = own_machine()
    if not command:
        pytest.skip("this system gives an unprivileged process no namespaces of its own")
    script = [sys.executable, "-m", "tests.notebooks.killed_runs", str(tmp_path), str(KILLS), "0"]
    done = subprocess.run([*command, *script], cwd=ROOT, capture_output=True, text=True)
    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stdout + done.stderr
    assert not [line for line in lines if line.startswith("LEFT")], done.stdout
    assert sum(" killed " in line for line in lines) == KILLS
