"""What the ranks of a job wrote is read as far as it is complete."""

import json
from pathlib import Path

import pytest

from mpi_classroom.rank_log import RankLog


def write(folder: Path, rank: int, *events: dict[str, object], rest: str = "") -> None:
    lines = "".join(json.dumps(event) + "\n" for event in events)
    (folder / f"rank-{rank}.jsonl").write_text(lines + rest)


def event(name: str, step: int = 0, **details: object) -> dict[str, object]:
    return {"event": name, "step": step, **details}


@pytest.fixture
def log(tmp_path: Path) -> RankLog:
    """Two ranks: both have begun step 1, rank 0 is right there and has begun step 2; rank 1 has returned."""
    began = event("began", 1, size=2, case=0, pause=False, pid=71)
    second = event("began", 2, size=2, case=1, pause=True)
    write(tmp_path, 0, event("ready", pid=70), began, event("right", 1), second)
    write(tmp_path, 1, event("ready", pid=71), began, event("returned", 1), rest='{"event": "wro')
    log = RankLog(tmp_path, 2)
    log.read()
    return log


def test_a_line_that_is_being_written_is_not_read_yet(log: RankLog) -> None:
    assert [e["event"] for e in log.events[1]] == ["ready", "began", "returned"]
    assert log.first_failure is None


def test_ranks_are_ready_loaded_and_done_one_after_the_other(tmp_path: Path, log: RankLog) -> None:
    assert log.ready and log.loaded and not log.done
    nobody = RankLog(tmp_path / "none", 2)
    nobody.read()
    assert not nobody.ready and not nobody.loaded and not nobody.done
    assert (nobody.last_step, nobody.size(0), nobody.pid(1)) == (0, 2, 0)
    for rank in (0, 1):
        write(tmp_path, rank, event("ready"), event("done", 8))
    log.read()
    assert log.done


def test_the_first_failure_is_the_smallest_case_whoever_came_to_it_first(
    tmp_path: Path, log: RankLog
) -> None:
    write(tmp_path, 0, event("ready"), event("wrong", 3, message="later"))
    write(tmp_path, 1, event("ready"), event("raised", 2, error="ValueError"))
    log.read()
    assert log.first_failure == 2
    write(tmp_path, 1, event("ready"), event("raised", 0, error="NameError"))
    log.read()
    assert log.first_failure == 0


def test_a_step_knows_its_case_and_the_outcome_of_every_rank(log: RankLog) -> None:
    assert log.began(2)["pause"] is True
    outcomes = log.outcomes(1)
    assert outcomes[0] is not None and outcomes[0]["event"] == "right"
    assert outcomes[1] is None
    assert log.returned(1, 0) and log.returned(1, 1) and not log.returned(2, 0)
    assert log.last_step == 2
    assert log.pid(0) == 70
