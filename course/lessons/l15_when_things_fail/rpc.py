"""Remote procedure calls over tags: a rank asks another rank to run a function, and gets the result.

    rank 0: call(comm, 1, "add", 2, 3)               rank 1: serve(comm, {"add": add})
        ── tag REQUEST ──  (7, "add", (2, 3))  ──▶      runs add(2, 3)
        ◀── tag REPLY ───  (7, 5, no error)  ────       7 is the number of the call

A reply that comes too late carries the number of a call that was given up: `call` drops it and reads on. An
exception comes back as text, and is raised where the call was made; so does that of a result which cannot be
pickled.

Arguments and results are pickled: use it for commands and small objects, and send arrays with `Send`. A rank
serves or calls, not both at once; `torch.distributed.rpc` has threads for that.

Source: Birrell and Nelson, Implementing remote procedure calls, ACM Transactions on Computer Systems 2(1),
1984.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping
from typing import Any

from mpi4py import MPI

from course_lib.comm.polling import wait_until

REQUEST, REPLY = 30_011, 30_012
STOP = ""  # no function has this name
_numbers = itertools.count(1)


class RemoteError(RuntimeError):
    """The function raised on the other rank, or its result cannot be pickled.

    The text has the type and the message of the exception.
    """


def serve(comm: MPI.Intracomm, functions: Mapping[str, Callable[..., Any]]) -> int:
    """Answer calls of other ranks until one of them calls `stop`; returns how many were answered."""
    answered, status = 0, MPI.Status()
    while True:
        number, name, arguments = comm.recv(source=MPI.ANY_SOURCE, tag=REQUEST, status=status)
        if name == STOP:
            return answered
        try:
            comm.send((number, functions[name](*arguments), None), status.source, REPLY)
        except Exception as error:  # the function's, or of pickling its result: nothing is sent yet
            comm.send((number, None, f"{type(error).__name__}: {error}"), status.source, REPLY)
        answered += 1


def call(comm: MPI.Intracomm, rank: int, name: str, *arguments: Any, seconds: float = 10.0) -> Any:
    """The result of `functions[name](*arguments)` on `rank`, which serves.

    Raises RemoteError with the exception that the function raised there, or that pickling its result raised,
    and TimeoutError when no reply has arrived after `seconds`: the function may still run, or have run. A
    large argument is sent only when the rank serves; that wait has no timeout.
    """
    number, deadline = next(_numbers), time.monotonic() + seconds
    comm.send((number, name, arguments), rank, REQUEST)
    answered = 0
    while answered != number:
        if not wait_until(lambda: comm.Iprobe(rank, REPLY), deadline - time.monotonic()):
            raise TimeoutError(f"rank {rank} has not answered {name}{arguments} after {seconds:g} s")
        answered, result, error = comm.recv(source=rank, tag=REPLY)  # a late one has a lower number
    if error is not None:
        raise RemoteError(f"{name} on rank {rank} raised {error}")
    return result


def stop(comm: MPI.Intracomm, rank: int) -> None:
    """Let `serve` return on `rank`."""
    comm.send((0, STOP, ()), rank, REQUEST)
