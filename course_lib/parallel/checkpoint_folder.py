"""A folder of checkpoints that survive a kill at any instant.

    folder/
        latest                       the name of the last checkpoint that was saved
        000002-step20/               the last keep= of them stay
        000003-step30/
            manifest.json            step, progress, ranks; the size and the sha256 of every file
            rank0.pt  rank1.pt       what each rank wrote
        .saving/                     one that is being written, or that was when a kill ended the training
        .lock                        held by the training that saves here

    save(comm, folder, write, step=30)      write(path) makes this rank's file
    found = find(comm, folder)              the newest whole checkpoint; None when there is none at all

What a training writes and reads is in `checkpoint.py`. This file begins with `together`: every phase of a
save or a load goes through it, so all ranks succeed or all raise. Then come saving, the lock, finding, and
single files.

Source: Pillai and others, All File Systems Are Not Created Equal, OSDI 2014 (write aside, fsync the file and
its folder, rename); Mohan and others, CheckFreq, FAST 2021.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import socket
import stat
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from mpi4py import MPI

from course_lib.comm.polling import wait_for, wait_until
from course_lib.data.storage import NO_SPACE, sync
from course_lib.training.saving import atomic_save

LATEST, MANIFEST, LOCK, SAVING, REMOVING = "latest", "manifest.json", ".lock", ".saving", ".removing"
NAME = re.compile(r"(\d{6,})-step(\d+)")
MANIFEST_BYTES = 16 * 2**20  # a larger one is not read
LOCK_SECONDS = 2.0  # as long as the killed processes of a training may take to end
TIMEOUT_SECONDS = 600.0  # for the slowest rank's disk
# What torch.load says of a pickle that asks for more than tensors, in the words of several versions.
UNSAFE = re.compile(r"(?:Unsupported global: GLOBAL|unsupported GLOBAL|Unsupported class) (\S+)")

Result = TypeVar("Result")


class CheckpointError(RuntimeError):
    """A checkpoint cannot be written or read: one sentence with its remedy, the same on all ranks."""


class LateRankError(CheckpointError):
    """A rank did not come in time: the ranks are out of step, and `comm` cannot be used again."""


@dataclass(frozen=True, slots=True)
class Found:
    """A whole checkpoint. `refused`: a sentence on each damaged one that was tried before it."""

    path: Path
    step: int
    progress: dict[str, Any]
    ranks: int
    refused: tuple[str, ...] = ()


def file_of(rank: int) -> str:
    """The name of a rank's file."""
    return f"rank{rank}.pt"


# ------------------------------------------------------------------ ranks that fail together

_abandoned: list[tuple[MPI.Request, Any]] = []  # MPI goes on using the memory of a request that was given up


def together(
    comm: MPI.Intracomm, waiting_for: str, do: Callable[[], Result], timeout: float = TIMEOUT_SECONDS
) -> list[Result]:
    """The results of `do()` on all ranks, which are small; CheckpointError on all when it failed on any.

    LateRankError, with `waiting_for` in it, when a rank does not come within `timeout` seconds. The others
    have given up and do not join the late rank's next collective, so it times out as well.
    """
    result, error, cause = None, "", None
    try:
        result = do()
    except Exception as caught:  # whatever it is, the others must not wait for this rank
        expected = isinstance(caught, CheckpointError | OSError)
        kind = type(caught).__name__
        error, cause = (str(caught) or kind) if expected else f"{kind}: {caught}", caught
    outcomes: list[tuple[Any, str]] = allgather_within(comm, (result, error), timeout, waiting_for)
    failed = [(rank, error) for rank, (_, error) in enumerate(outcomes) if error]
    if failed:
        rank, error = failed[0]
        raise CheckpointError(error if comm.size == 1 else f"{error} (rank {rank})") from cause
    return [result for result, _ in outcomes]


def allgather_within(comm: MPI.Intracomm, value: Any, seconds: float, waiting_for: str) -> list[Any]:
    """As `comm.allgather(value)`, but LateRankError after `seconds`: first all sizes, then all bytes."""
    mine = MPI.pickle.dumps(value)
    sizes = np.empty(comm.size, dtype=np.int64)

    def complete(request: MPI.Request, memory: Any) -> None:
        try:
            wait_for(request, seconds, waiting_for)  # tests the request until it is complete
        except TimeoutError as late:
            _abandoned.append((request, memory))
            raise LateRankError(str(late)) from None

    own_size = np.array([len(mine)], dtype=np.int64)
    complete(comm.Iallgather(own_size, sizes), (own_size, sizes))
    everything = bytearray(int(sizes.sum()))
    complete(comm.Iallgatherv(mine, [everything, sizes.tolist(), MPI.BYTE]), (mine, everything))
    ends = np.cumsum(sizes)
    return [MPI.pickle.loads(everything[end - size : end]) for end, size in zip(ends, sizes, strict=True)]


