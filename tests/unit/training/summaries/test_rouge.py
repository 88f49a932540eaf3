"""ROUGE by hand against the package, sentences, and the oracle's choice of them."""

import itertools

import pytest

from benchmarks.extraction.rouge import oracle_sentences, published_rouge, rouge_n, sentences
from course_lib.data.generated_news import make_news

PAIRS = [
    ("the mill is open", "the mill is open"),
    ("the the the mill", "The mill, on the hill."),
    ("Ivo opened a mill", "Ivo Darsen opened a mill on Friday"),
    ("nothing", "a mill"),
    ("", "a mill"),
]


@pytest.mark.parametrize(("text", "reference"), PAIRS)
@pytest.mark.parametrize("n", (1, 2))
def test_rouge_by_hand_is_that_of_the_package(text: str, reference: str, n: int) -> None:
    scorer = pytest.importorskip("rouge_score.rouge_scorer").RougeScorer([f"rouge{n}"])
    assert rouge_n(text, reference, n) == pytest.approx(scorer.score(reference, text)[f"rouge{n}"].fmeasure)


def test_texts_and_references_must_match_in_number() -> None:
    with pytest.raises(ValueError, match="1 texts cannot be scored by 2 references"):
        published_rouge(["a"], ["a", "b"])


def test_sentences_end_at_full_stops_in_quotes_too() -> None:
    assert sentences('He said "no." Then he left.\nEnd') == ['He said "no."', "Then he left.", "End"]


def test_the_oracle_takes_the_best_sentences_in_their_order() -> None:
    parts = ["Rain fell.", "It was Friday.", "The band played.", "Ivo opened a mill."]
    assert oracle_sentences(parts, "Ivo opened a mill. It was Friday.") == [1, 3]
    assert oracle_sentences([], "a mill") == []


@pytest.mark.parametrize("limit", (1, 2))
def test_the_oracle_is_as_good_as_any_choice_on_generated_news(limit: int) -> None:
    """A greedy choice could be worse than the best of all; on short articles it rarely is by much."""
    for article in make_news(5, seed=3):
        parts = sentences(article.text)
        choices = itertools.combinations(parts, limit)
        best = max(worth(choice, article.summary) for choice in choices)
        greedy = [parts[place] for place in oracle_sentences(parts, article.summary, limit=limit)]
        assert worth(greedy, article.summary) >= 0.9 * best


def worth(chosen: "list[str] | tuple[str, ...]", reference: str) -> float:
    text = " ".join(chosen)
    return rouge_n(text, reference, 1) + rouge_n(text, reference, 2)
