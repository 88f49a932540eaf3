"""Generated news: the same each time, its facts where they should be, and no shortcut to them."""

import re

import pytest

from course_lib.data import generated_news as news
from course_lib.data.generated_news import (
    ACTS,
    DAYS,
    MORE,
    PERSONS,
    PLACES,
    Article,
    make_news,
)
from course_lib.training.facts import rouge_1


@pytest.fixture(scope="module")
def train() -> list[Article]:
    return make_news(2000, seed=0)


@pytest.fixture(scope="module")
def held_out() -> list[Article]:
    return make_news(1000, seed=0, split="held_out")


def sentences(text: str) -> list[str]:
    return re.split(r"(?<=\.) ", text)


def mean_rouge_1(articles: list[Article], summarise) -> float:
    return sum(rouge_1(summarise(article), article.summary) for article in articles) / len(articles)


def lead_3(article: Article) -> str:
    return " ".join(sentences(article.text)[:3])


def one_sentence(article: Article) -> str:
    """The best single sentence there is, for one who knows the reference."""
    return max(sentences(article.text), key=lambda sentence: rouge_1(sentence, article.summary))


def test_the_same_call_makes_the_same_articles_and_a_longer_one_begins_with_them():
    assert make_news(20, seed=4) == make_news(50, seed=4)[:20]
    assert make_news(20, seed=4) != make_news(20, seed=5)
    assert make_news(0, seed=4) == []


def test_articles_do_not_change_from_one_machine_to_the_next():
    assert make_news(1, seed=1)[0].summary == "Karim Merford designed a clinic in West Sarmar on Thursday."


@pytest.mark.parametrize("split", ["train", "held_out"])
def test_a_summary_states_its_facts_and_the_text_has_them_and_more_of_them(split):
    for article in make_news(500, seed=7, split=split):
        who, deed, place, day = article.facts
        assert article.summary == f"{who} {deed} in {place} on {day}."
        counts = [article.text.count(fact) for fact in article.facts]
        assert min(counts) >= 1 and 6 <= sum(counts) <= 4 + 2 * MORE
        assert day in DAYS


def combinations_in(articles: list[Article]) -> dict[str, set[tuple[str, str]]]:
    """All persons, acts and places that the texts name, of the news or not."""
    text = " ".join(article.text for article in articles)

    def pairs(first, second, between=" "):
        return set(re.findall(rf"\b({'|'.join(first)}){between}({'|'.join(second)})\b", text))

    return {
        "persons": pairs(news.GIVEN_NAMES, news.SURNAMES),
        "places": pairs(news.AREAS, news.TOWNS),
        "acts": pairs(news.DEEDS, news.THINGS, " a "),
    }


def test_held_out_articles_have_combinations_that_no_training_article_has(train, held_out):
    ours, theirs = combinations_in(train), combinations_in(held_out)
    for kind, known in (("persons", PERSONS), ("places", PLACES), ("acts", ACTS)):
        assert ours[kind] <= set(known[0]) and theirs[kind] <= set(known[1])
        assert not ours[kind] & theirs[kind]
        assert len(theirs[kind]) > 0.9 * len(known[1])


@pytest.mark.parametrize("split", ["train", "held_out"])
def test_the_lead_is_a_poor_summary_and_the_right_sentence_a_good_one(split, train, held_out):
    articles = train if split == "train" else held_out
    lead, best = mean_rouge_1(articles, lead_3), mean_rouge_1(articles, one_sentence)
    assert lead < 0.4 and best > 0.6
    assert best - lead > 0.15
    assert mean_rouge_1(articles, lambda article: article.summary) == 1
