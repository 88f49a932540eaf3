"""Features and oracle labels of all sentences of many articles, made once per machine.

    article 0: 31 sentences │ article 1: 12 sentences │ …      features (T, 17), labels (T), starts (N + 1)

The greedy oracle needs seconds for every thousand articles, so what it chose is cached beside the features.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.extraction.features import NAMES, NUMBER, count_rarity, sentence_features
from benchmarks.extraction.rouge import oracle_sentences, sentences
from course_lib.data.cnn_dailymail import News
from course_lib.data.generated_news import Article
from course_lib.data.storage import DataError, machine_lock, read_cache, writable_folder, write_cache

RECIPE = 1  # to be raised with every change of the features or the labels: all caches are then made anew
TIMEOUT = 300.0  # seconds that a process waits for another one that fills the cache
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
    """The features and labels of `articles`, without the cache; word counts come from `training`."""
    rarity = count_rarity(article.text for article in training)
    split = [sentences(article.text) for article in articles]
    features = [sentence_features(parts, rarity) for parts in split]
    starts = np.cumsum([0, *map(len, split)], dtype=np.int64)
    labels = np.zeros(starts[-1], np.uint8)
    for start, parts, article in zip(starts, split, articles, strict=False):
        labels[[start + place for place in oracle_sentences(parts, article.summary)]] = 1
    return Prepared(np.concatenate([np.empty((0, NUMBER), np.float32), *features]), labels, starts)


def prepare_cached(articles: Sequence[Article], training: Sequence[Article]) -> Prepared:
    """The same as `prepare`, made once per machine: one process works and the others read its file."""
    folder = writable_folder()
    if folder is None:
        return prepare(articles, training)
    recipe = fingerprint(articles, training)
    path = folder / "cache" / f"sentences-{recipe[:16]}.npz"
    with machine_lock(folder, TIMEOUT):
        arrays = read_cache(path, recipe)
        if arrays is None:
            made = prepare(articles, training)
            arrays = {"features": made.features, "labels": made.labels, "starts": made.starts}
            write_cache(path, recipe, arrays)
    return Prepared(arrays["features"], arrays["labels"], arrays["starts"])


def fingerprint(articles: Sequence[Article], training: Sequence[Article]) -> str:
    """A digest of everything that features and labels depend on."""
    digest = hashlib.sha256(f"{RECIPE} {NAMES} {len(articles)}".encode())
    texts = [text for article in articles for text in (article.text, article.summary)]
    for text in (*texts, *(article.text for article in training)):
        digest.update(len(text.encode()).to_bytes(8, "big") + text.encode())
    return digest.hexdigest()
