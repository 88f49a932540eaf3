"""The benchmark of real news: what its rows say, and that nothing is measured without real news."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from benchmarks import summaries
from benchmarks.summaries import METRICS, Run, ScoreRow
from course.paths import ROOT
from course_lib.data.cnn_dailymail import find
from course_lib.data.generated_news import Article, make_news

# The lead repeats some of the summary, so that no score is 0.
NEWS = [
    Article(f"{' '.join(each.summary.split()[:4])}. {each.text}", each.summary)
    for each in make_news(6, seed=0)
]


def test_every_seed_the_mean_and_the_oracle_stand_beside_lead_3() -> None:
    base = summaries.f1(summaries.lead(NEWS), NEWS)
    rows = summaries.test_rows({0: base + 1, 1: base + 3}, NEWS)
    names = ("seed 0", "seed 1", "mean over the seeds", "greedy oracle")
    assert [row.case for row in rows] == [f"test, {metric}, {name}" for name in names for metric in METRICS]
    for number, row in enumerate(rows):
        assert isinstance(row, ScoreRow) and row.peer == pytest.approx(base.mean(axis=0)[number % 3])
        assert row.low - 1e-9 <= row.ours - row.peer <= row.high + 1e-9
    mean = rows[6]
    assert mean.ours - mean.peer == pytest.approx(2) and mean.ours_spread == pytest.approx(2)
    assert (mean.low, mean.high) == pytest.approx((2, 2))  # each article gains as much
    assert all(row.ours > row.peer for row in rows[9:])


def test_same_sentences_are_counted_by_article() -> None:
    ours, alone = Run([], [[0, 1], [2], [3], [4]], 5.0), Run([], [[0, 1], [2], [3], [5]], 4.0)
    same, seconds = summaries.process_rows(7, ours, alone)
    assert (same.case, same.ours) == ("test, articles with the same sentences, seed 7", 75.0)
    assert (seconds.case, seconds.ours, seconds.peer) == ("training, CPU seconds, seed 7", 5.0, 4.0)


def test_the_mean_of_a_candidate_is_over_runs_and_articles() -> None:
    runs = [Run(summaries.lead(NEWS), [], 0.0), Run(summaries.oracle(NEWS), [], 0.0)]
    each = [summaries.f1(run.choosing, NEWS).mean(axis=0) for run in runs]
    np.testing.assert_allclose(summaries.mean_scores(runs, NEWS), sum(each) / 2)


def test_without_real_news_nothing_is_measured_and_nothing_fails(tmp_path, monkeypatch) -> None:
    monkeypatch.delenv("COURSE_DATA", raising=False)
    if find():
        pytest.skip("this machine has CNN/DailyMail without COURSE_DATA")
    environment = {**os.environ, "COURSE_OFFLINE": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "benchmarks.summaries", "--quick", "--json", str(tmp_path / "x.json")]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0 and not (tmp_path / "x.json").exists()
    assert done.stderr.startswith("skipped: this needs CNN/DailyMail, and here is generated news")


def test_the_committed_results_say_what_the_lesson_says() -> None:
    """Above lead-3 in all three metrics, and the settings were chosen by validation articles."""
    rows = {row["case"]: row for row in json.loads((ROOT / "benchmarks/results/summaries.json").read_text())}
    for metric in METRICS:
        mean = rows[f"test, {metric}, mean over the seeds"]
        seeds = [rows[f"test, {metric}, seed {seed}"]["ours"] for seed in summaries.SEEDS]
        assert mean["ours"] == pytest.approx(sum(seeds) / 3) and mean["ranks"] == 2
        assert mean["peer_name"] == "lead-3" and mean["ours"] > mean["peer"]
        assert mean["low"] < mean["ours"] - mean["peer"] < mean["high"]
        assert rows[f"test, {metric}, greedy oracle"]["ours"] > mean["ours"]
    epochs = {
        each.epochs: rows[f"validation, mean of the metrics, {each.epochs} epochs"]["ours"]
        for each in summaries.CANDIDATES
    }
    assert max(epochs, key=lambda each: epochs[each]) == summaries.ExtractRecipe().epochs
