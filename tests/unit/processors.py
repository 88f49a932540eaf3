"""Two machines that are not the developers': how a process is told that it runs on one of them.

torch, oneDNN, MKL, OpenBLAS and NumPy each have a variable that limits what they use of a processor.
To run any module as on the first: `python -m tests.unit.processors AVX2 -m pytest --nbval notebooks`.
"""

import os
import platform
import subprocess
import sys
from dataclasses import dataclass

import pytest

from course.paths import ROOT

X86_ALONE = pytest.mark.skipif(
    platform.machine() not in ("x86_64", "AMD64"), reason="these instruction sets are those of x86-64"
)


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


if __name__ == "__main__":
    os.execve(sys.executable, [sys.executable, *sys.argv[2:]], os.environ | MACHINES[sys.argv[1]].environment)
