"""Checkpoints of sharded training: it goes on as if never stopped, also on other ranks; damage is told."""

import errno
import io
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from mpi4py import MPI
from torch import nn

from course_lib.parallel import checkpoint, checkpoint_folder
from course_lib.parallel.checkpoint import load_training, save_training
from course_lib.parallel.checkpoint_folder import (
    LATEST,
    LOCK,
    MANIFEST,
    CheckpointError,
    find,
    names_in,
    read_tensors,
)
from course_lib.parallel.data_parallel import sum_gradients
from course_lib.parallel.zero import Zero0, offload_state
from course_lib.theory.partition import even_range
from tests.ranks import shared_folder as folders
from tests.ranks.test_zero import BATCH, Net, adamw, batches, full_weights, loss_of, make

shared_folder = folders.shared_folder  # the fixture
PLAIN = -1  # all ranks have everything, and PyTorch's optimizer
STAGES = [PLAIN, 0, 1, 2, 3]
STEPS, BREAK = 8, 4


class Plain:
    """All ranks have everything, and sum their gradients."""

    def __init__(self, comm: MPI.Intracomm, model: nn.Module) -> None:
        self.comm, self.model = comm, model
        self.optimizer = adamw([p for p in model.parameters() if p.requires_grad])

    def step(self) -> None:
        sum_gradients(self.comm, self.model)
        self.optimizer.step()

    def zero_grad(self) -> None:
        self.optimizer.zero_grad()


class Normed(Net):
    """The network of the ZeRO tests, with running statistics, which are buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        self.seen += 1
        return super().forward(tokens) * (1 + 0.01 * self.seen)


def build(comm: MPI.Intracomm, stage: int, *, seed: int = 3, dtype: torch.dtype = torch.float64) -> Any:
    """A model and what steps it; another seed means that nothing is right before it is loaded."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)
    model = Normed().to(dtype)
    if stage == PLAIN:
        return model, Plain(comm, model)
    zero = Zero0(comm, model, adamw, bucket_bytes=700) if stage == 0 else make(comm, model, stage)
    return model, zero


def optimizer_of(zero: Any) -> Any:
    return zero.optimizer if isinstance(zero, Plain) else zero


def train(comm: MPI.Intracomm, model: Net, zero: Any, steps: range) -> list[float]:
    """The losses of all ranks' samples; each is multiplied by three rng, the same on all ranks."""
    mine = even_range(BATCH, comm.size, comm.rank)
    losses = []
    data = state_kept(batches)
    for index in steps:
        tokens, targets = data[index]
        rng = random.random() + np.random.rand() + torch.rand(()).item()
        rows = slice(mine.start, mine.stop)
        loss = loss_of(model, tokens[rows], targets[rows]) * rng
        loss.backward()
        zero.step()
        zero.zero_grad()
        losses.append(comm.allreduce(loss.item()))
    return losses


def state_kept(make_batches: Callable[[], Any]) -> Any:
    with torch.random.fork_rng(devices=[]):
        return make_batches()


def save(comm: MPI.Intracomm, folder: Path, model: nn.Module, zero: Any, step: int, **settings: Any) -> Path:
    return save_training(
        comm, folder, model, optimizer_of(zero), step=step, progress={"batch": step}, **settings
    )


def load(comm: MPI.Intracomm, folder: Path, model: nn.Module, zero: Any) -> Any:
    return load_training(comm, folder, model, optimizer_of(zero))


def uninterrupted(comm: MPI.Intracomm, stage: int) -> tuple[list[float], dict[str, torch.Tensor]]:
    model, zero = build(comm, stage)
    losses = train(comm, model, zero, range(STEPS))
    return losses[BREAK:], full_weights(zero, model)


def continued(comm: MPI.Intracomm, folder: Path, stage: int) -> tuple[list[float], dict[str, torch.Tensor]]:
    """From the checkpoint in `folder` to the end."""
    model, zero = build(comm, stage, seed=99 + comm.rank)
    found = load(comm, folder, model, zero)
    assert (found.step, found.progress) == (BREAK, {"batch": BREAK})
    losses = train(comm, model, zero, range(found.progress["batch"], STEPS))
    return losses, full_weights(zero, model)


def saved(comm: MPI.Intracomm, folder: Path, stage: int) -> None:
    """A training up to the break, and its checkpoint."""
    model, zero = build(comm, stage)
    train(comm, model, zero, range(BREAK))
    save(comm, folder, model, zero, BREAK)


