"""DeepSpeed's own checkpoints, in a folder that a kill cannot damage; importable without DeepSpeed.

DeepSpeed writes its files under their final names, without waiting for the disk, and `latest` in place; it
reads them back as pickles that may run code. Here it writes into a folder aside, which gets its name when all
files are on disk and in the manifest; and reads only tensors, numbers and the classes that it saves itself.
A file that cannot be written fails on all ranks together: DeepSpeed alone would wait in a barrier.
"""

import copyreg
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any

from mpi4py import MPI

from course_lib.parallel.checkpoint import (
    CheckpointError,
    Found,
    check_random_state,
    file_of,
    find,
    random_state,
    read_tensors,
    restore_random_state,
    save,
    together,
    write_tensors,
)

TAG = "deepspeed"


def save_deepspeed(
    comm: MPI.Intracomm,
    folder: Path,
    engine: Any,
    *,
    progress: Mapping[str, Any] | None = None,
    keep: int = 2,
) -> Path:
    """Save what `engine.save_checkpoint` writes, and each rank's random-number state; returns the path.

    CheckpointError on all ranks, with the checkpoints that were there untouched, when a rank cannot write.
    """
    files = SafeFiles(engine.checkpoint_engine)

    def write(path: Path) -> None:
        files.save(random_state(), str(path / file_of(comm.rank)))
        with_files(engine, files, lambda: engine.save_checkpoint(str(path), tag=TAG, save_latest=False))
        if files.error:
            raise files.error

    return save(comm, folder, write, step=engine.global_steps, progress=progress, keep=keep)


def load_deepspeed(comm: MPI.Intracomm, folder: Path, engine: Any) -> Found | None:
    """Restore `engine` and random-number state from the checkpoint that `find` returns; None without any.

    CheckpointError on all ranks when there are only damaged ones, or when another number of ranks saved it.
    """
    found = find(comm, folder)
    if found is None:
        return None
    if found.ranks != comm.size:
        raise CheckpointError(
            f"{found.path} was saved by {found.ranks} ranks, and DeepSpeed loads it on as many, not on"
            f" {comm.size}; start {found.ranks} ranks"
        )
    state: dict[str, Any] = {}
    together(
        comm, "the other ranks' random-number state", lambda: state.update(own_random_state(comm, found))
    )
    files = SafeFiles(engine.checkpoint_engine)
    with_files(engine, files, lambda: engine.load_checkpoint(str(found.path), tag=TAG))
    restore_random_state(state)
    return found


def own_random_state(comm: MPI.Intracomm, found: Found) -> dict[str, Any]:
    """The random-number state that this rank saved; CheckpointError unless it can be restored."""
    state = read_tensors(found.path / file_of(comm.rank))
    check_random_state(state)
    return dict(state)


def with_files(engine: Any, files: "SafeFiles", do: Any) -> None:
    """`do()` while `engine` reads and writes through `files`."""
    before, engine.checkpoint_engine = engine.checkpoint_engine, files
    try:
        do()
    finally:
        engine.checkpoint_engine = before


class SafeFiles:
    """DeepSpeed's checkpoint engine, but for reading and writing a file."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine
        self.error: OSError | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def save(self, state_dict: Any, path: str) -> None:
        """Write the file; an error is raised later, on all ranks: the others wait for this one now."""
        from deepspeed.runtime.zero.config import ZeroStageEnum

        copyreg.pickle(ZeroStageEnum, by_value)
        try:
            if not self.error:
                write_tensors(Path(path), state_dict)
        except OSError as error:
            self.error = error

    def load(self, path: str, map_location: Any = None) -> Any:
        """Read the file: nothing in it is run."""
        return read_tensors(Path(path), safe_classes())


def by_value(member: Enum) -> tuple[type[Enum], tuple[Any]]:
    """How a member of an enumeration is written: Python 3.11.3 would call getattr, which is not safe."""
    return type(member), (member.value,)


def safe_classes() -> tuple[Any, ...]:
    """What is in DeepSpeed's files besides tensors and numbers."""
    from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler
    from deepspeed.runtime.zero.config import ZeroStageEnum
    from deepspeed.utils.tensor_fragment import fragment_address

    return (LossScaler, DynamicLossScaler, ZeroStageEnum, fragment_address)
