"""Which summary ROUGE-1 prefers, beside which states more facts; and what a control says."""

import pytest

from course.lessons.l13_deepspeed_summarization.preferences import (
    Preferences,
    compare,
    explain_control,
    explain_preferences,
)
from course_lib.data.generated_news import Article

ARTICLE = Article("", "Ivo Darsen opened a bridge.", ("Ivo Darsen", "opened a bridge"))
WRONG_NAME = "Ana Darsen opened a bridge."  # 4 of 5 words, 1 of 2 facts
IN_OTHER_WORDS = "It is now known for sure that he, Ivo Darsen, opened a bridge somewhere, as was hoped for."


def test_an_article_counts_against_the_facts_where_the_words_do() -> None:
    found = compare(
        [WRONG_NAME, WRONG_NAME, ARTICLE.summary], [IN_OTHER_WORDS, "", ARTICLE.summary], [ARTICLE] * 3
    )
    assert found == Preferences(articles=3, differing=2, against_facts=1)
    assert found.percent == 50
    assert explain_preferences(found).startswith("In 2 of 3 articles")
    assert explain_preferences(found).endswith("higher for the one with fewer (ties count for neither).")
    assert compare([IN_OTHER_WORDS], [WRONG_NAME], [ARTICLE]) == Preferences(1, 1, 1)


def test_nothing_differs_where_the_facts_are_equally_many() -> None:
    found = compare([WRONG_NAME], [WRONG_NAME], [ARTICLE])
    assert (found, found.percent) == (Preferences(1, 0, 0), 0)
    assert explain_preferences(found).endswith("There is nothing to prefer.")


@pytest.mark.parametrize(
    ("constant", "words"),
    [
        (0.9, "all of the gain. It was not"),
        (0.86, "was not"),
        (0.7, "50% of the gain. Both"),
        (0.5, "It was the rate"),
    ],
)
def test_the_control_says_what_the_rate_brought(constant: float, words: str) -> None:
    assert words in explain_control(0.5, 0.9, constant)


def test_a_training_that_gained_nothing_has_no_cause() -> None:
    assert "nothing that needs a cause" in explain_control(0.5, 0.5, 0.9)
