"""Effects that you cause yourself: slow messages, a slow rank, too little memory.

A laptop's ranks exchange messages in microseconds, so waiting for them is hard to see. Here it is easy:

    slow = slow_messages(comm, seconds=0.02, gbit_per_s=0.1)     delayed on purpose: 20 ms + bytes / rate
    ring_allreduce(slow, buffer)                                 the same messages and sums, later
    mpiexec -n 8 python -m course_lib.effects 0.02 0.1 code.py   a whole program whose messages are slow
    straggler(comm, rank=1, seconds=0.02)                        rank 1 sleeps, the others go on
    with memory_limit(192 * 2**20): ...                          more than 192 MiB of new memory is refused
    runs_within(192, 2, "code.py", "train(comm)")                the same in a job of two ranks: is it enough?
    with slow_collectives(mb_per_s=10) as sent: ...              torch's collectives on a slow link, counted

Who is delayed sleeps: that takes no core from the other ranks. Results never change, only times do. Use
these to understand a program; they are not part of one that you take home.
"""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import which
from time import monotonic, sleep
from typing import Any, cast

import numpy as np
from mpi4py import MPI

STATUS = Path("/proc/self/status")
LIMITED = """
import runpy, sys
from course_lib.effects import memory_limit
mib, program, code, first = sys.argv[1:]
names = runpy.run_path(program)
exec(first, names)
with memory_limit(int(mib) * 2**20):
    exec(code, names)"""
ANY, ANY_TAG = MPI.ANY_SOURCE, MPI.ANY_TAG
_NOTES = MPI.Comm.Create_keyval()  # of a communicator: the one beside it for the notes


def slow_messages(comm: MPI.Intracomm, seconds: float, gbit_per_s: float | None = None) -> MPI.Intracomm:
    """`comm` with each message delayed on purpose: it takes `seconds`, plus its bytes at `gbit_per_s`.

    All ranks call it together; `Free()` frees `comm` with it. Called again for one communicator, it returns
    another with other delays; what one sends the other may receive. Raises ValueError for a negative time or
    a rate of zero, and when ranks are on several machines, whose clocks differ.
    """
    if isinstance(comm, SlowComm):
        comm = comm.comm
    if seconds < 0 or (gbit_per_s is not None and gbit_per_s <= 0):
        raise ValueError(f"{seconds} s and {gbit_per_s} Gbit/s: use at least 0 s and a rate above 0, or None")
    machines = set(comm.allgather(MPI.Get_processor_name()))
    if len(machines) > 1:
        raise ValueError(f"the ranks are on {len(machines)} machines; messages can be delayed on one only")
    return cast(MPI.Intracomm, SlowComm(comm, seconds, gbit_per_s))