# ------------------------------------------------------------------ the folder: saving
#
# .saving/     rank{r}.pt       fsync each
# .saving/     manifest.json    fsync file, then .saving     whole, but without a name until the rename
# .saving  →  000003-step30     rename, fsync
# latest   →  000003-step30     a new file, renamed over the old one; fsync
# the oldest go                 renamed first, so that no half-removed one bears a name


def save(
    comm: MPI.Intracomm,
    folder: Path,
    write: Callable[[Path], None],
    *,
    step: int,
    progress: Mapping[str, Any] | None = None,
    keep: int = 2,
) -> Path:
    """Save a new checkpoint with the files that `write(path)` makes on all ranks; returns its path.

    On rank r, `write` makes the file `rank{r}.pt` in the folder `path`. Of the checkpoints the last `keep`
    stay. `progress` is rank 0's.

    Raises CheckpointError on all ranks; the checkpoints that were there are untouched then, and the new one
    is gone. Only a LateRankError leaves open how far the save has come.
    """
    if keep < 1 or type(step) is not int or step < 0:  # the name of a step 2.0 would not be found again
        raise ValueError(f"keep={keep}, step={step!r}; keep at least 1 checkpoint, of an int from 0 on")

    def all_do(waiting_for: str, do: Callable[[], Result]) -> list[Result]:
        return together(comm, waiting_for, lambda: explaining_full_disk(do, folder))

    def rank_0_does(waiting_for: str, do: Callable[[], Any]) -> Any:
        return all_do(waiting_for, lambda: None if comm.rank else do())[0]

    # Outside the try: when another training holds the lock, .saving is its own, and stays.
    rank_0_does("a folder for the checkpoint", lambda: prepare(folder))
    try:
        parts = all_do("the other ranks' files", lambda: write_part(folder, file_of(comm.rank), write))
        files = {file_of(rank): facts for rank, facts in enumerate(parts)}
        about = {"step": step, "ranks": comm.size, "progress": dict(progress or {}), "files": files}
        name = rank_0_does("the name of the checkpoint", lambda: publish(folder, about))
    except LateRankError:
        raise  # the ranks are out of step; the next save removes what is left
    except CheckpointError:
        rank_0_does("rank 0", lambda: shutil.rmtree(folder / SAVING, ignore_errors=True))
        raise
    # No rank returns, and looks at the folder, while rank 0 still removes.
    rank_0_does("rank 0", lambda: prune(folder, keep))
    return folder / str(name)


def explaining_full_disk(do: Callable[[], Result], folder: Path) -> Result:
    """The result of `do()`; CheckpointError when an OSError says that the disk is full."""
    try:
        return do()
    except OSError as error:
        if error.errno not in NO_SPACE:
            raise
        raise CheckpointError(
            f"no space is left in {folder}; the one before is untouched; make room, or save to another folder"
        ) from None


def prepare(folder: Path) -> None:
    """Lock the folder, remove what a kill has left, and make `.saving`. On rank 0."""
    folder.mkdir(parents=True, exist_ok=True)
    lock(folder)
    if (folder / SAVING).exists():
        shutil.rmtree(folder / SAVING)
    for old in folder.glob(f"{REMOVING}-*"):
        with suppress(OSError):  # it takes room, no more: the next save tries again
            shutil.rmtree(old)
    (folder / SAVING).mkdir()


def write_part(folder: Path, own_file: str, write: Callable[[Path], None]) -> dict[str, Any]:
    """Write this rank's file, `own_file`, and bring it to the disk; its size and checksum."""
    if not (folder / SAVING).is_dir():
        raise CheckpointError(f"{folder} is not the folder that rank 0 sees; choose one that all ranks share")
    write(folder / SAVING)
    path = folder / SAVING / own_file
    if not path.is_file():
        raise CheckpointError(f"write() made no {own_file}, which every checkpoint has; write to that name")
    return sync_and_describe(path)


def sync_and_describe(path: Path) -> dict[str, Any]:
    """Bring a file to the disk; its size and checksum."""
    sync(path)
    return {"bytes": path.stat().st_size, "sha256": digest(path)}


def publish(folder: Path, about: Mapping[str, Any]) -> str:
    """Give a checkpoint whose files are on disk its manifest and its name, and let `latest` name it."""
    name = f"{max(map(save_number, names_in(folder)), default=0) + 1:06d}-step{about['step']}"
    atomic_save(folder / SAVING / MANIFEST, as_text(about).encode())  # syncs .saving, too
    os.rename(folder / SAVING, folder / name)
    try:
        sync(folder)
        atomic_save(folder / LATEST, f"{name}\n".encode())
    except OSError:
        with suppress(OSError):  # a save that fails leaves no checkpoint behind
            remove(folder / name)
        raise
    return name


