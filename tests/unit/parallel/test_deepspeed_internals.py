"""The names of DeepSpeed that the course stands on are there."""

import pytest

from course_lib.parallel import deepspeed_internals


def test_nothing_has_moved() -> None:
    assert deepspeed_internals.moved() == []


def test_a_name_that_is_gone_and_an_argument_that_is_gone_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deepspeed_internals, "NAMES", [*deepspeed_internals.NAMES, "json:no_such_name"])
    monkeypatch.setattr(
        deepspeed_internals,
        "ARGUMENTS",
        {**deepspeed_internals.ARGUMENTS, "json:loads": ["no_such_argument"]},
    )
    assert deepspeed_internals.moved() == ["json:no_such_name", "json:loads(no_such_argument)"]