class SlowComm:
    """A communicator with a slow link. A rank sends one message at a time; the others wait for their turn.

    Beside each message travels a note, through a communicator of its own: the time at which the message shall
    arrive. Whoever waits for it sleeps until then, so computing between `Isend` and `Wait` overlaps with it.
    A collective takes as long as one message with its bytes, from when the last rank has begun it.

    The calls below are delayed. All others, such as `Barrier` and the lower-case `allreduce`, are `comm`'s
    own. Receive with a delayed call what was sent with one.
    """

    def __init__(self, comm: MPI.Intracomm, seconds: float, gbit_per_s: float | None) -> None:
        self.comm, self.seconds, self.gbit_per_s = comm, seconds, gbit_per_s
        found = cast("MPI.Intracomm | None", comm.Get_attr(_NOTES))
        self.notes = found or MPI.Intracomm(comm).Dup()
        comm.Set_attr(_NOTES, self.notes)  # one for all that share the messages of `comm`
        self.free_at = 0.0  # when this rank's link has sent everything

    def __getattr__(self, name: str) -> Any:
        return getattr(self.comm, name)

    def __repr__(self) -> str:
        rate = f" + bytes at {self.gbit_per_s:g} Gbit/s" if self.gbit_per_s else ""
        return f"{self.comm.size} ranks, delayed on purpose: {1e3 * self.seconds:g} ms{rate} per message"

    def arrival(self, nbytes: int) -> np.ndarray:
        """When a message of so many bytes arrives that is sent now, behind those that this rank has sent."""
        if self.comm.size == 1:
            return np.zeros(1)  # a rank alone needs no link
        on_the_link = self.seconds + (8e-9 * nbytes / self.gbit_per_s if self.gbit_per_s else 0.0)
        self.free_at = max(monotonic(), self.free_at) + on_the_link
        return np.array([self.free_at])

    # ------------------------------------------------------------ from rank to rank

    def Isend(self, buf: Any, dest: int, tag: int = 0) -> SlowRequest:
        arrives = np.zeros(1) if dest == MPI.PROC_NULL else self.arrival(nbytes_of(buf))
        data = self.comm.Isend(buf, dest, tag)
        note = self.notes.Isend(arrives, dest, tag)
        return SlowRequest(data, arrives, lambda _: note.Wait())

    def Irecv(self, buf: Any, source: int = ANY, tag: int = ANY_TAG) -> SlowRequest:
        arrives = np.zeros(1)
        data = self.comm.Irecv(buf, source, tag)
        return SlowRequest(data, arrives, lambda got: self.notes.Recv(arrives, got.source, got.tag))

    def Send(self, buf: Any, dest: int, tag: int = 0) -> None:
        self.Isend(buf, dest, tag).Wait()

    def Recv(self, buf: Any, source: int = ANY, tag: int = ANY_TAG, status: MPI.Status | None = None) -> None:
        self.Irecv(buf, source, tag).Wait(status)

    def Sendrecv(
        self,
        sendbuf: Any,
        dest: int,
        sendtag: int = 0,
        recvbuf: Any = None,
        source: int = ANY,
        recvtag: int = ANY_TAG,
        status: MPI.Status | None = None,
    ) -> None:
        receiving = self.Irecv(recvbuf, source, recvtag)
        sending = self.Isend(sendbuf, dest, sendtag)
        receiving.Wait(status)
        sending.Wait()

    # ------------------------------------------------------------ collectives

    def Iallreduce(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM) -> SlowRequest:
        arrives = self.arrival(nbytes_of(recvbuf))
        data = self.comm.Iallreduce(sendbuf, recvbuf, op)
        note = self.notes.Iallreduce(MPI.IN_PLACE, arrives, MPI.MAX)
        return SlowRequest(data, arrives, lambda _: note.Wait())

    def Ireduce(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM, root: int = 0) -> SlowRequest:
        mine = self.arrival(nbytes_of(recvbuf if sendbuf is MPI.IN_PLACE else sendbuf))
        arrives = mine.copy()  # only the root waits for all
        data = self.comm.Ireduce(sendbuf, recvbuf, op, root)
        note = self.notes.Ireduce(mine, arrives, MPI.MAX, root)
        return SlowRequest(data, arrives, lambda _: note.Wait())

    def Ibcast(self, buf: Any, root: int = 0) -> SlowRequest:
        arrives = self.arrival(nbytes_of(buf)) if self.comm.rank == root else np.zeros(1)
        data = self.comm.Ibcast(buf, root)
        note = self.notes.Ibcast(arrives, root)
        return SlowRequest(data, arrives, lambda _: note.Wait())

    def Allreduce(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM) -> None:
        self.Iallreduce(sendbuf, recvbuf, op).Wait()

    def Reduce(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM, root: int = 0) -> None:
        self.Ireduce(sendbuf, recvbuf, op, root).Wait()

    def Bcast(self, buf: Any, root: int = 0) -> None:
        self.Ibcast(buf, root).Wait()

    # ------------------------------------------------------------ communicators

    def Dup(self) -> MPI.Intracomm:
        copy: Any = self.comm.Dup()
        return slow_messages(copy, self.seconds, self.gbit_per_s)

    def Split(self, color: int = 0, key: int = 0) -> MPI.Intracomm:
        part: Any = self.comm.Split(color, key)
        return part if part == MPI.COMM_NULL else slow_messages(part, self.seconds, self.gbit_per_s)

    def Free(self) -> None:
        self.notes.Free()
        self.comm.Free()


class SlowRequest:
    """A message on a slow link. Wait for each with its own `Wait`; `MPI.Request.Waitall` refuses it."""

    def __init__(self, data: MPI.Request, arrives: np.ndarray, read: Callable[[MPI.Status], object]) -> None:
        self.data, self.arrives, self.read = data, arrives, read  # `read` gets the note: it fills `arrives`
        self.known, self.got = False, MPI.Status()

    def Wait(self, status: MPI.Status | None = None) -> bool:
        """Wait until the data are there, then sleep until they would have arrived."""
        if not self.known:
            self.data.Wait(self.got)
            self.read(self.got)
            self.known = True
        sleep(max(0.0, self.arrives[0] - monotonic()))
        _copy(self.got, status)
        return True

    wait = Wait

    def Test(self, status: MPI.Status | None = None) -> bool:
        """Whether the message has arrived."""
        if not self.known and self.data.Test(self.got):
            self.read(self.got)
            self.known = True
        arrived = self.known and monotonic() >= float(self.arrives[0])
        if arrived:
            _copy(self.got, status)
        return arrived


