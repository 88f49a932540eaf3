"""Tests that every rank runs together: `python -m mpi_classroom.launch 3 -m pytest -q tests/ranks`.

Each rank runs the same pytest session. After every phase of a test (set-up, call, tear-down) the ranks
exchange their verdicts: when one fails, all fail, and rank 0 tells for everyone. A rank that fails while
the others still wait for it gives them a few seconds; a test that is not done by its deadline (60 s, or
`@pytest.mark.deadline(120)`) has hung. In both cases the job prints where every rank stands and aborts; where
a call holds the interpreter's lock, so that Python can do neither, each rank prints its own stacks and ends.
"""

import faulthandler
import gc
import io
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from mpi4py import MPI

from mpi_classroom.launch import job_folder

# Models are tiny here: threads would wait for each other more than they compute. Before torch is imported.
os.environ |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}

DEADLINE_SECONDS = 60.0
GRACE_SECONDS = 5.0
LOCKED_SECONDS = 10.0  # after which a watch that has not aborted the job cannot
BEGIN_SECONDS = 240.0  # for the imports of all ranks on a busy machine


@pytest.fixture
def comm() -> Iterator[MPI.Intracomm]:
    """A communicator of all ranks, new for each test: no message of one test reaches another."""
    duplicate = MPI.COMM_WORLD.Dup()
    yield duplicate
    duplicate.Free()


@dataclass(frozen=True)
class Verdict:
    """What one rank says about one phase of one test."""

    outcome: str  # passed, failed or skipped
    where: str  # the last line of the failure: file, line, message
    text: str  # the whole failure, with what the test printed


class Watch:
    """Aborts the job, with every rank's stack, unless it is cancelled in time.

    Every rank dumps its stack to a file of its own when it gets SIGUSR1, even while it is blocked
    inside MPI; the rank whose time is up first asks all for it, prints the files and aborts. That takes a
    thread that runs; `dump_traceback_later` takes none.
    """

    def __init__(self, verdicts: MPI.Intracomm, stderr: io.TextIOBase) -> None:
        self.comm, self.stderr = verdicts, stderr
        folder = tempfile.mkdtemp(prefix="ranks-", dir=job_folder()) if verdicts.rank == 0 else None
        self.folder = Path(verdicts.bcast(folder))
        self.pids = verdicts.allgather(os.getpid())
        self.stack = open(self.folder / str(verdicts.rank), "w")  # noqa: SIM115 (faulthandler writes to it)
        faulthandler.register(signal.SIGUSR1, file=self.stack, all_threads=False)
        self.timer: threading.Timer | None = None

    def start(self, seconds: float, reason: str) -> None:
        """From now on, `seconds` until the abort; rank 0 is the first to speak."""
        self.cancel()
        self.timer = threading.Timer(seconds + 0.5 * self.comm.rank, self.abort, [reason])
        self.timer.daemon = True
        self.timer.start()
        faulthandler.dump_traceback_later(seconds + LOCKED_SECONDS, exit=True, file=self.stderr)

    def cancel(self) -> None:
        faulthandler.cancel_dump_traceback_later()
        if self.timer:
            self.timer.cancel()

    def abort(self, reason: str) -> None:
        for pid in self.pids:
            os.kill(pid, signal.SIGUSR1)
        time.sleep(0.3)
        lines = [f"\nrank {self.comm.rank} of {self.comm.size}: {reason}"]
        for rank in range(self.comm.size):
            lines += [f"rank {rank} stands at (most recent call first):", own_frames(self.folder / str(rank))]
        self.stderr.write("\n".join([*lines, ""]))
        self.stderr.flush()
        shutil.rmtree(self.folder, ignore_errors=True)
        MPI.COMM_WORLD.Abort(1)


def own_frames(dump: Path) -> str:
    """The frames of a stack dump without those of pytest itself."""
    frames = [line for line in dump.read_text().splitlines() if line.startswith("  File ")]
    pytests = ("/_pytest/", "/pluggy/", "/pytest/", "<frozen runpy>", __file__)
    shown = [line for line in frames if not any(name in line for name in pytests)]
    return "\n".join(shown or ["  (in no test)"])


