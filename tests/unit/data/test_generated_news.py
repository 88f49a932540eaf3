"""Generated news: the same each time, its facts where they should be, and no shortcut to them."""

import re
from collections import Counter

import pytest

from course_lib.data import generated_news as news
from course_lib.data.generated_news import (
    ACTS,
    CLAUSES,
    DAYS,
    DETAILS,
    HELD_OUT_FORMS,
    MORE,
    NEWS,
    OTHER,
    PERSONS,
    PLACES,
    TRAIN_FORMS,
    Article,
    combinations,
    make_news,
)

WORDS = re.compile(r"[a-z]+")


@pytest.fixture(scope="module")
def train() -> list[Article]:
    return make_news(2000, seed=0)


@pytest.fixture(scope="module")
def held_out() -> list[Article]:
    return make_news(1000, seed=0, split="held_out")


def sentences(text: str) -> list[str]:
    return re.split(r"(?<=\.) ", text)


def rouge_1(summary: str, reference: str) -> float:
    """The F1 of the words that both have (Lin 2004), in percent."""
    ours, theirs = (Counter(WORDS.findall(text.lower())) for text in (summary, reference))
    return 200 * (ours & theirs).total() / (ours.total() + theirs.total())


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


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"n": -1}, "-1 articles cannot be made; ask for 0 or more"),
        ({"n": 1, "events": (0, 3)}, "an article cannot have 0 to 3 events; use 1 to 7, in order"),
        ({"n": 1, "events": (3, 2)}, "an article cannot have 3 to 2 events; use 1 to 7, in order"),
        ({"n": 1, "events": (7, 8)}, "an article cannot have 7 to 8 events; use 1 to 7, in order"),
        ({"n": 1, "split": "test"}, "there is no split 'test'; choose train or held_out"),
    ],
)
def test_what_cannot_be_made_is_an_error(arguments, sentence):
    with pytest.raises(ValueError, match=re.escape(sentence)):
        make_news(seed=0, **arguments)


@pytest.mark.parametrize("events", [(1, 1), (2, 3), (7, 7)])
def test_an_article_tells_of_as_many_events_as_are_asked_for(events):
    articles = [
        a for split in ("train", "held_out") for a in make_news(100, seed=3, split=split, events=events)
    ]
    for article in articles:
        told = sum(article.text.count(opening) for opening in (*NEWS, *OTHER))
        assert events[0] <= told <= events[1]
        assert all(fact in article.text for fact in article.facts)


@pytest.mark.parametrize("split", ["train", "held_out"])
def test_a_summary_states_its_facts_and_the_text_has_them_and_more_of_them(split):
    for article in make_news(500, seed=7, split=split):
        who, deed, place, day = article.facts
        assert article.summary == f"{who} {deed} in {place} on {day}."
        counts = [article.text.count(fact) for fact in article.facts]
        assert min(counts) >= 1 and 6 <= sum(counts) <= 4 + 2 * MORE
        assert day in DAYS


def test_other_events_name_other_persons_deeds_places_and_days(train):
    names = {
        "person": ["|".join(news.GIVEN_NAMES) + r") (?:" + "|".join(news.SURNAMES), 0],
        "place": ["|".join(news.AREAS) + r") (?:" + "|".join(news.TOWNS), 2],
        "day": ["|".join(DAYS), 3],
    }
    for article in train[:500]:
        for pattern, fact in names.values():
            found = Counter(re.findall(rf"\b(?:{pattern})\b", article.text))
            assert found.pop(article.facts[fact]) >= 1
            assert len(found) >= 2 and set(found.values()) == {1}  # the others: once each


def test_nobody_shares_a_name_with_another_in_an_article(train):
    for article in train[:500]:
        persons = re.findall(rf"({'|'.join(news.GIVEN_NAMES)}) ({'|'.join(news.SURNAMES)})\b", article.text)
        different = set(persons)
        assert len({given for given, _ in different}) == len({surname for _, surname in different})
        assert len({given for given, _ in different}) == len(different) >= 3


def test_what_a_sentence_begins_with_tells_the_news_from_the_rest(train, held_out):
    assert not set(NEWS) & set(OTHER)
    for article in [*train, *held_out]:
        (opening,) = [opening for opening in NEWS if opening in article.text]
        told = article.text[article.text.index(opening) :]
        rest = article.text[: article.text.index(opening)]
        ends = [told.index(other) for other in OTHER if other in told]
        assert all(fact in told[: min(ends, default=len(told))] for fact in article.facts)
        assert not any(fact in rest for fact in article.facts)


