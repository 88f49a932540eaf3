"""Downloads that end: in checked files, or in one sentence after a few seconds.

    all mirrors are asked for the smallest file at once → the first that has it is used
    → a file gets its name when its length and sha256 are right → nobody answered: remembered for a while

What is downloaded is in `registry.toml`, with its length and its digest; no transfer goes on beyond that
length. One process per machine downloads, the others wait for its files or learn why there are none: four
ranks do not each wait for a network that is away. `COURSE_OFFLINE=1` forbids it all.
"""

import hashlib
import os
import queue
import shutil
import ssl
import threading
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from http.client import HTTPException
from importlib.resources import files
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit
from urllib.request import urlopen

from course_lib.data.packed import GZIP_MAGIC
from course_lib.data.storage import (
    NO_SPACE,
    DataError,
    could_not_write,
    download_folder,
    machine_lock,
    sync,
    writable_folder,
)

REGISTRY = files("course_lib.data") / "registry.toml"
LESSON_TIMEOUT, FETCH_TIMEOUT = 60.0, 900.0  # seconds that a download may take
ANSWER_SECONDS = 5.0  # for a mirror to send anything at all
LOCK_SECONDS = 30.0  # that another process may need beyond its download
PACE_SECONDS = 5.0  # after which the pace of a download is judged
REMEMBERED_SECONDS = 600.0  # until a network that was away is tried again
PIECE = 1 << 16


class DownloadError(DataError):
    """Files that could not be downloaded: the reason in one clause, and what each mirror did."""

    def __init__(self, reason: str, details: tuple[str, ...] = ()) -> None:
        super().__init__(reason)
        self.details = details


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file as it is sent and kept: its length and sha256, and the sha256 of its unpacked content."""

    name: str
    nbytes: int
    sha256: str
    content_sha256: str = ""


@dataclass(frozen=True, slots=True)
class Download:
    """A data set that can be downloaded: `mirrors` are addresses that a file's name completes."""

    name: str  # of its folder
    title: str
    mirrors: tuple[str, ...]
    files: tuple[RemoteFile, ...]

    @property
    def nbytes(self) -> int:
        """The length of all its files."""
        return sum(file.nbytes for file in self.files)

    def missing(self, folder: Path) -> list[RemoteFile]:
        """The files that are not in `folder`."""
        return [file for file in self.files if find_file(folder, file) is None]


def find_file(folder: Path, file: RemoteFile) -> Path | None:
    """Where `file` is in `folder`, as it is sent or unpacked."""
    candidates = (folder / file.name.removesuffix(".gz"), folder / file.name)
    return next((path for path in candidates if path.is_file()), None)


def registered(name: str) -> dict[str, Any]:
    """All that `registry.toml` knows of the data set `name`."""
    entry: dict[str, Any] = tomllib.loads(REGISTRY.read_text(encoding="utf-8"))[name]
    return entry


def read_registry(name: str) -> Download:
    """The files of the data set `name` that can be downloaded."""
    entry = registered(name)
    return Download(
        name, entry["title"], tuple(entry["mirrors"]), tuple(RemoteFile(**file) for file in entry["files"])
    )


def is_offline() -> bool:
    """Whether COURSE_OFFLINE forbids the network."""
    return os.environ.get("COURSE_OFFLINE", "") not in ("", "0")


def obtain(download: Download, *, timeout: float, insist: bool = False) -> Path:
    """The folder with all files of `download`, downloaded by this process or by another one just now.

    DownloadError when they cannot be obtained within `timeout` seconds, and at once when the network was away
    a short while ago, unless `insist`.
    """
    if is_offline():
        raise DownloadError("COURSE_OFFLINE=1 forbids downloads")
    caches, target = writable_folder(), download_folder()
    if caches is None or target is None:
        raise DownloadError("no folder of this machine can be written to")
    with machine_lock(caches, timeout + LOCK_SECONDS):
        folder, note = target / download.name, caches / "cache" / f"{download.name}-not-downloaded"
        if download.missing(folder):
            if not insist:
                refuse_what_failed(note)
            fetch_remembering(download, folder, note, timeout)
        return folder


def explain(error: DownloadError, download: Download, files: str) -> str:
    """`error` with what each mirror did, and the remedy: which `files` to put where."""
    if is_offline():
        return f"{download.title} is not here and {error}; unset COURSE_OFFLINE to download it"
    details = f" ({'; '.join(error.details)})" if error.details else ""
    return f"{error}{details}; try again later, or put {files} into data/{download.name}"


def refuse_what_failed(note: Path) -> None:
    """DownloadError, with the same words, when a download failed a short while ago."""
    with suppress(OSError):  # there is no such note
        if 0 <= time.time() - note.stat().st_mtime < REMEMBERED_SECONDS:
            raise DownloadError(note.read_text())


def fetch_remembering(download: Download, folder: Path, note: Path, timeout: float) -> None:
    """`fetch`, leaving a note when it fails."""
    try:
        fetch(download, folder, timeout)
    except DownloadError as error:
        with suppress(OSError):  # a full disk: the next process finds out for itself
            note.write_text(str(error))
        raise
    note.unlink(missing_ok=True)


