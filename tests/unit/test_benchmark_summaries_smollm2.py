"""The benchmark of SmolLM2 on real news: padding changes nothing, its loss is the model's."""

import json
from typing import Any

import pytest

from benchmarks import summaries_smollm2 as benchmark
from benchmarks.abstraction import articles, training, writing
from course.paths import NOTEBOOKS
from course_lib.data.generated_news import make_news

pytestmark = pytest.mark.slow  # transformers take seconds to import
SMALL = NOTEBOOKS / "code" / "data" / "small_model"
NEWS = make_news(6, seed=0)


@pytest.fixture(scope="module")
def small() -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    return AutoTokenizer.from_pretrained(SMALL), AutoModelForCausalLM.from_pretrained(SMALL, dtype="float32")


def prompts(tokenizer: Any) -> list[list[int]]:
    return [articles.prompt(tokenizer, each) for each in NEWS[:3]]


def test_an_article_that_is_padded_gets_the_summary_that_it_gets_alone(small: tuple[Any, Any]) -> None:
    together = writing.decode(small[0], small[1], prompts(small[0]), "greedy")
    assert len({len(each) for each in prompts(small[0])}) > 1
    assert together == [writing.decode(small[0], small[1], [each], "greedy")[0] for each in prompts(small[0])]


def test_the_loss_of_a_reference_is_that_of_the_model_itself(small: tuple[Any, Any]) -> None:
    import torch

    tokenizer, model = small
    read, right = articles.prompt(tokenizer, NEWS[0]), articles.target(tokenizer, NEWS[0])
    labels = torch.tensor([[-100] * len(read) + right])
    with torch.no_grad():
        mean = model(input_ids=torch.tensor([read + right]), labels=labels).loss
        ours = articles.summed_loss(model, read, right)
    assert ours.item() == pytest.approx(mean.item() * len(right), rel=1e-5)


def test_the_recorded_run_began_as_one_process_does() -> None:
    if not benchmark.RESULTS.exists():
        pytest.skip("no run is recorded")
    run = json.loads(benchmark.RESULTS.with_suffix(".run.json").read_text())
    alone = run["first losses in one process"]
    assert len(alone) == training.FIRST and len(run["losses"]) == run["steps"]
    assert run["losses"][: training.FIRST] == pytest.approx(alone, rel=1e-4)
    assert run["losses"][1 : 1 + training.FIRST] != pytest.approx(alone, rel=1e-2)
