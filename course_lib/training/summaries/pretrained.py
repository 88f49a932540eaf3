"""Summaries by weights that others have trained: T5 or BART, from a folder or from the Hugging Face hub.

    model, tokenizer = load_pretrained("models/t5-small")     a folder with the files of the hub
    model, tokenizer = load_pretrained("t5-small")            the hub's cache on this machine, or a download
    write_summaries(model, tokenizer, ["(CNN) …"])            one summary per article

A folder needs no network. A download is tried by a process of its own for a limited time: without a network
there is a sentence in a few seconds, and the small model stays. Only safetensors are read, since a pickle
could run code.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from course_lib.data.downloads import is_offline
from course_lib.data.storage import DataError, shown
from course_lib.training.summaries.quiet import be_quiet

NEEDED = "config.json, model.safetensors and tokenizer.json of a T5 or BART"
TOKENIZERS = ("tokenizer.json", "spiece.model", "vocab.json")
LONGEST = 512  # tokens that a T5 has read in its training
FILES = ("*.json", "*.safetensors", "*.model", "merges.txt", "vocab.*")
TIMEOUT = 20.0  # seconds for all of it
DOWNLOAD = """
import sys
from huggingface_hub import snapshot_download
print(snapshot_download(sys.argv[1], allow_patterns=sys.argv[2:], etag_timeout=5))
"""


def load_pretrained(name: str = "t5-small", *, timeout: float = TIMEOUT) -> tuple[Any, Any]:
    """The encoder-decoder and the tokenizer in the folder `name`, or those that the hub calls `name`.

    DataError with a remedy when there is no such folder, when it holds something else, or when a download
    fails or takes longer than `timeout` seconds.
    """
    be_quiet()
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    folder = find_pretrained(name, timeout)
    try:
        model, loading = AutoModelForSeq2SeqLM.from_pretrained(
            folder, local_files_only=True, use_safetensors=True, output_loading_info=True
        )
        if missing := sorted(loading["missing_keys"]):  # transformers would go on with random numbers
            raise ValueError(f"{len(missing)} weights are missing, the first is {missing[0]}")
        if not any((Path(folder) / file).is_file() for file in TOKENIZERS):  # it would make an empty one
            raise ValueError(f"it has none of {', '.join(TOKENIZERS)}")
        return model, AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # the libraries raise many kinds, some of them their own
        reason = " ".join(str(error).split())[:120]
        remedy = f"name a folder with {NEEDED}" if Path(name).expanduser().is_dir() else f"delete {folder}"
        raise DataError(
            f"{shown(Path(folder))} holds no T5 or BART that can be read ({reason}); {remedy}"
        ) from error


def write_summaries(
    model: Any, tokenizer: Any, texts: Sequence[str], *, longest: int = 80, beams: int = 1
) -> list[str]:
    """A summary of each of `texts`, of at most `longest` tokens; `beams` 1 is greedy.

    A T5 reads "summarize: " first, as in its training. A text is cut where the model can read no further.
    """
    settings = (getattr(model.config, "task_specific_params", None) or {}).get("summarization", {})
    prefix = settings.get("prefix", "summarize: " if model.config.model_type == "t5" else "")
    room = min(tokenizer.model_max_length, getattr(model.config, "max_position_embeddings", None) or LONGEST)
    model.eval()
    written = []
    for text in texts:
        read = tokenizer([prefix + text], truncation=True, max_length=room, return_tensors="pt")
        with torch.no_grad():
            (tokens,) = model.generate(
                input_ids=read["input_ids"],
                attention_mask=read["attention_mask"],
                max_new_tokens=longest,
                num_beams=beams,
                do_sample=False,
            )
        written.append(tokenizer.decode(tokens, skip_special_tokens=True).strip())
    return written


def find_pretrained(name: str, timeout: float) -> str:
    """The folder with the files of `name`; DataError when there is none to be had."""
    path = Path(name).expanduser()
    if path.is_dir():
        return str(path)
    if path.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1:  # the hub has owner/name
        raise DataError(f"there is no folder {name}; name one with {NEEDED}")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        return snapshot_download(name, local_files_only=True)
    except (LocalEntryNotFoundError, HFValidationError):
        return download(name, timeout)


def download(name: str, timeout: float) -> str:
    """The folder to which `name` was downloaded, by a process that is ended after `timeout` seconds."""
    if is_offline():
        raise DataError(f"{name} is not on this machine, and COURSE_OFFLINE=1 forbids downloads")
    allowed = {**os.environ, "HF_HUB_OFFLINE": "0"}
    command = [sys.executable, "-c", DOWNLOAD, name, *FILES]
    remedy = "try again on a better network, or go on with the small model"
    try:
        done = subprocess.run(command, env=allowed, capture_output=True, text=True, timeout=timeout)
    except subprocess.TimeoutExpired:
        raise DataError(f"downloading {name} took longer than {timeout:.0f} s; {remedy}") from None
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no reason was given"])[-1][:120]
        raise DataError(f"{name} could not be downloaded ({reason}); {remedy}")
    return done.stdout.strip().splitlines()[-1]
