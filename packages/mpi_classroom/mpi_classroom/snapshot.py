"""What all ranks are doing at one moment: plain data, without a clock, a process or a file.

    rank 0  waiting in Allreduce                  cell line 7   comm.Allreduce(mine, total)
    rank 1  raised ValueError: boom               cell line 4   raise ValueError("boom")
    rank 2  waiting in Recv from rank 1, tag 5    cell line 9   comm.Recv(inbox, source=1, tag=5)
    rank 3  finished

`observer.py` makes snapshots, `watch.py` decides from them, `cause.py` explains them. A close look also
asks each rank for its Python stack; reports are made from it.
"""

from dataclasses import dataclass
from typing import Literal

from mpi_classroom.recording.calls import Call, Counts, Done

# Of a future or a thread; many other classes have methods of these names.
THREAD_WAITS = frozenset(("result", "get", "join"))
AWAITS = "in an await, or in nothing at all"  # as `inside`; `cause.py` tells it from a loop
NOTHING_COUNTED = Counts()
SIGKILL = 9  # on every system
HOW_IS_UNKNOWN = "(killed, crashed, or left Python: mpiexec does not say)"
Kind = Literal["finished", "raised", "waiting", "computing", "stopped", "gone"]


@dataclass(frozen=True, slots=True)
class Death:
    """How one rank ended before its time, as mpiexec says.

    It called Abort, was ended by `signal`, from outside or in a crash, left Python with `exit_code`, or left
    Python without finishing MPI. On several hosts it may also be known from others than mpiexec that it was
    lost with its `host`, or that it ended first; "perhaps" means that it or another rank with "perhaps" ended
    first. `job` is 1, or 2 and more for ranks that were spawned; `host` is where it ran, if there are
    several.
    """

    rank: int
    how: Literal["abort", "signal", "crash", "exit", "left", "host", "first", "perhaps"]
    signal: int | None = None
    exit_code: int | None = None
    job: int = 1
    host: str = ""

    @property
    def words(self) -> str:
        """How it died, as a sentence that begins with the rank says it."""
        if self.how == "abort":
            return "called Abort"
        if self.how == "host":
            return f"was lost with its host {self.host}"
        if self.how == "first":
            return f"died first {HOW_IS_UNKNOWN}"
        if self.how == "perhaps":
            return f"perhaps died first {HOW_IS_UNKNOWN}"
        if self.how == "exit":
            return f"ended itself with exit code {self.exit_code}"
        if self.how == "left":
            return "left Python without finishing MPI (os._exit)"
        if self.signal == SIGKILL:
            return "was killed (signal 9: by hand, or because memory ran out)"
        if self.how == "crash":
            return f"crashed (signal {self.signal})"
        return f"was ended by signal {self.signal}"


@dataclass(frozen=True, slots=True)
class RankState:
    """What one rank is doing.

    `kind`: a "stopped" rank is held by a signal or a debugger and may go on, one that is "gone" has no
    process any more. "computing" is all that is in no recorded call and in no line that looks like a wait: a
    sleep, a download, or a rank whose stack is missing, too. `call` is the MPI call that it waits in, and
    says which rank it waits for; a "waiting" rank has one, except in a close look, where its source line may
    be all that is known. `since` is the second of the snapshot's clock at which it was first seen there.
    `error` says what it raised, how it died or that it is stopped. `death`: how it died; None of a rank that
    is "gone" because others died. `silent`: it counts as "stopped" because its host does not answer. `line`
    and `code` are the cell's line that it has reached. `inside`: the line where it is, in a function of a
    cell that this line called; without any cell on the stack, the library's line. `unrecorded`: the calls in
    the line where it is that may wait, unseen by the recorder. These four are known only from a close look.
    `done` is the last collective that it completed, or began without blocking, `counts` the collectives,
    messages and bytes so far, and the requests that are still posted. `cpu_seconds` is the CPU time of its
    process, None while unknown; `runnable`, whether it wants a CPU now. `moved` has the bytes that it read
    and wrote so far, None where nobody asked. `host` is where it runs, "" if all ranks are on this machine.
    `pid` is its process, if it is stopped.
    """

    rank: int
    kind: Kind
    call: Call | None = None
    error: str = ""
    line: int | None = None
    code: str = ""
    inside: str = ""
    unrecorded: tuple[str, ...] = ()
    done: Done | None = None
    since: float = 0.0
    counts: Counts = NOTHING_COUNTED
    death: Death | None = None
    silent: bool = False
    cpu_seconds: float | None = None
    runnable: bool = False
    moved: int | None = None
    host: str = ""
    pid: int | None = None

    @property
    def ended(self) -> bool:
        """Whether it has ended the cell, well or with an error."""
        return self.kind in ("finished", "raised")

    @property
    def call_number(self) -> int | None:
        """Which of its calls it is in: what the stack says of that in a close look may be another name."""
        return self.call.number if self.call else None

    @property
    def waits_for_thread(self) -> bool:
        """Whether it waits for another thread of its process, whose MPI calls are not recorded."""
        for_thread = THREAD_WAITS.intersection(self.unrecorded)
        return self.kind == "waiting" and self.call is None and bool(for_thread)

    def what(self) -> str:
        """The middle column: what this rank is doing."""
        if self.kind == "waiting":
            return f"waiting in {self.call or self.unrecorded[0]}"
        if self.kind in ("raised", "stopped", "gone"):
            return self.error
        return self.kind

    def where(self) -> str:
        """The last column: the cell's line, and where that led."""
        if self.line is None:
            return self.inside
        code = f"cell line {self.line:<3} {self.code}"
        return f"{code}  → {self.inside}" if self.inside else code


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All ranks at one moment, `seconds` after the cell began; time in which the machine slept is left out.

    `ranks` run the cell that is watched, `background` those of the other ranks that still run a cell started
    earlier, with `%%px --noblock`. `down` is why the cluster as a whole no longer runs, "" while it does;
    `died`, whether a rank of it is known to be dead, which is asked once it is down, and in a close look.
    `ended`: all ranks have ended the cell, whatever became of them afterwards. `counted`: the counts are of
    this moment; otherwise a host did not answer in time, and they may be older.
    """

    seconds: float
    ranks: tuple[RankState, ...]
    background: tuple[RankState, ...] = ()
    down: str = ""
    died: bool = False
    ended: bool = False
    counted: bool = True

    @property
    def busy(self) -> tuple[RankState, ...]:
        """The ranks that have not ended the cell, then those that run one in the background."""
        return (*(state for state in self.ranks if not state.ended), *self.background)
