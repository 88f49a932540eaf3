"""No number depends on what the developers' processors can do.

The tests of numbers run again as on two other machines: a laptop with AVX2 and nothing newer, and one core
without AVX. The cores of lessons that train do, too: see `test_any_processor_lessons.py`.
"""

import pytest

from tests.unit.processors import MACHINES, X86_ALONE, run

pytestmark = [pytest.mark.release, pytest.mark.timeout(3600), X86_ALONE]

ONE_PROCESS = ("tests/unit/training", "tests/unit/test_fast_pipeline.py", "tests/unit/test_pi.py")
# What reads, writes and counts words, which no instruction set changes.
OTHERS = ("test_memory_use", "summaries/test_rouge", "test_facts")
DRAWN = ("drawn_digits", "drawn_shapes", "generated_news")
ON_RANKS = (
    "data_parallel",
    "gradient_buckets",
    "pipeline",
    "spatial_parallel",
    "tensor_parallel",
    "training_state",
    "zero",
)


@pytest.mark.parametrize("machine", MACHINES)
def test_the_numbers_of_one_process(machine: str) -> None:
    drawn = [f"tests/unit/data/test_{name}.py" for name in DRAWN]
    others = [f"--ignore=tests/unit/training/{name}.py" for name in OTHERS]
    run(machine, "-m", "pytest", *ONE_PROCESS, *drawn, *others)


@pytest.mark.parametrize("machine", MACHINES)
def test_the_numbers_of_two_ranks(machine: str) -> None:
    files = [f"tests/ranks/test_{name}.py" for name in ON_RANKS]
    files += [f"packages/torch_mpi4py/tests/ranks/test_{name}.py" for name in ("differential", "stack")]
    call = ["-m", "mpi_classroom.launch", "2", "-m", "pytest", "-p", "pytest_timeout"]
    run(machine, *call, *files, PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
