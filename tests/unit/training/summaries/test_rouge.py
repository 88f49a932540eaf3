"""ROUGE by hand against the package, sentences, and the oracle's choice of them."""

import pytest

from benchmarks.extraction.rouge import rouge_n, sentences

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


def test_sentences_end_at_full_stops_in_quotes_too() -> None:
    assert sentences('He said "no." Then he left.\nEnd') == ['He said "no."', "Then he left.", "End"]
