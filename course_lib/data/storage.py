"""Where data are kept on this machine, and how a file gets there whole.

    COURSE_DATA   →   data/ of the checkout   →   the user's cache folder   →   a folder of this user in /tmp

Data are looked for in all of them, in this order. Downloads go to the first that can be written to; caches
and locks stay out of COURSE_DATA. A file appears under its name only when all of it is on disk, and one
process per machine makes it while the others wait.
"""

import errno
import fcntl
import hashlib
import os
import shutil
import stat
import sys
import tempfile
import time
import tokenize
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from course_lib.paths import DATA, ROOT

Arrays = dict[str, NDArray[Any]]
NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
CHECKOUT_DATA = DATA if (ROOT / "pyproject.toml").is_file() else None  # a wheel has no checkout around it
CACHE_NBYTES = 1 << 29  # a cache has at most so many bytes
LOCK_POLL_SECONDS = 0.05
DIGEST_NBYTES = hashlib.sha256().digest_size


class DataError(RuntimeError):
    """Data that cannot be used or obtained: one sentence with its remedy; a notebook shows just that."""

    def _render_traceback_(self) -> list[str]:
        return [f"{type(self).__name__}: {self}"]


def course_data() -> Path | None:
    """The folder in COURSE_DATA, relative to the working directory or to the checkout; None if it is not set.

    DataError when there is no such folder: whoever sets it expects to find data there.
    """
    setting = os.environ.get("COURSE_DATA", "")
    if setting and _course_data() is None:
        raise DataError(f"COURSE_DATA={setting} is not a folder; correct it, or unset it")
    return _course_data()


def _course_data() -> Path | None:
    setting = os.environ.get("COURSE_DATA", "")
    starts = [Path.cwd(), *([CHECKOUT_DATA.parent] if CHECKOUT_DATA else [])] if setting else []
    candidates = ((start / Path(setting).expanduser()).resolve() for start in starts)
    return next((path for path in candidates if path.is_dir()), None)


def data_folders() -> list[Path]:
    """The folders beside COURSE_DATA that may hold data, whether or not they exist, the best first."""
    temporary = Path(tempfile.gettempdir(), f"course_lib-{os.getuid()}")
    candidates = [*([CHECKOUT_DATA] if CHECKOUT_DATA else []), user_cache() / "course_lib", temporary]
    return [path for path in candidates if path.is_absolute() and (path != temporary or _is_ours(path))]


def user_cache() -> Path:
    """The folder for the user's caches: XDG_CACHE_HOME, else where this system keeps them."""
    usual = "~/Library/Caches" if sys.platform == "darwin" else "~/.cache"
    return Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser(usual))


def _is_ours(folder: Path) -> bool:
    """Whether `folder` in the shared /tmp is free, or a folder that is this user's alone and no link."""
    try:
        found = folder.lstat()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    private = stat.S_ISDIR(found.st_mode) and not stat.S_IMODE(found.st_mode) & 0o077
    return private and found.st_uid == os.getuid()


def writable_folder() -> Path | None:
    """The first of the data folders in which files can be made, with its cache; None when there is none."""
    return next((folder for folder in data_folders() if _can_write(folder)), None)


def _can_write(folder: Path) -> bool:
    try:
        folder.mkdir(mode=0o700 if folder.parent == Path(tempfile.gettempdir()) else 0o777, parents=True)
    except FileExistsError:
        pass
    except OSError:
        return False
    try:
        (folder / "cache").mkdir(exist_ok=True)
    except OSError:
        return False
    return all(os.access(path, os.W_OK | os.X_OK) for path in (folder, folder / "cache"))


def download_folder() -> Path | None:
    """Where downloads go: COURSE_DATA if it can be written to, else the writable data folder."""
    given = course_data()
    return given if given and os.access(given, os.W_OK | os.X_OK) else writable_folder()


def shown(path: Path) -> str:
    """`path` as a sentence names it, the same on every machine where it can be: COURSE_DATA/mnist."""
    base, user = _course_data(), Path(os.path.expanduser("~"))
    if base and path.is_relative_to(base):
        return str("COURSE_DATA" / path.relative_to(base))
    if CHECKOUT_DATA and path.is_relative_to(CHECKOUT_DATA.parent):
        return str(path.relative_to(CHECKOUT_DATA.parent))
    return f"~/{path.relative_to(user)}" if path.is_relative_to(user) else str(path)


