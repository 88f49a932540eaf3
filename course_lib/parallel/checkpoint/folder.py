"""A folder of checkpoints, of which the newest whole one is found, whenever the writers were killed.

    .saving/ …   all files        fsync files, then folder
    .saving/     manifest.json    fsync                        from here on the checkpoint is whole
    .saving  →  000003-step30     rename, fsync
    latest   →  000003-step30     a new file, renamed over the old one; fsync
    the oldest go                 renamed first, so that no half one bears a name

All ranks call these functions together, and raise together. The folder is one that all ranks see.
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mpi4py import MPI

from course_lib.parallel.checkpoint.disk import (
    CheckpointError,
    check_room,
    digest,
    out_of_space,
    sync_file,
    sync_folder,
    together,
    write_text,
)

LATEST, MANIFEST, SAVING, REMOVING = "latest", "manifest.json", ".saving", ".removing"
NAME = re.compile(r"(\d{6,})-step\d+")
SPARE_BYTES = 64 * 1024  # manifest, names, what torch adds to a file
Files = dict[str, dict[str, Any]]  # by name: {"bytes": size, "sha256": digest}


@dataclass(frozen=True, slots=True)
class Found:
    """A whole checkpoint. `refused`: a sentence on each newer one that is damaged."""

    path: Path
    step: int
    progress: dict[str, Any]
    ranks: int
    refused: tuple[str, ...] = ()


# -------------------------------------------------------------------------------------- saving


def save(
    comm: MPI.Intracomm,
    folder: Path,
    write: Callable[[Path], None],
    *,
    step: int,
    progress: Mapping[str, Any] | None = None,
    needed: int = 0,
    keep: int = 2,
) -> Path:
    """A new checkpoint with the files that `write(path)` makes on all ranks; where it is.

    `write` may raise OSError or CheckpointError on any rank. `needed`: bytes of all ranks' files. `progress`:
    what a restart has to know besides, as JSON. Of the checkpoints the last `keep` stay. CheckpointError on
    all ranks, with what was there before untouched, when the disk is full or a rank fails.
    """
    scratch = folder / SAVING
    if keep < 1 or step < 0:
        raise ValueError(f"keep={keep}, step={step}; keep at least 1 checkpoint, of step 0 or later")
    try:
        together(comm, "a folder for the checkpoint", lambda: comm.rank or prepare(folder, needed))
        together(comm, "the other ranks' files", lambda: writing(folder, scratch, write, needed))
        parts = together(comm, "the other ranks' checksums", lambda: describe(comm, scratch))
        files = {name: facts for part in parts for name, facts in part.items()}
        about = {"step": step, "ranks": comm.size, "progress": dict(progress or {}), "files": files}
        paths = together(
            comm, "the name of the checkpoint", lambda: "" if comm.rank else publish(folder, about, needed)
        )
    except CheckpointError:
        if comm.rank == 0:
            shutil.rmtree(scratch, ignore_errors=True)
        comm.Barrier()
        raise
    together(comm, "old checkpoints to go", lambda: comm.rank or prune(folder, keep))
    return folder / paths[0]


def prepare(folder: Path, needed: int) -> int:
    """Clear away what kills have left; make room for the files. On rank 0."""
    folder.mkdir(parents=True, exist_ok=True)
    for leftover in (*folder.glob(f"{SAVING}*"), *folder.glob(f"{REMOVING}*"), *folder.glob(f".{LATEST}.*")):
        shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
    check_room(folder, needed + SPARE_BYTES)
    (folder / SAVING).mkdir()
    return 0


def writing(folder: Path, scratch: Path, write: Callable[[Path], None], needed: int) -> None:
    """This rank's files."""
    if not scratch.is_dir():
        raise CheckpointError(f"{folder} is not the folder that rank 0 sees; choose one that all ranks share")
    try:
        write(scratch)
    except OSError as error:
        raise out_of_space(error, folder, needed) from None


def describe(comm: MPI.Intracomm, scratch: Path) -> Files:
    """Size and checksum of this rank's part of the files, now on disk; every rank takes some."""
    paths = sorted(path for path in scratch.rglob("*") if path.is_file())
    folders = sorted(path for path in scratch.rglob("*") if path.is_dir())
    for path in (*paths[comm.rank :: comm.size], *folders[comm.rank :: comm.size]):
        sync_folder(path) if path.is_dir() else sync_file(path)
    return {
        str(path.relative_to(scratch)): {"bytes": path.stat().st_size, "sha256": digest(path)}
        for path in paths[comm.rank :: comm.size]
    }


