"""CNN/DailyMail, from the folder that COURSE_DATA names: a training on two ranks, scored beside lead-3."""

import json
import os
from pathlib import Path

import pytest

from course_lib.data.cnn_dailymail import load_news
from course_lib.training.summaries.scores import score_baselines
from mpi_classroom.launch import run_ranks

pytestmark = pytest.mark.skipif(not os.environ.get("COURSE_DATA"), reason="COURSE_DATA is not set")


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COURSE_OFFLINE", "1")
    if not load_news(train=1, validation=1, test=1).real:
        pytest.skip("COURSE_DATA holds no CNN/DailyMail")


def test_lead_3_is_where_it_is_published() -> None:
    """About 40 on the whole test set, with stemming; our first hundred articles have 30 without."""
    scores = score_baselines(load_news(train=0, validation=0, test=100).test)
    assert 0.25 < scores["lead-3"].rouge.one < 0.45
    assert scores["oracle extract"].rouge.one > scores["lead-3"].rouge.one + 0.08
    assert scores["lead-3"].facts is None


@pytest.mark.slow
def test_a_training_on_two_ranks_runs_to_its_scores(tmp_path: Path) -> None:
    """A minute of training does not come near lead-3: it runs, and the loss falls, is the claim."""
    path = tmp_path / "told.json"
    program = "from course.lessons.l13_deepspeed_summarization.summary_training import main; main({})"
    arguments = ["--real", "--steps", "30", "--test", "12", "--json", str(path)]
    done = run_ranks(2, ["-c", program.format(arguments)], timeout=150)
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(path.read_text())
    assert told["real"] and told["source"].startswith("CNN/DailyMail")
    first, last = told["losses"]
    assert last < first - 0.5
    ours = told["scores"]["ours, 30 steps"]["rouge"]["one"]
    assert 0 <= ours < told["scores"]["lead-3"]["rouge"]["one"]
