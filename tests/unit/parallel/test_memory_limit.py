"""A model that one limited process cannot hold, and two can; the limit is theirs alone."""

import re
from pathlib import Path

import pytest

from course.lessons.shared.memory_limit import STATUS, fits, layer_bytes
from course_lib.effects import runs_within

pytestmark = pytest.mark.skipif(not STATUS.exists(), reason="memory can be limited on Linux only")


@pytest.mark.slow
def test_one_rank_fails_in_clear_words_and_two_ranks_train() -> None:
    alone, together = fits(1, 192), fits(2, 192)
    assert not alone.trained and together.trained
    assert (found := re.fullmatch(r"rank 0 has no memory left after (\d+) of its 16 layers", alone.story))
    assert int(found[1]) * layer_bytes() < 192 * 2**20 < 16 * layer_bytes()


def test_ranks_without_a_layer_are_refused() -> None:
    with pytest.raises(ValueError, match="16 layers on 17 ranks"):
        fits(17, 192)


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
