"""Summaries that SmolLM2 writes, many articles at once, on all ranks."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from benchmarks.abstraction.articles import keep, kept, load, name_of, prompt, read_parts
from benchmarks.abstraction.training import TRAINED
from course.tools.smollm2 import smollm2_folder

if TYPE_CHECKING:
    from mpi4py import MPI

SYSTEMS = {"zero-shot": smollm2_folder(), "fine-tuned": TRAINED}
DECODERS = ("greedy", "no trigram twice", "no trigram of its own twice")
WRITTEN, TOGETHER = 80, 10  # tokens of a summary at most; articles in a batch


def write_together(
    comm: MPI.Intracomm, system: str, decoder: str, part: str, number: int, seconds: float
) -> dict[str, str]:
    """Summaries of the first `number` articles of a `part`, by name; fewer when `seconds` have passed."""
    import torch

    end, file = (
        time.monotonic() + seconds,
        f"texts-{part}-{system}-{DECODERS.index(decoder)}-{comm.rank}.json",
    )
    texts, (tokenizer, model) = dict(kept(file)), load(SYSTEMS[system])
    mine = getattr(read_parts(), part)[:number][comm.rank :: comm.size]
    waiting = sorted((each for each in mine if name_of(each) not in texts), key=lambda each: len(each.text))
    with torch.no_grad():
        for start in range(0, len(waiting), TOGETHER):
            if time.monotonic() < end:
                some = waiting[start : start + TOGETHER]
                written = decode(tokenizer, model, [prompt(tokenizer, each) for each in some], decoder)
                texts |= zip(map(name_of, some), written, strict=True)
                keep(file, texts)
    gathered = comm.gather({name: texts[name] for each in mine if (name := name_of(each)) in texts})
    return {name: text for one in gathered or [] for name, text in one.items()}


def decode(tokenizer: Any, model: Any, prompts: list[list[int]], decoder: str) -> list[str]:
    """What the model writes after each of the `prompts`: always the most probable token that is allowed.

    transformers' own `no_repeat_ngram_size` counts the prompt, too: nothing of an article can be copied.
    """
    from transformers import LogitsProcessorList, NoRepeatNGramLogitsProcessor

    padded = tokenizer.pad({"input_ids": prompts}, padding_side="left", return_tensors="pt")
    first = padded["input_ids"].shape[1]
    start = {"no trigram twice": 0, "no trigram of its own twice": first}.get(decoder)
    refuse = NoRepeatNGramLogitsProcessor(3)
    rules = LogitsProcessorList(
        [lambda ids, scores: refuse(ids[:, start:], scores)] if start is not None else []
    )
    ids = model.generate(**padded, max_new_tokens=WRITTEN, do_sample=False, logits_processor=rules)
    return [text.strip() for text in tokenizer.batch_decode(ids[:, first:], skip_special_tokens=True)]
