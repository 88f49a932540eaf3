"""Lesson 14 measures in a lab; where there is none, it has a record of each of its measurements."""

import ast
import json
from typing import Any

import pytest

from course.lessons.l14_scaling_out import lab
from course.lessons.l14_scaling_out.lab import CHOICES, GRADIENTS, RECORDED, RUNS, in_lab, key
from course.paths import LESSONS
from mpi_classroom.network_commands import NetworkError


def test_every_measurement_of_the_lesson_is_recorded() -> None:
    recorded = {run["key"] for run in json.loads(RECORDED.read_text())["runs"]}
    assert recorded == {key(run) for run in RUNS}


def test_the_lesson_asks_for_no_measurement_that_is_not_recorded() -> None:
    source = (LESSONS / "l14_scaling_out" / "lesson.py").read_text()
    assert 'script_in_lab("train_mnist_ddp.py", "--samples", "2000", "--epochs", "1", nodes=2)' in source
    names: dict[str, Any] = {"SMALL_TO_LARGE": lab.SMALL_TO_LARGE}
    names["where"] = {"nodes": 2, "rate": "100mbit", "images": 6144}
    calls = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "in_lab"
    ]
    assert len(calls) == 5
    known = {key(run) for run in RUNS}
    for call, rate in ((call, rate) for call in calls for rate in (None, lab.SLOW)):
        asked: dict[str, Any] = {"task": ast.literal_eval(call.args[0])}
        for keyword in call.keywords:
            value = eval(
                ast.unparse(keyword.value), {}, names | {"nodes": 2, "name": CHOICES[0], "rate": rate}
            )
            asked |= value if keyword.arg is None else {keyword.arg: value}
        assert key({"nodes": 2} | asked) in known, ast.unparse(call)
    assert "ring_in_lab(nodes, nbytes) for nodes in (2, 4)" in source
    assert "all_reduces_in_lab(nbytes, own=hierarchical_allreduce)" in source
    five = {"task": "allreduces", "nodes": 2, "slots": 2, "rate": lab.SLOW, "nbytes": GRADIENTS}
    assert key(five | {"names": lab.ALL_REDUCES}) in known
    ring = {"task": "allreduces", "rate": lab.SLOW, "nbytes": GRADIENTS, "names": ["ring"]}
    assert {key(ring | {"nodes": nodes}) for nodes in (2, 4)} < known
    options = ["--samples", "2000", "--epochs", "1"]
    assert key({"task": "script", "nodes": 2, "script": "train_mnist_ddp.py", "options": options}) in known


def test_without_a_lab_the_record_is_shown_and_called_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise NetworkError("namespaces are not allowed; run it as root")

    monkeypatch.setattr(lab, "measure", refuse)
    step = in_lab("step", nodes=2, rate="100mbit", batch=64, steps=10)
    assert step["nbytes"] == GRADIENTS
    said = capsys.readouterr().out
    assert said.startswith("2 nodes, 1 rank per node, links at 100 Mbit/s: RECORDED on the reference machine")
    assert "namespaces are not allowed" in said
    with pytest.raises(LookupError, match="without a lab there is no measurement"):
        in_lab("step", nodes=7, batch=64, steps=10)
