"""The extractive summarizer: oracle labels, batches, scores, and what is picked."""

from itertools import combinations, pairwise

import numpy as np
import pytest
import torch

from benchmarks.extraction.bootstrap import mean_interval
from benchmarks.extraction.extractive import (
    IGNORED,
    ExtractRecipe,
    build_extractor,
    extract,
    extract_batch,
    pick,
    score_sentences,
    summed_loss,
)
from benchmarks.extraction.prepared import Prepared, prepare, split_real_news
from benchmarks.extraction.rouge import (
    oracle_sentences,
    published_rouge,
    rouge_n,
    sentences,
)
from course.tools.generated_news import make_news
from course_lib.data.cnn_dailymail import Article, News
from course_lib.data.storage import DataError

NEWS = [
    Article("A mill burned. It rained. Ana saw it.", "A mill burned."),
    Article("Only one sentence here.", "One sentence."),
    Article(" ".join(f"Sentence {number} says little." for number in range(30)), "Sentence 7."),
    *make_news(6, seed=0),
]
RECIPE = ExtractRecipe(width=8, heads=2)


@pytest.fixture(scope="module")
def reading() -> Prepared:
    return prepare(NEWS, NEWS)


# -------------------------------------------------------------------- oracle labels


def worth(parts: list[str], places: tuple[int, ...], reference: str) -> float:
    text = " ".join(parts[place] for place in places)
    return rouge_n(text, reference, 1) + rouge_n(text, reference, 2)


@pytest.mark.parametrize("article", make_news(5, seed=5))
def test_greedy_labels_are_at_most_the_best_of_all_subsets_and_begin_with_the_best_sentence(
    article: Article,
) -> None:
    parts = sentences(article.text)[:7]
    found = tuple(oracle_sentences(parts, article.summary, limit=3))
    subsets = [places for size in (1, 2, 3) for places in combinations(range(len(parts)), size)]
    best = max(worth(parts, places, article.summary) for places in subsets)
    singles = [worth(parts, (place,), article.summary) for place in range(len(parts))]
    assert 0.8 * best < worth(parts, found, article.summary) <= best
    assert singles.index(max(singles)) in found
    assert oracle_sentences(parts, article.summary, limit=1) == [singles.index(max(singles))]


def test_labels_stop_where_another_sentence_does_not_help() -> None:
    parts = ["It rained.", "A mill burned.", "A mill burned.", "Nobody came."]
    assert oracle_sentences(parts, "A mill burned.") == [1]
    assert oracle_sentences(parts, "Completely other words") == []
    assert oracle_sentences([], "A mill burned.") == []
    assert oracle_sentences(parts, "Nobody came. It rained.") == [0, 3]


# -------------------------------------------------------------------- prepared articles


def test_sentences_of_articles_stand_one_after_the_other(reading: Prepared) -> None:
    counts = [len(sentences(article.text)) for article in NEWS]
    assert [end - start for start, end in pairwise(reading.starts.tolist())] == counts
    assert len(reading) == len(NEWS) and len(reading.features) == len(reading.labels) == sum(counts)
    assert reading.labels[:3].tolist() == [1, 0, 0] and reading.labels[3] == 1
    assert reading.count(np.array([2, 0])) == 33
    assert len(prepare([], NEWS)) == 0


def test_real_news_is_split_into_three_parts_that_share_no_article() -> None:
    articles = [Article(f"text {number}", "summary") for number in range(2500)]
    news = News("CNN/DailyMail (…)", True, articles[:492], articles[492:1492], articles[1492:])
    split = split_real_news(news)
    assert [len(each) for each in (split.training, split.choosing, split.test)] == [1290, 200, 500]
    texts = [article.text for part in (split.training, split.choosing, split.test) for article in part]
    assert len(set(texts)) == len(texts)
    assert split.choosing == news.validation[-200:] and split.test == news.test[:500]


