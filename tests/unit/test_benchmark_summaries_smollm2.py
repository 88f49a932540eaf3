"""The benchmark of SmolLM2 on real news: which articles, how it decodes, what its rows and its record say."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import summaries_smollm2 as benchmark
from benchmarks.abstraction import articles, training, writing
from benchmarks.extraction.prepared import RealNews
from course.paths import NOTEBOOKS
from course.tools.generated_news import make_news
from course_lib.data.cnn_dailymail import Article

SMALL = NOTEBOOKS / "code" / "data" / "small_model"
NEWS = make_news(6, seed=0)


def test_the_order_of_the_files_does_not_decide_which_articles_are_tested(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(articles, "load_news", lambda: None)
    monkeypatch.setattr(articles, "TESTED", 3)
    found = []
    for order in (NEWS, NEWS[::-1]):
        monkeypatch.setattr(articles, "split_real_news", lambda _, news=order: RealNews(news, news, news))
        found.append(articles.read_parts())
    assert found[0] == found[1] and len(found[0].test) == 3 and len(found[0].training) == 6


@pytest.fixture(scope="module")
def small() -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    return AutoTokenizer.from_pretrained(SMALL), AutoModelForCausalLM.from_pretrained(SMALL, dtype="float32")


def prompts(tokenizer: Any) -> list[list[int]]:
    return [articles.prompt(tokenizer, each) for each in NEWS[:3]]


def test_an_article_that_is_padded_gets_the_summary_that_it_gets_alone(
    small: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "WRITTEN", 20)
    together = writing.decode(small[0], small[1], prompts(small[0]), "greedy")
    assert len({len(each) for each in prompts(small[0])}) > 1
    assert together == [writing.decode(small[0], small[1], [each], "greedy")[0] for each in prompts(small[0])]


def repeats(text: str) -> bool:
    words = text.split()
    trigrams = list(zip(words, words[1:], words[2:], strict=False))
    return len(set(trigrams)) < len(trigrams)


def test_a_summary_may_repeat_the_article_and_not_itself(
    small: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "WRITTEN", 60)
    read = prompts(small[0])[:1]
    small[1].generation_config.eos_token_id, before = None, small[1].generation_config.eos_token_id
    greedy, never, own = (writing.decode(small[0], small[1], read, decoder) for decoder in writing.DECODERS)
    small[1].generation_config.eos_token_id = before
    assert any(map(repeats, greedy)) and not any(map(repeats, own))
    assert own != never


def test_the_loss_of_a_reference_is_that_of_the_model_itself(small: tuple[Any, Any]) -> None:
    import torch

    tokenizer, model = small
    read, right = articles.prompt(tokenizer, NEWS[0]), articles.target(tokenizer, NEWS[0])
    labels = torch.tensor([[-100] * len(read) + right])
    with torch.no_grad():
        mean = model(input_ids=torch.tensor([read + right]), labels=labels).loss
        ours = articles.summed_loss(model, read, right)
    assert ours.item() == pytest.approx(mean.item() * len(right), rel=1e-5)


def test_rows_stand_beside_the_peer_with_an_interval_of_the_difference() -> None:
    base = np.linspace(10, 40, 24).reshape(6, 4)
    rows = benchmark.compare({"better": base + 2}, base, "lead-3", "test")
    assert [each.case for each in rows] == [f"test, {name}, better" for name in benchmark.COLUMNS]
    assert all((each.low, each.high) == pytest.approx((2, 2)) for each in rows)


def test_summaries_of_equal_length_are_scored_by_their_first_words() -> None:
    article = Article("Anna met Bert. It rained.", "Anna met Bert")
    whole, cut = (benchmark.scores(["Anna met Bert on the Moon"], [article], words) for words in (None, 3))
    assert cut[0, :3] == pytest.approx([100, 100, 100]) and (whole[0] < cut[0]).all()


def test_a_run_that_goes_on_forgets_what_its_checkpoint_has_not_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mpi4py import MPI

    monkeypatch.setattr(articles, "RUN", tmp_path)
    log = training.Log(MPI.COMM_SELF, 0)
    for step in range(3):
        log.add(loss=float(step))
    again = training.Log(MPI.COMM_SELF, 2)
    assert [line["loss"] for line in again.lines] == [0, 1] and again.step == 2
    assert training.Log(MPI.COMM_SELF, 0).lines == []


def test_the_recorded_run_began_as_one_process_does() -> None:
    if not benchmark.RESULTS.exists():
        pytest.skip("no run is recorded")
    run = json.loads(benchmark.RESULTS.with_suffix(".run.json").read_text())
    alone = run["first losses in one process"]
    assert len(alone) == training.FIRST and len(run["losses"]) == run["steps"]
    assert run["losses"][: training.FIRST] == pytest.approx(alone, rel=1e-4)
    assert run["losses"][1 : 1 + training.FIRST] != pytest.approx(alone, rel=1e-2)
