"""`course study --zero`: the cases, the file that is gone on with, and the report; once with real ranks."""

import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from rows import ABOUT
from typer.testing import CliRunner

from course.lessons.l07_ddp_on_mnist.study_results import REPORT
from course.tools import cli
from course.tools.study import command, zero
from course.tools.study.job import StudyError
from course.tools.study.zero import run_zero
from course.tools.study.zero_results import ZERO, ZeroCase, ZeroRow, load_zero, zero_cases
from course_lib.theory.memory import ADAM_FP32, bytes_per_parameter

PARAMETERS = 1_000_000


def rows_of(case: ZeroCase) -> list[dict[str, Any]]:
    """What a job might tell of a case: bytes of the formula."""
    kinds = {"weights": 3, "gradients": 2, "optimizer": 1}
    held = {
        f"{kind}_bytes": getattr(ADAM_FP32, kind) * PARAMETERS // (case.ranks if case.stage >= first else 1)
        for kind, first in kinds.items()
    }
    rest = {"step_seconds": (10 + case.stage) / 100, "step_spread": 0.01, "loss": 5.5}
    return [
        {"rank": rank, "parameters": PARAMETERS, "peak_bytes": 50_000_000, **held, **rest}
        for rank in range(case.ranks)
    ]


def all_rows(cases: list[ZeroCase]) -> tuple[ZeroRow, ...]:
    return tuple(ZeroRow(**asdict(case), **row, cores=2) for case in cases for row in rows_of(case))


class Jobs:
    """Stands in for jobs; the `broken` one ends badly."""

    def __init__(self, broken: int = -1) -> None:
        self.cases: list[ZeroCase] = []
        self.broken = broken

    def __call__(self, module: str, task: dict[str, Any], ranks: int) -> Any:
        assert ranks == task["ranks"]
        self.cases.append(ZeroCase(**task))
        if len(self.cases) - 1 == self.broken:
            raise StudyError("rank 1 was killed (signal 9: by hand, or because memory ran out)")
        yield {"ready": ranks}
        yield {"rows": rows_of(self.cases[-1])}


@pytest.fixture
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zero, "available_cores", lambda: 2)


def test_all_stages_on_all_ranks() -> None:
    found = [(case.ranks, case.stage) for case in zero_cases(quick=False, cores=2)]
    assert found == [(ranks, stage) for ranks in (1, 2, 4) for stage in range(4)]
    assert {case.ranks for case in zero_cases(quick=True, cores=2, ranks=[3])} == {3}
    with pytest.raises(ValueError, match="1 to 64"):
        zero_cases(quick=True, cores=2, ranks=[0])


def test_what_stops_goes_on_and_measures_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, two_cores: None
) -> None:
    cases = zero_cases(quick=True, cores=2)
    monkeypatch.setattr(zero, "listen", first := Jobs(broken=5))
    with pytest.raises(StudyError, match=r"ran out\), during stage 1 on 2 ranks; the 5 runs measured so far"):
        list(run_zero(cases, tmp_path, ABOUT))
    kept = (tmp_path / ZERO).read_text().splitlines()
    monkeypatch.setattr(zero, "listen", second := Jobs())
    assert len(list(run_zero(cases, tmp_path, ABOUT))) == 3
    assert first.cases[:5] + second.cases == cases
    assert (tmp_path / ZERO).read_text().splitlines()[: len(kept)] == kept
    assert list(run_zero(cases, tmp_path, ABOUT)) == []
    assert load_zero(tmp_path) == (all_rows(cases), ABOUT)


@pytest.mark.timeout(300)
@pytest.mark.slow
def test_the_command_with_real_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two stages of four: each case is a job of its own."""
    monkeypatch.setattr(command, "zero_cases", lambda **choice: zero_cases(**choice)[1::2])
    arguments = ["study", "--zero", "--quick", "--ranks", "2", "--results", str(tmp_path)]
    done = CliRunner().invoke(cli.app, arguments)
    assert done.exit_code == 0, done.output
    assert re.search(r"stage 3 on 2 ranks: .* MB held, .* s per step", done.output)
    rows, _ = load_zero(tmp_path)
    assert [(row.stage, row.rank) for row in rows] == [(stage, rank) for stage in (1, 3) for rank in (0, 1)]
    for row in rows:
        assert row.held.total == pytest.approx(
            bytes_per_parameter(row.stage, 2, ADAM_FP32) * row.parameters, rel=1e-4
        )
        assert row.peak_bytes is None or row.peak_bytes > 0
    assert max(row.loss for row in rows) - min(row.loss for row in rows) < 1e-3
    assert "measured" in (tmp_path / REPORT).read_text()
    again = CliRunner().invoke(cli.app, arguments)
    assert "s per step\nstage" not in again.output and again.exit_code == 0
