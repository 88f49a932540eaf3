"""DeepSpeed's file: what is no stage and no batch is refused in a sentence."""

from typing import Any

import pytest

from course_lib.parallel.deepspeed_config import stage_config


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"stage": 4, "ranks": 2}, "there is no stage 4"),
        ({"stage": 1, "ranks": 0}, "on 0 ranks are no batch"),
    ],
)
def test_what_is_no_config_is_refused(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        stage_config(**arguments)