def test_every_opening_and_clause_is_used_and_no_day_or_deed_is_preferred(train):
    text = " ".join(article.text for article in train)
    for opening in (*NEWS, *OTHER):
        assert text.count(opening) > 150  # of some 300 and 800
    for number, names in ((3, DAYS), (1, [f"{deed} a" for deed in news.DEEDS])):
        counts = [sum(article.facts[number].startswith(name) for article in train) for name in names]
        assert sum(counts) == len(train) and min(counts) > 0.6 * len(train) / len(names)


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


def test_held_out_articles_are_made_of_words_that_training_articles_have(train, held_out):
    def words_of(articles):
        return {word for a in articles for word in re.findall(r"\w+", f"{a.text} {a.summary}")}

    assert words_of(held_out) <= words_of(train)
    assert len(words_of(train)) < 320


def form_of(article: Article) -> tuple[str, str]:
    """How the news is told."""
    who, deed, place, day = article.facts
    told = {
        (opening, clause): f"{opening} {clause.format(who=who, deed=deed, place=place, day=day)}"
        for opening in NEWS
        for clause in CLAUSES
    }
    (form,) = [form for form, sentence in told.items() if sentence in article.text]
    return form


def test_held_out_articles_tell_the_news_in_ways_that_no_training_article_has(train, held_out):
    ours, theirs = ({form_of(article) for article in articles} for articles in (train, held_out))
    assert ours == set(TRAIN_FORMS) and theirs == set(HELD_OUT_FORMS)
    for part in (0, 1):  # each opening and each clause alone is known
        assert {form[part] for form in theirs} <= {form[part] for form in ours}


def test_details_speak_of_the_news_and_follow_it(train):
    for article in train[:500]:
        who, deed, place, day = article.facts
        details = {detail.format(who=who, deed=deed, place=place, day=day) for detail in DETAILS}
        assert len(details) == len(DETAILS)
        told = [article.text.find(detail) for detail in details if detail in article.text]
        assert len(told) == MORE
        assert min(told) > min(article.text.find(opening) for opening in NEWS if opening in article.text)


def test_a_fifth_of_the_combinations_is_held_out():
    for first, second in (PERSONS, PLACES, ACTS, (TRAIN_FORMS, HELD_OUT_FORMS)):
        assert not set(first) & set(second)
        assert 0.1 < len(second) / (len(first) + len(second)) < 0.35
    assert combinations(["a"], ["b"]) in (([("a", "b")], []), ([], [("a", "b")]))


def test_the_news_is_rarely_in_the_lead_and_anywhere_after_it(train):
    whole = [all(fact in lead_3(article) for fact in article.facts) for article in train]
    assert 0 < sum(whole) / len(train) < 0.1
    at = Counter(
        next(i for i, sentence in enumerate(sentences(a.text)) if sentence.startswith(NEWS)) for a in train
    )
    assert len(at) > 6 and max(at.values()) < 0.35 * len(train)


@pytest.mark.parametrize("split", ["train", "held_out"])
def test_the_lead_is_a_poor_summary_and_the_right_sentence_a_good_one(split, train, held_out):
    articles = train if split == "train" else held_out
    lead, best = mean_rouge_1(articles, lead_3), mean_rouge_1(articles, one_sentence)
    assert lead < 40 and best > 60
    assert best - lead > 15
    assert mean_rouge_1(articles, lambda article: article.summary) == 100


def test_the_first_person_named_is_rarely_the_one_of_the_news(train):
    pattern = re.compile(rf"(?:{'|'.join(news.GIVEN_NAMES)}) (?:{'|'.join(news.SURNAMES)})\b")
    persons = [pattern.findall(article.text) for article in train]
    chance = sum(named.count(a.facts[0]) / len(named) for a, named in zip(train, persons, strict=True))
    chance /= len(train)
    found = [named[0] == a.facts[0] for a, named in zip(train, persons, strict=True)]
    assert sum(found) / len(found) < chance


def test_articles_fit_into_200_words(train, held_out):
    lengths = [len(article.text.split()) for article in [*train, *held_out]]
    assert min(lengths) > 50 and max(lengths) < 200 and 80 < sum(lengths) / len(lengths) < 120
