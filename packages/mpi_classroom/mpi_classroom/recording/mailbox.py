"""Messages that were sent to this rank and that it has not received, on every recorded communicator.

A message that nobody received waits for the next receive that fits it, maybe cells later: that one then gets
an old number instead of its own.
"""

from typing import Any

from mpi4py import MPI

from mpi_classroom.recording import record
from mpi_classroom.recording.calls import Message

LOOKS = 3  # every look lets MPI move what is on its way; plain MPI's probes, for they are no wait of the cell


def unreceived() -> list[Message]:
    """The first message from every rank, on every communicator, that this rank could receive now."""
    found = []
    for comm in _communicators():
        status = MPI.Status()
        for source in range(comm.size):
            if any(MPI.Comm.Iprobe(comm, source, MPI.ANY_TAG, status) for _ in range(LOOKS)):
                found.append(_describe(comm, status))
    return sorted(found)


def receive_all() -> list[Message]:
    """Receive everything that has been sent to this rank, and discard it."""
    received = []
    for comm in _communicators():
        status = MPI.Status()
        for source in range(comm.size):
            while (message := _next(comm, source, status)) is not None:
                received.append(_describe(comm, status))
                message.Recv([bytearray(status.Get_count(MPI.BYTE)), MPI.BYTE])
    return sorted(received)


def _communicators() -> list[Any]:
    """The recorded communicators, each once: copies of the same one share their messages."""
    found: list[Any] = []
    for comm in list(record.known.values()):
        if comm != MPI.COMM_NULL and comm not in found:
            found.append(comm)
    return found


def _next(comm: Any, source: int, status: MPI.Status) -> MPI.Message | None:
    for _ in range(LOOKS):
        if (message := MPI.Comm.Improbe(comm, source, MPI.ANY_TAG, status)) is not None:
            return message
    return None


def _describe(comm: Any, status: MPI.Status) -> Message:
    ranks = comm._ranks or record.learn_ranks(comm)
    source, dest = ranks[status.source], ranks[comm.rank]
    return Message(source, dest, status.tag, status.Get_count(MPI.BYTE))
