"""What lesson 15 says follows from what was measured; its saver's check looks at every moment of a save."""

import os
from pathlib import Path

import pytest

from course.lessons.l15_when_things_fail.exercise_save import NEW, OLD, Disk, watched
from course.lessons.l15_when_things_fail.jobs import CallTimes, ElasticRun, Failure, Notice, Step, SurvivorRun
from course.lessons.l15_when_things_fail.kill_points import Instant
from course.lessons.l15_when_things_fail.words import (
    call_table,
    count_damaged,
    count_right,
    explain_blame,
    explain_elastic,
    explain_resume,
    explain_survivors,
    failure_table,
    right_table,
)


def failure(how: str, blamed: int | None, noticed: dict[int, Notice]) -> Failure:
    return Failure(how, 1, {}, noticed, blamed, {}, 0 if blamed is None else 1, "")


FAILURES = {
    "raises": failure("raises", 1, {0: Notice(0.31, "ended by mpiexec"), 2: Notice(0.2, "ended by mpiexec")}),
    "hangs": failure("hangs", 2, {0: Notice(2.1, "rank 0: the all-reduce is not there after 2 s")}),
    "is slow": failure("is slow", None, {}),
}


def test_the_table_names_the_first_rank_that_noticed_and_the_one_in_the_last_message() -> None:
    rows = [" ".join(line.split()) for line in failure_table(FAILURES).splitlines()[1:]]
    assert rows == [
        "raises mpiexec 0.20 s rank 1 ended rank 1",
        "hangs rank 0 2.10 s its timeout rank 2",
        "is slow nobody – – nobody",
    ]


def test_blame_is_told_from_the_last_messages() -> None:
    said = explain_blame(FAILURES)
    assert said == (
        "It names rank 1 when rank 1 raises. When it hangs, rank 0 notices first, but the message names "
        "rank 2; both only waited. When it is slow, no message comes."
    )
    alone = explain_blame({"hangs": failure("hangs", 0, {0: Notice(2.1, "rank 0: late")})})
    assert alone == "When it hangs, the message names rank 0, which only waited."


def test_half_and_lost_files_are_damaged() -> None:
    states = ("old", "lost", "half", "new")
    assert count_damaged([Instant("open", state, "lost", True) for state in states]) == 2


def test_steps_after_the_last_save_are_computed_twice() -> None:
    killed, resumed = dict.fromkeys(range(10), 0.0), dict.fromkeys(range(8, 14), 0.0)
    assert "after 10 steps, the last save after 8. So 2 steps" in explain_resume(killed, resumed)


def test_only_losses_after_the_restart_count() -> None:
    never = [4.0, 3.0, 2.0, 1.0]
    assert count_right([9.0, 9.0, 2.0, 1.5], never) == 1
    assert right_table({"weights": never}, never).splitlines()[1].split()[1] == "2"


def test_survivors_tell_when_they_went_on_or_why_they_cannot() -> None:
    steps = [Step(7, 3, 1.0, 0.01), Step(8, 2, 0.9, 0.01), Step(9, 2, 0.8, 0.01)]
    said = explain_survivors(SurvivorRun(1, steps, 0.02, 0.03, 0.05))
    assert "within 20 ms" in said and "30 ms the 2 survivors" in said and "step 8" in said
    assert explain_survivors(SurvivorRun(1, [], missing="No ULFM here.")) == "No ULFM here."


def test_a_restart_is_told_in_its_parts() -> None:
    losses = [dict.fromkeys(range(12), 1.0), dict.fromkeys(range(10, 30), 1.0)]
    said = explain_elastic(ElasticRun(losses, 12, [], 0.2, 0.5, 6.5, 6.8))
    assert "killed in step 12. 200 ms later" in said
    assert "took them 6 s" in said and "2 steps were computed twice" in said


def test_both_kinds_of_calls_are_listed() -> None:
    times = {"ours": CallTimes(1e-4, "RemoteError: divide raised " + "x " * 60, "TimeoutError: late")}
    rows = call_table(times).splitlines()
    assert "100 µs per call" in rows[0]
    assert all(len(row) <= 88 for row in rows)
    assert "".join(rows[1:-1]).count("x") == 60
    assert "too late:  TimeoutError: late" in rows[-1]


def test_the_check_of_the_saver_sees_a_write_between_its_halves(tmp_path: Path) -> None:
    disk = Disk(tmp_path, OLD)
    with watched(disk):
        disk.path.write_bytes(NEW)
    seen = {moment.after: moment.seen for moment in disk.moments}
    assert seen["`open`"] == b""
    assert seen["half of a `write`"] == NEW[: len(NEW) // 2]
    assert seen["closing a file"] == NEW


def test_a_renamed_file_keeps_what_was_synced(tmp_path: Path) -> None:
    disk = Disk(tmp_path, OLD)
    with watched(disk):
        beside = tmp_path / "beside"
        with open(beside, "wb") as file:
            file.write(NEW)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(disk.path)
    assert disk.moments[-1].after == "the rename"
    assert disk.moments[-1].on_disk == disk.moments[-1].seen == NEW


def test_the_functions_of_the_system_are_there_again_after_the_check(tmp_path: Path) -> None:
    before = open, os.fsync, os.replace
    with pytest.raises(ZeroDivisionError), watched(Disk(tmp_path, None)):
        1 / 0  # noqa: B018
    assert (open, os.fsync, os.replace) == before