def fetch(download: Download, folder: Path, timeout: float) -> None:
    """Download what is missing in `folder`; DownloadError when there is no mirror, time or space for it.

    The files get their names together, when all of them are right and on disk.
    """
    deadline = time.monotonic() + timeout
    mirrors = rank_mirrors(download)
    partial = folder / ".partial"  # what a killed process left there is removed with it
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        missing = download.missing(folder)
        for file in missing:
            fetch_file(file, mirrors, partial, deadline)
        for file in missing:
            os.replace(partial / file.name, folder / file.name)
        sync(folder)
    except TimeoutError:
        raise DownloadError(f"downloading {download.title} takes longer than {timeout:.0f} s") from None
    except OSError as error:
        raise DownloadError(could_not_write(folder, error)) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def rank_mirrors(download: Download) -> list[str]:
    """The mirrors to use: first the one that sent the smallest file first, none that failed to.

    Every mirror has the same ANSWER_SECONDS, so that is what a dead network costs. The threads of mirrors
    that hang, a name server included, are left to themselves.
    """
    file = min(download.files, key=lambda file: file.nbytes)
    answers: queue.Queue[tuple[str, str]] = queue.Queue()
    for mirror in download.mirrors:
        arguments = (mirror, file, answers)
        threading.Thread(target=ask, args=arguments, daemon=True).start()
    failed: dict[str, str] = {}
    deadline = time.monotonic() + ANSWER_SECONDS
    for _ in download.mirrors:
        try:
            mirror, problem = answers.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            break
        if not problem:
            return [mirror, *(m for m in download.mirrors if m != mirror and m not in failed)]
        failed[mirror] = problem
    silent = f"no answer within {ANSWER_SECONDS:.0f} s"
    details = [f"{urlsplit(m).netloc}: {failed.get(m, silent)}" for m in download.mirrors]
    raise DownloadError(f"no mirror of {download.title} could be reached", tuple(details))


def ask(mirror: str, file: RemoteFile, answers: "queue.Queue[tuple[str, str]]") -> None:
    """Put `mirror` on `answers`, and what was wrong with the beginning of the file it sent, if anything."""
    try:
        with opened(mirror + file.name) as response:
            right = response.read(len(GZIP_MAGIC)) == GZIP_MAGIC
    except (OSError, HTTPException) as error:
        answers.put((mirror, type(error).__name__))
        return
    answers.put((mirror, "" if right else "another file (a login page of the network?)"))


def opened(url: str) -> Any:
    """The answer to a request for `url`, which gives up when it is silent for ANSWER_SECONDS."""
    return urlopen(url, timeout=ANSWER_SECONDS, context=certificates())


@cache
def certificates() -> ssl.SSLContext:
    """The system's certificates and, where it is installed, certifi's: some Pythons on macOS have none."""
    context = ssl.create_default_context()
    with suppress(ImportError):
        import certifi

        context.load_verify_locations(certifi.where())
    return context


def fetch_file(file: RemoteFile, mirrors: list[str], folder: Path, deadline: float) -> None:
    """Download `file` to `folder` from the first mirror that has all of it; TimeoutError at the deadline.

    A mirror that fails is taken off `mirrors`: it costs its seconds once, not once per file.
    """
    problems = []
    while mirrors:
        try:
            transfer(mirrors[0] + file.name, file, folder / file.name, deadline)
            return
        except (OSError, HTTPException, ValueError) as error:
            if isinstance(error, OSError) and error.errno in NO_SPACE:
                raise
            what = error if isinstance(error, ValueError) else type(error).__name__
            problems.append(f"{urlsplit(mirrors.pop(0)).netloc}: {what}")
        if time.monotonic() > deadline:
            raise TimeoutError
    raise DownloadError(f"no mirror sent all of {file.name}", tuple(problems))


def transfer(url: str, file: RemoteFile, path: Path, deadline: float) -> None:
    """Download `url` to `path` and on to the disk, with a progress bar.

    ValueError when it is not `file`; nothing is received beyond its length. TimeoutError at the deadline,
    and before it when the file, at the pace it comes, would take more than twice the time that is left.
    """
    with opened(url) as response, path.open("wb") as target, progress(path.name, file.nbytes) as advance:
        receive(response, target, file, deadline, advance)
        target.flush()
        os.fsync(target.fileno())


def receive(
    response: Any, target: IO[bytes], file: RemoteFile, deadline: float, advance: Callable[[int], object]
) -> None:
    """Write `response` to `target` piece by piece; ValueError when it is not `file`."""
    digest, received, began = hashlib.sha256(), 0, time.monotonic()
    while piece := response.read1(PIECE):  # what has come: a slow mirror cannot hold us up in here
        received += len(piece)
        if received > file.nbytes:
            raise ValueError(f"more than the {file.nbytes} bytes of the original")
        digest.update(piece)
        target.write(piece)
        advance(len(piece))
        now = time.monotonic()
        if now > deadline or is_hopeless(received, file.nbytes, now - began, deadline - now):
            raise TimeoutError("the download takes too long")
    if received < file.nbytes or digest.hexdigest() != file.sha256:
        raise ValueError("a wrong checksum, or only a part of it")


def is_hopeless(received: int, nbytes: int, elapsed: float, remaining: float) -> bool:
    """Whether a download has gone on for a while, too slowly to end in the `remaining` seconds."""
    return elapsed >= PACE_SECONDS and (nbytes - received) * elapsed > 2 * remaining * received


@contextmanager
def progress(name: str, nbytes: int) -> Iterator[Callable[[int], object]]:
    """A progress bar after the first second, where tqdm is installed; it is advanced by calling it."""
    try:
        from tqdm import tqdm
    except ImportError:
        yield lambda received: None
        return
    with tqdm(
        total=nbytes, desc=name, unit="B", unit_scale=True, leave=False, mininterval=0.5, delay=1
    ) as bar:
        yield bar.update
