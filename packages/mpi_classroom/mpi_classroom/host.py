"""What can be asked of the ranks of one host: records, processes, stacks, signals.

The only code that touches the process ids of ranks, /proc and the files that ranks write. `LocalHost` does it
on this machine. Ranks on another one have an agent there: a `LocalHost` behind a pipe, which the notebook
asks as a `Host` too. No time crosses from one host to another, because their clocks differ: a record comes
with the time at which it was read, on the clock that the rank wrote with.
"""

import contextlib
import os
import re
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

import psutil

from mpi_classroom.folders import remove_ours
from mpi_classroom.processes import CLUSTER, end_marked
from mpi_classroom.recording.calls import read_record, stack_file

STACK_SECONDS, BUSY_STACK_SECONDS = 0.5, 3.0
PROCESS_SECONDS = 0.1  # the operating system is asked about processes this often, at most
FRESH_SECONDS = 2.0  # how long a fresh look may take; one that is older was not asked for now
END_SECONDS = 1.0  # for processes to end when they are asked to
_STOPPED = (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)


class ProcessState(NamedTuple):
    """What the operating system says of a process: `condition` is "gone", "stopped" (by a signal) or "".

    `moved` has the bytes that it read and wrote by `read`, `write` and their relatives, as Open MPI moves
    messages between hosts; None where nobody asked.
    """

    condition: str
    cpu_seconds: float | None = None
    runnable: bool = False
    moved: int | None = None


UNKNOWN = ProcessState("")


class Look(NamedTuple):
    """One rank at one moment: its record, the monotonic time of its host when that was read, its process.

    `age` is how many seconds ago the host was asked, on the clock of the one who asked.
    """

    record: bytes
    now: float
    process: ProcessState
    age: float = 0.0


class Host(Protocol):
    """A machine with ranks."""

    @property
    def name(self) -> str:
        """Its name in the list of hosts; "" where there is only one."""
        ...

    @property
    def lost(self) -> str:
        """Why it does not answer any more, in one sentence; "" while it does."""
        ...

    @property
    def pids(self) -> Mapping[int, int]:
        """The process ids that its ranks have there, by rank, as far as they are known."""
        ...

    def look(self, ranks: Iterable[int], *, fresh: bool, processes: bool = True) -> Mapping[int, Look]:
        """One Look for each of `ranks`; blocks, for at most 2 s, only if it is to be `fresh`: asked for now.

        Of a host that does not answer: the last that is known. Without `processes` only the records count.
        """
        ...

    def ask_stacks(self, ranks: Iterable[int]) -> Callable[[], Mapping[int, str]]:
        """Ask `ranks` for their Python stacks at once; the call that is returned waits for them.

        A rank that does not write its stack is left out.
        """
        ...

    def signal(self, ranks: Iterable[int], number: int) -> None:
        """Send a signal to `ranks`; those that are gone do not matter."""
        ...

    def end(self) -> None:
        """End every process that is marked with the cluster's folder, and remove the folder."""
        ...


class LocalHost:
    """This machine, with ranks whose files are in `folder`.

    `pids` has their processes by rank, and may grow while the ranks start. With `counts_bytes` the states of
    processes say how many bytes they moved.
    """

    lost = ""

    def __init__(
        self, folder: Path, pids: Mapping[int, int], name: str = "", *, counts_bytes: bool = False
    ) -> None:
        self.folder, self.pids, self.name, self.counts_bytes = folder, pids, name, counts_bytes
        self._processes: dict[int, tuple[float, ProcessState]] = {}

    def look(self, ranks: Iterable[int], *, fresh: bool, processes: bool = True) -> dict[int, Look]:
        """Each of `ranks` as it is now; of its process what is known, if that is not to be `fresh` too."""
        return {rank: self._look_at(rank, fresh, processes) for rank in ranks}

    def _look_at(self, rank: int, fresh: bool, processes: bool) -> Look:
        record, now = read_record(self.folder, rank), time.monotonic()
        if not processes:  # to ask the operating system takes a millisecond
            return Look(record, now, UNKNOWN)
        at, state = self._processes.get(rank, (0.0, None))
        if state is None or fresh or now - at >= PROCESS_SECONDS:
            state = process_state(self.pids.get(rank, 0), counts_bytes=self.counts_bytes)
            self._processes[rank] = now, state
        return Look(record, now, state)

    def ask_stacks(self, ranks: Iterable[int]) -> Callable[[], dict[int, str]]:
        """Send SIGUSR1 to those of `ranks` that write their stack then.

        A rank that is stopped or gone writes none within STACK_SECONDS. One that wants a CPU gets longer: on
        a busy machine it may not have had one.
        """
        sizes = {}
        for rank in ranks:
            path, pid = stack_file(self.folder, rank), self.pids.get(rank, 0)
            with contextlib.suppress(ProcessLookupError):
                if pid and _answers(pid):
                    sizes[rank] = path.stat().st_size if path.exists() else 0  # in bytes
                    os.kill(pid, signal.SIGUSR1)
        return lambda: self._stacks(sizes)

    def _stacks(self, sizes: Mapping[int, int]) -> dict[int, str]:
        """What ranks have written to their stack files beyond `sizes`, once it is whole."""
        stacks: dict[int, str] = {}
        began = time.monotonic()
        while missing := sizes.keys() - stacks.keys():
            waited = time.monotonic() - began
            if waited > BUSY_STACK_SECONDS:
                break
            if waited > STACK_SECONDS and not any(process_state(self.pids[r]).runnable for r in missing):
                break
            time.sleep(0.02)
            for rank in missing:
                path = stack_file(self.folder, rank)
                text = path.read_bytes()[sizes[rank] :].decode(errors="replace") if path.exists() else ""
                if "_run_module_as_main" in text or "\n  ...\n" in text:  # the last frame, or the hundredth
                    stacks[rank] = text
        return stacks

    def signal(self, ranks: Iterable[int], number: int) -> None:
        """Send a signal to `ranks`."""
        for rank in ranks:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pids[rank], number)

    def end(self) -> None:
        """End every process here that is marked with the folder; remove the folder if it is ours."""
        end_marked(CLUSTER, str(self.folder), timeout=END_SECONDS)
        remove_ours(self.folder)


def process_state(pid: int, *, counts_bytes: bool = False) -> ProcessState:
    """What the operating system says of the process `pid`; 0 is one that is not known yet."""
    if not pid:
        return UNKNOWN
    moved = None
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            used, status = sum(process.cpu_times()[:2]), process.status()
            if counts_bytes:
                counters = process.io_counters()
                moved = counters.read_chars + counters.write_chars
    except psutil.Error:
        return ProcessState("gone")
    if status in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
        return ProcessState("gone")
    condition = "stopped" if status in _STOPPED else ""
    return ProcessState(condition, used, status == psutil.STATUS_RUNNING, moved)


def some_child_runs(pid: int) -> bool:
    """Whether some process that `pid` started, directly or not, has work for a CPU."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return any(
            process_state(child.pid).runnable for child in psutil.Process(pid).children(recursive=True)
        )
    return False


def _answers(pid: int) -> bool:
    """Whether the process handles SIGUSR1: without a handler, which a cell may remove, the signal ends it."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:  # another system
        return True
    handled = re.search(r"^SigCgt:\s*([0-9a-f]+)", status, re.MULTILINE)
    return handled is None or bool(int(handled[1], 16) >> (signal.SIGUSR1 - 1) & 1)
