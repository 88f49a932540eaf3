"""ROUGE by hand against the package, baselines, and facts."""

import itertools

import pytest

from course_lib.data.generated_news import Article, make_news
from course_lib.training.summaries.rouge import (
    facts_found,
    facts_right,
    lead_3,
    oracle_extract,
    rouge,
    rouge_n,
    sentences,
)
from course_lib.training.summaries.scores import score, score_baselines

PAIRS = [
    ("the mill is open", "the mill is open"),
    ("the the the mill", "The mill, on the hill."),
    ("Ivo opened a mill", "Ivo Darsen opened a mill on Friday"),
    ("nothing", "a mill"),
    ("", "a mill"),
]


@pytest.mark.parametrize(("text", "reference"), PAIRS)
def test_rouge_by_hand_is_that_of_the_package(text: str, reference: str) -> None:
    package = rouge([text], [reference])
    assert rouge_n(text, reference, 1) == pytest.approx(package.one)
    assert rouge_n(text, reference, 2) == pytest.approx(package.two)


def test_rouge_l_is_the_longest_common_subsequence() -> None:
    """Two of four words in order, of six: precision 2/4, recall 2/6."""
    score = rouge(["c a x b"], ["a b q r s t"])
    assert score.l == pytest.approx(2 * (2 / 4) * (2 / 6) / (2 / 4 + 2 / 6))
    assert score.two == 0 < score.one


def test_the_score_of_many_is_the_mean() -> None:
    both = rouge(["a mill", "nothing"], ["a mill", "a mill"])
    assert both.one == pytest.approx(0.5)


def test_texts_and_references_must_match_in_number() -> None:
    with pytest.raises(ValueError, match="1 texts cannot be scored by 2 references"):
        rouge(["a"], ["a", "b"])
    with pytest.raises(ValueError, match="0 texts"):
        rouge([], [])


def test_lead_3_are_the_first_three_sentences() -> None:
    assert lead_3("One. Two! Three? Four.") == "One. Two! Three?"
    assert lead_3("Only one") == "Only one"
    assert sentences('He said "no." Then he left.\nEnd') == ['He said "no."', "Then he left.", "End"]


def test_the_oracle_takes_the_best_sentences_in_their_order() -> None:
    text = "Rain fell. It was Friday. The band played. Ivo opened a mill."
    assert oracle_extract(text, "Ivo opened a mill. It was Friday.") == "It was Friday. Ivo opened a mill."
    assert oracle_extract("", "a mill") == ""


@pytest.mark.parametrize("limit", (1, 2))
def test_the_oracle_is_as_good_as_any_choice_on_generated_news(limit: int) -> None:
    """A greedy choice could be worse than the best of all; on short articles it rarely is by much."""
    for article in make_news(5, seed=3):
        parts = sentences(article.text)
        choices = itertools.combinations(parts, limit)
        best = max(worth(" ".join(choice), article.summary) for choice in choices)
        assert (
            worth(oracle_extract(article.text, article.summary, limit=limit), article.summary) >= 0.9 * best
        )


def worth(text: str, reference: str) -> float:
    return rouge_n(text, reference, 1) + rouge_n(text, reference, 2)


def test_facts_are_whole_phrases() -> None:
    assert facts_found(
        "Ivo Darsen opened a mill in Lake Torvik.", ["Ivo Darsen", "Torvi", "mill", "Monday"]
    ) == [
        "Ivo Darsen",
        "mill",
    ]


def test_the_share_of_facts_is_over_all_facts() -> None:
    articles = [Article("", "", ("a", "b", "c")), Article("", "", ("d",))]
    assert facts_right(["a b", "d"], articles) == 3 / 4
    with pytest.raises(ValueError, match="the 0 facts of 1 articles"):
        facts_right(["a"], [Article("a", "a")])


def test_a_reference_has_all_facts_and_lead_3_hardly_any() -> None:
    news = make_news(40, seed=1, split="held_out")
    right = score([each.summary for each in news], news)
    assert (right.rouge.one, right.facts) == (1.0, 1.0)
    baselines = score_baselines(news)
    assert baselines["lead-3"].rouge.one < baselines["oracle extract"].rouge.one
    assert baselines["lead-3"].facts < baselines["oracle extract"].facts


def test_words_in_common_say_nothing_of_facts() -> None:
    """The belief of the lesson: the text with the higher ROUGE states fewer facts."""
    facts = ("Ivo Darsen", "opened a mill", "Lake Torvik", "Friday")
    article = Article("", "Ivo Darsen opened a mill in Lake Torvik on Friday.", facts)
    close, terse = "Ana Darsen opened a tower in Lake Velmar on Sunday.", "Ivo Darsen, Lake Torvik."
    close_score, terse_score = score([close], [article]), score([terse], [article])
    assert close_score.rouge.one > terse_score.rouge.one - 0.05
    assert close_score.facts == 0 and terse_score.facts == 0.5


def test_real_articles_have_no_facts_to_hold_a_summary_to() -> None:
    assert score(["a mill"], [Article("a mill", "a mill")]).facts is None
