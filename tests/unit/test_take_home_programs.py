"""The programs to take home train alike on any number of ranks, where our packages are not installed."""

import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from course.paths import NOTEBOOKS, ROOT
from course.tools.build import lesson_sources
from course.tools.frame import read_frame, stem
from tests.ports import free_port

PROGRAMS = sorted((NOTEBOOKS / "code").glob("[0-9][0-9]_*.py"))
SLOW = ("12_train.py", "13_summarize.py")  # a process of them needs 1 GB, and some seconds to start
QUICK = ("01_ring.py", "06_by_hand.py")  # in every `make test`
RUNNER = ROOT / "tests" / "without_ours.py"
# What depends on the number of ranks or on the clock, as patterns; all else that is printed is compared.
DIFFERS: dict[str, tuple[str, ...]] = {
    "00_hello.py": (r"hello from rank \d of \d\n", r"\branks: \d\b"),
    "01_ring.py": (r"\branks: \d\b", r"from rank \d", r"limit \d+"),
    "02_pi.py": (r"\branks: \d\b", r"\d+\.\d\d s"),
    "03_quadrature.py": (r"-?\d+\.\d µs", r"-?\d+\.\d+ ns", r"\branks: \d\b"),
    "04_allreduce.py": (r"\branks: \d\b", r"  (ring|doubling) +[\d.]+ ms"),
    "05_train.py": (),
    "06_by_hand.py": (r"\branks: \d\b",),
    "07_ddp.py": (r"\branks: \d\b",),
    "08_pipeline.py": (r"\branks: \d\b",),
    "09_tensor.py": (r"\branks: \d\b",),
    "10_halo.py": (r"tiles: \d, replicas: \d",),
    "11_zero.py": (r"\branks: \d\b",),
    "12_train.py": (),
    "13_summarize.py": (),
    "14_slow_link.py": (
        r"\b\d ranks, 256",
        r"[\d,]+ µs",
        r"measured \d+\.\d",
        r"\d+\.\d [mn]s",
        r"\d+\.\d\d s",
    ),
    "15_resume.py": (r"\branks: \d\b",),
    "16_plan.py": (),
}


def run(program: Path, size: int) -> subprocess.CompletedProcess[str]:
    """The program on so many ranks, without our packages."""
    command = [sys.executable, "-m", "mpi_classroom.launch", str(size), str(RUNNER), str(program)]
    small = {**os.environ, "SMOLLM2": "none"}  # whether or not the large model was fetched
    return subprocess.run(command, capture_output=True, text=True, timeout=240, env=small)


@cache
def printed(program: Path, size: int) -> str:
    """What the program prints, without what may differ."""
    done = run(program, size)
    assert done.returncode == 0, done.stderr
    said = done.stdout
    for pattern in DIFFERS[program.name]:
        assert re.search(pattern, said), said
        said = re.sub(pattern, "", said)
    assert re.search(r"\d", said), done.stdout
    return said


@pytest.mark.slow
def test_ddp_prints_the_same_under_torchrun_as_under_mpiexec() -> None:
    program = NOTEBOOKS / "code" / "07_ddp.py"
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [sys.executable, *torchrun, str(RUNNER), str(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert done.stdout == run(program, 2).stdout


@pytest.mark.parametrize(
    "name", [pytest.param(SLOW[0], marks=pytest.mark.slow), pytest.param(SLOW[1], marks=pytest.mark.release)]
)
def test_deepspeed_prints_the_same_under_its_launcher_as_under_mpiexec(name: str) -> None:
    program = NOTEBOOKS / "code" / name
    launcher = ["-m", "deepspeed.launcher.runner", "--quiet", "--num_gpus", "2", "--no_local_rank"]
    place = ["--master_addr", "127.0.0.1", "--master_port", str(free_port())]
    command = [sys.executable, *launcher, *place, str(RUNNER), str(program)]
    environment = os.environ | {"DS_ACCELERATOR": "cpu", "SMOLLM2": "none"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment)
    assert done.returncode == 0, done.stderr
    losses, expected = (re.findall(r"\d\.\d{3}", each.stdout) for each in (done, run(program, 2)))
    assert losses == expected and len(losses) > 2  # one world of all ranks, not a world for each


def test_every_lesson_of_the_laboratory_but_an_elective_has_its_program() -> None:
    takes_home = {stem(source)[:2] for source in lesson_sources() if not read_frame(source).elective}
    assert {program.name[:2] for program in PROGRAMS} == takes_home


@pytest.mark.parametrize(
    ("program", "size"),
    [
        *(
            pytest.param(each, 3, marks=() if each.name in QUICK else pytest.mark.release)
            for each in PROGRAMS
        ),
        *(pytest.param(each, 4, marks=pytest.mark.slow) for each in PROGRAMS),
    ],
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_a_program_prints_the_same_numbers_on_any_number_of_ranks(program: Path, size: int) -> None:
    assert printed(program, size) == printed(program, 1)


@pytest.mark.parametrize("name", ["course", "course_lib.measure", "mpi_classroom.launch"])
def test_a_program_that_imports_ours_fails_there(tmp_path: Path, name: str) -> None:
    for text, code in ((f"import {name}\n", 1), ("import json\n", 0)):
        (tmp_path / "program.py").write_text(text)
        command = [sys.executable, str(RUNNER), str(tmp_path / "program.py")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == code, done.stderr
        assert ("No module named" in done.stderr) == bool(code)
