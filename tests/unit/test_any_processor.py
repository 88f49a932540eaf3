"""No number depends on what the developers' processors can do.

The tests of numbers and the cores of lessons that train run again as on two other machines: a laptop with
AVX2 and nothing newer, and one core without AVX. torch, oneDNN, MKL, OpenBLAS and NumPy each have a variable
that limits what they use of a processor. Lessons are compared with their recorded outputs, as in `make test`.
"""

import os
import platform
import subprocess
import sys
from dataclasses import dataclass

import pytest

from course.paths import ROOT

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(
        platform.machine() not in ("x86_64", "AMD64"), reason="these instruction sets are those of x86-64"
    ),
]


@dataclass(frozen=True, slots=True)
class Machine:
    """What the libraries are told of the processor, and how many cores a process gets (0: all)."""

    environment: dict[str, str]
    cores: int = 0


MACHINES = {
    "AVX2": Machine(
        {
            "ATEN_CPU_CAPABILITY": "avx2",
            "ONEDNN_MAX_CPU_ISA": "AVX2",
            "MKL_ENABLE_INSTRUCTIONS": "AVX2",
            "OPENBLAS_CORETYPE": "Haswell",
            "NPY_DISABLE_CPU_FEATURES": "X86_V4 AVX512_ICL AVX512_SPR",
        }
    ),
    "one core without AVX": Machine(
        {
            "ATEN_CPU_CAPABILITY": "default",
            "ONEDNN_MAX_CPU_ISA": "SSE41",
            "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
            "OPENBLAS_CORETYPE": "Nehalem",
            "NPY_DISABLE_CPU_FEATURES": "X86_V3 X86_V4 AVX512_ICL AVX512_SPR",
        },
        cores=1,
    ),
}
ONE_PROCESS = ("tests/unit/training", "tests/unit/test_fast_pipeline.py", "tests/unit/test_pi.py")
DRAWN = ("drawn_digits", "drawn_shapes", "generated_news", "packed")
ON_RANKS = (
    "data_parallel",
    "gradient_buckets",
    "pipeline",
    "spatial_parallel",
    "summaries",
    "tensor_parallel",
    "training_state",
    "zero",
)
LESSONS = ("05", "06", "11", "12", "13")


def run(machine: str, *arguments: str, **variables: str) -> None:
    """`python *arguments` on `machine`; it must succeed."""
    cores = sorted(os.sched_getaffinity(0))
    told = MACHINES[machine]
    done = subprocess.run(
        [sys.executable, *arguments, "-q", "-p", "no:cacheprovider"],
        env=os.environ | told.environment | variables,
        preexec_fn=lambda: os.sched_setaffinity(0, cores[: told.cores or None]),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-8000:]


@pytest.mark.parametrize("machine", MACHINES)
def test_the_numbers_of_one_process(machine: str) -> None:
    drawn = [f"tests/unit/data/test_{name}.py" for name in DRAWN]
    run(machine, "-m", "pytest", *ONE_PROCESS, *drawn)


@pytest.mark.parametrize("machine", MACHINES)
def test_the_numbers_of_two_ranks(machine: str) -> None:
    files = [f"tests/ranks/test_{name}.py" for name in ON_RANKS]
    files += [f"packages/torch_mpi4py/tests/ranks/test_{name}.py" for name in ("collectives", "stack")]
    call = ["-m", "mpi_classroom.launch", "2", "-m", "pytest", "-p", "pytest_timeout"]
    run(machine, *call, *files, PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")


@pytest.mark.parametrize("machine", MACHINES)
def test_the_cores_of_lessons(machine: str) -> None:
    notebooks = [str(path) for number in LESSONS for path in sorted(ROOT.glob(f"notebooks/{number}_*.ipynb"))]
    assert len(notebooks) == len(LESSONS)
    run(machine, "-m", "pytest", "--nbval", "--core", "--nbval-cell-timeout=600", *notebooks)
