"""Downloads that end: in checked files, or in one sentence after a few seconds.

    all mirrors are asked for the smallest file at once → the first that sends it, unaltered, is used
    → a file appears in its folder when its sha256 is right → nobody answered: remembered for a while

One process a machine downloads, the others wait for its files or learn why there are none: four ranks do
not each wait for a network that is away. `COURSE_OFFLINE=1` forbids it all. pooch does the transfer.
"""

import hashlib
import io
import os
import queue
import shutil
import threading
import time
import tomllib
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import urlopen

from tqdm import tqdm

from course_lib.paths import DATA
from course_lib.training.idx import GZIP_MAGIC, IdxFile, find_file
from course_lib.training.storage import (
    NO_SPACE,
    DataError,
    could_not_write,
    machine_lock,
    writable_home,
)

REGISTRY = DATA / "registry.toml"
ANSWER_SECONDS = 5.0  # for a mirror to send some kilobytes, or anything at all later
LOCK_SECONDS = 30.0  # that another process may need beyond its download
PACE_SECONDS = 5.0  # after which the pace of a download is judged
SMALL_NBYTES = 1_000_000  # of a file that a mirror can send whole for an answer
REMEMBERED_SECONDS = 600.0  # until a network that was away is tried again


class DownloadError(DataError):
    """Files that could not be downloaded: the reason in one clause, and what each mirror did."""

    def __init__(self, reason: str, details: tuple[str, ...] = ()) -> None:
        super().__init__(reason)
        self.details = details


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file that is kept as it was sent; its length and its sha256, where they are known."""

    name: str
    nbytes: int = 0
    sha256: str = ""

    @property
    def sent_name(self) -> str:
        """What the file is called where it is downloaded from."""
        return self.name

    @property
    def magic(self) -> bytes:
        """What it begins with."""
        return b"PAR1" if self.name.endswith(".parquet") else GZIP_MAGIC


@dataclass(frozen=True, slots=True)
class Download:
    """A data set that can be downloaded: `mirrors` are addresses that a file's name completes."""

    name: str  # of its folder
    title: str
    mirrors: tuple[str, ...]
    files: tuple[IdxFile | RemoteFile, ...]

    @property
    def nbytes(self) -> int:
        """The length of all its files."""
        return sum(file.nbytes for file in self.files)

    def missing(self, folder: Path) -> list[IdxFile | RemoteFile]:
        """The files that are not in `folder`."""
        return [file for file in self.files if find_file(folder, file) is None]


def read_registry(name: str) -> Download:
    """The data set `name` of data/registry.toml."""
    entry = tomllib.loads(REGISTRY.read_text())[name]
    files = [to_file(file) for file in entry["files"]]
    return Download(name, entry["title"], tuple(entry["mirrors"]), tuple(files))


def to_file(entry: dict[str, Any]) -> IdxFile | RemoteFile:
    """What the registry says of a file: an array's if it has a shape."""
    return IdxFile(**{**entry, "shape": tuple(entry["shape"])}) if "shape" in entry else RemoteFile(**entry)


def is_offline() -> bool:
    """Whether COURSE_OFFLINE forbids the network."""
    return os.environ.get("COURSE_OFFLINE", "") not in ("", "0")


def obtain(download: Download, *, patience: float, insist: bool = False) -> Path:
    """The folder with all files of `download`, downloaded by this process or by another one just now.

    DownloadError when they cannot be had within `patience` seconds, at once when the network was away a
    short while ago, unless `insist`.
    """
    if is_offline():
        raise DownloadError("COURSE_OFFLINE=1 forbids downloads")
    home = writable_home()
    if home is None:
        raise DownloadError("no folder of this machine can be written to")
    with machine_lock(home, patience + LOCK_SECONDS):
        folder, note = home / download.name, home / "cache" / f"{download.name}-not-downloaded"
        if download.missing(folder):
            if not insist:
                refuse_what_failed(note)
            fetch_remembering(download, folder, note, patience)
        return folder


def refuse_what_failed(note: Path) -> None:
    """DownloadError, with the same words, when a download failed a short while ago."""
    with suppress(OSError):  # there is no such note
        if 0 <= time.time() - note.stat().st_mtime < REMEMBERED_SECONDS:
            raise DownloadError(note.read_text())


def fetch_remembering(download: Download, folder: Path, note: Path, patience: float) -> None:
    """`fetch`, leaving a note when it fails."""
    try:
        fetch(download, folder, patience)
    except DownloadError as error:
        with suppress(OSError):  # a full disk: the next process finds out for itself
            note.write_text(str(error))
        raise
    note.unlink(missing_ok=True)


