"""Lesson 01 in a real browser with its ranks on four nodes of a lab; one of them dies, and it goes on."""

import re
from collections.abc import Iterator

import pytest

from mpi_classroom import network
from mpi_classroom.network import Lab
from mpi_classroom.network_commands import NetworkError
from tests.browser.conftest import OpenLesson
from tests.browser.lab import Lesson
from tests.browser.test_learners import SHIFT

pytestmark = [pytest.mark.release, pytest.mark.timeout(900)]

START = """\
from mpi_classroom.cluster import start_cluster
from mpi_classroom.network import standing

cluster = start_cluster(n=4, hosts=standing(), replace=False)
"""
HELLO = """\
%%px
import socket

secret = 43523  # as in the lesson
print(f"hello from rank {rank} of {size} on {socket.gethostname()}")
"""


@pytest.fixture
def lab() -> Iterator[Lab]:
    """A lab of four nodes that stands, so that the notebook finds it; skips, with the reason, without one."""
    try:
        made = network.up(4, rate="1gbit")
    except NetworkError as error:
        pytest.skip(str(error))
    try:
        yield made
    finally:
        network.down()


def says_hello(lesson: Lesson, *hosts: str) -> None:
    """The cell `HELLO` shows each rank on its host."""
    said = re.findall(r"hello from rank (.+)", lesson.run(lesson.cell("socket.gethostname")))
    assert sorted(said) == [f"{rank} of {len(hosts)} on {host}" for rank, host in enumerate(hosts)]


def test_lesson_01_with_ranks_on_four_hosts_goes_on_when_one_of_them_dies(
    lab: Lab, open_copy: OpenLesson
) -> None:
    with open_copy("01") as lesson:
        started = lesson.run(lesson.cell("start_cluster"), START)
        assert "4 ranks on n1, n2, n3, n4 (1 each) over 10.77.0.0/24" in started
        assert lesson.run(lesson.cell("%%px --setup")) == ""
        lesson.run(lesson.cell("np.arange(4)"), HELLO)
        says_hello(lesson, "n1", "n2", "n3", "n4")

        assert lesson.run(lesson.cell("def ring(nbytes)")) == ""
        report = lesson.run(lesson.cell("ring(1_000_000)"))
        for rank in range(4):
            to = (rank + 1) % 4
            assert f"rank {rank} on n{rank + 1}  waiting in Send to rank {to}, tag 0  cell line 2" in report
        assert "a circle of waiting: rank 0 → rank 1 → rank 2 → rank 3 → rank 0" in report
        assert "The ranks were restarted" in report and "Traceback" not in report
        lines = lesson.run(lesson.cell("ring(80)")).splitlines()
        assert len(lines) == 4 and all("received the array of rank" in line for line in lines)

        exercise = lesson.cell("%%exercise 01.1")
        verdict = lesson.run(exercise, SHIFT.format("comm.Sendrecv(value, right, 0, received, left)"))
        assert verdict.startswith("✓ 01.1 is right on 1, 2, 3 and 4 ranks")

        lab.power_off("n3")
        died = lesson.run(lesson.cell("socket.gethostname"))
        assert re.search("rank 2( on n3 )? was lost with its host n3", died) and "Traceback" not in died
        assert "without n3: 3 ranks on n1, n2 and n4" in died
        says_hello(lesson, "n1", "n2", "n4")
        lines = lesson.run(lesson.cell("ring(80)")).splitlines()
        assert len(lines) == 3 and all("received the array of rank" in line for line in lines)
