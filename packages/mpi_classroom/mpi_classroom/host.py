"""What can be asked of the ranks of one host: records, processes, stacks, signals.

The only code that touches the process ids of ranks, /proc and the files that ranks write. `LocalHost` does it
on this machine. Ranks on another one have an agent there: a `LocalHost` behind a pipe, which the notebook
asks as a `Host` too. No time crosses from one host to another, because their clocks differ: a record comes
with the time at which it was read, on the clock that the rank wrote with.
"""

import contextlib
import os
import re
import select
import signal
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

import psutil

from mpi_classroom.recording.calls import read_record, stack_file

STACK_SECONDS, BUSY_STACK_SECONDS = 0.5, 3.0
DUMPED_FRAMES = 100  # no more does Python write, whatever it says of the rest
FRAME_LINE = re.compile(r"^  File .+\n", re.MULTILINE)
PROCESS_SECONDS = 0.1  # the operating system is asked about processes this often, at most
FRESH_SECONDS = 2.0  # how long a fresh look may take; an older one does not count as fresh
END_SECONDS = 1.0  # for processes to end when they are asked to
END_TICK_SECONDS = 0.02  # between two looks whether one has ended, where the kernel does not say
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
        """Return one Look per rank. With `fresh` each was asked for after this call, which may block for 2 s.

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


class LocalHost:
    """This machine, with ranks whose files are in `folder`.

    `pids` has their processes by rank, and may grow while the ranks start. With `counts_bytes` the states of
    processes say how many bytes they moved.
    """

    name = lost = ""

    def __init__(self, folder: Path, pids: Mapping[int, int], *, counts_bytes: bool = False) -> None:
        self.folder, self.pids, self.counts_bytes = folder, pids, counts_bytes
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
            if waited > STACK_SECONDS and not any(
                process_state(self.pids.get(r, 0)).runnable for r in missing
            ):
                break
            time.sleep(0.02)
            for rank in missing:
                path = stack_file(self.folder, rank)
                text = path.read_bytes()[sizes[rank] :].decode(errors="replace") if path.exists() else ""
                if "_run_module_as_main" in text or len(FRAME_LINE.findall(text)) >= DUMPED_FRAMES:
                    stacks[rank] = text
        return stacks

    def signal(self, ranks: Iterable[int], number: int) -> None:
        """Send a signal to `ranks`."""
        for rank in ranks:
            with contextlib.suppress(
                KeyError, ProcessLookupError, PermissionError
            ):  # the others still get it
                os.kill(self.pids[rank], number)


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
                with contextlib.suppress(psutil.AccessDenied):  # it hides them
                    counters = process.io_counters()
                    moved = counters.read_chars + counters.write_chars
    except psutil.NoSuchProcess:
        return ProcessState("gone")
    except (psutil.Error, ValueError):  # nobody may look, or no process has such a number
        return UNKNOWN
    if status in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
        return ProcessState("gone")
    condition = "stopped" if status in _STOPPED else ""
    return ProcessState(condition, used, status == psutil.STATUS_RUNNING, moved)


class Ends:
    """When processes of this host end, on its monotonic clock: a thread waits for each."""

    def __init__(self) -> None:
        self.at: dict[int, float] = {}  # by the number that `wait_for` was given

    def wait_for(self, number: int, pid: int) -> None:
        """Note when process `pid` ends; one that is gone already is not noted."""
        try:
            process = os.pidfd_open(pid)
        except ProcessLookupError:
            return
        except (AttributeError, OSError):  # an old kernel
            process = -1

        def wait() -> None:
            if process >= 0:
                poll = select.poll()
                poll.register(process, select.POLLIN)
                poll.poll()
                self.at[number] = time.monotonic()
                os.close(process)
                return
            while process_state(pid).condition != "gone":
                time.sleep(END_TICK_SECONDS)
            self.at[number] = time.monotonic()

        threading.Thread(target=wait, name=f"end of {pid}", daemon=True).start()


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
