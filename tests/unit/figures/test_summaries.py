"""The pictures of summaries: marks on words, and bars of scores."""

from course.lessons.l13_deepspeed_summarization.figures import (
    KINDS,
    explain_facts,
    explain_rouges,
    explain_training,
    lines_of,
    loss_curve,
    marked_article,
    marks_of,
    score_bars,
)
from course_lib.data.generated_news import Article, make_news
from course_lib.training.summaries.rouge import Rouge
from course_lib.training.summaries.scores import Scores
from tests.unit.figures.pictures import check_legible, letters_of, title_of

ARTICLE = Article(
    "Last year, Ana Belkov sold a mill in Port Sarden on Friday. Officials confirmed that Ivo Darsen opened "
    "a bridge in Lake Torvik on Monday. Belkov was silent.",
    "Ivo Darsen opened a bridge in Lake Torvik on Monday.",
    ("Ivo Darsen", "opened a bridge", "Lake Torvik", "Monday"),
)
MIXED = "Ana Darsen opened a bridge in Lake Velmar on Friday."


def marked(text: str) -> list[tuple[str, str]]:
    return [(text[start:end], kind) for start, end, kind in marks_of(text, ARTICLE)]


def test_a_right_summary_is_marked_fact_by_fact() -> None:
    assert marked(ARTICLE.summary) == [(fact, "right") for fact in ARTICLE.facts]


def test_words_are_told_apart_by_where_they_come_from() -> None:
    assert marked(MIXED) == [
        ("Ana", "elsewhere"),
        ("Darsen", "elsewhere"),
        ("opened a bridge", "right"),
        ("Lake", "elsewhere"),
        ("Velmar", "made up"),
        ("Friday", "elsewhere"),
    ]
    assert marked("") == []
    assert marked("Belkov was silent.") == []  # a whole sentence


def test_the_picture_says_how_many_facts_are_right() -> None:
    picture = marked_article(ARTICLE, {"before": MIXED, "after": ARTICLE.summary})
    check_legible(picture)
    assert title_of(picture) == "Of the 4 facts of the news, the summary states: before 1, after 4"
    assert "missing: Ivo Darsen, Lake Torvik and Monday" in picture.alt
    words = {text.get_text() for text in letters_of(picture)}
    assert {"the article", "before", "after", "a fact of the news", "not in the article"} <= words


def test_frames_stand_around_the_words_they_mark() -> None:
    """Each frame begins where its word does, in the line that is drawn."""
    picture = marked_article(ARTICLE, {"before": MIXED})
    picture.png()
    lines = [text for text in letters_of(picture) if text.get_family() == ["DejaVu Sans Mono"]]
    frames = picture.figure.axes[0].patches
    assert len(frames) == 4 + 6 + 2  # the facts, the words of the summary, and what it took from elsewhere
    for line in lines:
        box = line.get_window_extent()
        letter = box.width / len(line.get_text())
        for frame in frames:
            edges = frame.get_window_extent()
            if abs(edges.y0 + edges.y1 - box.y0 - box.y1) < 6:
                first = round((edges.x0 + 2 - box.x0) / letter)
                assert abs(first * letter - (edges.x0 + 2 - box.x0)) < 2.5
                assert line.get_text()[first].strip() and (first == 0 or line.get_text()[first - 1] == " ")


def test_long_articles_fit_on_the_paper() -> None:
    for article in make_news(6, seed=0, split="held_out"):
        check_legible(
            marked_article(article, {"reference": article.summary, "first words": article.text[:200]})
        )
    assert all(len(line) <= 74 for line in lines_of("word " * 100))


def test_a_summary_without_words_is_drawn() -> None:
    check_legible(marked_article(ARTICLE, {"nothing": ""}))


def test_bars_are_rouge_and_facts_and_the_title_what_they_rank_differently() -> None:
    scores = {
        "lead-3": (Rouge(0.15, 0.0, 0.1), 0.04),
        "oracle": (Rouge(0.50, 0.3, 0.5), 0.95),
        "before": (Rouge(0.55, 0.3, 0.5), 0.10),
        "after": (Rouge(0.92, 0.9, 0.9), 0.90),
    }
    picture = score_bars(scores)
    check_legible(picture)
    assert "has a higher ROUGE-1 than “oracle” (55" in " ".join(title_of(picture).split())
    widths = [round(bar.get_width()) for bar in picture.figure.axes[0].patches]
    assert widths == [15, 50, 55, 92, 4, 95, 10, 90]
    agreeing = {name: scores[name] for name in ("lead-3", "before", "after")}
    assert "goes with more facts right" in title_of(score_bars(agreeing))


def test_the_other_rouges_are_judged_where_rouge_1_and_facts_disagree() -> None:
    scores = {
        "oracle": Scores(Rouge(0.75, 0.64, 0.68), 0.95),
        "before": Scores(Rouge(0.79, 0.642, 0.79), 0.56),
        "after": Scores(Rouge(0.97, 0.93, 0.97), 0.96),
    }
    assert explain_rouges(scores) == (
        "No. ROUGE-2 gives “before” and “oracle” 64 % each, and ROUGE-L prefers “before” (79 % to 68 %).\n"
        "Facts right: “before” 56 %, “oracle” 95 %."
    )
    scores["oracle"] = Scores(Rouge(0.75, 0.70, 0.68), 0.95)
    assert explain_rouges(scores).startswith("Only ROUGE-2 does. ROUGE-2 prefers “oracle” (70 % to 64 %)")
    scores["oracle"] = Scores(Rouge(0.75, 0.70, 0.80), 0.95)
    assert explain_rouges(scores).startswith("Yes. ")
    assert "nothing to notice" in explain_rouges({"after": scores["after"]})


def test_the_loss_curve_says_where_it_begins_and_ends() -> None:
    picture = loss_curve([1.0] * 10 + [0.5] * 30, name="4 ranks", unit="token")
    check_legible(picture)
    assert title_of(picture) == "4 ranks: the loss goes from 1.00 to 0.50 in 40 steps"
    check_legible(loss_curve([1.0, 0.5], name="4 ranks", unit="token"))


def test_kinds_differ_by_more_than_colour() -> None:
    looks = {(look.get("hatch"), look.get("linestyle"), look.get("linewidth")) for look in KINDS.values()}
    assert len(looks) == len(KINDS) == 3


def test_explanations_follow_what_was_measured() -> None:
    assert "A fact needs all its words" in explain_facts(Rouge(0.5, 0, 0), 0.1)
    assert "go together here" in explain_facts(Rouge(0.9, 0, 0), 0.85)
    assert explain_training(0.1, 0.9, 460).endswith(
        "460 steps brought 10 points, the last 100 brought 80 more."
    )
    assert "brought none" in explain_training(0.1, 0.05, 460)
