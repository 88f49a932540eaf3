"""Generated news: the same each time, its facts where they should be, and no shortcut to them."""

import re

from course.tools.generated_news import DAYS, MORE, make_news
from course_lib.data.cnn_dailymail import Article
from course_lib.training.facts import rouge_1


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


def test_a_summary_states_its_facts_and_the_text_has_them_and_more_of_them():
    for article in make_news(500, seed=7):
        facts = re.fullmatch(r"(\w+ \w+) (\w+ a \w+) in (\w+ \w+) on (\w+)\.", article.summary)
        assert facts and facts[4] in DAYS
        counts = [article.text.count(fact) for fact in facts.groups()]
        assert min(counts) >= 1 and 6 <= sum(counts) <= 4 + 2 * MORE


def test_the_lead_is_a_poor_summary_and_the_right_sentence_a_good_one():
    articles = make_news(2000, seed=0)
    lead, best = mean_rouge_1(articles, lead_3), mean_rouge_1(articles, one_sentence)
    assert lead < 0.4 and best > 0.6
    assert best - lead > 0.15
    assert mean_rouge_1(articles, lambda article: article.summary) == 1
