"""DeepSpeed's figures: every key is in them, and titles say what the numbers say."""

from dataclasses import replace

import pytest

from course.lessons.l12_deepspeed_on_cifar.figures import (
    bars_title,
    compare_stages,
    explain_times,
    json_effects,
    stage_bars,
    stage_table,
    times_as,
)
from course_lib.parallel.deepspeed_config import StageRun, explained, stage_config
from course_lib.theory.memory import StateBytes
from tests.unit.figures.pictures import check_legible, letters_of, title_of

RUN = StageRun(0, 2, 1000, StateBytes(4000, 4000, 8000), 8000.0, 0.010, (2.3, 2.0))
RUNS = {0: RUN, 3: replace(RUN, stage=3, held=StateBytes(2000, 2000, 4000), sent=16000.0, seconds=0.030)}
TIMED = {stage: replace(run, ranks=1) for stage, run in RUNS.items()}


def test_every_key_is_drawn_with_its_value_and_its_effect() -> None:
    keys = explained(stage_config(3, 4, micro_batch=8, accumulation=2, bf16=True, warmup_steps=5, clip=1.0))
    picture = json_effects(keys)
    drawn = " ".join(text.get_text() for text in letters_of(picture))
    check_legible(picture)
    for key in keys:
        assert key.path.rpartition(".")[2] in drawn
        assert key.effect in picture.alt
    assert title_of(picture) == "8 samples × 2 micro-batches × 4 ranks = 64 per update"


def test_no_key_touches_its_arrow() -> None:
    picture = json_effects(explained(stage_config(2, 4, micro_batch=8)))
    texts = letters_of(picture)
    arrow = min(text.get_window_extent().x0 for text in texts if text.get_text() == "→")
    keys = [text.get_window_extent().x1 for text in texts if "monospace" in text.get_fontfamily()]
    assert max(keys) + 4 < arrow


def test_a_title_says_what_the_highest_stage_saves_and_costs() -> None:
    title = bars_title(RUNS, TIMED, cores=2)
    assert "stage 3 holds 50% of stage 0's bytes" in title and "2 times as many" in title
    assert "3 times as long" in title
    picture = stage_bars(RUNS, TIMED, cores=2)
    check_legible(picture)
    assert picture.alt.count("stage 3: holds 0.008 MB") == 1 and "\n" not in picture.alt
    assert times_as(TIMED, 3) == pytest.approx(3)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.03, "sends more, and waits"), (0.005, "Do not count on it"), (0.0101, "messages are cheap")],
)
def test_the_explanation_follows_the_measurement(seconds: float, words: str) -> None:
    assert words in explain_times({0: RUN, 3: replace(RUNS[3], seconds=seconds)})


@pytest.mark.parametrize(("seconds", "words"), [(0.012, "takes 1.2 times"), (0.0102, "as long as a step")])
def test_stages_1_and_2_are_compared_by_their_times(seconds: float, words: str) -> None:
    timed = {1: replace(RUN, stage=1), 2: replace(RUN, stage=2, seconds=seconds)}
    assert words in compare_stages(timed)


def test_the_table_has_a_line_for_each_stage_with_bytes_per_parameter() -> None:
    first, *lines = stage_table(RUNS, TIMED).splitlines()
    assert first.startswith("stage") and [line.split()[0] for line in lines] == ["0", "3"]
    assert lines[0].split()[1:5] == ["16.0", "bytes", "8.0", "bytes"]
