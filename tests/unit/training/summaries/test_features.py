"""The features of sentences, on articles small enough to count by hand."""

import math

import numpy as np
import pytest

from benchmarks.extraction.features import (
    NAMES,
    NUMBER,
    Rarity,
    added,
    cosine,
    count_rarity,
    sentence_features,
    tf_idf,
    words,
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


def test_there_are_seventeen() -> None:
    assert NUMBER == 17 == len(set(NAMES))


def test_rarity_is_zero_for_a_word_of_every_article_and_one_for_an_unknown_word() -> None:
    rarity = count_rarity(["the mill", "The rain", "the the end"])
    assert rarity.of("the") == pytest.approx(0)
    assert rarity.of("harbour") == 1
    assert rarity.of("mill") == pytest.approx(1 - math.log(2) / math.log(4))
    assert Rarity(0, {}).of("mill") == 1


def test_places_run_from_the_front_and_from_the_back() -> None:
    found = features(PARTS)
    assert found["first"].tolist() == [1, 0, 0, 0]
    assert found["place"].tolist() == [0, 0.25, 0.5, 0.75]
    assert found["nearness to the front"] == pytest.approx([1, 1 / 2, 1 / 3, 1 / 4])
    assert found["nearness to the end"] == pytest.approx([1 / 4, 1 / 3, 1 / 2, 1])
    assert found["sentences"] == pytest.approx([math.log(4) / 5] * 4)


def test_lengths_are_in_words() -> None:
    found, mean = features(PARTS), (7 + 4 + 2 + 8) / 4
    assert found["words"] == pytest.approx([math.log(1 + n) / 5 for n in (7, 4, 2, 8)])
    assert found["words beside the mean"] == pytest.approx([n / (n + mean) for n in (7, 4, 2, 8)])
    assert found["at most five words"].tolist() == [0, 1, 1, 0]


def test_marks_of_form_are_counted() -> None:
    found = features(PARTS)
    assert found["capitals"] == pytest.approx([2 / 7, 0, 1 / 2, 1 / 8])  # "It is a quote, no capital
    assert found["digits"] == pytest.approx([1 / 7, 0, 0, 0])
    assert found["quotes"].tolist() == [0, 0.5, 0, 0]
    assert found["refers back"].tolist() == [0, 1, 1, 0]
    assert found["speech"].tolist() == [0, 1, 0, 0]


@pytest.mark.parametrize(
    ("part", "marks"),
    [("She doesn't.", 0), ("the workers' hall", 1), ("'Never' again", 2), ("“Never” again", 2)],
)
def test_an_apostrophe_inside_a_word_is_no_quote(part: str, marks: int) -> None:
    assert features([part])["quotes"].tolist() == [marks / 4]


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


def test_cosine_of_the_same_is_one_and_of_nothing_zero() -> None:
    own = tf_idf(words("a mill in the rain"), count_rarity(["a", "the", "in", "b"]))
    assert cosine(own, own) == pytest.approx(1)
    assert cosine(own, {}) == cosine({}, {}) == 0
    assert added([]) == {}


def test_sentences_without_words_and_articles_of_one_sentence_have_finite_features() -> None:
    for parts in (["…"], ["Mill."], ["…", "—", "!"], [*PARTS, "…"]):
        table = sentence_features(parts, count_rarity([]))
        assert np.isfinite(table).all() and table.min() >= 0 and table.max() <= 1.5
    assert sentence_features([], count_rarity(PARTS)).shape == (0, NUMBER)
