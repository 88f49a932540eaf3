"""What the ranks of a job wrote is read as far as it is complete (test_job.py has whole jobs)."""

import json
from pathlib import Path

from mpi_classroom.rank_log import RankLog


def write(folder: Path, rank: int, *events: dict[str, object]) -> None:
    lines = "".join(json.dumps({"event": "ready", "step": 0} | event) + "\n" for event in ({}, *events))
    (folder / f"rank-{rank}.jsonl").write_text(lines)


def test_the_first_failure_is_the_smallest_case_whoever_came_to_it_first(tmp_path: Path) -> None:
    log = RankLog(tmp_path, 2)
    for step in (2, 0):
        write(tmp_path, 0, {"event": "wrong", "step": 3})
        write(tmp_path, 1, {"event": "raised", "step": step})
        log.read()
        assert log.first_failure == step
