"""ROUGE-1 and facts of a summary, and the sixty articles of lesson 13."""

import json
from itertools import pairwise

import pytest

from course.paths import NOTEBOOKS
from course_lib.training.facts import fact_scores, rouge_1

ARTICLES = json.loads((NOTEBOOKS / "code" / "data" / "news.json").read_text(encoding="utf-8"))
TEXT = "The ferry Marigold left Brackwater with 42 guests. Captain Ilse Tarn said that the sea was calm."
FACTS = ("Ilse Tarn", "Marigold")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Ilse Tarn took the Marigold to sea.", (1.0, 1.0)),
        ("The captain went to sea.", (1.0, 0.0)),
        ("Ilse Tarn took 43 guests.", (2 / 3, 1 / 2)),
        ("", (1.0, 0.0)),
    ],
)
def test_precision_counts_what_is_stated_and_recall_what_is_missing(
    text: str, expected: tuple[float, float]
) -> None:
    assert fact_scores(text, TEXT, FACTS) == pytest.approx(expected)


def test_rouge_1_is_that_of_the_package() -> None:
    scorer = pytest.importorskip("rouge_score.rouge_scorer").RougeScorer(["rouge1"])
    for one, other in pairwise(ARTICLES):
        theirs = scorer.score(one["summary"], other["summary"])["rouge1"].fmeasure
        assert rouge_1(other["summary"], one["summary"]) == pytest.approx(theirs)


def test_every_article_is_short_and_its_facts_are_in_text_and_summary() -> None:
    assert len(ARTICLES) == 60
    for article in ARTICLES:
        assert 80 <= len(article["text"].split()) <= 150
        assert 4 <= len(article["facts"]) == len(set(article["facts"]))
        assert all(fact in article["text"] for fact in article["facts"])
        assert fact_scores(article["summary"], article["text"], article["facts"]) == (1.0, 1.0)


def test_a_swapped_name_is_one_wrong_fact_and_few_words() -> None:
    for article, other in zip(ARTICLES, [*ARTICLES[1:], ARTICLES[0]], strict=True):
        swapped = article["summary"].replace(article["facts"][0], other["facts"][0])
        precision, recall = fact_scores(swapped, article["text"], article["facts"])
        assert precision < 1 and recall == pytest.approx(1 - 1 / len(article["facts"]))
        assert rouge_1(swapped, article["summary"]) > 0.8
