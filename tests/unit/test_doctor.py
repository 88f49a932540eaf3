"""The checks of the course: packages, data, torch.distributed, DeepSpeed; every check is made to fail."""

import json
import re
import struct
import sys
from collections import namedtuple

import pytest

from course import doctor, doctor_jobs
from course_lib.data import cifar10, cnn_dailymail, mnist
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


def test_another_version_is_red_and_named(lock):
    check = doctor.check_pins(lock, installed(numpy="1.26.0"))
    assert red(check)
    assert "numpy 1.26.0 instead of 2.4.6" in check.detail


def test_a_missing_package_is_red_and_named(lock):
    have = installed()
    del have["mpi4py"]
    check = doctor.check_pins(lock, have)
    assert red(check)
    assert "mpi4py is missing" in check.detail


def test_the_real_pins_name_every_package_that_is_needed():
    pins = (doctor.ROOT / "requirements.lock").read_text()
    assert all(re.search(rf"^(?:# )?{name}==", pins, re.MULTILINE) for name in doctor._required())


def test_the_course_may_be_read_only_where_data_and_results_are_not(monkeypatch):
    monkeypatch.setattr(doctor.machine.os, "access", lambda folder, mode: folder != doctor.ROOT)
    monkeypatch.setattr(doctor.machine.shutil, "disk_usage", lambda folder: Usage(100 << 30))
    assert doctor.check_disk().ok


Usage = namedtuple("Usage", "free")
Job = namedtuple("Job", "returncode stdout stderr")


SHORT = "an LSTM in bfloat16 runs in float32"


@pytest.mark.parametrize(
    ("instructions", "machine", "cores", "words"),
    [
        ("AVX512", "x86_64", 8, "AVX512; 8 cores: one or more per rank for 4 ranks, 2 threads per rank"),
        ("AVX2", "x86_64", 2, f"AVX2: {SHORT}; 2 cores: 4 ranks share them, 1 thread per rank"),
        (
            "DEFAULT",
            "x86_64",
            1,
            f"no AVX2: training is slower, and {SHORT}; 1 core: 4 ranks share it, 1 thread per rank",
        ),
        ("DEFAULT", "aarch64", 4, "DEFAULT; 4 cores: one or more per rank for 4 ranks, 1 thread per rank"),
    ],
)
def test_the_processor_is_named_with_what_it_means_and_is_no_fault(
    monkeypatch, instructions, machine, cores, words
):
    monkeypatch.setattr(doctor_jobs, "available_cores", lambda: cores)
    monkeypatch.setattr(doctor_jobs, "threads_per_rank", lambda size: max(1, cores // size))
    check = doctor_jobs.check_processor(instructions, machine)
    assert (check.ok, check.detail) == (True, words)


def test_the_instructions_are_those_that_torch_uses(monkeypatch):
    monkeypatch.setattr("torch.backends.cpu.get_cpu_capability", lambda: "AVX2")
    assert doctor_jobs.check_processor(machine="x86_64").detail.startswith(f"AVX2: {SHORT}; ")


def test_data_that_is_not_here_is_no_fault_and_nothing_is_downloaded(monkeypatch):
    def download(*arguments, **options):
        raise AssertionError("the doctor must not download")

    monkeypatch.setattr(mnist, "obtain", download)
    monkeypatch.setattr(mnist, "find", lambda download: None)
    check = doctor.check_data()
    assert check.ok
    assert check.detail.startswith("optional: MNIST is not downloaded yet (course fetch gets it)")


def test_a_wrong_data_folder_is_red(monkeypatch, tmp_path):
    monkeypatch.setenv("COURSE_DATA", str(tmp_path / "nowhere"))
    check = doctor.check_data()
    assert red(check)
    assert "nowhere is not a folder" in check.detail


def test_a_damaged_data_set_is_red(monkeypatch, tmp_path):
    for file in mnist.read_registry("mnist").files:
        (tmp_path / file.name).write_bytes(b"half a file")
    monkeypatch.setenv("COURSE_DATA", str(tmp_path))
    assert red(doctor.check_data())


def test_larger_data_sets_are_looked_for_and_not_missed(monkeypatch, tmp_path):
    monkeypatch.setattr(cifar10, "obtain", None)
    monkeypatch.setattr(cnn_dailymail, "obtain", None)
    monkeypatch.setattr(cifar10, "data_folders", list)
    monkeypatch.setattr(cnn_dailymail, "data_folders", list)
    monkeypatch.delenv("COURSE_DATA", raising=False)
    check = doctor.check_larger_data()
    assert check.ok and check.detail == (
        "optional: CIFAR-10 is not downloaded yet (course fetch cifar10 gets it), CNN/DailyMail is not "
        "downloaded yet (course fetch cnn_dailymail says how to get it); lessons generate data instead"
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


def test_a_data_set_with_another_checksum_is_no_fault_in_course_data_and_is_named(monkeypatch, tmp_path):
    idx = {
        "images": b"\0\0\x08\x03" + struct.pack(">3I", 2, 28, 28) + bytes(2 * 784),
        "labels": b"\0\0\x08\x01" + struct.pack(">I", 2) + bytes(2),
    }
    for file in mnist.read_registry("mnist").files:
        (tmp_path / file.name).write_bytes(idx[file.name.split("-")[1]])
    monkeypatch.setenv("COURSE_DATA", str(tmp_path))
    check = doctor.check_data()
    assert check.ok
    assert check.detail == "Your own data in the format of MNIST (2 + 2 images) from COURSE_DATA."


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


def test_one_call_shows_a_line_each_and_the_verdict(monkeypatch):
    shown = []
    checks = (
        lambda: Check("Python", True, "3.11"),
        lambda: Check("memory", False, "1 GiB", "close programs"),
    )
    monkeypatch.setattr(doctor, "CHECKS", checks)
    doctor.doctor(shown.append)
    assert shown[:2] == ["ok   Python         3.11", f"FIX  memory         1 GiB\n{'':20}→ close programs"]
    assert shown[2].startswith("\n1 to fix (2 checks")


def test_the_remedies_of_the_machine_are_said_in_the_words_of_the_course(monkeypatch):
    advice = "repair the checks above first, then run: mpi-classroom clean; mpi-classroom doctor"
    monkeypatch.setattr(doctor, "CHECKS", (lambda: Check("ranks", False, "no", advice),))
    (check,) = doctor.examine()
    assert check.remedy == "repair the checks above first, then run: course clean; course doctor"
