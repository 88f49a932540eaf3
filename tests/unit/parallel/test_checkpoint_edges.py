"""Parameters of unusual shapes, progress with numbers as keys, leftovers that stay: saved and restored."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from mpi4py import MPI
from torch import nn
from torch.optim import Adam

from course_lib.parallel.checkpoint import load_training, save_training
from course_lib.parallel.checkpoint_folder import (
    LATEST,
    LOCK,
    REMOVING,
    CheckpointError,
    names_in,
    save,
)
from course_lib.parallel.zero import Zero1

COMM = MPI.COMM_SELF


class Odd(nn.Module):
    """Parameters with one, no and many elements; the first has no dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.empty = nn.Parameter(torch.zeros(0, 3))
        self.weight = nn.Parameter(torch.ones(5))

    def forward(self) -> torch.Tensor:
        return (self.scale * self.weight).square().sum() + self.empty.sum()


MAKERS: list[Callable[[nn.Module], Any]] = [
    lambda model: Adam(model.parameters()),
    lambda model: Zero1(COMM, model, Adam),
]


def step(model: Odd, optimizer: Any) -> None:
    optimizer.zero_grad()
    model().backward()
    optimizer.step()


@pytest.mark.parametrize("loader", MAKERS, ids=["to Adam", "to Zero1"])
@pytest.mark.parametrize("saver", MAKERS, ids=["from Adam", "from Zero1"])
def test_parameters_without_dimensions_and_without_elements_are_restored(
    tmp_path: Path, saver: Callable[[nn.Module], Any], loader: Callable[[nn.Module], Any]
) -> None:
    """Also by the other optimizer: a parameter's count of steps has its shape."""
    model = Odd()
    optimizer = saver(model)
    step(model, optimizer)
    save_training(COMM, tmp_path, model, optimizer, step=1)
    step(model, optimizer)
    other = Odd()
    resumed = loader(other)
    assert load_training(COMM, tmp_path, other, resumed) is not None
    step(other, resumed)
    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=0 if saver is loader else 1e-7)


@pytest.mark.parametrize("make", MAKERS, ids=["Adam", "Zero1"])
def test_an_optimizer_of_another_model_is_refused_with_a_sentence(
    tmp_path: Path, make: Callable[[nn.Module], Any]
) -> None:
    with pytest.raises(CheckpointError, match="updates tensors that are no parameters of the model"):
        save_training(COMM, tmp_path, Odd(), make(Odd()), step=0)


@pytest.mark.parametrize("make", MAKERS, ids=["Adam", "Zero1"])
def test_weights_of_another_dtype_are_refused(tmp_path: Path, make: Callable[[nn.Module], Any]) -> None:
    """The optimizer's state keeps its dtype, so weights that were converted could not be updated."""
    model = Odd().double()
    optimizer = make(model)
    step(model, optimizer)
    save_training(COMM, tmp_path, model, optimizer, step=1)
    other = Odd()
    with pytest.raises(
        CheckpointError, match=r"weights of \w+ are torch.float32 here and torch.float64 in the checkpoint"
    ):
        load_training(COMM, tmp_path, other, make(other))
    assert all(
        torch.equal(mine, new) for mine, new in zip(other.parameters(), Odd().parameters(), strict=True)
    )


def test_settings_that_could_not_be_read_are_refused_while_saving(tmp_path: Path) -> None:
    """A NumPy number is pickled as a call of NumPy, and loading calls nothing."""
    model = Odd()
    optimizer = MAKERS[0](model)
    optimizer.param_groups[0]["lr"] = np.float64(0.1)
    with pytest.raises(CheckpointError, match=r"it asks for numpy.*; use tensors and .*lr=float\(lr\)"):
        save_training(COMM, tmp_path, model, optimizer, step=1)
    assert names_in(tmp_path) == []


def test_files_without_one_of_each_rank_are_refused_before_they_get_a_name(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"write\(\) made no rank0.pt, which every checkpoint has"):
        save(COMM, tmp_path, lambda path: path.joinpath("weights.bin").touch(), step=1)
    assert [path.name for path in tmp_path.iterdir()] == [LOCK]


def write_file(path: Path) -> None:
    (path / "rank0.pt").write_bytes(b"numbers")


@pytest.mark.parametrize(("step", "keep"), [(-1, 2), (2.0, 2), (1, 0)])
def test_what_would_not_be_found_or_kept_is_refused(tmp_path: Path, step: Any, keep: int) -> None:
    """The folder of a step 2.0 would be named 000001-step2.0, which is no checkpoint's name."""
    with pytest.raises(ValueError, match="keep at least 1 checkpoint, of an int from 0 on"):
        save(COMM, tmp_path, write_file, step=step, keep=keep)
    assert not list(tmp_path.iterdir())


def test_an_old_checkpoint_that_cannot_be_removed_stops_no_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = shutil.rmtree

    def rmtree(path: Any, *arguments: Any, **settings: Any) -> None:
        if Path(path).name == f"{REMOVING}-000001-step1":
            raise PermissionError(f"not allowed: {path}")
        right(path, *arguments, **settings)

    monkeypatch.setattr(shutil, "rmtree", rmtree)
    for number in (1, 2, 3, 4):
        save(COMM, tmp_path, write_file, step=number, keep=1)
    assert {path.name for path in tmp_path.iterdir()} == {
        *(LOCK, LATEST, f"{REMOVING}-000001-step1", "000004-step4")
    }


def test_a_damaged_checkpoint_does_not_count_as_kept(tmp_path: Path) -> None:
    for number in (1, 2):
        save(COMM, tmp_path, write_file, step=number)
    (tmp_path / "000002-step2" / "rank0.pt").unlink()
    save(COMM, tmp_path, write_file, step=3)
    assert names_in(tmp_path) == ["000001-step1", "000002-step2", "000003-step3"]
    save(COMM, tmp_path, write_file, step=4)
    assert names_in(tmp_path) == ["000003-step3", "000004-step4"]