def prune(folder: Path, keep: int) -> None:
    """Remove what is older than the newest `keep` that look whole; the next save tries again what fails."""
    whole = 0
    with suppress(OSError):  # the new checkpoint is saved, whatever becomes of the old ones
        for name in reversed(names_in(folder)):
            if whole < keep:
                whole += is_complete(folder / name)
            else:
                with suppress(OSError):  # one that stays does not keep the others
                    remove(folder / name)


def is_complete(path: Path) -> bool:
    """Whether the manifest is right and all files have its sizes; their contents are not read."""
    try:
        files = read_manifest(path)["files"]
        return all(check_regular(path / name) == facts["bytes"] for name, facts in files.items())
    except (CheckpointError, OSError, ValueError):
        return False


def remove(path: Path) -> None:
    """Remove a checkpoint, which loses its name first."""
    gone = path.with_name(f"{REMOVING}-{path.name}")
    os.rename(path, gone)
    shutil.rmtree(gone)


def as_text(about: Mapping[str, Any]) -> str:
    """The manifest, with a checksum of itself."""
    return json.dumps({**about, "sha256": own_digest(about)}, indent=1) + "\n"


def own_digest(about: Mapping[str, Any]) -> str:
    """The sha256 of a manifest without its checksum."""
    body = {key: value for key, value in about.items() if key != "sha256"}
    body = json.loads(json.dumps(body))  # JSON turns int keys into strings: hash what a reader will see
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


# ------------------------------------------------------------------ the folder: one training at a time

_locks: dict[Path, int] = {}  # by folder: the descriptor through which this process holds its lock


def lock(folder: Path) -> None:
    """Hold the folder's lock until this process ends; CheckpointError when another process holds it.

    The operating system frees the lock of a process that ends, however it ends: a `.lock` that a killed
    training left behind is no obstacle.
    """
    path = folder.resolve() / LOCK
    if path in _locks:
        if is_open_as(_locks[path], path):
            return
        os.close(_locks.pop(path))  # somebody removed the file: its lock keeps nobody out any more
    # A link is not followed, and a pipe is not waited for.
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
    try:
        if not wait_until(lambda: takes_lock(descriptor), LOCK_SECONDS, longest_nap=0.05):
            holder = os.pread(descriptor, 300, 0).decode(errors="replace") or "another process"
            raise CheckpointError(
                f"another training saves into {folder} ({holder}); end it, or choose another folder"
            )
        if not is_open_as(descriptor, path):  # else two trainings could each lock a file of this name
            raise CheckpointError(f"{path} is no file, or was removed just now; remove it, and save again")
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)
    except BaseException:
        os.close(descriptor)
        raise
    _locks[path] = descriptor


def takes_lock(descriptor: int) -> bool:
    """Lock the open file, unless another process holds its lock; whether it did."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_open_as(descriptor: int, path: Path) -> bool:
    """Whether the open file is a regular one, and still the one at `path`."""
    mine = os.fstat(descriptor)
    try:
        theirs = os.stat(path, follow_symlinks=False)
    except OSError:
        return False
    return stat.S_ISREG(mine.st_mode) and os.path.samestat(mine, theirs)


def _forget_locks() -> None:
    """In a forked child: the lock is its parent's, and ends with it."""
    for descriptor in _locks.values():
        os.close(descriptor)
    _locks.clear()


os.register_at_fork(after_in_child=_forget_locks)

# ------------------------------------------------------------------ the folder: finding


def find(comm: MPI.Intracomm, folder: Path) -> Found | None:
    """A whole checkpoint, every byte of it checked; None when there is none at all.

    It is the one that `latest` names; when that is damaged, the newest whole one. After a kill between a
    checkpoint's rename and the writing of `latest`, `latest` still names the previous checkpoint, and that
    one is returned. CheckpointError, with the name of each file that is wrong, when there are only damaged
    ones.
    """
    refused: list[str] = []
    # All ranks try what rank 0 sees: on a network's file system, another rank may see it later.
    for path in together(comm, "a list of checkpoints", lambda: candidates(folder))[0]:
        looks = together(comm, "what the other ranks read", partial(check, comm, path))
        problems = [problem for _, problem in looks if problem]
        if not problems:
            about, _ = looks[0]
            return Found(path, about["step"], about["progress"], about["ranks"], tuple(refused))
        refused += problems[:1]
    if refused:
        raise CheckpointError(
            f"no checkpoint in {folder} is whole: {'; '.join(refused)}."
            " Put the files back from a copy, or move the folder away to start anew"
        )
    return None


def check(comm: MPI.Intracomm, path: Path) -> tuple[dict[str, Any], str]:
    """The manifest, and what this rank finds wrong with its share of the files."""
    try:
        about = read_manifest(path)
        for name, facts in sorted(about["files"].items())[comm.rank :: comm.size]:
            check_file(path / name, facts)
    except CheckpointError as error:
        return {}, str(error)
    return about, ""


