"""CNN/DailyMail, from the folder that COURSE_DATA names: sentences picked by a model beside lead-3."""

import os
from dataclasses import asdict, replace

import pytest

from benchmarks.extraction.extractive import ExtractRecipe
from benchmarks.harness import on_ranks
from benchmarks.summaries import f1, lead, oracle, read_news, train_and_pick
from course_lib.data.cnn_dailymail import load_news

pytestmark = pytest.mark.skipif(not os.environ.get("COURSE_DATA"), reason="COURSE_DATA is not set")


@pytest.fixture(autouse=True)
def real(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COURSE_OFFLINE", "1")
    if not load_news().real:
        pytest.skip("COURSE_DATA holds no CNN/DailyMail")


def test_lead_3_is_far_below_the_oracle_and_scored_as_published() -> None:
    articles = read_news(quick=False).test[:100]
    base, best = f1(lead(articles), articles).mean(axis=0), f1(oracle(articles), articles).mean(axis=0)
    assert 25 < base[0] < 45 and 8 < base[1] < 20
    assert (best > base + 10).all()


@pytest.mark.release
@pytest.mark.timeout(900)
def test_some_epochs_on_two_ranks_beat_lead_3_on_the_validation_articles() -> None:
    """On the validation articles only: the test articles are scored by the benchmark, once per seed."""
    settings = asdict(replace(ExtractRecipe(), epochs=6))
    picked = on_ranks(2, train_and_pick, timeout=800, settings=settings, seed=0, quick=False)["choosing"]
    articles = read_news(quick=False).choosing
    assert (f1(picked, articles).mean(axis=0) > f1(lead(articles), articles).mean(axis=0) + 0.5).all()
