"""Features and oracle labels of all sentences of many articles.

article 0: 31 sentences │ article 1: 12 sentences │ …      features (T, 17), labels (T), starts (N + 1)
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.extraction.features import NUMBER, count_rarity, sentence_features
from benchmarks.extraction.rouge import oracle_sentences, sentences
from course_lib.data.cnn_dailymail import Article, News
from course_lib.data.storage import DataError

TRAINING, CHOOSING, TEST = 1290, 200, 500  # articles


@dataclass(frozen=True, slots=True)
class Prepared:
    """The sentences of N articles one after the other: article i has those from starts[i] to starts[i + 1].

    `features` (T, 17) is float32; `labels` (T) is 1 for a sentence that the greedy oracle picks, else 0.
    """

    features: NDArray[np.float32]
    labels: NDArray[np.uint8]
    starts: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.starts) - 1

    def count(self, articles: NDArray[np.integer]) -> int:
        """How many sentences the `articles` at these indices have together."""
        return int((self.starts[articles + 1] - self.starts[articles]).sum())


@dataclass(frozen=True, slots=True)
class RealNews:
    """CNN/DailyMail in three parts that share no article: to train on, to choose settings with, to test."""

    training: list[Article]
    choosing: list[Article]
    test: list[Article]


def split_real_news(news: News) -> RealNews:
    """At most 1290, 200 and 500 articles of real `news`; its last 200 validation articles are for choices.

    The rest of the validation split joins the training articles. DataError unless `news` is CNN/DailyMail,
    with enough articles.
    """
    if not news.real:
        raise DataError(f"this needs CNN/DailyMail, and here is {news.name}: {news.source}")
    training = [*news.train, *news.validation[:-CHOOSING]][:TRAINING]
    if not training or len(news.validation) < CHOOSING or not news.test:
        raise DataError(f"this needs all three splits with at least {CHOOSING} validation articles")
    return RealNews(training, news.validation[-CHOOSING:], news.test[:TEST])


def prepare(articles: Sequence[Article], training: Sequence[Article]) -> Prepared:
    """The features and labels of `articles`; word counts come from `training`."""
    rarity = count_rarity(article.text for article in training)
    split = [sentences(article.text) for article in articles]
    features = [sentence_features(parts, rarity) for parts in split]
    starts = np.cumsum([0, *map(len, split)], dtype=np.int64)
    labels = np.zeros(starts[-1], np.uint8)
    for start, parts, article in zip(starts, split, articles, strict=False):
        labels[[start + place for place in oracle_sentences(parts, article.summary)]] = 1
    return Prepared(np.concatenate([np.empty((0, NUMBER), np.float32), *features]), labels, starts)
