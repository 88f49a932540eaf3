"""Real news beside lead-3: what is skipped without the data, the features, and the seeds of the benchmark."""

import numpy as np
import pytest

from course.lessons.l13_deepspeed_summarization import real_news
from course.lessons.l13_deepspeed_summarization.real_news import Above
from course_lib.data.cnn_dailymail import News
from course_lib.data.generated_news import Article, make_news
from course_lib.training.summaries.features import count_rarity
from course_lib.training.summaries.prepared import RealNews, prepare
from tests.unit.figures.pictures import check_legible, title_of

ARTICLES = make_news(6, seed=0)


def test_generated_news_is_not_taken_for_real_news(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in = News("generated", False, ARTICLES, ARTICLES, ARTICLES)
    monkeypatch.setattr(real_news, "load_news", lambda: stand_in)
    assert real_news.find_real_news() is None
    assert real_news.say_news(None).startswith("Skipped: the course found no CNN/DailyMail")
    assert "6 to train on" in real_news.say_news(RealNews(ARTICLES, ARTICLES, ARTICLES))


def test_the_features_are_drawn_with_what_the_oracle_takes() -> None:
    article = Article(
        "It rained. Ivo Darsen opened a bridge. Few came. It is long.", "Darsen opened a bridge"
    )
    picture = real_news.feature_picture(article, count_rarity([article.text]))
    check_legible(picture)
    assert title_of(picture).startswith("All 4 sentences: the oracle takes 2; lead-3 takes")
    (legend,) = picture.figure.legends
    assert [text.get_text() for text in legend.get_texts()][1:] == [
        "darker = larger",
        "a white column is the same for all sentences",
    ]
    (frame,) = picture.figure.axes[0].patches
    assert frame.get_y() == 0.5
    check_legible(real_news.feature_picture(Article("Dry. Wet.", "snow"), count_rarity(["Dry. Wet."])))


def test_the_title_names_what_the_oracle_takes_out_of_sight() -> None:
    assert real_news.feature_title([3, 5, 24], 16, 27) == (
        "The first 16 of 27 sentences: the oracle takes 4 and 6 (and 25, not shown); lead-3 takes 1, 2 and 3"
    )
    assert "takes none of them (and 20, not shown)" in real_news.feature_title([19], 16, 27)


def test_the_oracle_is_what_the_labels_say_and_scores_above_lead() -> None:
    prepared = prepare(ARTICLES, ARTICLES)
    places = real_news.oracle_places(prepared)
    assert sum(map(len, places)) == prepared.labels.sum()
    lead = real_news.score_places(ARTICLES, real_news.lead_places(ARTICLES))
    oracle = real_news.score_places(ARTICLES, places)
    assert lead.shape == (6, 3) and (oracle.mean(axis=0) > lead.mean(axis=0)).all()
    above = real_news.above_lead("this run", oracle, lead)
    assert [each.metric for each in above] == list(real_news.METRICS)
    assert all(each.low <= each.points <= each.high for each in above)
    table = real_news.score_table({"lead-3": lead, "oracle extract": oracle}).splitlines()
    assert len(table) == 3 and table[0].split()[:3] == list(real_news.METRICS)


def rows() -> list[dict[str, object]]:
    names = ("seed 0", "seed 1", "mean over the seeds", "greedy oracle")
    found: list[dict[str, object]] = [
        {"case": f"test, {metric}, {name}", "ours": 31.0, "peer": 30.5, "low": 0.1, "high": 0.9}
        for metric in real_news.METRICS
        for name in names
    ]
    found += [{"case": "validation, mean of the metrics, 10 epochs", "ours": 1.0, "peer": 1.0}]
    found += [{"case": "test, articles with the same sentences, seed 0", "ours": 99.8, "peer": 100.0}]
    return [*found, {"case": "training, CPU seconds, seed 0", "ours": 20.0, "peer": 15.0}]


def test_the_seeds_stand_beside_this_run() -> None:
    results = real_news.committed(rows())
    assert [each.name for each in results[:3]] == ["seed 0", "seed 1", "mean of the seeds"]
    assert len(results) == 9 and results[0].points == 0.5
    results += [Above(metric, real_news.THIS_RUN, -0.2, -0.8, 0.4) for metric in real_news.METRICS]
    picture = real_news.seeds_picture(results)
    check_legible(picture)
    title = " ".join(title_of(picture).split())
    assert "+0.50, +0.50 and +0.50 points above lead-3 (no interval holds 0)" in title
    assert picture.alt.startswith("Points with intervals, for ROUGE-1, ROUGE-2 and ROUGE-Lsum.")
    assert "ROUGE-2, this run: −0.20 (−0.80 to +0.40)" in picture.alt


def test_the_answer_follows_the_intervals() -> None:
    said = real_news.say_answer(rows())
    assert said.startswith("Yes, barely: +0.50 points of ROUGE-1 on average over three seeds.")
    unsure = [row | {"low": -0.1} if "ROUGE-2" in str(row["case"]) else row for row in rows()]
    assert "seeds, and for ROUGE-2 the interval contains 0." in real_news.say_answer(unsure)
    assert real_news.say_answer([row | {"low": -0.1} for row in rows()]).startswith("Perhaps: +0.50")


def test_the_reference_is_said_in_numbers() -> None:
    said = real_news.say_reference(rows())
    assert "lead-3          30.5, 30.5, 30.5" in said and "99.8 % of the test articles" in said
    assert "20 s of CPU time on two ranks together, 15 s in one process" in said
    assert np.isfinite(real_news.committed(rows())[0].low)