# ------------------------------------------------------------------------ it goes on


@pytest.mark.parametrize("stage", STAGES)
def test_on_as_many_ranks_it_goes_on_to_the_bit(comm: MPI.Intracomm, shared_folder: Path, stage: int) -> None:
    saved(comm, shared_folder, stage)
    losses, weights = continued(comm, shared_folder, stage)
    expected, expected_weights = uninterrupted(comm, stage)
    assert losses == expected
    assert all(torch.equal(weights[name], value) for name, value in expected_weights.items())


@pytest.mark.parametrize("stage", STAGES)
def test_on_other_ranks_it_goes_on(comm: MPI.Intracomm, shared_folder: Path, stage: int) -> None:
    """Saved by all and read by each for itself; saved by rank 0 and read by all."""
    expected, expected_weights = uninterrupted(comm, stage)
    for index, (writers, readers) in enumerate([(comm, MPI.COMM_SELF), (MPI.COMM_SELF, comm)]):
        folder = shared_folder / str(index)
        if writers is comm or comm.rank == 0:
            saved(writers, folder, stage)
        comm.Barrier()
        losses, weights = continued(readers, folder, stage)
        np.testing.assert_allclose(losses, expected, rtol=0, atol=1e-12)
        for name, value in expected_weights.items():
            torch.testing.assert_close(weights[name], value, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("wrote", "reads"), [(1, 3), (3, PLAIN), (PLAIN, 2), (2, 0)])
def test_a_checkpoint_of_one_stage_is_read_by_another(
    comm: MPI.Intracomm, shared_folder: Path, wrote: int, reads: int
) -> None:
    saved(comm, shared_folder, wrote)
    losses, _ = continued(comm, shared_folder, reads)
    np.testing.assert_allclose(losses, uninterrupted(comm, 0)[0], rtol=0, atol=1e-12)


@pytest.mark.parametrize("stage", [0, 3])
def test_float32_masters_of_bfloat16_weights_are_kept(
    comm: MPI.Intracomm, shared_folder: Path, stage: int
) -> None:
    model, zero = build(comm, stage, dtype=torch.bfloat16)
    train(comm, model, zero, range(2))
    save(comm, shared_folder, model, zero, 2)
    masters = [master.detach().clone() for master in zero.masters]
    weights = full_weights(zero, model)
    model, zero = build(comm, stage, seed=9, dtype=torch.bfloat16)
    load(comm, shared_folder, model, zero)
    assert all(torch.equal(a, b) for a, b in zip(masters, zero.masters, strict=True))
    assert all(torch.equal(value, weights[name]) for name, value in full_weights(zero, model).items())


