"""Which of two summaries ROUGE-1 prefers, and which one states more facts."""

from collections.abc import Sequence
from dataclasses import dataclass

from course_lib.data.generated_news import Article
from course_lib.training.summaries.rouge import facts_found, rouge_n


@dataclass(frozen=True, slots=True)
class Preferences:
    """Numbers of articles: all, with unequal facts, and with ROUGE-1 higher where the facts are fewer."""

    articles: int
    differing: int
    against_facts: int

    @property
    def percent(self) -> float:
        """The percentage of differing articles in which ROUGE-1 prefers fewer facts; 0 when none differ."""
        return 100 * self.against_facts / max(self.differing, 1)


def compare(first: Sequence[str], second: Sequence[str], articles: Sequence[Article]) -> Preferences:
    """Compare two summaries of each article by ROUGE-1 and by facts; a tie in ROUGE-1 prefers neither."""
    differing = against = 0
    for one, other, article in zip(first, second, articles, strict=True):
        more_facts = len(facts_found(one, article.facts)) - len(facts_found(other, article.facts))
        more_words = rouge_n(one, article.summary) - rouge_n(other, article.summary)
        differing += more_facts != 0
        against += more_facts * more_words < 0
    return Preferences(len(articles), differing, against)


def explain_preferences(found: Preferences) -> str:
    """The counts in words."""
    counted = f"In {found.differing} of {found.articles} articles, one summary states more facts."
    if not found.differing:
        return f"{counted} There is nothing to prefer."
    fewer = "ROUGE-1 is higher for the one with fewer (ties count for neither)."
    return f"{counted} In {found.against_facts} of these, {fewer}"


def explain_control(before: float, falling: float, constant: float) -> str:
    """What the falling rate contributed, from the shares of right facts before and after both trainings."""
    percent = f"Facts right: before {before:.1%}, falling rate {falling:.1%}, constant rate {constant:.1%}."
    gained, kept = falling - before, constant - before
    if gained <= 0:
        return f"{percent} The falling rate brought nothing that needs a cause."
    share = f"{min(max(kept / gained, 0), 1):.0%}" if kept < gained else "all"
    words = (
        "It was not the rate. Longer training on excerpts would be the next control"
        if kept >= 0.8 * gained
        else "Both matter"
        if kept >= 0.3 * gained
        else "It was the rate"
    )
    return f"{percent}\nA rate that stays brings {share} of the gain. {words}."
