"""Weights that others have trained, when they can be had: `load_pretrained("t5-small")`.

The first that works: a folder; the hub's cache on this machine; a download, which a process of its own
tries for a limited time. Without a network there is a sentence in a few seconds, and the small model stays.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from course_lib.data.downloads import is_offline
from course_lib.data.storage import DataError
from course_lib.training.summaries.quiet import be_quiet

FILES = ("*.json", "*.safetensors", "*.model", "merges.txt", "vocab.*")
TIMEOUT = 20.0  # seconds for all of it
DOWNLOAD = """
import sys
from huggingface_hub import snapshot_download
print(snapshot_download(sys.argv[1], allow_patterns=sys.argv[2:], etag_timeout=5))
"""


def load_pretrained(name: str = "t5-small", *, timeout: float = TIMEOUT) -> tuple[Any, Any]:
    """The model and the tokenizer called `name`, or those in the folder `name`.

    DataError with a remedy when they cannot be had within `timeout` seconds.
    """
    be_quiet()
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    folder = find_pretrained(name, timeout)
    try:
        model = AutoModelForSeq2SeqLM.from_pretrained(folder, local_files_only=True)
        return model, AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, KeyError, ImportError) as error:
        reason = str(error).strip().splitlines()[0][:120]
        raise DataError(f"the files of {name} cannot be read ({reason}); delete {folder}") from error


def find_pretrained(name: str, timeout: float) -> str:
    """The folder with the files of `name`; DataError when there is none to be had."""
    if Path(name).is_dir():
        return name
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
