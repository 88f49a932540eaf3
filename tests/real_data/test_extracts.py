"""CNN/DailyMail, from the folder that COURSE_DATA names: sentences picked by a model beside lead-3."""

import os
from collections.abc import Sequence
from dataclasses import asdict, replace

import pytest

from benchmarks.extraction.extractive import ExtractRecipe, extract
from benchmarks.extraction.prepared import RealNews, split_real_news
from benchmarks.extraction.rouge import published_rouge
from benchmarks.harness import on_ranks
from benchmarks.summaries_smollm2 import Picks, Scores, lead, oracle, train_and_pick
from course_lib.data.cnn_dailymail import Article, find, load_news

pytestmark = pytest.mark.skipif(not os.environ.get("COURSE_DATA"), reason="COURSE_DATA is not set")


@pytest.fixture
def news(monkeypatch: pytest.MonkeyPatch) -> RealNews:
    monkeypatch.setenv("COURSE_OFFLINE", "1")
    if find() is None:
        pytest.skip("COURSE_DATA holds no CNN/DailyMail")
    return split_real_news(load_news())


def f1(picks: Picks, articles: Sequence[Article]) -> Scores:
    """ROUGE (N, 3) in percent of the sentences picked from `articles`."""
    texts = [extract(article, places) for article, places in zip(articles, picks, strict=True)]
    return 100 * published_rouge(texts, [article.summary for article in articles])


def test_lead_3_is_far_below_the_oracle_and_scored_as_published(news: RealNews) -> None:
    articles = news.test[:100]
    base, best = f1(lead(articles), articles).mean(axis=0), f1(oracle(articles), articles).mean(axis=0)
    assert 25 < base[0] < 45 and 8 < base[1] < 20
    assert (best > base + 10).all()


@pytest.mark.release
@pytest.mark.timeout(900)
def test_some_epochs_on_two_ranks_beat_lead_3_on_the_validation_articles(news: RealNews) -> None:
    """On the validation articles only: the benchmark scores the test articles, once."""
    settings = asdict(replace(ExtractRecipe(), epochs=6))
    picked = on_ranks(2, train_and_pick, timeout=800, settings=settings, part="choosing")
    base = f1(lead(news.choosing), news.choosing)
    assert (f1(picked, news.choosing).mean(axis=0) > base.mean(axis=0) + 0.5).all()
