"""No lesson depends on what the developers' processors can do.

The cores of the lessons that train run on the two other machines of `test_any_processor.py`, and are compared
with their recorded outputs, as in `make test`.
"""

from collections.abc import Sequence

import pytest

from course.paths import ROOT
from tests.unit.processors import X86_ALONE, run

pytestmark = [pytest.mark.timeout(3600), X86_ALONE]

AVX2, ONE_CORE = "AVX2", "one core without AVX"


@pytest.mark.parametrize(
    ("machine", "lessons"),
    [
        pytest.param(ONE_CORE, ("05", "06", "13"), marks=pytest.mark.slow),
        pytest.param(AVX2, ("11", "12"), marks=pytest.mark.slow),
        pytest.param(ONE_CORE, ("11", "12"), marks=pytest.mark.release),
        pytest.param(AVX2, ("05", "06", "13"), marks=pytest.mark.release),
    ],
)
def test_the_cores_of_lessons(machine: str, lessons: Sequence[str]) -> None:
    notebooks = [str(path) for number in lessons for path in sorted(ROOT.glob(f"notebooks/{number}_*.ipynb"))]
    assert len(notebooks) == len(lessons)
    run(machine, "-m", "pytest", "--nbval", "--core", "--nbval-cell-timeout=600", *notebooks)