@pytest.mark.parametrize("stage", [PLAIN, 2])
def test_without_the_optimizers_state_the_losses_are_others(
    comm: MPI.Intracomm, shared_folder: Path, stage: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Known-wrong: weights alone."""
    monkeypatch.setattr(checkpoint, "state_of", lambda *_: {})
    saved(comm, shared_folder, stage)
    losses, _ = continued(comm, shared_folder, stage)
    assert losses[0] == uninterrupted(comm, stage)[0][0]  # the weights are there
    assert abs(losses[-1] - uninterrupted(comm, stage)[0][-1]) > 1e-4


def test_without_the_dice_the_losses_are_others(
    comm: MPI.Intracomm, shared_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Known-wrong: the random numbers begin anew."""
    saved(comm, shared_folder, 2)
    monkeypatch.setattr(checkpoint, "restore_random_state", lambda _: None)
    assert continued(comm, shared_folder, 2)[0] != uninterrupted(comm, 2)[0]


def test_each_rank_goes_on_with_random_numbers_of_its_own(comm: MPI.Intracomm, shared_folder: Path) -> None:
    def drawn() -> list[float]:
        return [random.random(), np.random.rand(), torch.rand(()).item()]

    model, zero = build(comm, 2)
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(100 + comm.rank)
    save(comm, shared_folder, model, zero, 1)
    expected = drawn()
    load(comm, shared_folder, *build(comm, 2, seed=99))
    assert drawn() == expected


def test_state_that_is_kept_in_files_stays_there(comm: MPI.Intracomm, shared_folder: Path) -> None:
    saved(comm, shared_folder, 2)
    model, zero = build(comm, 2, seed=99)
    offload_state(zero.optimizer, shared_folder / f"offloaded-{comm.rank}", comm.rank)
    places = [state["exp_avg"].data_ptr() for state in zero.optimizer.state.values()]
    load(comm, shared_folder, model, zero)
    assert [state["exp_avg"].data_ptr() for state in zero.optimizer.state.values()] == places
    losses = train(comm, model, zero, range(BREAK, STEPS))
    assert losses == pytest.approx(uninterrupted(comm, 2)[0], rel=1e-12)


def test_the_learning_rate_is_the_one_at_the_break(comm: MPI.Intracomm, shared_folder: Path) -> None:
    model, zero = build(comm, 1)
    zero.optimizer.param_groups[0]["lr"] = 0.125
    save(comm, shared_folder, model, zero, 0)  # before the first step: there is no state yet
    model, zero = build(comm, 1)
    load(comm, shared_folder, model, zero)
    assert zero.optimizer.param_groups[0]["lr"] == 0.125
    assert not any(zero.optimizer.state.values())


# ------------------------------------------------------------------------ which checkpoint


def test_the_last_ones_are_kept(comm: MPI.Intracomm, shared_folder: Path) -> None:
    model, zero = build(comm, 2)
    assert load(comm, shared_folder, model, zero) is None
    for step in (10, 20, 20, 30):
        path = save(comm, shared_folder, model, zero, step, keep=3)
    assert names_in(shared_folder) == ["000002-step20", "000003-step20", "000004-step30"]
    assert path.name == (shared_folder / LATEST).read_text().strip() == "000004-step30"
    assert sorted(each.name for each in path.iterdir()) == [
        MANIFEST,
        *(f"rank{rank}.pt" for rank in range(comm.size)),
    ]


DAMAGE: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "shorter": ("has .* bytes instead of", lambda path: os.truncate(path, path.stat().st_size // 2)),
    "changed": ("its sha256 is not", lambda path: flip(path, path.stat().st_size // 2)),
    "missing": ("is missing", lambda path: path.unlink()),
}


def flip(path: Path, where: int) -> None:
    with path.open("r+b") as file:
        file.seek(where)
        byte = file.read(1)
        file.seek(where)
        file.write(bytes([byte[0] ^ 1]))


def by_rank_0(comm: MPI.Intracomm, do: Callable[[], Any]) -> None:
    comm.Barrier()
    if comm.rank == 0:
        do()
    comm.Barrier()


@pytest.mark.parametrize(
    ("which", "damage"), [*(("last rank's file", how) for how in DAMAGE), ("manifest", "missing")]
)
def test_a_damaged_checkpoint_is_refused_and_the_one_before_is_taken(
    comm: MPI.Intracomm, shared_folder: Path, which: str, damage: str
) -> None:
    model, zero = build(comm, 2)
    first, second = (save(comm, shared_folder, model, zero, step) for step in (1, 2))
    what, do = DAMAGE[damage]
    name = MANIFEST if which == "manifest" else f"rank{comm.size - 1}.pt"
    by_rank_0(comm, lambda: do(second / name))
    found = load(comm, shared_folder, model, zero)
    assert (found.path, found.step, len(found.refused)) == (first, 1, 1)
    assert str(second / name) in found.refused[0]
    by_rank_0(comm, lambda: do(first / name))
    with pytest.raises(CheckpointError, match=r"is whole: .*Put the files back from a copy") as caught:
        load(comm, shared_folder, model, zero)
    assert str(first / name) in str(caught.value) and str(second / name) in str(caught.value)
    if which != "manifest":
        assert what.split(".*")[0].strip() in str(caught.value)


def test_another_model_or_optimizer_is_refused_by_all(comm: MPI.Intracomm, shared_folder: Path) -> None:
    saved(comm, shared_folder, 1)
    other = nn.Linear(3, 2).double()
    with pytest.raises(CheckpointError, match=r"weight is .*build that model"):
        load_training(comm, shared_folder, other, adamw(other.parameters()))
    model = Normed().double()
    with pytest.raises(
        CheckpointError,
        match=r"SGD is not the optimizer that was saved: .* the checkpoint .*amsgrad.*betas",
    ):
        load_training(comm, shared_folder, model, torch.optim.SGD(model.parameters(), lr=0.1))


def test_a_file_that_runs_code_is_not_run(comm: MPI.Intracomm, shared_folder: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(shared_folder / "evil"),)

    path = shared_folder / f"evil{comm.rank}.pt"
    torch.save({"weights": Evil()}, path)
    with pytest.raises(CheckpointError, match=r"evil\d\.pt .*safely: it asks for \w+\.mkdir"):
        read_tensors(path)
    assert not (shared_folder / "evil").exists()


# ------------------------------------------------------------------------ what fails


def test_a_full_disk_is_told_by_all_and_the_checkpoint_before_stays(
    comm: MPI.Intracomm, shared_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of one rank's file is written, then there is no room."""
    model, zero = build(comm, 2)
    path = save(comm, shared_folder, model, zero, 1)

    class Full(io.FileIO):
        def write(self, data: Any) -> int:
            if self.tell() or len(data) < 2:
                raise OSError(errno.ENOSPC, "No space left on device")
            return super().write(memoryview(data)[: len(data) // 2])

    def open_full(path: Path, mode: str) -> Any:
        return io.BufferedWriter(Full(path, "w")) if mode == "wb" else path.open(mode)

    with monkeypatch.context() as patch:
        if comm.rank == comm.size - 1:
            patch.setattr(checkpoint_folder, "open", open_full, raising=False)
        with pytest.raises(CheckpointError, match=r"no space is left in .*; the one before"):
            save(comm, shared_folder, model, zero, 2)
    found = find(comm, shared_folder)
    assert found is not None and found.path == path
    assert sorted(each.name for each in shared_folder.iterdir()) == [LOCK, "000001-step1", LATEST]
    comm.Barrier()  # all ranks have looked before rank 0 makes the next .saving
    save(comm, shared_folder, model, zero, 3)  # and when there is room again


def test_a_late_rank_ends_with_an_error_as_do_those_that_waited(comm: MPI.Intracomm) -> None:
    own = comm.Dup()  # not freed: the ranks are out of step on it
    if comm.rank == comm.size - 1 and comm.size > 1:
        comm.recv(source=0)  # comes when rank 0 has given up
    if comm.size > 1:
        with pytest.raises(CheckpointError, match=r"the others is not there after 0\.2 s"):
            checkpoint_folder.together(own, "the others", lambda: None, timeout=0.2)
        if comm.rank == 0:
            comm.send(None, comm.size - 1)
    comm.Barrier()


@pytest.mark.deadline(20)
def test_no_rank_waits_for_ever_while_rank_0_removes_what_a_failed_save_left(
    comm: MPI.Intracomm, shared_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if comm.size == 1:
        return
    own, late = comm.Dup(), comm.size - 1  # not freed: the ranks are out of step on it
    right = checkpoint_folder.together

    def together(comm: MPI.Intracomm, what: str, do: Callable[[], Any]) -> Any:
        return right(comm, what, do, 0.2 if what == "rank 0" else 60)

    def write(path: Path) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(checkpoint_folder, "together", together)
    monkeypatch.setattr("shutil.rmtree", lambda *_, **__: comm.recv(source=late))
    with pytest.raises(checkpoint_folder.LateRankError, match=r"rank 0 is not there after 0\.2 s"):
        checkpoint_folder.save(own, shared_folder, write, step=1)
    if comm.rank == late:
        comm.send(None, 0)  # it has given up
    comm.Barrier()
    monkeypatch.undo()


@pytest.mark.parametrize("stage", [PLAIN, 3])
def test_when_one_rank_cannot_read_nobody_has_changed(
    comm: MPI.Intracomm, shared_folder: Path, stage: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(comm, shared_folder, stage)
    model, zero = build(comm, stage, seed=9)
    train(comm, model, zero, range(1))
    before, random_state = full_weights(zero, model), checkpoint.random_state()
    state = [value.clone() for each in inner_of(zero).state.values() for value in each.values()]

    def broken(*_: Any) -> Any:  # the last that is read
        raise OSError(errno.EIO, "Input/output error")

    if comm.rank == comm.size - 1:
        monkeypatch.setattr(checkpoint, "state_of", broken)
    with pytest.raises(CheckpointError, match="Input/output error"):
        load(comm, shared_folder, model, zero)
    assert all(torch.equal(value, before[name]) for name, value in full_weights(zero, model).items())
    after = [value for each in inner_of(zero).state.values() for value in each.values()]
    assert all(torch.equal(a, b) for a, b in zip(after, state, strict=True))
    assert repr(checkpoint.random_state()) == repr(random_state)


def inner_of(zero: Any) -> torch.optim.Optimizer:
    return checkpoint.inner_optimizer(optimizer_of(zero))