def read_manifest(path: Path) -> dict[str, Any]:
    """What a checkpoint says of itself; CheckpointError unless it has the form that `save` gives it."""
    file = path / MANIFEST
    try:
        check_regular(file, at_most=MANIFEST_BYTES)
        about = json.loads(file.read_text(encoding="utf-8"))
        problem = manifest_problem(about, path.name)
    except FileNotFoundError:
        raise CheckpointError(f"{file} is missing") from None
    except (OSError, ValueError, RecursionError) as error:
        problem = str(error)[:200]
    if problem:
        raise CheckpointError(f"{file} is damaged: {problem}")
    return dict(about)


def manifest_problem(about: Any, name: str) -> str:
    """What is wrong with the contents of a manifest; empty if nothing is.

    A right checksum is not enough: `find` opens the files that a manifest names, and opens none outside.
    """
    if not isinstance(about, dict) or about.keys() != {"step", "ranks", "progress", "files", "sha256"}:
        return "it does not have the entries step, ranks, progress, files and sha256"
    if about["sha256"] != own_digest(about):
        return "its sha256 is not that of its contents"
    if type(about["step"]) is not int or name.partition("-")[2] != f"step{about['step']}":
        return "step is not that of its folder's name"
    if not isinstance(about["progress"], dict):
        return "progress is no dictionary"
    files = about["files"]
    if not isinstance(files, dict) or files.keys() != {file_of(rank) for rank in range(len(files))}:
        return "files has other names than rank0.pt, rank1.pt, …"
    if not files or type(about["ranks"]) is not int or about["ranks"] != len(files):
        return "files does not have a file of every rank"
    if not all(isinstance(facts, dict) and facts.keys() == {"bytes", "sha256"} for facts in files.values()):
        return "files does not give the bytes and the sha256 of every file"
    return ""


def check_file(path: Path, facts: Mapping[str, Any]) -> None:
    """CheckpointError unless the file is the one in the manifest."""
    try:
        size = check_regular(path)
        if size != facts["bytes"]:
            raise CheckpointError(f"{path} has {size} bytes instead of {facts['bytes']}")
        if digest(path) != facts["sha256"]:
            raise CheckpointError(f"{path} has been changed: its sha256 is not that of the manifest")
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read ({error})") from None


def check_regular(path: Path, at_most: int | None = None) -> int:
    """The bytes of a file; ValueError when it is a link, a pipe or a folder, or has more than `at_most`."""
    status = path.lstat()
    if not stat.S_ISREG(status.st_mode):
        raise ValueError("it is no regular file")
    if at_most is not None and status.st_size > at_most:
        raise ValueError(f"it has {status.st_size} bytes, more than {at_most}")
    return status.st_size


def candidates(folder: Path) -> list[Path]:
    """All checkpoints, in the order in which to try them."""
    newest_first, first = names_in(folder)[::-1], latest(folder)
    # The one in `latest` first, for False sorts before True; the others keep their order.
    return [folder / name for name in sorted(newest_first, key=lambda name: name != first)]


def names_in(folder: Path) -> list[str]:
    """The checkpoints, in the order in which they were saved."""
    names = os.listdir(folder) if folder.is_dir() else []
    return sorted((name for name in names if NAME.fullmatch(name)), key=save_number)


def save_number(name: str) -> int:
    """Which save it was, from 1; a step may be saved twice."""
    return int(name.partition("-")[0])


def latest(folder: Path) -> str:
    """The name in `latest`; empty when there is none or it is damaged."""
    try:
        check_regular(folder / LATEST, at_most=1000)
        return (folder / LATEST).read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return ""


# ------------------------------------------------------------------ files


def write_tensors(path: Path, content: Any) -> None:
    """torch.save; OSError, with the number of what failed, when the disk is full or broken."""
    try:
        with open(path, "wb") as file:
            torch.save(content, file)
    except RuntimeError as error:
        # While torch.save ends, it replaces the error of a write by one of its own.
        if isinstance(error.__context__, OSError):
            raise error.__context__ from None
        raise


def read_tensors(path: Path) -> Any:
    """What `write_tensors` wrote: tensors, numbers and strings.

    Nothing else is read, for a pickle may run any code. Raises CheckpointError for such a file, and for one
    that is damaged or missing.
    """
    try:
        check_regular(path)
        return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # torch raises whatever its parts do
        unsafe = UNSAFE.search(str(error))
        reason = f"it asks for {unsafe[1]}" if unsafe else "it is damaged, or something else"
        raise CheckpointError(f"{path} is not a file of tensors that can be read safely: {reason}") from None


def digest(path: Path) -> str:
    """The sha256 of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
