"""Lesson 16's explorer: what it shows are the numbers and the lines of the learner's own program."""

import runpy
from pathlib import Path
from typing import Any

import pytest

from course.lessons.l16_choose_your_strategy.exercises import JOB, NVLINK
from course.lessons.l16_choose_your_strategy.figures import best, explore, formulas
from course.paths import NOTEBOOKS

PROGRAM = NOTEBOOKS / "code" / "16_plan.py"
CARDS = {"gpus": 8, "room": 28.8e9, "rate": 115e12, "link": 10e9}
GENOME = {"seq": 16384, "batch": 1}


@pytest.fixture(scope="module")
def page() -> dict[str, Any]:
    return runpy.run_path(str(PROGRAM))


@pytest.mark.parametrize(
    ("customer", "first"),
    [
        (JOB | NVLINK, "ZeRO-1 on 8, 4 micro-batches"),
        (JOB | CARDS, "pipeline 8, 64 micro-batches"),
        (JOB | NVLINK | GENOME, "tensor 8, 1 micro-batch"),
    ],
)
def test_each_customer_has_a_different_winner(
    page: dict[str, Any], customer: dict[str, float], first: str
) -> None:
    found = best(page["memory"], page["step"], customer)
    assert found[0][0] == first
    assert found[0][1]["total"] <= customer["room"]


def test_a_number_opens_to_the_line_of_the_program(tmp_path: Path) -> None:
    source = PROGRAM.read_text()
    assert formulas(source)["idle"] == "computing * (pipeline - 1) / microbatches"
    changed = tmp_path / "16_plan.py"
    changed.write_text(source.replace("computing * (pipeline - 1)", "1000 * computing * (pipeline - 1)"))
    shown = explore(str(changed), {"chat": JOB | NVLINK})
    assert "1000 * computing * (pipeline - 1) / microbatches" in shown.html
    assert "does not fit" not in shown.text
    small = explore(str(PROGRAM), {"small": JOB | NVLINK | {"room": 1e9}})
    assert "does not fit" in small.text and "does not fit" in small.html
