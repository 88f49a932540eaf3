"""DeepSpeed's figures: every key is in them, and titles say what the numbers say."""

from dataclasses import replace

import pytest

from course.lessons.l12_deepspeed_on_cifar.figures import (
    bars_title,
    explain_stages,
    json_effects,
    stage_bars,
    stage_table,
    times_as,
)
from course_lib.parallel.deepspeed_config import StageRun, explained, stage_config
from course_lib.theory.memory import StateBytes
from tests.unit.figures.pictures import check_legible, letters_of, title_of

RUN = StageRun(0, 2, 1000, StateBytes(4000, 4000, 8000), 8000.0, 0.010, (2.3, 2.0), 0.25)
RUNS = {0: RUN, 3: replace(RUN, stage=3, held=StateBytes(2000, 2000, 4000), sent=16000.0, seconds=0.030)}


def test_every_key_is_drawn_with_its_value_and_its_effect() -> None:
    keys = explained(stage_config(3, 4, micro_batch=8, accumulation=2, bf16=True, warmup_steps=5, clip=1.0))
    picture = json_effects(keys)
    drawn = " ".join(text.get_text() for text in letters_of(picture))
    check_legible(picture)
    for key in keys:
        assert key.path.rpartition(".")[2] in drawn
        assert key.effect in picture.alt
    assert title_of(picture) == "8 samples × 2 micro-batches × 4 ranks = 64 per update"


def test_a_title_says_what_the_highest_stage_saves_and_costs() -> None:
    title = bars_title(RUNS, cores=2)
    assert "keeps 50% of the bytes" in title and "3 times as long" in title
    check_legible(stage_bars(RUNS, cores=2))
    assert stage_bars(RUNS, cores=2).alt.count("stage 3: keeps") == 1
    assert times_as(RUNS, 3) == pytest.approx(3)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.03, "the slower one"), (0.005, "Do not count on it"), (0.0101, "about the same")],
)
def test_the_explanation_follows_the_measurement(seconds: float, words: str) -> None:
    runs = {0: RUN, 3: replace(RUNS[3], seconds=seconds)}
    assert words in explain_stages(runs)


def test_the_table_has_a_line_for_each_stage() -> None:
    assert [line.split()[0] for line in stage_table(RUNS).splitlines()] == ["stage", "0", "3"]