def fetch(download: Download, folder: Path, patience: float) -> None:
    """Download what is missing in `folder`; DownloadError when there is no mirror, time or space for it."""
    deadline = time.monotonic() + patience
    mirrors = rank_mirrors(download)
    partial = folder / ".partial"  # what a killed process left there is removed with it
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        for file in download.missing(folder):
            fetch_file(file.sent_name, file.sha256, mirrors, partial, deadline)
            os.replace(partial / file.sent_name, folder / file.sent_name)
    except TimeoutError:
        raise DownloadError(f"downloading {download.title} takes longer than {patience:.0f} s") from None
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


def ask(mirror: str, file: IdxFile | RemoteFile, answers: "queue.Queue[tuple[str, str]]") -> None:
    """Put `mirror` on `answers`, and what was wrong with the file it sent, if anything."""
    try:
        right = sends(mirror + file.sent_name, file)
    except (OSError, HTTPException) as error:
        answers.put((mirror, type(error).__name__))
        return
    answers.put((mirror, "" if right else "another file (a login page of the network?)"))


def sends(url: str, file: IdxFile | RemoteFile) -> bool:
    """Whether `url` is `file`; of a large one only whether it begins as it should and has its length."""
    if 0 < file.nbytes <= SMALL_NBYTES:
        received = io.BytesIO()
        http_downloader(ANSWER_SECONDS)(url, received, None)
        return hashlib.sha256(received.getvalue()).hexdigest() == file.sha256
    with urlopen(url, timeout=ANSWER_SECONDS) as response:
        length, first = response.headers.get("Content-Length"), response.read(len(file.magic))
    return first == file.magic and (not file.nbytes or length in (None, str(file.nbytes)))


def fetch_file(name: str, sha256: str, mirrors: list[str], folder: Path, deadline: float) -> None:
    """Download `name` to `folder` from the first mirror that has it whole; TimeoutError at the deadline.

    A mirror that fails is taken off `mirrors`: it costs its seconds once, not once a file.
    """
    problems = []
    while mirrors:
        try:
            transfer(mirrors[0] + name, sha256, folder / name, deadline)
            return
        except (OSError, ValueError) as error:  # ValueError: the sha256 is another
            if isinstance(error, OSError) and error.errno in NO_SPACE:
                raise
            problems.append(f"{urlsplit(mirrors.pop(0)).netloc}: {describe(error)}")
        if time.monotonic() > deadline:
            raise TimeoutError
    raise DownloadError(f"no mirror sent all of {name}", tuple(problems))


def transfer(url: str, sha256: str, path: Path, deadline: float) -> None:
    """Download `url` to `path` with a progress bar; ValueError when its sha256 is known and another."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pooch looks for a progress bar made of widgets; ours is another
        import pooch

    pooch.get_logger().setLevel("WARNING")
    with DeadlineBar(deadline, path.name) as bar:
        download = http_downloader(ANSWER_SECONDS, bar)
        known = f"sha256:{sha256}" if sha256 else None
        pooch.retrieve(url, known, path.name, path.parent, downloader=download)


def describe(error: OSError | ValueError) -> str:
    """What a mirror did wrong."""
    return type(error).__name__ if isinstance(error, OSError) else "a wrong checksum, or only a part of it"


def http_downloader(seconds: float, bar: "DeadlineBar | None" = None) -> Callable[..., object]:
    """pooch's transfer over HTTP, which gives up a connection that is silent for `seconds`."""
    import pooch

    return pooch.HTTPDownloader(progressbar=bar, chunk_size=8192, timeout=seconds)


class DeadlineBar(tqdm):
    """A progress bar that raises TimeoutError after `deadline` (time.monotonic): some mirrors dribble.

    It does so before when the file, at the pace it comes, would take more than twice the time that is left.
    """

    def __init__(self, deadline: float, name: str) -> None:
        super().__init__(desc=name, unit="B", unit_scale=True, leave=False, mininterval=0.5, delay=1)
        self.deadline, self.began = deadline, time.monotonic()

    def __bool__(self) -> bool:  # pooch asks whether there is a bar, tqdm would say whether it has a total
        return True

    def update(self, n: float | None = 1) -> bool | None:
        """Count `n` bytes more."""
        now = time.monotonic()
        if now > self.deadline or self.is_hopeless(now):
            raise TimeoutError("the download takes too long")
        return super().update(n)

    def is_hopeless(self, now: float) -> bool:
        """Whether it has gone on for a while, too slowly to end in time."""
        elapsed = now - self.began
        if elapsed < PACE_SECONDS or not self.total:
            return False
        return (self.total - self.n) * elapsed > 2 * (self.deadline - now) * self.n
