"""No lesson depends on what the developers' processors can do.

The cores of the lessons that train run on the two other machines of `test_any_processor.py`, and are compared
with their recorded outputs, as in `make test`.
"""

import pytest

from course.paths import ROOT
from tests.unit.processors import MACHINES, X86_ALONE, run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600), X86_ALONE]

LESSONS = ("05", "06", "11", "12", "13")


@pytest.mark.parametrize("machine", MACHINES)
def test_the_cores_of_lessons(machine: str) -> None:
    notebooks = [str(path) for number in LESSONS for path in sorted(ROOT.glob(f"notebooks/{number}_*.ipynb"))]
    assert len(notebooks) == len(LESSONS)
    run(machine, "-m", "pytest", "--nbval", "--core", "--nbval-cell-timeout=600", *notebooks)
