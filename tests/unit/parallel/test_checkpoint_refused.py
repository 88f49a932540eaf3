"""What must not be restored, and two trainings in one folder: refused by name, and nothing changes.

Forged checkpoints here have right checksums: only their contents are wrong.
"""

import hashlib
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from mpi4py import MPI
from torch import nn
from torch.optim import AdamW

from course.paths import ROOT
from course_lib.parallel import checkpoint, checkpoint_folder
from course_lib.parallel.checkpoint import load_training, save_training
from course_lib.parallel.checkpoint_folder import (
    LATEST,
    LOCK,
    MANIFEST,
    SAVING,
    CheckpointError,
    as_text,
    find,
    names_in,
    read_manifest,
    read_tensors,
    write_tensors,
)
from course_lib.parallel.zero import Zero1

COMM = MPI.COMM_SELF
Change = Callable[[dict[str, Any]], Any]


class Net(nn.Sequential):
    """Two layers and running statistics."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def training(seed: int = 0, *, sharded: bool = False, steps: int = 2) -> tuple[Net, Any]:
    torch.manual_seed(seed)
    model = Net()
    optimizer: Any = Zero1(COMM, model) if sharded else AdamW(model.parameters())
    for _ in range(steps):
        model(torch.randn(5, 3)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


def saved(folder: Path, step: int = 1, **progress: Any) -> Path:
    return save_training(COMM, folder, *training(), step=step, progress=progress)


def everything(model: nn.Module, optimizer: Any) -> list[Any]:
    """All that a load may change."""
    inner = checkpoint.inner_optimizer(optimizer)
    state = [value for each in inner.state.values() for _, value in sorted(each.items())]
    tensors = [*model.parameters(), *model.buffers(), *state, torch.get_rng_state()]
    settings = [{k: v for k, v in group.items() if k != "params"} for group in inner.param_groups]
    return [
        *(each.detach().clone().tolist() for each in tensors),
        settings,
        random.getstate()[1],
        np.random.get_state()[2],
    ]


def forge_content(path: Path, change: Change) -> None:
    """Change what a rank saved, with a manifest that fits."""
    file = path / "rank0.pt"
    content = read_tensors(file)
    content = {key: value.copy() if isinstance(value, dict) else value for key, value in content.items()}
    content["tensors"] = {kind: list(pieces) for kind, pieces in content["tensors"].items()}
    change(content)
    file.unlink()  # what was read is a view of the file
    write_tensors(file, content)
    about = read_manifest(path)
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    about["files"]["rank0.pt"] = {"bytes": file.stat().st_size, "sha256": digest}
    (path / MANIFEST).write_text(as_text(about))


# ------------------------------------------------------------------ contents


def cut_short(content: dict[str, Any]) -> None:
    name, start, values = content["tensors"]["weights"][0]
    content["tensors"]["weights"][0] = (name, start, values[:-1].clone())


def gap_and_overlap(content: dict[str, Any]) -> None:
    """As many elements as there should be: counting them finds nothing."""
    name, _, values = content["tensors"]["weights"][0]
    content["tensors"]["weights"][0:1] = [(name, 0, values[:8].clone()), (name, 4, values[:4].clone())]


def two_dtypes(content: dict[str, Any]) -> None:
    name, _, values = content["tensors"]["weights"][0]
    content["tensors"]["weights"][0:1] = [(name, 0, values[:8].clone()), (name, 8, values[8:].double())]


def one_number_for_all(content: dict[str, Any]) -> None:
    content["buffers"]["1.running_mean"] = torch.ones(1)


def without(kind: str, name: str) -> Change:
    def change(content: dict[str, Any]) -> None:
        content["tensors"][kind] = [piece for piece in content["tensors"][kind] if piece[0] != name]

    return change


CONTENTS: dict[str, tuple[str, Change]] = {
    "a gap at the end": (r"weights of 0.weight: elements 11 to 11 of 12 are missing", cut_short),
    "a gap and an overlap": (r"weights of 0.weight: elements 4 to 7 of 12 are there twice", gap_and_overlap),
    "two dtypes": (r"weights of 0.weight are of several dtypes", two_dtypes),
    "no weights": (r"no weights of 2.bias", without("weights", "2.bias")),
    "an unknown parameter": (
        r"weights of more, which is no parameter",
        lambda content: content["tensors"]["weights"].append(("more", 0, torch.ones(2))),
    ),
    "a buffer that fits by broadcasting": (r"buffer 1.running_mean is \(4, .* and \(1, ", one_number_for_all),
    "torch's random numbers": (
        r"random-number state cannot be restored",
        lambda content: content["random"].update(torch=torch.zeros(3, dtype=torch.uint8)),
    ),
    "no random numbers": (r"rank0.pt does not have the form", lambda content: content.pop("random")),
    "a buffer without memory": (
        r"meta",
        lambda content: content["buffers"].update({"1.running_mean": torch.ones(4, device="meta")}),
    ),
}


@pytest.mark.parametrize("what", CONTENTS)
def test_contents_that_are_wrong_are_refused_and_nothing_changes(tmp_path: Path, what: str) -> None:
    problem, change = CONTENTS[what]
    forge_content(saved(tmp_path), change)
    model, optimizer = training(seed=1, steps=1)
    before = everything(model, optimizer)
    with pytest.raises(CheckpointError, match=problem):
        load_training(COMM, tmp_path, model, optimizer)
    assert everything(model, optimizer) == before


@pytest.mark.parametrize(
    ("problem", "change"),
    [
        ("has exp_avg of .* and none of 2.bias", without("exp_avg", "2.bias")),
        (
            "step differs between",
            lambda content: content["numbers"]["step"].update({"2.bias": torch.tensor(9.0)}),
        ),
    ],
)
def test_state_of_a_part_of_a_flat_buffer_is_refused(tmp_path: Path, problem: str, change: Change) -> None:
    """One optimizer step would need the rest."""
    forge_content(saved(tmp_path), change)
    model, optimizer = training(seed=1, steps=1, sharded=True)
    before = everything(model, optimizer)
    with pytest.raises(CheckpointError, match=problem):
        load_training(COMM, tmp_path, model, optimizer)
    assert everything(model, optimizer) == before


# ------------------------------------------------------------------ manifests


def entry(name: str, facts: Any) -> Change:
    return lambda about: about["files"].update({name: facts})


GOOD = {"bytes": 0, "sha256": hashlib.sha256(b"").hexdigest()}
MANIFESTS: dict[str, Change] = {
    "no step": lambda about: about.pop("step"),
    "another step": lambda about: about.update(step=7),
    "files in a list": lambda about: about.update(files=["rank0.pt"]),
    "more ranks than files": lambda about: about.update(ranks=10**12),
    "progress that is a number": lambda about: about.update(progress=3),
    "a file above": entry("../evil", GOOD),
    "a checksum that is short": entry("rank0.pt", {"bytes": 0, "sha256": "abc"}),
}


@pytest.mark.parametrize("what", MANIFESTS)
def test_a_manifest_of_another_form_falls_back_to_the_checkpoint_before(tmp_path: Path, what: str) -> None:
    first, second = saved(tmp_path, 1), saved(tmp_path, 2)
    about = read_manifest(second)
    MANIFESTS[what](about)
    (second / MANIFEST).write_text(as_text(about))  # its checksum is right
    found = find(COMM, tmp_path)
    assert found is not None and (found.path, found.step) == (first, 1)
    assert str(second) in found.refused[0]


TEXTS = {
    "a list": b"[]",
    "deep": b"[" * 100_000,
}


@pytest.mark.parametrize("what", TEXTS)
def test_a_manifest_that_is_something_else_falls_back(tmp_path: Path, what: str) -> None:
    first, second = saved(tmp_path, 1), saved(tmp_path, 2)
    (second / MANIFEST).write_bytes(TEXTS[what])
    found = find(COMM, tmp_path)
    assert found is not None and found.path == first


@pytest.mark.parametrize("name", [MANIFEST, "rank0.pt", LATEST])
@pytest.mark.parametrize(
    "make",
    [os.mkfifo, lambda path: os.symlink("/dev/zero", path), lambda path: path.write_bytes(b"\xff\xfe")],
)
def test_what_is_no_file_or_no_text_neither_blocks_nor_is_read(tmp_path: Path, name: str, make: Any) -> None:
    first, second = saved(tmp_path, 1), saved(tmp_path, 2)
    path = (tmp_path if name == LATEST else second) / name
    path.unlink()
    make(path)
    found = find(COMM, tmp_path)
    assert found is not None and found.path == (second if name == LATEST else first)


def test_a_manifest_of_many_bytes_is_not_read(tmp_path: Path) -> None:
    first, second = saved(tmp_path, 1), saved(tmp_path, 2)
    os.truncate(second / MANIFEST, 2**40)  # a sparse file
    found = find(COMM, tmp_path)
    assert found is not None and found.path == first


def test_progress_comes_back_with_its_numbers_as_texts(tmp_path: Path) -> None:
    saved(tmp_path, 1, epoch=3, batches={2: "a", 10: "b"}, name="día")
    found = find(COMM, tmp_path)
    assert found is not None
    assert found.progress == {"epoch": 3, "batches": {"2": "a", "10": "b"}, "name": "día"}


def test_progress_that_is_not_json_is_refused_and_nothing_stays(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="not JSON serializable"):
        saved(tmp_path, 1, model=object())
    assert names_in(tmp_path) == []
    assert not (tmp_path / SAVING).exists()


# ------------------------------------------------------------------ two trainings in one folder

OTHER = """
import sys, time
from pathlib import Path
from mpi4py import MPI
from course_lib.parallel.checkpoint_folder import save
folder = Path(sys.argv[1])
def write(path):
    (path / "rank0.pt").write_bytes(b"numbers")
    if sys.argv[2] == "while it saves":
        print("now", flush=True)
        time.sleep(60)
