"""Real news, CNN/DailyMail: an extractive summarizer that ZeRO-2 trained on two ranks, beside lead-3.

    1. train with every candidate's settings and every seed, and score on 200 validation articles
    2. take the candidate whose mean over seeds and over ROUGE-1, -2 and -Lsum is best there
    3. score the test articles with that one, once per seed

    python -m benchmarks.summaries [--quick] [--json FILE]

`ours` and `peer` are F1 in percent; `low` and `high` bound the 95 % interval of their difference, by a paired
bootstrap over the test articles. In a mean over the seeds, `ours_spread` is the range of their scores. CPU
seconds are the sum over the ranks. COURSE_DATA must name a folder with CNN/DailyMail: without it, nothing
is measured.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.extraction.bootstrap import mean_interval
from benchmarks.extraction.extractive import ExtractRecipe, extract
from benchmarks.extraction.prepared import RealNews, prepare_cached, split_real_news
from benchmarks.extraction.rouge import LEAD, oracle_sentences, published_rouge, sentences
from benchmarks.harness import Row, Timing, main, on_ranks, row
from course_lib.data.cnn_dailymail import load_news
from course_lib.data.generated_news import Article
from course_lib.data.storage import DataError

if TYPE_CHECKING:
    from mpi4py import MPI

RANKS, SEEDS = 2, (0, 1, 2)
TITLE = "CNN/DailyMail: an extractive summarizer, trained by ZeRO-2 on two ranks, beside lead-3"
METRICS = ("ROUGE-1", "ROUGE-2", "ROUGE-Lsum")
UNIT = "% F1"
CANDIDATES = tuple(ExtractRecipe(epochs=epochs) for epochs in (10, 20))
QUICK = (ExtractRecipe(epochs=1),)
Picks = list[list[int]]
Scores = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ScoreRow(Row):
    """A row with the 95 % interval of `ours` minus `peer`."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Run:
    """One training: what the model picks from validation and test articles; CPU seconds of all ranks."""

    choosing: Picks
    test: Picks
    seconds: float


def measure(quick: bool) -> list[Row]:
    """Choose on validation articles, then score the test articles once per seed."""
    news, seeds = read_news(quick), SEEDS[:1] if quick else SEEDS
    candidates = QUICK if quick else CANDIDATES
    found = {each: [train(RANKS, each, seed, quick) for seed in seeds] for each in candidates}
    scored = {each: mean_scores(runs, news.choosing) for each, runs in found.items()}
    best = max(scored, key=lambda each: scored[each].mean())
    ours, alone = found[best], [train(1, best, seed, quick) for seed in seeds]
    tested = [f1(each.test, news.test) for each in ours]
    return [
        *test_rows(dict(zip(seeds, tested, strict=True)), news.test),
        *(candidate_row(each, scores, news.choosing) for each, scores in scored.items()),
        *(
            line
            for seed, one, other in zip(seeds, ours, alone, strict=True)
            for line in process_rows(seed, one, other)
        ),
    ]


# ---------------------------------------------------------------- scores


def f1(picks: Picks, articles: Sequence[Article]) -> Scores:
    """ROUGE (N, 3) in percent of the sentences picked from `articles`."""
    texts = [extract(article, places) for article, places in zip(articles, picks, strict=True)]
    return 100 * published_rouge(texts, [article.summary for article in articles])


def mean_scores(runs: Sequence[Run], articles: Sequence[Article]) -> Scores:
    """The mean (3) over the validation `articles` and the runs."""
    return np.mean([f1(each.choosing, articles) for each in runs], axis=(0, 1))


def lead(articles: Sequence[Article]) -> Picks:
    """The places of lead-3."""
    return [list(range(min(LEAD, len(sentences(article.text))))) for article in articles]


def oracle(articles: Sequence[Article]) -> Picks:
    """The places that the greedy oracle picks, which knows the references."""
    return [oracle_sentences(sentences(article.text), article.summary) for article in articles]


# ---------------------------------------------------------------- rows


