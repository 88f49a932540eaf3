"""The features of sentences, on articles small enough to count by hand."""

import math

import numpy as np
import pytest

from benchmarks.extraction.features import (
    NAMES,
    NUMBER,
    Rarity,
    count_rarity,
    sentence_features,
)

PARTS = [
    "Ana Korkov opened a mill in 1998.",
    '"It rains," she said.',
    "He left.",
    "A mill burned down near the old town.",
]


def features(parts: list[str], rarity: Rarity | None = None) -> dict[str, np.ndarray]:
    table = sentence_features(parts, rarity or count_rarity(parts))
    assert table.shape == (len(parts), NUMBER) and table.dtype == np.float32
    return dict(zip(NAMES, table.T, strict=True))


def test_rarity_is_zero_for_a_word_of_every_article_and_one_for_an_unknown_word() -> None:
    rarity = count_rarity(["the mill", "The rain", "the the end"])
    assert rarity.of("the") == pytest.approx(0)
    assert rarity.of("harbour") == 1
    assert rarity.of("mill") == pytest.approx(1 - math.log(2) / math.log(4))
    assert Rarity(0, {}).of("mill") == 1


def test_cosines_are_those_of_tf_idf_vectors() -> None:
    rarity = count_rarity(["mill", "rain", "a a a"])
    found = features(["mill mill rain", "rain", "old", "mill"], rarity)
    mill, rain, old = (rarity.of(word) for word in ("mill", "rain", "old"))
    whole = np.array([3 * mill, 2 * rain, old])
    one = np.array([2 * mill, rain, 0])
    expected = one @ whole / np.linalg.norm(one) / np.linalg.norm(whole)
    assert found["centroid cosine"][0] == pytest.approx(expected)
    # The first is compared with the second and the third, the fourth with the first three.
    assert found["lead cosine"][0] == pytest.approx(
        one @ [0, rain, old] / np.linalg.norm(one) / np.hypot(rain, old)
    )
    assert found["lead cosine"][3] == pytest.approx(2 * mill / np.linalg.norm([2 * mill, 2 * rain, old]))
    assert found["lead overlap"].tolist() == pytest.approx([1 / 3, 1, 0, 1])


def test_sentences_without_words_and_articles_of_one_sentence_have_finite_features() -> None:
    for parts in (["…"], ["Mill."], ["…", "—", "!"], [*PARTS, "…"]):
        table = sentence_features(parts, count_rarity([]))
        assert np.isfinite(table).all() and table.min() >= 0 and table.max() <= 1.5
    assert sentence_features([], count_rarity(PARTS)).shape == (0, NUMBER)
