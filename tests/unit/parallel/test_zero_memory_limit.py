"""Under the same limit a rank alone fails, four ranks that keep everything fail, and stage 3 trains."""

import re

import pytest

from course.lessons.l11_zero_from_scratch import memory_limit
from course.lessons.l11_zero_from_scratch.memory_limit import LAYERS, LIMIT_MIB, fits, three_tries
from course.lessons.shared.memory_limit import STATUS, Fit, layer_bytes
from course_lib.theory.memory import ADAM_FP32
from tests.formulas import gathered_weights

pytestmark = pytest.mark.skipif(not STATUS.exists(), reason="memory can be limited on Linux only")


def test_the_limit_lies_between_what_one_rank_needs_and_what_a_quarter_does() -> None:
    state, limit = LAYERS * layer_bytes(), LIMIT_MIB * 2**20
    whole = gathered_weights([layer_bytes() // 16], ADAM_FP32)
    assert state / 4 + 2 * whole < limit < state


@pytest.mark.slow
def test_stage_3_on_four_ranks_trains_what_one_rank_cannot() -> None:
    alone, together = fits(1), fits(4)
    assert not alone.trained and together.trained
    assert re.fullmatch(r"rank 0 has no memory left (in training|after \d+ of 16 layers)", alone.story)
    assert (together.ranks, together.limit_mib, together.story) == (4, LIMIT_MIB, "trained a step")


@pytest.mark.slow
def test_it_is_the_stage_and_not_the_number_of_ranks() -> None:
    replicated = fits(2, stage=0)
    assert not replicated.trained
    assert "no memory left in training" in replicated.story


def test_what_cannot_be_tried_is_refused() -> None:
    with pytest.raises(ValueError, match="16 layers on 0 ranks of 192 MiB"):
        fits(0)


def test_the_three_tries_print_what_happened(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def tried(ranks: int, *, stage: int) -> Fit:
        return Fit(ranks, LIMIT_MIB, LAYERS, stage == 3, f"{ranks} ranks in stage {stage}")

    monkeypatch.setattr(memory_limit, "fits", tried)
    assert [found.trained for found in three_tries().values()] == [False, False, True]
    assert "4 ranks, data parallelism  4 ranks in stage 0" in capsys.readouterr().out


def test_where_memory_cannot_be_limited_there_are_no_tries(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def cannot(ranks: int, *, stage: int) -> Fit:
        raise OSError("on Linux only")

    monkeypatch.setattr(memory_limit, "fits", cannot)
    assert three_tries() == {}
    assert capsys.readouterr().out == "on Linux only\n"
