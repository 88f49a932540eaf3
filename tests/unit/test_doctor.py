"""The checks of the course: packages, data, torch.distributed, DeepSpeed; every check is made to fail."""

import json
from collections import namedtuple

import pytest

from course import doctor, doctor_jobs
from course_lib.data import mnist
from mpi_classroom.check import Check


def red(check):
    """A check is red only with a remedy."""
    return not check.ok and bool(check.remedy) and bool(check.detail)


@pytest.fixture
def lock(tmp_path):
    path = tmp_path / "requirements.lock"
    path.write_text(
        "# Apart:\n# torch==2.13.0\nnumpy==2.4.6 \\\n    --hash=sha256:0\nruff==0.17.5 ; os_name == 'posix'\n"
    )
    return path


def installed(**versions):
    return dict.fromkeys(doctor._required(), "1.0") | {"numpy": "2.4.6", "torch": "2.13.0"} | versions


def test_pins_are_met_also_by_a_special_build_and_without_the_developers_tools(lock):
    check = doctor.check_pins(lock, installed(torch="2.13.0+cpu"))
    assert (check.ok, check.detail) == (True, "2 packages, all as in requirements.lock")


def test_a_missing_package_is_red_and_named(lock):
    have = installed()
    del have["mpi4py"]
    check = doctor.check_pins(lock, have)
    assert red(check)
    assert "mpi4py is missing" in check.detail


def test_the_course_may_be_read_only_where_data_and_results_are_not(monkeypatch):
    monkeypatch.setattr(doctor.machine.os, "access", lambda folder, mode: folder != doctor.ROOT)
    monkeypatch.setattr(doctor.machine.shutil, "disk_usage", lambda folder: Usage(100 << 30))
    assert doctor.check_disk().ok


Usage = namedtuple("Usage", "free")
Job = namedtuple("Job", "returncode stdout stderr")


def test_a_damaged_data_set_is_red(monkeypatch, tmp_path):
    for file in mnist.read_registry("mnist").files:
        (tmp_path / file.name).write_bytes(b"half a file")
    monkeypatch.setenv("COURSE_DATA", str(tmp_path))
    assert red(doctor.check_data())


def test_the_report_carries_what_a_bug_report_needs(monkeypatch):
    monkeypatch.setattr(doctor, "course_version", lambda: "0.1.0, commit 123456789abc of 2026-11-20")
    found = doctor.report([Check("Python", True, "3.11", "unused"), Check("memory", False, "1 GiB", "close")])
    assert found["course"] == "0.1.0, commit 123456789abc of 2026-11-20" and found["ok"] is False
    assert found["checks"][0] == {"name": "Python", "ok": True, "detail": "3.11"}
    json.dumps(found)


@pytest.mark.slow
def test_two_real_ranks_sum_over_every_backend_of_torch():
    check = doctor.check_torch()
    assert check.ok, check
    assert "over gloo" in check.detail


@pytest.mark.parametrize(
    ("job", "words"),
    [
        (Job(0, "gloo 9\ngloo 8\n", ""), "the sums were gloo 8; gloo 9"),
        (Job(0, "gloo 9\n", ""), "the sums were gloo 9"),  # one rank was not heard
        (Job(0, "mpi4py 9\nmpi4py 9\n", ""), "the sums were mpi4py 9"),  # nothing came over Gloo
        (Job(1, "", "RuntimeError: no interface\n"), "exit code 1: RuntimeError: no interface"),
    ],
)
def test_a_torch_that_does_not_sum_is_red(monkeypatch, job, words):
    monkeypatch.setattr(doctor_jobs, "run_ranks", lambda *args, **options: job)
    check = doctor.check_torch()
    assert red(check)
    assert words in check.detail


def test_a_torch_that_hangs_is_red():
    assert "did not finish within 2 s" in doctor.check_torch("import time; time.sleep(60)", seconds=2).detail


def test_deepspeed_is_tried_in_a_process_of_its_own(monkeypatch):
    check = doctor.check_deepspeed("import sys, os; print('1.2', os.environ['DS_ACCELERATOR'])")
    assert (check.ok, check.detail) == (True, "1.2 cpu, on the CPU")
    monkeypatch.setattr(doctor_jobs.importlib.util, "find_spec", lambda name: None)
    assert "only lessons 12 and 13 need it" in doctor.check_deepspeed().detail


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("raise ImportError('no such op')", "ImportError: no such op"),
        ("import time; time.sleep(60)", "did not finish within"),
    ],
)
def test_a_deepspeed_that_cannot_be_imported_is_red(monkeypatch, program, words):
    monkeypatch.setattr(doctor_jobs.importlib.util, "find_spec", lambda name: name)
    check = doctor.check_deepspeed(program, seconds=3)
    assert red(check)
    assert words in check.detail