def _copy(status: MPI.Status, into: MPI.Status | None) -> None:
    if into is not None:
        into.source, into.tag, into.error = status.source, status.tag, status.error
        into.Set_elements(MPI.BYTE, status.Get_count(MPI.BYTE))


def nbytes_of(buffer: Any) -> int:
    """Bytes of an array, [array, datatype] or [array, count, datatype]."""
    array, *rest = buffer if isinstance(buffer, list | tuple) else (buffer,)
    if len(rest) == 2:
        return int(rest[0]) * rest[1].Get_size()
    return MPI.buffer(array).nbytes


@contextmanager
def slow_collectives(mb_per_s: float) -> Iterator[Counter[str]]:
    """Let torch_mpi4py's collectives take their bytes' time, and count by name the numbers that a rank sends.

    Each sends its longest tensor once, an all-reduce twice; on N ranks, a ring sends (N - 1)/N of that.
    Numbers count as 4 bytes. Collectives follow one another: nothing overlaps with them.
    """
    from unittest.mock import patch

    from torch import Tensor
    from torch.utils._pytree import tree_leaves

    from torch_mpi4py import MPIGroup

    sent, run = Counter[str](), MPIGroup._run

    def slowly(group: MPIGroup, collective: Callable[..., Any], options: Any, *given: Any) -> Any:
        longest = max((leaf.numel() for leaf in tree_leaves(given) if isinstance(leaf, Tensor)), default=0)
        numbers = longest * (2 if collective.__name__ == "all_reduce" else 1)
        sent[collective.__name__] += numbers
        sleep(4 * numbers / (mb_per_s * 1e6))
        return run(group, collective, options, *given)

    with patch.object(MPIGroup, "_run", slowly):
        yield sent


def straggler(comm: MPI.Comm, rank: int, seconds: float) -> None:
    """Make `rank` late: it sleeps for `seconds`, the others return at once."""
    if comm.rank == rank:
        sleep(seconds)


@contextmanager
def memory_limit(nbytes: int) -> Iterator[None]:
    """Let this process allocate `nbytes` more than it has now; what asks for more raises an error.

    torch raises RuntimeError, NumPy MemoryError. Use it in a job of its own: a process that was refused
    memory may be left with a call half done. Only Linux counts the memory of a process (RLIMIT_DATA);
    elsewhere this raises OSError.
    """
    if not STATUS.exists():
        raise OSError(f"{STATUS} is missing: a process's memory can be limited on Linux only; go on without")
    import resource

    data = re.search(r"VmData:\s*(\d+) kB", STATUS.read_text())
    assert data
    before = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (int(data[1]) * 1024 + nbytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def runs_within(mib: int, ranks: int, program: str, code: str, first: str = "") -> bool:
    """Whether `code` ends when each of so many ranks may allocate at most `mib` MiB for it.

    A job of its own: each rank loads the file `program`, runs `first` without a limit, since libraries
    allocate some things only once, and then `code`. Both see the program's names; the program's functions do
    not see names that the two bind. Raises RuntimeError with what the job wrote if it fails without a limit,
    too, OSError as `memory_limit` does.
    """
    if not STATUS.exists():
        raise OSError(f"{STATUS} is missing: a process's memory can be limited on Linux only; go on without")
    folders = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    command = [which("mpiexec", path=folders) or "mpiexec", "-n", str(ranks), sys.executable]
    command += ["-m", "mpi4py", "-c", LIMITED, str(mib), program]  # -m mpi4py: an error ends all
    apart = os.environ | {"MALLOC_MMAP_THRESHOLD_": "100000"}  # freed arrays go back at once

    def run(limited: str, unlimited: str) -> subprocess.CompletedProcess[str]:
        cells = [*command, limited, unlimited]
        return subprocess.run(cells, capture_output=True, text=True, env=apart, timeout=300)

    job = run(code, first)
    unclear = job.returncode and "alloc" not in job.stderr  # MPI without memory says: known error not in list
    if unclear and run("pass", f"{first}\n{code}").returncode:
        raise RuntimeError(f"the job of {ranks} ranks failed, but not for want of memory:\n{job.stderr}")
    return job.returncode == 0


def run_slowly(seconds: str, gbit_per_s: str, program: str, *arguments: str) -> None:
    """Run a Python file in which `MPI.COMM_WORLD` has slow messages; ValueError as in `slow_messages`."""
    MPI.COMM_WORLD = slow_messages(MPI.COMM_WORLD, float(seconds), float(gbit_per_s))  # type: ignore[misc]
    sys.argv = [program, *arguments]
    runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    run_slowly(*sys.argv[1:])
