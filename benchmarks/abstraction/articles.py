"""The articles that SmolLM2 is trained and tested with, what it reads of them, and what a run has kept."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.extraction.prepared import RealNews, split_real_news
from course.tools.smollm2 import smollm2_folder
from course_lib.data.cnn_dailymail import Article, load_news

RUN = Path.home() / ".cache" / "course_lib" / "smollm2-run"
TESTED, READ = 200, 320  # test articles; tokens of an article that the model reads
REQUEST = "Summarize this article in two or three sentences.\n\n"


def name_of(article: Article) -> str:
    """The sha256 of its text: the place of an article in every order, and its name in what is recorded."""
    return hashlib.sha256(article.text.encode()).hexdigest()


def read_parts() -> RealNews:
    """The 1290, 200 and 500 articles of `split_real_news`, each part by hash, and of the last 200."""
    news = split_real_news(load_news())
    parts = [sorted(each, key=name_of) for each in (news.training, news.choosing, news.test)]
    return RealNews(parts[0], parts[1], parts[2][:TESTED])


def kept(name: str) -> Any:
    """What an earlier command left in the file `name`; an empty dictionary where there is none."""
    path = RUN / name
    return json.loads(path.read_text()) if path.exists() else {}


def keep(name: str, value: object) -> None:
    """Leave `value` in the file `name`, whole or not at all."""
    RUN.mkdir(parents=True, exist_ok=True)
    draft = RUN / f".{name}"
    draft.write_text(json.dumps(value, indent=0))
    draft.replace(RUN / name)


def load(folder: Path) -> tuple[Any, Any]:
    """The tokenizer and the model in float32, for one thread."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return AutoTokenizer.from_pretrained(smollm2_folder()), model


def prompt(tokenizer: Any, article: Article) -> list[int]:
    """The request and the beginning of the article, as tokens."""
    beginning = tokenizer.decode(tokenizer(article.text).input_ids[:READ])
    chat = [{"role": "user", "content": REQUEST + beginning}]
    return list(tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False))


def target(tokenizer: Any, article: Article) -> list[int]:
    """The reference, whose full stops stand alone in this data set, and the token that ends it."""
    text = " ".join(article.summary.split()).replace(" .", ".")
    return list(tokenizer(text + tokenizer.eos_token).input_ids)


def summed_loss(model: Any, read: Sequence[int], right: Sequence[int]) -> Any:
    """The cross entropy of the tokens of one reference, summed; a tensor."""
    import torch

    ids = torch.tensor([[*read, *right]])
    logits = model(input_ids=ids, logits_to_keep=len(right) + 1, use_cache=False).logits[0, :-1]
    return torch.nn.functional.cross_entropy(logits, torch.tensor(right), reduction="sum")
