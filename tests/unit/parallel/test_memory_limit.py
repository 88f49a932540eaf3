"""Whether a job runs within a limit of memory, and what is another mistake."""

from pathlib import Path

import pytest

from course_lib.effects import STATUS, runs_within

pytestmark = pytest.mark.skipif(not STATUS.exists(), reason="memory can be limited on Linux only")


def test_a_job_runs_within_a_limit_or_not_and_another_mistake_is_an_error(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("import numpy as np\n")
    assert runs_within(64, 2, str(program), "np.ones(4 * 2**20)", first="np.ones(16 * 2**20)")  # 32 MiB
    assert not runs_within(64, 2, str(program), "np.ones(16 * 2**20)")  # 128 MiB
    with pytest.raises(RuntimeError, match=r"not for want of memory(.|\n)*NameError"):
        runs_within(64, 1, str(program), "nowhere")


def test_an_error_that_only_the_limit_causes_is_a_want_of_memory_whatever_it_says(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("from resource import RLIMIT_DATA, RLIM_INFINITY, getrlimit\n")
    code = "assert getrlimit(RLIMIT_DATA)[0] == RLIM_INFINITY, 'MPI_ERR_OTHER'"
    assert not runs_within(64, 1, str(program), code)
