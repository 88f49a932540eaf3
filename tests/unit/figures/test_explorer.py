"""Lesson 16's explorer: what it shows are the numbers and the lines of the learner's own program."""

import re
import runpy
from pathlib import Path
from typing import Any

import pytest

from course.lessons.l16_choose_your_strategy.exercises import JOB, NVLINK
from course.lessons.l16_choose_your_strategy.figures import MEMORY, STEP, best, choices, explore, formulas
from course.paths import NOTEBOOKS

PROGRAM = NOTEBOOKS / "code" / "16_plan.py"
CARDS = {"gpus": 8, "capacity": 28.8e9, "rate": 115e12, "link": 10e9}
GENOME = {"seq": 16384, "batch": 1}


@pytest.fixture(scope="module")
def page() -> dict[str, Any]:
    return runpy.run_path(str(PROGRAM))


@pytest.mark.parametrize(
    ("customer", "first"),
    [
        (JOB | NVLINK, "ZeRO-3 on 8, 8 micro-batches"),
        (JOB | CARDS, "pipeline 8, 64 micro-batches"),
        (JOB | NVLINK | GENOME, "tensor 8, 1 micro-batch"),
    ],
)
def test_each_customer_has_a_different_winner(
    page: dict[str, Any], customer: dict[str, float], first: str
) -> None:
    found = best(page["memory"], page["step"], customer)
    assert found[0][0] == first
    assert found[0][1]["total"] <= customer["capacity"]


def test_a_number_opens_to_the_line_of_the_program(tmp_path: Path) -> None:
    source = PROGRAM.read_text()
    assert formulas(source)["idle"] == "(computing + tensor_messages) * (pipeline - 1) / microbatches"
    changed = tmp_path / "16_plan.py"
    changed.write_text(
        source.replace("(computing + tensor_messages) *", "1000 * (computing + tensor_messages) *")
    )
    shown = explore(str(changed), JOB | NVLINK)
    assert "1000 * (computing + tensor_messages) * (pipeline - 1) / microbatches" in shown.html
    assert "does not fit" not in shown.text and "does not fit" in shown.html


ROW = re.compile(r"<tr><td>(?P<plan>[^<]*).*?</tr>")


def named(words: str) -> dict[str, int]:
    """The plan that its row names."""
    plan = {"microbatches": int(words.split(", ")[1].split()[0])}
    for part in words.split(", ")[0].split(" × "):
        axis, number = part.replace(" on ", " ").split()
        if axis.startswith("ZeRO-"):
            plan["zero"], axis = int(axis.removeprefix("ZeRO-")), "data"
        plan[axis] = int(number)
    return plan


def wrong_numbers(html: str, page: dict[str, Any]) -> list[str]:
    """The plans of which a shown number is not what the page computes."""
    found = []
    panels = html.split("<section")[1:]
    for panel, asked in zip(panels, choices(JOB | NVLINK).values(), strict=True):
        for row in ROW.finditer(panel):
            plan = named(row["plan"])
            memory, step = page["memory"](**asked, **plan), page["step"](**asked, **plan)
            right = [f"<summary>{memory['total'] / 1e9:.1f} GB", f"<summary>{step['total']:.2f} s"]
            right += [f"<li>{part} = {memory[part] / 1e9:.1f} GB" for part in MEMORY]
            right += [f"<li>{part} = {step[part]:.2f} s" for part in STEP if step[part]]
            fits = ("does not fit" in row[0]) == (memory["total"] > asked["capacity"])
            if not fits or any(one not in row[0] for one in right):
                found.append(row["plan"])
    return found


def test_every_number_of_every_choice_is_what_the_plans_page_computes(page: dict[str, Any]) -> None:
    html = explore(str(PROGRAM), JOB | NVLINK).html
    assert len(ROW.findall(html)) == 8 * (10 + 10 + 4)  # ways to divide 8 GPUs; one sequence: no data ranks
    assert wrong_numbers(html, page) == []


def test_the_fields_are_few_small_and_work_without_a_script() -> None:
    html = explore(str(PROGRAM), JOB | NVLINK).html
    assert len(html) <= 300_000
    assert html.count('type="radio"') == html.count("<label>") == 9
    assert html.count(" checked>") == html.count("<legend>") == 4
    assert html.count("<section") == 24 == html.count('display:none">') + 1
    assert "<script" not in html and not re.search(r"<[^>]* on\w+=", html)
