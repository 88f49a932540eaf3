"""Real news for section 5: the data if they are here, what the model sees, scores beside lead-3, and seeds.

The reference machine's results are in benchmarks/results/summaries.json (`python -m benchmarks.summaries`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np
from matplotlib.patches import Patch, Rectangle
from numpy.typing import NDArray

from course_lib.data.cnn_dailymail import load_news
from course_lib.data.generated_news import Article
from course_lib.training.summaries.bootstrap import mean_interval
from course_lib.training.summaries.extractive import extract
from course_lib.training.summaries.features import NAMES, Rarity, sentence_features
from course_lib.training.summaries.prepared import Prepared, RealNews, split_real_news
from course_lib.training.summaries.rouge import LEAD, oracle_sentences, published_rouge, sentences
from mpi_classroom.figures import FONT_SIZE, GRID, INK, Look, Picture, listed, new_panels

SKIPPED = (
    "Skipped: the course found no CNN/DailyMail, so the cells of this section train nothing. "
    "data/README.md says where to put its files."
)
METRICS = ("ROUGE-1", "ROUGE-2", "ROUGE-Lsum")
SHOWN = 16  # sentences in the picture, at most
THIS_RUN = "this run"
Scores = NDArray[np.float64]  # (articles, 3), in percent

# -------------------------------------------------------------------- the data


def find_real_news() -> RealNews | None:
    """CNN/DailyMail in its three parts, or None where the course finds none."""
    news = load_news()
    return split_real_news(news) if news.real else None


def say_news(news: RealNews | None) -> str:
    """How many articles there are, or why the section is skipped."""
    if news is None:
        return SKIPPED
    parts = f"{len(news.training)} to train on, {len(news.choosing)} to choose settings with"
    return f"Articles of CNN/DailyMail: {parts}, {len(news.test)} to test."


# -------------------------------------------------------------------- what the model sees


def feature_picture(article: Article, rarity: Rarity) -> Picture:
    """The features of the first sentences of `article`, darker for larger; the oracle's choice is framed."""
    parts = sentences(article.text)
    values = sentence_features(parts, rarity)[:SHOWN]
    chosen = oracle_sentences(parts, article.summary)
    title = feature_title(chosen, len(values), len(parts))
    figure, (axes,) = new_panels(title, height=0.27 * len(values) + 3.6)
    low, high = values.min(axis=0), values.max(axis=0)
    axes.imshow((values - low) / np.maximum(high - low, 1e-6), cmap="Greys", aspect="auto", vmin=0, vmax=1.6)
    axes.set_xticks(range(len(NAMES)), NAMES, rotation=60, ha="right", rotation_mode="anchor")
    axes.set_yticks(range(len(values)), [str(place + 1) for place in range(len(values))])
    axes.set_ylabel("sentence")
    axes.grid(False)
    frame: Look = {"facecolor": "none", "edgecolor": "#009E73", "linewidth": 3}
    for place in chosen:
        if place < len(values):
            axes.add_patch(Rectangle((-0.5, place - 0.5), len(NAMES), 1, **frame))
    patches = [
        Patch(label="chosen by the oracle (label 1)", **frame),
        Patch(label="darker = larger", facecolor="#9a9a9a", edgecolor=INK),
    ]
    if (low == high).any():
        white: Look = {"facecolor": "#ffffff", "edgecolor": INK}
        patches.append(Patch(label="a white column is the same for all sentences", **white))
    figure.legend(handles=patches, fontsize=FONT_SIZE, frameon=False, loc="outside lower center")
    kind = f"Table of grey fields: {len(values)} sentences by {len(NAMES)} features ({', '.join(NAMES)})"
    return Picture(figure, f"{kind}, darker for larger values. {title}.")


def feature_title(chosen: Sequence[int], shown: int, sentences: int) -> str:
    """What the oracle takes (`chosen`, counted from 0) of the first `shown` sentences and of the rest."""
    drawn = [place + 1 for place in chosen if place < shown]
    hidden = [place + 1 for place in chosen if place >= shown]
    taken = listed(drawn) if drawn else "none of them"
    taken += f" (and {listed(hidden)}, not shown)" if hidden else ""
    part = f"The first {shown} of {sentences} sentences" if shown < sentences else f"All {shown} sentences"
    return f"{part}: the oracle takes {taken}; lead-3 takes 1, 2 and 3"


# -------------------------------------------------------------------- scores


def lead_places(articles: Sequence[Article]) -> list[list[int]]:
    """The places of the first three sentences of each article."""
    return [list(range(min(LEAD, len(sentences(article.text))))) for article in articles]


def oracle_places(prepared: Prepared) -> list[list[int]]:
    """The places that the greedy oracle chose, which are the labels."""
    ends = zip(prepared.starts[:-1], prepared.starts[1:], strict=True)
    return [np.flatnonzero(prepared.labels[start:end]).tolist() for start, end in ends]


def score_places(articles: Sequence[Article], places: Sequence[Sequence[int]]) -> Scores:
    """ROUGE-1, -2 and -Lsum in percent (N, 3) of the sentences at `places` of each article."""
    texts = [extract(article, chosen) for article, chosen in zip(articles, places, strict=True)]
    return 100 * published_rouge(texts, [article.summary for article in articles])


def score_table(scores: Mapping[str, Scores], base: str = "lead-3") -> str:
    """A line per system with its mean scores, and for all but `base` and the oracle how far above `base`."""
    width = max(map(len, scores)) + 1
    lines = [f"{'':{width}}" + "".join(f"{name:>12}" for name in METRICS) + "   F1 in percent"]
    for name, each in scores.items():
        lines.append(f"{name:{width}}" + "".join(f"{mean:12.2f}" for mean in each.mean(axis=0)))
    return "\n".join(lines)