def publish(folder: Path, about: dict[str, Any], needed: int) -> str:
    """Give a checkpoint whose files are on disk its manifest and its name, and point `latest` to it."""
    scratch = folder / SAVING
    name = f"{max(map(number, names(folder)), default=0) + 1:06d}-step{about['step']}"
    try:
        write_text(scratch / MANIFEST, as_text(about))
        os.rename(scratch, folder / name)
        sync_folder(folder)
        write_text(folder / LATEST, name + "\n")
    except OSError as error:
        raise out_of_space(error, folder, needed) from None
    return name


def prune(folder: Path, keep: int) -> int:
    """Remove all but the newest `keep`; an unreadable `latest` counts as none."""
    for name in names(folder)[:-keep]:
        if name != latest(folder):
            gone = folder / f"{REMOVING}-{name}"
            os.rename(folder / name, gone)
            shutil.rmtree(gone)
    return 0


def as_text(about: Mapping[str, Any]) -> str:
    """The manifest, with a checksum of itself."""
    return json.dumps({**about, "sha256": own_digest(about)}, indent=1) + "\n"


def own_digest(about: Mapping[str, Any]) -> str:
    body = {key: value for key, value in about.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


# -------------------------------------------------------------------------------------- finding


def find(comm: MPI.Intracomm, folder: Path) -> Found | None:
    """The newest whole checkpoint, every byte of it checked; None when there is none at all.

    The one that `latest` names comes first, then the others from new to old. CheckpointError, with the name
    of each file that is wrong, when there are only damaged ones.
    """
    refused: list[str] = []
    for path in together(comm, "a list of checkpoints", lambda: candidates(folder))[0]:
        found = [part for part in check(comm, path) if part]
        if not found:
            about = read_manifest(path)
            return Found(path, about["step"], about["progress"], about["ranks"], tuple(refused))
        refused += found[:1]
    if refused:
        raise CheckpointError(
            f"no checkpoint in {folder} is whole: {'; '.join(refused)}."
            " Put the files back from a copy, or move the folder away to start anew"
        )
    return None


def check(comm: MPI.Intracomm, path: Path) -> list[str]:
    """What each rank finds wrong with the files at `path`; they share the reading, and know all of it."""

    def look() -> str:
        try:
            files = sorted(read_manifest(path)["files"].items())
            for name, facts in files[comm.rank :: comm.size]:
                check_file(path / name, facts)
        except CheckpointError as error:
            return str(error)
        return ""

    return together(comm, "what the other ranks read", look)


def check_file(path: Path, facts: Mapping[str, Any]) -> None:
    """CheckpointError unless the file is the one in the manifest."""
    try:
        size = path.stat().st_size
        if size != facts["bytes"]:
            raise CheckpointError(f"{path} has {size} bytes instead of {facts['bytes']}")
        if digest(path) != facts["sha256"]:
            raise CheckpointError(f"{path} has been changed: its sha256 is not that of the manifest")
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing") from None
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({error.strerror})") from None


def read_manifest(path: Path) -> dict[str, Any]:
    """What a checkpoint says of itself; CheckpointError."""
    try:
        about = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        whole = about["sha256"] == own_digest(about)
    except FileNotFoundError:
        raise CheckpointError(f"{path / MANIFEST} is missing") from None
    except (OSError, ValueError, KeyError, TypeError):
        whole, about = False, {}
    if not whole or any(Path(name).is_absolute() or ".." in Path(name).parts for name in about["files"]):
        raise CheckpointError(f"{path / MANIFEST} is damaged")
    return dict(about)


def candidates(folder: Path) -> list[Path]:
    """All checkpoints, in the order in which to try them."""
    newest_first = names(folder)[::-1]
    first = [name for name in newest_first if name == latest(folder)]
    return [folder / name for name in (*first, *(name for name in newest_first if name not in first))]


def names(folder: Path) -> list[str]:
    """The checkpoints, in the order in which they were saved."""
    found = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    return sorted((name for name in found if NAME.fullmatch(name)), key=number)


def number(name: str) -> int:
    """Which save it was, from 1; a step may be saved twice."""
    return int(name.partition("-")[0])


def latest(folder: Path) -> str:
    """What `latest` says; empty when there is none or it is damaged."""
    try:
        return (folder / LATEST).read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return ""
