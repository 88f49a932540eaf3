"""What prepares every rank, once: it notes its MPI calls, and no cell breaks it for the next one.

`prepare` runs on the engines. Whatever a cell did to the process (print's stream closed, a builtin replaced,
handlers of signals taken, a child forked that goes on as if it were the rank, a wait noted that an interrupt
has ended) is repaired when the cell ends.
"""

import asyncio
import atexit
import builtins
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from IPython.core.getipython import get_ipython

from mpi_classroom import quick_imports
from mpi_classroom.recording.calls import Message
from mpi_classroom.sentences import runs_of
from mpi_classroom.text_only import look_like_a_terminal

_RANK_OF_A_JOB = ("PMIX_", "OMPI_COMM_", "OMPI_MCA_ess", "PRTE_LAUNCHED", "PMI_", "MPI_LOCAL")


def prepare(folder: str) -> tuple[int, int, int, str, str, str]:
    """Record this rank's MPI calls in `folder`; return what makes its RankFacts."""
    from mpi_classroom.recording import recorder  # here, because it starts MPI, which the notebook must not

    shell: Any = get_ipython()
    known = shell.events.callbacks["post_run_cell"]
    facts = recorder.install(Path(folder))
    if not any(getattr(hook, "__name__", "") == "repair_rank" for hook in known):
        shell.events.register("post_run_cell", _repairer())
        shell.ask_exit = sys.exit  # what `exit` and `quit` of a cell call; the plain ones end the rank later
        shell.kernel._abort_queues = lambda *_: None  # a rank that raised must not skip the next cell
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # ipyparallel's handler ends half of a rank
        look_like_a_terminal(shell)
        quick_imports.install()
        _let_cells_await(shell.kernel)
        atexit.register(os._exit, 1)  # a rank that exits has died; it must not wait for the others to exit
        for name in [name for name in os.environ if name.startswith(_RANK_OF_A_JOB)]:
            del os.environ[name]  # a program that a cell starts must not take itself for this rank
    cores = in_runs(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else ""
    return *facts, socket.gethostname(), cores


def in_runs(numbers: Iterable[int]) -> str:
    """Numbers as people list them: 0–3, 8."""
    runs = runs_of(sorted(numbers))
    return ", ".join(f"{run[0]}–{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)


class _NoThread:
    """What stands in a rank's kernel for the thread that reads cells, which ipyparallel's engines lack."""

    parent_thread = threading.main_thread()

    def __bool__(self) -> bool:
        return False


def _let_cells_await(kernel: Any) -> None:
    """Let a cell with an `await` end: ipykernel 7 asks that thread for its parent, and else never replies.

    An interrupt then cancels the await, but only a loop that a signal wakes sees it at once.
    """
    type(kernel)._supports_kernel_subshells = False
    kernel.shell_channel_thread = _NoThread()
    asyncio.get_running_loop().add_signal_handler(signal.SIGURG, lambda: None)  # any signal wakes it now


def kind_of(expression: str) -> str:
    """The type of the value of `expression` among the cells' names on this rank, such as `a generator`."""
    shell: Any = get_ipython()
    kind = type(eval(expression, shell.user_ns))
    return (
        kind.__name__ if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}.{kind.__name__}"
    )


def unreceived(discard: bool) -> list[Message]:
    """The messages sent to this rank that it has not received; `discard` removes them."""
    from mpi_classroom.recording import mailbox

    return mailbox.receive_all() if discard else mailbox.unreceived()


def log_of_calls() -> bytes:
    """What this rank noted of its MPI calls since it was asked last."""
    from mpi_classroom.recording import checks

    return checks.collect()


def note_order(on: bool, pauses: bool) -> None:
    """From here on note in which order messages from any source come; with `pauses` before each send."""
    from mpi_classroom.recording import checks, messages

    checks.ordered, messages.pauses = on, pauses


def _repairer() -> Callable[..., None]:
    from mpi_classroom.recording import record, recorder

    streams = {name: (getattr(sys, name), getattr(sys, name).pub_thread) for name in ("stdout", "stderr")}
    own, pid = dict(vars(builtins)), os.getpid()

    def repair_rank(*_: object) -> None:
        if os.getpid() != pid:
            os._exit(0)  # forked in the cell, which ends here
        for name, (stream, thread) in streams.items():
            stream.pub_thread = thread  # closing it removes this
            setattr(sys, name, stream)
        vars(builtins).update(own)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        recorder.write_stacks_when_asked()  # a handler of the cell's may have replaced it
        record.forget_library_wait()  # which no rank is in between two cells

    return repair_rank
