"""DeepSpeed's file: it is JSON, DeepSpeed accepts it, and costs are the formulas'."""

import json
from typing import Any

import pytest

from course_lib.parallel.deepspeed_config import STAGES, stage_config
from tests.deepspeed_counts import state_bytes, step_bytes

OPTIONS: list[dict[str, Any]] = [
    {},
    {"bf16": True, "clip": 1.0},
    {"optimizer": "SGD", "momentum": 0.9, "warmup_steps": 10},
    {"warmup_steps": 10, "total_steps": 100},
]


@pytest.mark.parametrize(("stage", "options"), list(zip(STAGES, OPTIONS, strict=True)))
def test_a_config_is_json_and_has_the_global_batch(stage: int, options: dict[str, Any]) -> None:
    config = stage_config(stage, 4, micro_batch=8, accumulation=3, **options)
    assert json.loads(json.dumps(config)) == config
    assert config["train_batch_size"] == 96


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"stage": 4, "ranks": 2}, "there is no stage 4"),
        ({"stage": 1, "ranks": 0}, "on 0 ranks are no batch"),
        ({"stage": 1, "ranks": 2, "optimizer": "Adam"}, "the optimizer 'Adam' is not known"),
    ],
)
def test_what_is_no_config_is_refused(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        stage_config(**arguments)


def test_bytes_on_four_ranks_are_those_of_the_lessons_table() -> None:
    each = {stage: state_bytes(stage_config(stage, 4), 4000, 4) for stage in STAGES}
    assert [each[stage].total / 4000 for stage in STAGES] == [16, 11, 8, 5]
    half = {stage: state_bytes(stage_config(stage, 4, bf16=True), 4000, 4) for stage in STAGES}
    assert [half[stage].total / 4000 for stage in STAGES] == [16, 7, 5.5, 4]


def test_an_update_sends_what_rajbhandari_says_and_accumulation_makes_it_more() -> None:
    sent = {
        accumulation: [step_bytes(stage_config(s, 4, accumulation=accumulation), 1000, 4) for s in STAGES]
        for accumulation in (1, 4)
    }
    assert [nbytes / 3000 for nbytes in sent[1]] == [2, 2, 2, 3]
    assert [nbytes / 3000 for nbytes in sent[4]] == [2, 2, 5, 12]
    assert step_bytes(stage_config(3, 1), 1000, 1) == 0
