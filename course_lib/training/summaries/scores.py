"""Scores of summaries and of the baselines: ROUGE, and the facts where they are known."""

from collections.abc import Sequence
from dataclasses import dataclass

from course_lib.data.generated_news import Article
from course_lib.training.summaries.rouge import Rouge, facts_right, lead_3, oracle_extract, rouge


@dataclass(frozen=True, slots=True)
class Scores:
    """How good summaries are: mean ROUGE, and the share of facts that they state (None: nobody knows)."""

    rouge: Rouge
    facts: float | None


def score(texts: Sequence[str], articles: Sequence[Article]) -> Scores:
    """ROUGE of `texts` against the articles' summaries, and the share of their facts."""
    references = [article.summary for article in articles]
    known = any(article.facts for article in articles)
    return Scores(rouge(texts, references), facts_right(texts, articles) if known else None)


def score_baselines(articles: Sequence[Article]) -> dict[str, Scores]:
    """The scores of lead-3 and of the oracle extract."""
    extracts = [oracle_extract(article.text, article.summary) for article in articles]
    return {
        "lead-3": score([lead_3(article.text) for article in articles], articles),
        "oracle extract": score(extracts, articles),
    }
