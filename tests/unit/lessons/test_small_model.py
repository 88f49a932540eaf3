"""The small language model of lesson 13, as it lies beside the notebooks."""

from typing import Any

from transformers import AutoTokenizer, LlamaForCausalLM

from course.tools.small_model import FOLDER, REQUEST, small_model, tokens
from course_lib.data.generated_news import make_news


def test_the_saved_model_has_the_shapes_that_the_program_trains() -> None:
    saved = LlamaForCausalLM.from_pretrained(FOLDER)
    assert isinstance(saved.config.eos_token_id, int)
    made = small_model(saved.config.vocab_size, saved.config.eos_token_id)
    shapes = [{name: each.shape for name, each in model.state_dict().items()} for model in (saved, made)]
    assert shapes[0] == shapes[1]


def test_it_reads_the_request_the_article_and_the_summary() -> None:
    tokenizer: Any = AutoTokenizer.from_pretrained(FOLDER)
    (article,) = make_news(1, seed=0)
    text = tokenizer.decode(tokens(tokenizer, article))
    parts = REQUEST.strip(), article.text, tokenizer.eos_token, article.summary, tokenizer.eos_token
    assert [text.find(part) for part in parts[:4]] == sorted(text.find(part) for part in parts[:4])
    assert all(part in text for part in parts) and text.count(tokenizer.eos_token) == 2
