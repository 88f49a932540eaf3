"""The names of transformers and accelerate that lesson 13 stands on are there."""

import pytest

from course.lessons.l13_deepspeed_summarization import internals


def test_nothing_has_moved() -> None:
    assert internals.moved() == []


def test_a_name_that_is_gone_and_an_argument_that_is_gone_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(internals, "NAMES", [*internals.NAMES, "json:no_such_name"])
    arguments = {**internals.ARGUMENTS, "json:loads": ["no_such_argument"]}
    monkeypatch.setattr(internals, "ARGUMENTS", arguments)
    assert internals.moved() == ["json:no_such_name", "json:loads(no_such_argument)"]
