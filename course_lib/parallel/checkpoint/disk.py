"""Files that are on disk when the call returns, what a full disk says, and ranks that fail together."""

import hashlib
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, BinaryIO, TypeVar, cast

import torch
from mpi4py import MPI

from course_lib.comm.polling import wait_for
from course_lib.data.storage import NO_SPACE, replace_file

UNSAFE = re.compile(r"(?:Unsupported global: GLOBAL|unsupported GLOBAL|Unsupported class) (\S+)")
PATIENCE_SECONDS = 600.0  # for the slowest rank's disk
Result = TypeVar("Result")


class CheckpointError(RuntimeError):
    """A checkpoint cannot be written or read: one sentence with its remedy, the same on all ranks."""


def together(
    comm: MPI.Intracomm, what: str, do: Callable[[], Result], patience: float = PATIENCE_SECONDS
) -> list[Result]:
    """The results of `do()` on all ranks; CheckpointError on all of them when it failed on any.

    TimeoutError when a rank does not come.
    """
    result, error, cause = None, "", None
    try:
        result = do()
    except Exception as caught:  # whatever it is, the others must not wait for this rank
        expected = isinstance(caught, CheckpointError | OSError)
        error, cause = str(caught) if expected else f"{type(caught).__name__}: {caught}", caught
    wait_for(comm.Ibarrier(), patience, what)
    outcomes: list[tuple[Any, str]] = comm.allgather((result, error))
    failed = [(rank, error) for rank, (_, error) in enumerate(outcomes) if error]
    if failed:
        rank, error = failed[0]
        raise CheckpointError(error if comm.size == 1 else f"{error} (rank {rank})") from cause
    return [result for result, _ in outcomes]


def check_room(folder: Path, needed: int) -> None:
    """CheckpointError unless the disk of `folder` has room for `needed` bytes."""
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise CheckpointError(no_room(folder, needed, free))


def no_room(folder: Path, needed: int, free: int) -> str:
    """What a full disk says."""
    return (
        f"no space is left in {folder}: a checkpoint needs {needed / 1e6:.1f} MB, {free / 1e6:.1f} MB are"
        " free; the one before is untouched; make room, or save to another folder"
    )


class Watched:
    """A file for torch.save, which forgets why a write failed."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.error: OSError | None = None

    def write(self, data: bytes) -> int:
        try:
            return self.file.write(data)
        except OSError as error:
            self.error = error
            raise

    def flush(self) -> None:
        self.file.flush()


def write_tensors(path: Path, content: Any) -> None:
    """torch.save, and the file is on disk; OSError when it is not."""
    with open(path, "wb", buffering=0) as file:
        watched = Watched(file)
        try:
            torch.save(content, cast(IO[bytes], watched))
        except RuntimeError as error:
            raise watched.error or OSError(f"{path.name} could not be written: {error}") from None
        os.fsync(file.fileno())


def read_tensors(path: Path, safe: tuple[Any, ...] = ()) -> Any:
    """What `write_tensors` wrote: tensors, numbers, strings, and the classes in `safe`; CheckpointError."""
    try:
        with torch.serialization.safe_globals(list(safe)):
            return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # torch raises whatever its parts do
        found = UNSAFE.search(str(error))
        reason = f"it asks for {found[1]}" if found else "it is damaged, or something else"
        raise CheckpointError(f"{path} is not a file of tensors that can be read safely: {reason}") from None


def write_text(path: Path, text: str) -> None:
    """Replace the file, all of it or nothing; it is on disk, and so is its name."""
    replace_file(path, text)
    sync_folder(path.parent)


def sync_file(path: Path) -> None:
    """What was written to the file is on disk, whoever wrote it."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """The names in the folder are on disk: a file that was renamed into it is there after a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def digest(path: Path) -> str:
    """The sha256 of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def out_of_space(error: OSError, folder: Path, needed: int) -> OSError | CheckpointError:
    """`error`, with the numbers when it says that the disk is full."""
    if error.errno in NO_SPACE:
        return CheckpointError(no_room(folder, needed, shutil.disk_usage(folder).free))
    return error
