"""No lesson depends on what the developers' processors can do.

The cores of the lessons that train run as on one core without AVX, and are compared with their recorded
outputs: three in `make test-all`, the others before a release. `make test-all` also runs all lessons whole as
on a laptop with AVX2 and nothing newer.
"""

import pytest

from course.paths import ROOT
from tests.unit.processors import X86_ALONE, run

pytestmark = [pytest.mark.timeout(3600), X86_ALONE]


@pytest.mark.parametrize(
    "lessons",
    [
        pytest.param(("06",), marks=pytest.mark.slow),
        pytest.param(("05", "11", "12", "13"), marks=pytest.mark.release),
    ],
    ids=" ".join,
)
def test_the_cores_of_lessons_that_train(lessons: tuple[str, ...]) -> None:
    notebooks = [str(path) for number in lessons for path in sorted(ROOT.glob(f"notebooks/{number}_*.ipynb"))]
    assert len(notebooks) == len(lessons)
    machine = "one core without AVX"
    run(machine, "-m", "pytest", "--nbval", "--core", "--nbval-cell-timeout=600", *notebooks)
