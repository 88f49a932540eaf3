"""Real CNN/DailyMail, from the folder that COURSE_DATA names."""

import os
import statistics

import pytest

from course_lib.data.cnn_dailymail import SPLITS, find, load_news

pytestmark = pytest.mark.skipif(not os.environ.get("COURSE_DATA"), reason="COURSE_DATA is not set")


@pytest.fixture(scope="module")
def news():
    if find() is None:
        pytest.skip("COURSE_DATA holds no CNN/DailyMail")
    return load_news()


def test_articles_are_longer_than_their_summaries_and_say_much_of_what_those_say(news):
    assert news.real and news.source.startswith("CNN/DailyMail (")
    for split in SPLITS:
        articles = getattr(news, split)[:300]
        assert len(articles) == 300
        lengths = [(len(a.text.split()), len(a.summary.split())) for a in articles]
        assert 300 < statistics.median(text for text, _ in lengths) < 900
        assert 20 < statistics.median(summary for _, summary in lengths) < 80
        shared = [
            len(set(a.summary.lower().split()) & set(a.text.lower().split()))
            / len(set(a.summary.lower().split()))
            for a in articles
        ]
        assert statistics.median(shared) > 0.6
