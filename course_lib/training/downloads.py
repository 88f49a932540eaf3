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
from pathlib import Path
from urllib.parse import urlsplit

from tqdm import tqdm

from course_lib.paths import DATA
from course_lib.training.idx import IdxFile, find_file
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
REMEMBERED_SECONDS = 600.0  # until a network that was away is tried again


class DownloadError(DataError):
    """Files that could not be downloaded: the reason in one clause, and what each mirror did."""

    def __init__(self, reason: str, details: tuple[str, ...] = ()) -> None:
        super().__init__(reason)
        self.details = details


@dataclass(frozen=True, slots=True)
class Download:
    """A data set that can be downloaded: `mirrors` are addresses that a file's name completes."""

    name: str  # of its folder
    title: str
    mirrors: tuple[str, ...]
    files: tuple[IdxFile, ...]

    @property
    def nbytes(self) -> int:
        """The length of all its files."""
        return sum(file.nbytes for file in self.files)

    def missing(self, folder: Path) -> list[IdxFile]:
        """The files that are not in `folder`."""
        return [file for file in self.files if find_file(folder, file) is None]


def read_registry(name: str) -> Download:
    """The data set `name` of data/registry.toml."""
    entry = tomllib.loads(REGISTRY.read_text())[name]
    files = [IdxFile(**{**file, "shape": tuple(file["shape"])}) for file in entry["files"]]
    return Download(name, entry["title"], tuple(entry["mirrors"]), tuple(files))


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
            fetch_file(f"{file.name}.gz", file.sha256, mirrors, partial, deadline)
            os.replace(partial / f"{file.name}.gz", folder / f"{file.name}.gz")
    except TimeoutError:
        raise DownloadError(f"downloading {download.title} took longer than {patience:.0f} s") from None
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
        arguments = (mirror, f"{file.name}.gz", file.sha256, answers)
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


def ask(mirror: str, name: str, sha256: str, answers: "queue.Queue[tuple[str, str]]") -> None:
    """Put `mirror` on `answers`, and what was wrong with the file it sent, if anything."""
    received = io.BytesIO()
    try:
        http_downloader(ANSWER_SECONDS)(mirror + name, received, None)
    except OSError as error:
        answers.put((mirror, type(error).__name__))
        return
    right = hashlib.sha256(received.getvalue()).hexdigest() == sha256
    answers.put((mirror, "" if right else "another file (a login page of the network?)"))


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
    """Download `url` to `path` with a progress bar; ValueError when it has another sha256."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pooch looks for a progress bar made of widgets; ours is another
        import pooch

    pooch.get_logger().setLevel("WARNING")
    with DeadlineBar(deadline, path.name) as bar:
        download = http_downloader(ANSWER_SECONDS, bar)
        pooch.retrieve(url, f"sha256:{sha256}", path.name, path.parent, downloader=download)


def describe(error: OSError | ValueError) -> str:
    """What a mirror did wrong."""
    return type(error).__name__ if isinstance(error, OSError) else "a wrong checksum, or only a part of it"


def http_downloader(seconds: float, bar: "DeadlineBar | None" = None) -> Callable[..., object]:
    """pooch's transfer over HTTP, which gives up a connection that is silent for `seconds`."""
    import pooch

    return pooch.HTTPDownloader(progressbar=bar, chunk_size=8192, timeout=seconds)


class DeadlineBar(tqdm):
    """A progress bar that raises TimeoutError after `deadline` (time.monotonic): some mirrors dribble."""

    def __init__(self, deadline: float, name: str) -> None:
        super().__init__(desc=name, unit="B", unit_scale=True, leave=False, mininterval=0.5, delay=1)
        self.deadline = deadline

    def __bool__(self) -> bool:  # pooch asks whether there is a bar, tqdm would say whether it has a total
        return True

    def update(self, n: float | None = 1) -> bool | None:
        """Count `n` bytes more."""
        if time.monotonic() > self.deadline:
            raise TimeoutError("the download has taken too long")
        return super().update(n)
