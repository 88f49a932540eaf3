"""Where data may be kept on this machine, and how it gets there whole.

    data/ of the checkout   →   the user's cache folder   →   a folder of this user under /tmp

The first that can be written to is the home of downloads and caches; all of them are read. A file appears
under its name only when all of it is on disk, and one process a machine makes it while the others wait.
"""

import errno
import os
import shutil
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import filelock
import numpy as np
from numpy.typing import NDArray

from course_lib.paths import DATA

Arrays = dict[str, NDArray[Any]]
NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class DataError(RuntimeError):
    """Data that cannot be used or had: one sentence with its remedy; a notebook shows just that."""

    def _render_traceback_(self) -> list[str]:
        return [f"{type(self).__name__}: {self}"]


def homes() -> list[Path]:
    """The folders that may hold data, whether or not they exist, the best first."""
    user = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    candidates = [DATA, Path(user, "course_lib"), Path(tempfile.gettempdir(), f"course_lib-{os.getuid()}")]
    return [home for home in candidates if home.is_absolute() and not _of_someone_else(home)]


def _of_someone_else(home: Path) -> bool:
    """Whether `home` is a folder in the shared /tmp that another user has put there."""
    shared = home.parent == Path(tempfile.gettempdir())
    return shared and home.exists() and home.stat().st_uid != os.getuid()


def writable_home() -> Path | None:
    """The first home in which files can be made, with its cache folder; None when there is none."""
    return next((home for home in homes() if _can_write(home)), None)


def _can_write(home: Path) -> bool:
    try:
        (home / "cache").mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return all(os.access(folder, os.W_OK | os.X_OK) for folder in (home, home / "cache"))


def shown(path: Path) -> str:
    """`path` as a sentence names it, the same on every machine where it can be: data/mnist, ~/.cache/…"""
    if path.is_relative_to(DATA.parent):
        return str(path.relative_to(DATA.parent))
    user = Path(os.path.expanduser("~"))
    return f"~/{path.relative_to(user)}" if path.is_relative_to(user) else str(path)


@contextmanager
def machine_lock(home: Path, seconds: float) -> Iterator[None]:
    """What one process of this machine does at a time; DataError after waiting for `seconds`."""
    lock = filelock.FileLock(home / "cache" / "lock")
    try:
        lock.acquire(timeout=seconds)
    except filelock.Timeout:
        raise DataError(
            f"another process has been downloading or drawing data for more than {seconds:.0f} s"
            f" (it holds {lock.lock_file}); wait until it has ended, or stop it, and try again"
        ) from None
    except OSError as error:
        raise DataError(could_not_write(Path(lock.lock_file), error)) from error
    try:
        yield
    finally:
        lock.release()


def could_not_write(path: Path, error: OSError) -> str:
    """Why `path` could not be written, as one sentence."""
    if error.errno in NO_SPACE:
        free = shutil.disk_usage(path.parent).free
        return f"no space is left for {shown(path)} ({free / 1e6:.1f} MB are free); make room and try again"
    return f"{shown(path)} could not be written ({error.strerror or error}); make its folder writable"


def replace_file(path: Path, text: str) -> None:
    """Write `text` to `path`, all of it or nothing; OSError leaves what was there."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(scratch, "w", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(scratch, path)
    finally:
        scratch.unlink(missing_ok=True)


def write_npz(path: Path, recipe: str, arrays: Arrays) -> None:
    """Write `arrays` and the `recipe` they were made by; whatever goes wrong, an older file at `path` stays.

    To be called under the lock. DataError when there is no space.
    """
    contents: dict[str, Any] = {"recipe": np.array(recipe), **arrays}
    partial = path.with_name(path.name + ".partial")
    try:
        with partial.open("wb") as file:
            np.savez(file, **contents)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise DataError(could_not_write(path, error)) from error


def read_npz(path: Path, recipe: str) -> Arrays | None:
    """The arrays at `path`; None when there are none, not all of them, or those of another recipe.

    Each array in the file has a checksum, which is compared when the array is read.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile):
        return None
    return arrays if str(arrays.pop("recipe", "")) == recipe else None