@contextmanager
def machine_lock(folder: Path, seconds: float) -> Iterator[None]:
    """What one process of this machine does at a time; DataError after waiting for `seconds`."""
    path, end = folder / "cache" / "lock", time.monotonic() + seconds
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise DataError(could_not_write(path, error)) from error
    try:
        while not _locked(descriptor, path):
            if time.monotonic() > end:
                raise DataError(
                    f"another process has been downloading or drawing data for more than {seconds:.0f} s"
                    f" (it holds {path}); wait until it has ended, or stop it, and try again"
                )
            time.sleep(LOCK_POLL_SECONDS)
        yield
    finally:
        os.close(descriptor)  # and with it the lock ends, as it does with the process


def _locked(descriptor: int, path: Path) -> bool:
    """Whether this process has the lock now; DataError where the file system knows no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise DataError(could_not_write(path, error)) from error
    return True


def could_not_write(path: Path, error: OSError) -> str:
    """Why `path` could not be written, as one sentence."""
    if error.errno in NO_SPACE:
        free = shutil.disk_usage(path.parent).free
        return f"no space is left for {shown(path)} ({free / 1e6:.1f} MB are free); make room and try again"
    return f"{shown(path)} could not be written ({error.strerror or error}); make its folder writable"


def sync(path: Path) -> None:
    """Return when a file's contents, or the names in a folder, are on disk: they stay after a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_cache(path: Path, recipe: str, arrays: Arrays) -> None:
    """Write `arrays` and the `recipe` they were made by; whatever goes wrong, an older file at `path` stays.

    The file is NumPy's .npz and, after it, its sha256. To be called under the lock. DataError when there is
    no space.
    """
    contents: dict[str, Any] = {"recipe": np.array(recipe), **arrays}
    partial = path.with_name(path.name + ".partial")
    try:
        with partial.open("w+b") as file:
            np.savez(file, **contents)
            file.seek(0)
            digest = hashlib.file_digest(file, "sha256").digest()
            file.write(digest)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise DataError(could_not_write(path, error)) from error


def read_cache(path: Path, recipe: str) -> Arrays | None:
    """The arrays at `path`; None when there are none, or those of another recipe.

    None too when the file is damaged: then a warning of one sentence says so, and that they are made anew.
    """
    try:
        arrays = _read_cache(path)
    except OSError:
        return None
    except ValueError as error:
        warnings.warn(f"{shown(path)} is damaged ({error}), so its content is made anew.", stacklevel=2)
        return None
    return arrays if str(arrays.pop("recipe", "")) == recipe else None


_NO_ARRAYS = (  # beside ValueError: what zipfile and NumPy raise; an array's header is a Python literal
    zipfile.BadZipFile,
    EOFError,
    KeyError,
    MemoryError,
    NotImplementedError,
    RuntimeError,
    SyntaxError,
    tokenize.TokenError,
)


def _read_cache(path: Path) -> Arrays:
    """The arrays at `path`; ValueError unless its bytes have the digest that ends them."""
    with path.open("rb") as file:
        nbytes = os.fstat(file.fileno()).st_size
        if not DIGEST_NBYTES < nbytes <= CACHE_NBYTES:
            raise ValueError(f"it has {nbytes} bytes")
        found = hashlib.sha256()
        remaining = nbytes - DIGEST_NBYTES
        while remaining and (piece := file.read(min(remaining, 1 << 20))):
            found.update(piece)
            remaining -= len(piece)
        if file.read() != found.digest():
            raise ValueError("its digest is another one")
        file.seek(0)
        try:
            with zipfile.ZipFile(file) as members:
                if any(member.compress_type != zipfile.ZIP_STORED for member in members.infolist()):
                    raise ValueError("its arrays are packed")
            file.seek(0)
            with np.load(file, allow_pickle=False) as loaded:
                arrays = {name: loaded[name] for name in loaded.files}
        except _NO_ARRAYS as error:
            raise ValueError(type(error).__name__) from None
    if not all(isinstance(array, np.ndarray) for array in arrays.values()):
        raise ValueError("it holds other things than arrays")
    return arrays
