"""Green when all is well, red with a remedy when it is not: every check of the machine is made to fail."""

import contextlib
import json
import subprocess
from collections import namedtuple

import pytest

from mpi_classroom import doctor, leftovers, processes
from mpi_classroom.__main__ import main
from mpi_classroom.check import Check
from mpi_classroom.doctor import GIB, MIB
from mpi_classroom.network_commands import NetworkError


def red(check):
    """A check is red only with a remedy."""
    return not check.ok and bool(check.remedy) and bool(check.detail)


def test_a_kernel_of_another_python_is_red(tmp_path, monkeypatch):
    assert doctor.check_kernel().ok
    folder = tmp_path / "kernels" / "python3"
    folder.mkdir(parents=True)
    spec = {"argv": ["/bin/sh"], "display_name": "x", "language": "python"}
    (folder / "kernel.json").write_text(json.dumps(spec))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    check = doctor.check_kernel()
    assert red(check)
    assert check.detail == "python3 is /bin/sh"


def test_four_real_ranks_find_the_right_sum():
    check = doctor.check_ranks()
    assert (check.ok, check.detail) == (True, "4 ranks in one world computed 1 + 2 + 3 + 4 = 10")


Job = namedtuple("Job", "returncode stdout stderr")


@pytest.mark.parametrize(
    ("job", "words"),
    [
        (
            Job(0, "1 1\n1 1\n1 1\n1 1\n", ""),
            "4 ranks should each print '4 10'; 4 printed 1 1",
        ),  # four worlds of one rank
        (Job(0, "4 10\n4 10\n4 10\n", ""), "3 printed 4 10"),  # one rank was not heard
        (Job(0, "4 10\n4 10\n4 11\n4 10\n", ""), "4 11"),  # a wrong sum
        (
            Job(1, "4 10\n4 10\n4 10\n4 10\n", "not enough slots\n-----\n"),
            "ended with exit code 1: not enough slots",
        ),
    ],
)
def test_ranks_that_do_not_agree_are_red(monkeypatch, job, words):
    monkeypatch.setattr(doctor, "run_ranks", lambda *args, **options: job)
    check = doctor.check_ranks()
    assert red(check)
    assert words in check.detail


def test_ranks_that_hang_are_red(monkeypatch):
    def hang(size, arguments, timeout):
        raise subprocess.TimeoutExpired("mpiexec", timeout)

    monkeypatch.setattr(doctor, "run_ranks", hang)
    assert "within 60 s" in doctor.check_ranks().detail
    assert red(doctor.check_ranks())


def test_too_little_of_anything_is_red(tmp_path, monkeypatch):
    assert red(doctor.check_memory(available=1 * GIB))
    monkeypatch.setattr(doctor, "is_short", lambda place, size: True)
    assert red(doctor.check_shared_memory(free=64 * MIB))
    assert "--shm-size=1g" in doctor.check_shared_memory(free=64 * MIB).remedy
    assert red(doctor.check_disk(tmp_path, free=500 * MIB))


def test_what_a_killed_run_left_is_red(monkeypatch):
    monkeypatch.setattr(processes, "running_clusters", list)
    run = leftovers.LeftoverRun("1:0.0", "/x/06.ipynb", (11, 12))
    monkeypatch.setattr(leftovers, "leftover_runs", lambda: [run])
    check = doctor.check_leftovers()
    assert red(check)
    assert (check.detail, check.remedy) == (
        "2 processes of killed notebooks or runs still run",
        "mpi-classroom clean",
    )


def test_a_machine_that_cannot_play_several_nodes_is_no_fault(monkeypatch):
    def refuse(nodes, rate):
        raise NetworkError("there is no command `ip`; on Debian or Ubuntu: sudo apt install iproute2")

    monkeypatch.setattr(doctor, "network", refuse)
    check = doctor.check_lab()
    assert check.ok and check.detail.endswith("on Debian or Ubuntu: sudo apt install iproute2")
    monkeypatch.setattr(doctor, "network", lambda nodes, rate: contextlib.nullcontext())
    assert doctor.check_lab().detail.startswith("this machine can play several nodes")


def test_a_check_that_breaks_is_red_and_the_others_go_on():
    def check_broken():
        raise ZeroDivisionError("division by zero")

    broken, fine = doctor.examine([check_broken, lambda: Check("fine", True, "")])
    assert red(broken) and fine.ok
    assert (broken.name, broken.detail) == (
        "broken",
        "could not be checked: ZeroDivisionError: division by zero",
    )


def test_the_command_shows_a_line_each_and_fails_when_one_is_red(monkeypatch, capsys):
    fine, bad = Check("Python", True, "3.11"), Check("memory", False, "1 GiB", "close programs")
    monkeypatch.setattr(doctor, "examine", lambda: [fine, bad])
    assert main(["doctor"]) == 1
    assert capsys.readouterr().out == f"{fine.line()}\n{bad.line()}\n"
    monkeypatch.setattr(leftovers, "clean", lambda everything: ["Stopped all."] if everything else [])
    assert main(["clean"]) == 0 and main(["clean", "--all"]) == 0
    assert capsys.readouterr().out == "No process was left behind.\nStopped all.\n"
