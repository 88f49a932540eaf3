"""What a learner's seat takes is counted over that learner's processes, and nobody else's."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from course.tools import seats

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="PSS is Linux's")
WAIT = "print(flush=True); input()"
HOLD = f"held = bytearray(50_000_000); held[::4096] = bytes(len(held[::4096])); {WAIT}"


def test_the_processes_of_each_user_are_told_apart_and_their_memory_is_counted(tmp_path: Path) -> None:
    homes = [tmp_path / "one", tmp_path / "two"]
    running = []
    for home, program in zip(homes, (HOLD, WAIT), strict=True):
        environment = os.environ | {"COURSE_HOME": str(home)}
        command = [sys.executable, "-I", "-c", program]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        running.append(subprocess.Popen(command, env=environment, **pipes))
    try:
        for process in running:
            assert process.stdout.readline()
        found = seats.seat_processes(homes)
        assert [[each.pid for each in found[home]] for home in homes] == [[each.pid] for each in running]
        large, small = (seats.pss(found[home]) for home in homes)
        assert 0 < small < 50e6 < large < 50e6 + small + 20e6
    finally:
        for process in running:
            process.communicate(b"\n")
    assert seats.pss(found[homes[0]]) == 0, "a process that has ended counts nothing"