# -------------------------------------------------------------------- three seeds


@dataclass(frozen=True, slots=True)
class Above:
    """How many points a training is above lead-3 in a metric, and the 95 % interval."""

    metric: str
    name: str
    points: float
    low: float
    high: float


def above_lead(name: str, ours: Scores, lead: Scores) -> list[Above]:
    """One entry per metric, from the scores of the same articles."""
    differences = (ours - lead).T
    pairs = zip(METRICS, differences, strict=True)
    return [Above(metric, name, float(each.mean()), *mean_interval(each)) for metric, each in pairs]


def committed(measured: Sequence[Mapping[str, Any]]) -> list[Above]:
    """The seeds and their mean from the rows of the benchmark `summaries`."""
    found = []
    for row in measured:
        kind, *rest = row["case"].split(", ")
        if kind == "test" and rest[0] in METRICS and rest[1] != "greedy oracle":
            name = rest[1].replace("mean over the seeds", "mean of the seeds")
            found.append(Above(rest[0], name, row["ours"] - row["peer"], row["low"], row["high"]))
    return found


def seeds_picture(results: Sequence[Above]) -> Picture:
    """Points above lead-3 with their 95 % intervals, by metric; those of this run as diamonds."""
    names = list(dict.fromkeys(each.name for each in results))
    title = seeds_title(results)
    height = 0.3 * len(METRICS) * (len(names) + 1) + 2
    figure, (axes,) = new_panels(title, height=height)
    for each in results:
        row = METRICS.index(each.metric) * (len(names) + 1) + names.index(each.name)
        live, mean = each.name == THIS_RUN, each.name.startswith("mean")
        look: Look = {"color": "#D55E00" if live else INK if mean else "#0072B2"}
        look |= {"marker": "D" if live else "s" if mean else "o", "markersize": 8, "linewidth": 2}
        axes.plot([each.low, each.high], [row, row], color=look["color"], linewidth=2)
        axes.plot(each.points, row, **look)
        axes.text(each.high, row, f"  {signed(each.points, 2)}", va="center", fontsize=FONT_SIZE, color=INK)
    ticks = [
        (g * (len(names) + 1) + i, f"{metric}   {name}" if i == 0 else name)
        for g, metric in enumerate(METRICS)
        for i, name in enumerate(names)
    ]
    axes.set_yticks([row for row, _ in ticks], [words for _, words in ticks])
    axes.invert_yaxis()
    axes.axvline(0, color=INK, linestyle="--", linewidth=1)
    axes.margins(x=0.16, y=0.06)
    axes.set_xlabel("points above lead-3, with the 95 % interval")
    axes.grid(False, axis="y")
    axes.grid(True, axis="x", color=GRID)
    words = [
        f"{e.metric}, {e.name}: {signed(e.points, 2)} ({signed(e.low, 2)} to {signed(e.high, 2)})"
        for e in results
    ]
    kind = f"Points with intervals, for {listed(METRICS)}"
    return Picture(figure, f"{kind}. {title}. {'; '.join(words)}.")


def seeds_title(results: Sequence[Above]) -> str:
    """How far the mean of the seeds is above lead-3 in each metric, and which intervals hold 0."""
    means = [each for each in results if each.name.startswith("mean")]
    points = listed(signed(each.points, 2) for each in means)
    unsure = [each.metric for each in means if each.low <= 0 <= each.high]
    sure = f"0 is in the interval of {listed(unsure)}" if unsure else "no interval holds 0"
    return f"Mean of three seeds: {points} points above lead-3 ({sure})"


def say_answer(measured: Sequence[Mapping[str, Any]]) -> str:
    """Whether the mean of the seeds beats lead-3 in the benchmark's rows, and how far above the oracle is."""
    means = [each for each in committed(measured) if each.name.startswith("mean")]
    one = means[0]  # of ROUGE-1
    unsure = [each.metric for each in means if each.low <= 0 <= each.high]
    (oracle,) = (row for row in measured if row["case"] == f"test, {one.metric}, greedy oracle")
    answer = "Yes, barely" if one.low > 0 else "No" if one.high < 0 else "Perhaps"
    points = f"{signed(one.points, 2)} points of {one.metric} on average over three seeds"
    chance = f", and for {listed(unsure)} the interval contains 0" if unsure else ""
    above = f"The oracle is {oracle['ours'] - oracle['peer']:.0f} points above lead-3."
    return f"{answer}: {points}{chance}.\n{above}"


def signed(value: float, digits: int) -> str:
    """`value` with its sign, as it stands in a text."""
    return f"{value:+.{digits}f}".replace("-", "−")


def say_reference(measured: Sequence[Mapping[str, Any]]) -> str:
    """What the committed rows say besides the seeds: the oracle, and one process beside two ranks."""
    cases = {row["case"]: row for row in measured}
    oracle = [cases[f"test, {metric}, greedy oracle"] for metric in METRICS]
    lead = ", ".join(f"{row['peer']:.1f}" for row in oracle)
    ceiling = ", ".join(f"{row['ours']:.1f}" for row in oracle)
    same = [row["ours"] for row in measured if "the same sentences" in row["case"]]
    seconds = [row for row in measured if "CPU seconds" in row["case"]]
    return "\n".join(
        (
            f"On the reference machine ({', '.join(METRICS)} in percent):",
            f"    lead-3          {lead}",
            f"    oracle extract  {ceiling}",
            f"Two ranks and one process pick the same sentences in {min(same):.1f} % of the test articles.",
            f"One training takes {fmean(row['ours'] for row in seconds):.0f} s of CPU time on two ranks "
            f"together, {fmean(row['peer'] for row in seconds):.0f} s in one process.",
        )
    )
