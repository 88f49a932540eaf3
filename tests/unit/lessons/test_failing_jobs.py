"""Jobs of lesson 15 in which a rank fails: who notices, whom the last message names, who goes on."""

import json
import os
import re
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest

from course.lessons.l15_when_things_fail import jobs
from course.lessons.l15_when_things_fail.jobs import (
    Failure,
    run_elastic,
    run_failure,
    run_survivors,
    time_remote_calls,
)
from mpi_classroom.job_output import Death, event_file


def activities(failure: Failure, rank: int) -> list[str]:
    return [moment.activity for moment in failure.lanes[rank]]


def check_lanes(failure: Failure) -> None:
    """Without gaps; the failure is at 0."""
    for lane in failure.lanes.values():
        assert all(one.end == other.start for one, other in pairwise(lane))
    (failed,) = [each for each in failure.lanes[failure.guilty] if each.activity == "fails"]
    assert failed.start == 0


def blames_the_first_to_report(failure: Failure) -> int:
    """Known-wrong: the rank that reported the timeout first."""
    return min(failure.noticed, key=lambda rank: failure.noticed[rank].seconds)


@pytest.mark.timeout(120)
def test_of_a_hang_a_victim_is_blamed_and_the_stacks_show_the_guilty() -> None:
    failure = run_failure("hangs", deadline=1.0)
    check_lanes(failure)
    assert failure.exit_code != 0
    assert failure.blamed in (0, 2) and blames_the_first_to_report(failure) in (0, 2)
    assert {rank: words.split(",")[0] for rank, words in failure.stacks.items()} == {
        0: "all_reduce",
        1: "hangs",
        2: "all_reduce",
    }
    # One victim may be ended before it reports.
    reports = [each for each in failure.noticed.values() if "is not there after 1 s" in each.words]
    assert reports and all(each.seconds > 0.7 for each in reports)
    assert re.search(r"TimeoutError: rank \d: the all-reduce of step 2", failure.said)
    assert activities(failure, 0)[-1] == activities(failure, 2)[-1] == "wait"


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("how", ["raises", "dies"])
@pytest.mark.parametrize("ranks, guilty", [(2, 0), (3, 1)])
def test_a_rank_that_raises_or_dies_is_named_and_the_others_are_ended(
    how: str, ranks: int, guilty: int
) -> None:
    failure = run_failure(how, ranks=ranks, guilty=guilty, deadline=30.0)
    check_lanes(failure)
    assert failure.blamed == guilty and failure.exit_code != 0
    assert {each.words for each in failure.noticed.values()} == {"ended by mpiexec"}
    assert failure.noticed.keys() == set(range(ranks)) - {guilty}
    assert max(each.seconds for each in failure.noticed.values()) < 20
    assert ("ValueError: a batch of 0 images" in failure.said) == (how == "raises")
    assert ("signal 9" in failure.said) == (how == "dies")


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_nobody_notices_a_rank_that_is_slow() -> None:
    failure = run_failure("is slow", deadline=4.0)
    check_lanes(failure)
    assert (failure.exit_code, failure.blamed, failure.noticed, failure.said) == (0, None, {}, "")
    assert failure.stacks[1].startswith("compute") and failure.stacks[0].startswith("all_reduce")


def test_a_rank_that_outlives_mpiexec_or_never_started_ends_the_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "LEFT_AFTER", 0.2)
    alive = json.dumps({"at": 0.0, "what": "compute", "words": "", "pid": os.getpid()})
    event_file(tmp_path, 0).write_text(alive + "\n")
    with subprocess.Popen(["true"]) as mpiexec:
        assert jobs.watch(mpiexec, tmp_path, 2, ask_after=99.0) == {}


def test_the_last_words_name_the_rank_that_mpiexec_names() -> None:
    said = jobs.last_words("Traceback\nKeyError: 'x'\n", [Death(2, "abort"), Death(0, "signal", 9)])
    assert said == "KeyError: 'x'\nmpiexec: rank 2 called MPI_Abort"
    assert jobs.last_words("fine", []) == ""


# ------------------------------------------------------------------ survivors


@pytest.mark.timeout(120)
def test_survivors_go_on_with_the_losses_of_an_undisturbed_training() -> None:
    undisturbed = run_survivors(ranks=3, steps=12, dies_at=-1)
    if undisturbed.missing:
        pytest.skip(undisturbed.missing)
    run = run_survivors(ranks=3, victim=0, steps=12, dies_at=5)
    assert [each.ranks for each in run.steps] == [3] * 5 + [2] * 7
    assert [each.step for each in run.steps] == list(range(12))
    expected = [each.loss for each in undisturbed.steps]
    assert [each.loss for each in run.steps] == pytest.approx(expected, rel=1e-10)
    assert expected[-1] < 0.5 * expected[0]
    assert 0 < run.noticed_seconds <= run.shrunk_seconds <= run.recovered_seconds < 60


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("ranks, victim", [(2, 0), (2, 1), (3, 1), (3, 2), (4, 3)])
def test_any_rank_may_die_at_any_step(ranks: int, victim: int) -> None:
    for dies_at in (0, 7):
        run = run_survivors(ranks=ranks, victim=victim, steps=8, dies_at=dies_at)
        if run.missing:
            pytest.skip(run.missing)
        assert [each.ranks for each in run.steps] == [ranks] * dies_at + [ranks - 1] * (8 - dies_at)


def test_a_rank_that_there_is_not_cannot_die() -> None:
    with pytest.raises(ValueError, match="rank 3 cannot die: there are 3 ranks"):
        run_survivors(ranks=3, victim=3)


def test_an_mpi_that_cannot_says_so() -> None:
    assert "no option --with-ft" in jobs.cannot_survive("prterun: Unrecognized option: --with-ft")
    assert "without ULFM" in jobs.cannot_survive("    comm.Shrink()\nNotImplementedError\n")
    assert jobs.cannot_survive("step 3") == ""


# ------------------------------------------------------------------ torchrun, remote calls


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("workers", [2, 3])
def test_torchrun_restarts_the_training_from_its_checkpoint(workers: int) -> None:
    run = run_elastic(workers=workers, steps=16, kill_at=12, save_every=5)
    first, second = run.losses
    assert (min(first), max(first), min(second), max(second)) == (0, 11, 10, 15)
    assert run.repeated_steps == 2
    assert [first[step] for step in (10, 11)] == [second[step] for step in (10, 11)]
    assert second[15] < 0.7 * first[0]
    assert 0 < run.restarted_seconds < run.loaded_seconds < run.recovered_seconds
    assert 0 < run.noticed_seconds < run.restarted_seconds


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_remote_calls_are_timed_and_errors_come_back_in_words() -> None:
    found = time_remote_calls(20)
    assert found.keys() == {"ours", "torch"}
    assert all(each.seconds > 0 and "ZeroDivisionError" in each.error for each in found.values())
    assert found["ours"].late == "TimeoutError: rank 1 has not answered sleep(1.0,) after 0.1 s"
    assert "timeout" in found["torch"].late
