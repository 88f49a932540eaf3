"""Messages that were sent to this rank and that it has not received, on every recorded communicator.

A message that nobody received waits for the next receive that fits it, maybe cells later: that one then gets
an old number in the place of its own.
"""

from typing import Any

from mpi4py import MPI

from mpi_classroom.recording import record
from mpi_classroom.recording.calls import Letter

LOOKS = 3  # every look lets MPI move what is on its way


def unreceived() -> list[Letter]:
    """The first message from every rank, on every communicator, that this rank could receive now."""
    found = []
    for comm in _communicators():
        status = MPI.Status()
        for source in range(comm.size):
            if any(comm.Iprobe(source, MPI.ANY_TAG, status) for _ in range(LOOKS)):
                found.append(_letter(comm, status))
    return sorted(found)


def take_all() -> list[Letter]:
    """Receive everything that has been sent to this rank, and throw it away."""
    taken = []
    for comm in _communicators():
        status = MPI.Status()
        for source in range(comm.size):
            while (message := _next(comm, source, status)) is not None:
                taken.append(_letter(comm, status))
                message.Recv([bytearray(status.Get_count(MPI.BYTE)), MPI.BYTE])
    return sorted(taken)


def _communicators() -> list[Any]:
    """The recorded communicators, each once: copies of the same one share their messages."""
    found: list[Any] = []
    for comm in list(record.known.values()):
        if comm != MPI.COMM_NULL and comm not in found:
            found.append(comm)
    return found


def _next(comm: Any, source: int, status: MPI.Status) -> MPI.Message | None:
    for _ in range(LOOKS):
        if (message := comm.Improbe(source, MPI.ANY_TAG, status)) is not None:
            return message
    return None


def _letter(comm: Any, status: MPI.Status) -> Letter:
    ranks = comm._ranks or record.learn_ranks(comm)
    source, dest = ranks[status.source], ranks[comm.rank]
    return Letter(source, dest, status.tag, status.Get_count(MPI.BYTE))
