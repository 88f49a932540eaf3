"""The benchmark of real news: what its rows say, and that nothing is measured without real news."""

import os
import subprocess
import sys

import pytest

from benchmarks import summaries
from benchmarks.summaries import METRICS, ScoreRow
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


def test_without_real_news_nothing_is_measured_and_nothing_fails(tmp_path, monkeypatch) -> None:
    monkeypatch.delenv("COURSE_DATA", raising=False)
    if find():
        pytest.skip("this machine has CNN/DailyMail without COURSE_DATA")
    environment = {**os.environ, "COURSE_OFFLINE": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "benchmarks.summaries", "--quick", "--json", str(tmp_path / "x.json")]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0 and not (tmp_path / "x.json").exists()
    assert done.stderr.startswith("skipped: this needs CNN/DailyMail, and here is generated news")