save(MPI.COMM_SELF, folder, write, step=1)
print("now", flush=True)
time.sleep(60)
"""


@pytest.fixture
def other_training(tmp_path: Path) -> Iterator[Callable[[str], "subprocess.Popen[str]"]]:
    """Starts a training in another process, which saves into `tmp_path`; comes back when it has the lock."""
    started: list[subprocess.Popen[str]] = []

    def start(when: str) -> "subprocess.Popen[str]":
        command = [sys.executable, "-c", OTHER, str(tmp_path), when]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment))
        assert started[-1].stdout is not None and started[-1].stdout.readline() == "now\n"
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


@pytest.mark.parametrize("when", ["while it saves", "between two saves"])
def test_another_training_in_the_folder_is_named_and_nothing_of_it_is_touched(
    tmp_path: Path, other_training: Callable[[str], "subprocess.Popen[str]"], when: str
) -> None:
    other = other_training(when)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(
        CheckpointError,
        match=rf"another training saves into .* \(process {other.pid} on .*\); end it, or choose",
    ):
        saved(tmp_path)
    assert sorted(tmp_path.rglob("*")) == before


def test_the_lock_of_a_killed_training_is_no_obstacle(
    tmp_path: Path, other_training: Callable[[str], "subprocess.Popen[str]"]
) -> None:
    other = other_training("while it saves")
    other.send_signal(signal.SIGKILL)
    other.wait()
    assert (tmp_path / LOCK).exists() and (tmp_path / SAVING).exists()
    saved(tmp_path, 5)
    assert {path.name for path in tmp_path.iterdir()} == {LOCK, LATEST, "000001-step5"}


def test_a_forked_child_does_not_keep_the_lock(tmp_path: Path) -> None:
    """As a data loader's worker that outlives a killed rank for a while."""
    script = (
        "import os, sys, time; from pathlib import Path\n"
        "from course_lib.parallel import checkpoint_folder\n"
        "checkpoint_folder.lock(Path(sys.argv[1]))\n"
        "pid = os.fork()\n"
        "if pid == 0: time.sleep(30); os._exit(0)\n"
        "time.sleep(0.3); print(pid, flush=True); os._exit(0)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", script, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        process.wait()
        try:
            checkpoint_folder.lock(tmp_path)
        finally:
            os.kill(child, signal.SIGKILL)


def test_one_training_saves_again_and_also_when_its_folder_was_removed(tmp_path: Path) -> None:
    saved(tmp_path, 1)
    saved(tmp_path, 2)
    for path in sorted(tmp_path.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    saved(tmp_path, 3)
    assert (tmp_path / LOCK).read_text().startswith(f"process {os.getpid()} on ")
    assert names_in(tmp_path) == ["000001-step3"]


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: os.symlink("elsewhere", path)])
def test_a_lock_that_is_no_file_is_refused(tmp_path: Path, make: Any) -> None:
    make(tmp_path / LOCK)
    with pytest.raises(CheckpointError):
        saved(tmp_path)
    assert not (tmp_path / "elsewhere").exists()
    assert names_in(tmp_path) == []