class Ranks:
    """The hooks that make many pytest sessions one."""

    def __init__(self, config: pytest.Config) -> None:
        self.comm = MPI.COMM_WORLD.Dup()
        self.watch = Watch(self.comm, real_stderr(config))
        self.watch.start(BEGIN_SECONDS, f"not all tests are collected after {BEGIN_SECONDS:g} s")
        if self.comm.rank > 0:
            config.get_terminal_writer()._file = io.StringIO()

    def collected(self, session: pytest.Session) -> None:
        """All ranks run the same tests in the same order, or none."""
        mine = (session.testsfailed, [item.nodeid for item in session.items])
        everyone = self.comm.allgather(mine)
        self.watch.cancel()
        different = [rank for rank, theirs in enumerate(everyone) if theirs != everyone[0]]
        errors = self.comm.allgather("\n".join(ERRORS))
        if different:
            told = "\n".join(f"rank {rank}: {errors[rank]}" for rank in [0, *different])
            pytest.exit(f"ranks {different} did not collect the tests that rank 0 did\n{told}", returncode=1)

    def expect(self, item: pytest.Item) -> None:
        """The test, or what is left of it, has its deadline from now on."""
        mark = item.get_closest_marker("deadline")
        seconds = mark.args[0] if mark else DEADLINE_SECONDS
        self.watch.start(seconds, f"{item.nodeid} is not done after {seconds:g} s")

    def combine(self, item: pytest.Item, report: pytest.TestReport) -> None:
        """Exchange verdicts; what failed on one rank has failed on all."""
        verdict = Verdict(report.outcome, *explain(report))
        if report.failed:
            reason = f"{report.nodeid} failed here, and the others do not come:\n{verdict.text}"
            self.watch.start(GRACE_SECONDS, reason)
        verdicts = self.comm.allgather(verdict)
        self.expect(item)
        if len({v.outcome for v in verdicts}) == 1 and not report.failed:
            return
        told = summary(verdicts)
        if not report.failed:
            report.outcome, report.longrepr = "failed", told
        elif self.comm.size > 1:
            report.sections.insert(0, ("all ranks", told))


def explain(report: pytest.TestReport) -> tuple[str, str]:
    """The one-line and the whole account of a failure; empty when there is none."""
    if not report.failed:
        return "", ""
    crash = getattr(report.longrepr, "reprcrash", None)
    where = f"{crash.path}:{crash.lineno}: {crash.message}" if crash else report.longreprtext
    return where, "\n".join([report.longreprtext, report.capstdout, report.capstderr]).rstrip()


def summary(verdicts: list[Verdict]) -> str:
    """The first failure in full, the others in one line each."""
    failed = [rank for rank, v in enumerate(verdicts) if v.outcome == "failed"]
    first = min(failed, default=None)
    lines = [f"failed on ranks {failed}" if failed else "not all ranks skipped it"]
    lines += [f"rank {rank}: {v.outcome} {v.where}".rstrip() for rank, v in enumerate(verdicts)]
    if first:  # rank 0 prints its own failure anyhow
        lines += ["", f"rank {first} in full:", verdicts[first].text]
    return "\n".join(lines)


def real_stderr(config: pytest.Config) -> io.TextIOBase:
    """Standard error itself, not what pytest captures."""
    capture = config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        return os.fdopen(os.dup(sys.__stderr__.fileno()), "w")


KEY = pytest.StashKey[Ranks]()
ERRORS: list[str] = []  # what could not be collected on this rank


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "deadline(seconds): when this test has hung (default 60)")
    config.stash[KEY] = Ranks(config)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.failed:
        ERRORS.append(report.longreprtext)


def pytest_collection_finish(session: pytest.Session) -> None:
    session.config.stash[KEY].collected(session)
    gc.collect()
    gc.freeze()  # what was imported stays: no later collection need look at it


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    ranks = item.config.stash[KEY]
    ranks.expect(item)
    try:
        return (yield)
    finally:
        ranks.watch.cancel()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    item.config.stash[KEY].combine(item, report)
    return report


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """Leave together: mpiexec ends the job as soon as one rank has exited with a failure."""
    sys.stdout.flush()
    ranks = config.stash[KEY]
    ranks.watch.start(DEADLINE_SECONDS, "the others do not come to the end")
    ranks.comm.Barrier()
    ranks.watch.cancel()
    faulthandler.unregister(signal.SIGUSR1)
    if ranks.comm.rank == 0:
        shutil.rmtree(ranks.watch.folder, ignore_errors=True)