def test_rows(tested: Mapping[int, Scores], articles: Sequence[Article]) -> list[Row]:
    """Every seed, their mean, and the oracle, each beside lead-3."""
    base = f1(lead(articles), articles)
    rows = [line for seed, scores in tested.items() for line in score_rows(f"seed {seed}", scores, base)]
    means = {seed: scores.mean(axis=0) for seed, scores in tested.items()}
    spread = np.ptp(list(means.values()), axis=0)
    rows += score_rows("mean over the seeds", np.mean(list(tested.values()), axis=0), base, spread)
    return [*rows, *score_rows("greedy oracle", f1(oracle(articles), articles), base)]


def score_rows(
    name: str,
    scores: Scores,
    base: Scores,
    spread: Sequence[float] | Scores | None = None,
    *,
    where: str = "test",
    columns: Sequence[str] = METRICS,
    peer: str = "lead-3",
    unit: str = UNIT,
) -> list[ScoreRow]:
    """`scores` (N, columns) beside those of the `peer`, `base`, with the interval of their difference."""
    rows = []
    widths = [0.0] * len(columns) if spread is None else spread
    for metric, own, other, width in zip(columns, scores.T, base.T, widths, strict=True):
        ours, theirs = Timing(float(own.mean()), float(width)), Timing(float(other.mean()), 0.0)
        line = row(f"{where}, {metric}, {name}", RANKS, ours, theirs, peer, unit=unit)
        low, high = mean_interval(own - other)
        rows.append(ScoreRow(**asdict(line), low=low, high=high))
    return rows


def candidate_row(recipe: ExtractRecipe, scores: Scores, articles: Sequence[Article]) -> Row:
    """The validation score of a candidate: the mean of the three metrics and of the seeds."""
    base = f1(lead(articles), articles).mean()
    name = f"validation, mean of the metrics, {recipe.epochs} epochs"
    return row(name, RANKS, Timing(float(scores.mean()), 0.0), Timing(float(base), 0.0), "lead-3", unit=UNIT)


def process_rows(seed: int, ours: Run, alone: Run) -> list[Row]:
    """How many test articles get the sentences that one process picks, and what both trainings cost."""
    pairs = list(zip(ours.test, alone.test, strict=True))
    same = 100 * sum(one == other for one, other in pairs) / len(pairs)
    name, peer = f"test, articles with the same sentences, seed {seed}", "one process"
    return [
        row(name, RANKS, Timing(same, 0.0), Timing(100.0, 0.0), peer, unit="% of articles"),
        row(
            f"training, CPU seconds, seed {seed}",
            RANKS,
            Timing(ours.seconds, 0.0),
            Timing(alone.seconds, 0.0),
            peer,
        ),
    ]


# ---------------------------------------------------------------- on the ranks


def train(ranks: int, recipe: ExtractRecipe, seed: int, quick: bool) -> Run:
    """Train on so many ranks, with DeepSpeed on each number of them."""
    settings = asdict(recipe)
    return Run(**on_ranks(ranks, train_and_pick, timeout=3600, settings=settings, seed=seed, quick=quick))


def train_and_pick(comm: MPI.Intracomm, settings: dict[str, Any], seed: int, quick: bool) -> dict[str, Any]:
    """Train on all ranks of `comm`, and pick sentences from the articles that are not trained on."""
    import torch

    from benchmarks.extracts import pick_together, train_extractor
    from course_lib.parallel.deepspeed_engine import deepspeed_world

    news, recipe = read_news(quick), ExtractRecipe(**settings)
    training = prepare_cached(news.training, news.training)
    torch.set_num_threads(1)  # a model this small would spend most CPU seconds waiting for its threads
    start = time.process_time()
    with deepspeed_world(comm):
        model, _ = train_extractor(comm, training, recipe, seed=seed)
    seconds = comm.allreduce(time.process_time() - start)
    others = {name: prepare_cached(getattr(news, name), news.training) for name in ("choosing", "test")}
    picks = {name: pick_together(comm, model, each, recipe.picked) for name, each in others.items()}
    return {**picks, "seconds": seconds}


def read_news(quick: bool) -> RealNews:
    """The articles of all three parts; a few of them when it has to be `quick`."""
    news = split_real_news(load_news())
    if not quick:
        return news
    return RealNews(news.training[:96], news.choosing[:20], news.test[:20])


if __name__ == "__main__":
    try:
        main(TITLE, measure)
    except DataError as error:  # no failure: what cannot be measured here stays as it was measured elsewhere
        print(f"skipped: {error}", file=sys.stderr)
