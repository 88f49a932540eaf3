"""No lesson depends on what the developers' processors can do.

Before a release, the cores of the lessons that train run as on one core without AVX, and are compared with
their recorded outputs. `make test-all` runs all lessons whole as on a laptop with AVX2 and nothing newer.
"""

import pytest

from course.paths import ROOT
from tests.unit.processors import X86_ALONE, run

pytestmark = [pytest.mark.release, pytest.mark.timeout(3600), X86_ALONE]

LESSONS = ("05", "06", "11", "12", "13")


def test_the_cores_of_lessons_that_train() -> None:
    notebooks = [str(path) for number in LESSONS for path in sorted(ROOT.glob(f"notebooks/{number}_*.ipynb"))]
    assert len(notebooks) == len(LESSONS)
    machine = "one core without AVX"
    run(machine, "-m", "pytest", "--nbval", "--core", "--nbval-cell-timeout=600", *notebooks)
