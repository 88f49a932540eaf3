"""Count the bytes and messages that a rank sends, to compare them with the formulas.

    counting = counted(comm)
    ring_allreduce(counting, buffer)
    counting.sent                        # Traffic(messages=6, nbytes=1572864)
    counting.sent_to[right]              # the part of it that was addressed to one rank

A counted communicator is the communicator itself with its sends counted: it sends the same messages to the
same ranks. What MPI's own collectives and persistent requests send stays uncounted, and so does a message to
PROC_NULL, which goes nowhere. Pickled messages count with the bytes of their pickle.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

from mpi4py import MPI

from course_lib.theory.cost_model import Traffic

BUFFERS = (
    *("Send", "Ssend", "Bsend", "Rsend", "Isend", "Issend", "Ibsend", "Irsend"),
    *("Sendrecv", "Sendrecv_replace", "Isendrecv", "Isendrecv_replace"),
)
PICKLES = ("send", "ssend", "bsend", "isend", "issend", "ibsend", "sendrecv")


class CountedComm(MPI.Intracomm):
    """A communicator that counts what this rank sends through it, by destination; `counted` makes one."""

    sent_to: dict[int, Traffic]

    @property
    def sent(self) -> Traffic:
        """Everything that this rank has sent."""
        return sum(self.sent_to.values(), Traffic())

    def reset(self) -> None:
        """Count from zero again."""
        self.sent_to = {}


def counted(comm: MPI.Intracomm) -> CountedComm:
    """`comm` with its sends counted from now on: the same ranks, the same messages, nothing to free.

    It is of the class of `comm` too, so that a recorded communicator stays recorded.
    """
    kind: Any = type(comm)
    made: CountedComm = _counted_class(kind)(comm)
    vars(made).update(getattr(comm, "__dict__", {}))  # what a recorded communicator knows of itself
    made.reset()
    return made


@cache
def _counted_class(kind: Any) -> Any:
    """`kind` with counting; Python asks CountedComm first, and `kind` after it."""
    bases = (CountedComm,) if kind is MPI.Intracomm else (CountedComm, kind)
    return type(f"Counted{kind.__name__}", bases, {})


def _counting(name: str, bytes_of: Callable[[Any], int]) -> Callable[..., Any]:
    def call(self: Any, data: Any, dest: int, *args: Any, **kwargs: Any) -> Any:
        if dest != MPI.PROC_NULL:
            self.sent_to[dest] = self.sent_to.get(dest, Traffic()) + Traffic(1, bytes_of(data))
        return getattr(super(CountedComm, self), name)(data, dest, *args, **kwargs)

    call.__name__ = name
    return call


def _buffer_bytes(data: Any) -> int:
    """Bytes of an array, [array, datatype] or [array, count, datatype]: what upper-case calls are given."""
    if not isinstance(data, list | tuple):
        return memoryview(data).nbytes
    array, *count, datatype = data
    if count and isinstance(datatype, MPI.Datatype):
        return int(count[0]) * datatype.Get_size()
    return memoryview(array).nbytes


def _pickle_bytes(data: Any) -> int:
    return len(MPI.pickle.dumps(data))


for _names, _bytes_of in ((BUFFERS, _buffer_bytes), (PICKLES, _pickle_bytes)):
    for _name in _names:
        setattr(CountedComm, _name, _counting(_name, _bytes_of))