def test_generated_news_is_never_taken_for_real() -> None:
    news = News("Generated news in place of it", False, NEWS, NEWS, NEWS, name="generated news")
    with pytest.raises(DataError, match="this needs CNN/DailyMail, and here is generated news: Generated"):
        split_real_news(news)
    with pytest.raises(DataError, match="at least 200 validation articles"):
        split_real_news(News("CNN/DailyMail (…)", True, NEWS, NEWS, NEWS))


# -------------------------------------------------------------------- model


def test_a_batch_is_padded_with_targets_that_do_not_count(reading: Prepared) -> None:
    batch = extract_batch(reading, np.array([1, 0]), global_size=10)
    assert batch.inputs.shape == (2, 3, 18) and batch.global_size == 10
    assert batch.inputs[:, :, 0].tolist() == [[1, 0, 0], [1, 1, 1]]
    assert batch.targets.tolist() == [[1, IGNORED, IGNORED], [1, 0, 0]]
    np.testing.assert_array_equal(batch.inputs[1, :, 1:], reading.features[:3])


def test_padding_and_company_change_no_score_no_loss_and_no_gradient(reading: Prepared) -> None:
    """Article 2 has 30 sentences, so in one batch the others are padded to 30."""
    model = build_extractor(RECIPE, seed=0).double()
    together = extract_batch(reading, np.arange(len(reading)), 1)
    scores = model(together.inputs.double())
    loss = summed_loss(scores, together.targets.double())
    loss.backward()
    gradients = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    alone = 0.0
    for article in range(len(reading)):
        batch = extract_batch(reading, np.array([article]), 1)
        own = model(batch.inputs.double())
        torch.testing.assert_close(own[0], scores[article, : own.shape[1]], rtol=0, atol=1e-12)
        part = summed_loss(own, batch.targets.double())
        part.backward()
        alone += part.item()
    assert alone == pytest.approx(loss.item(), abs=1e-10)
    for parameter, expected in zip(model.parameters(), gradients, strict=True):
        torch.testing.assert_close(parameter.grad, expected, rtol=0, atol=1e-10)


def test_scores_are_the_same_in_any_order(reading: Prepared, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.extraction.extractive.SCORED_TOGETHER", 2)
    model = build_extractor(RECIPE, seed=0).eval()
    order = [4, 2, 0, 1]
    found = score_sentences(model, reading, order)
    assert [len(row) for row in found] == [reading.count(np.array([article])) for article in order]
    for row, again in zip(found, reversed(score_sentences(model, reading, order[::-1])), strict=True):
        np.testing.assert_allclose(row, again, atol=1e-6)
    assert score_sentences(model, reading, []) == []


def test_the_best_sentences_are_picked_in_the_order_of_the_article() -> None:
    assert pick(np.array([0.1, 3.0, 2.0, 2.0, 5.0]), 3) == [1, 2, 4]
    assert pick(np.array([0.1, 3.0]), 3) == [0, 1]
    assert extract(NEWS[0], [0, 2]) == "A mill burned.\nAna saw it."


# -------------------------------------------------------------------- scores


def test_published_rouge_stems_and_compares_by_sentence() -> None:
    scores = published_rouge(["Mills burn.\nIt rains."], ["It rains.\nMills burned."])
    assert scores[0, 0] == scores[0, 2] == 1  # the order of lines does not count, nor do endings
    assert scores.shape == (1, 3) and scores[0, 1] < 1
    assert published_rouge([], []).shape == (0, 3)
    with pytest.raises(ValueError, match="1 texts cannot be scored by 0 references"):
        published_rouge(["a"], [])


def test_the_bootstrap_interval_is_that_of_the_normal_distribution() -> None:
    differences = np.random.default_rng(0).normal(0.5, 2.0, size=400)
    low, high = mean_interval(differences)
    error = differences.std() / 20
    assert low == pytest.approx(differences.mean() - 1.96 * error, abs=0.1 * error)
    assert high == pytest.approx(differences.mean() + 1.96 * error, abs=0.1 * error)
    assert mean_interval(differences) == (low, high)  # the same seed
    assert mean_interval(np.full(9, 0.25)) == (0.25, 0.25)
    with pytest.raises(ValueError, match="no article was scored"):
        mean_interval(np.array([]))
