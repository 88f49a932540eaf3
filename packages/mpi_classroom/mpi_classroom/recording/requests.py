"""Requests that know what they are for, so that a wait can note it: `Wait for Irecv from rank 1, tag 5`.

A rank that calls `Test` until it is True waits too, and is noted (`record.polled`).

Of many requests each is waited for by itself, one after the other: so it is known which one never completes.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Any

from mpi4py import MPI

from mpi_classroom.recording import record
from mpi_classroom.recording.calls import CODES, NOTHING, STARTED_BY_ALL
from mpi_classroom.recording.record import NO_OPERATION, Operation, polled, waiting

Statuses = list[MPI.Status] | None


class _Waits:
    """The waits of a request."""

    _of: Operation = NO_OPERATION

    def Wait(self, status: MPI.Status | None = None) -> bool:
        """Wait until the operation is complete."""
        return bool(waiting("Wait", self._of, super().Wait, status))  # type: ignore[misc]

    def wait(self, status: MPI.Status | None = None) -> Any:
        """Wait until the operation is complete, and return the message."""
        return waiting("wait", self._of, super().wait, status)  # type: ignore[misc]

    def Test(self, status: MPI.Status | None = None) -> bool:
        """Whether the operation is complete."""
        return bool(polled("Test", self._of, super().Test, status))  # type: ignore[misc]

    def test(self, status: MPI.Status | None = None) -> tuple[bool, Any | None]:
        """Whether the operation is complete, and the message."""
        found: tuple[bool, Any | None] = polled("test", self._of, super().test, status)  # type: ignore[misc]
        return found

    @classmethod
    def Waitall(cls, requests: Sequence[MPI.Request], statuses: Statuses = None) -> bool:
        """Wait until all are complete."""
        _wait_for_each("Waitall", PlainRequest.Wait, requests, statuses)
        return True

    @classmethod
    def waitall(cls, requests: Sequence[MPI.Request], statuses: Statuses = None) -> list[Any]:
        """Wait until all are complete, and return the messages."""
        return _wait_for_each("waitall", PlainRequest.wait, requests, statuses)

    @classmethod
    def Waitany(cls, requests: Sequence[MPI.Request], status: MPI.Status | None = None) -> int:
        """Wait until one is complete, and return which."""
        return int(waiting("Waitany", _any_of(requests), PlainRequest.Waitany, requests, status))

    @classmethod
    def waitany(cls, requests: Sequence[MPI.Request], status: MPI.Status | None = None) -> tuple[int, Any]:
        """Wait until one is complete, and return which, and the message."""
        found: tuple[int, Any] = waiting("waitany", _any_of(requests), PlainRequest.waitany, requests, status)
        return found

    @classmethod
    def Waitsome(cls, requests: Sequence[MPI.Request], statuses: Statuses = None) -> list[int] | None:
        """Wait until some are complete, and return which."""
        found: list[int] | None = waiting(
            "Waitsome", _any_of(requests), PlainRequest.Waitsome, requests, statuses
        )
        return found

    @classmethod
    def waitsome(
        cls, requests: Sequence[MPI.Request], statuses: Statuses = None
    ) -> tuple[list[int] | None, list[Any] | None]:
        """Wait until some are complete, and return which, and their messages."""
        found: tuple[list[int] | None, list[Any] | None] = waiting(
            "waitsome", _any_of(requests), PlainRequest.waitsome, requests, statuses
        )
        return found


PlainRequest, PlainPrequest = MPI.Request, MPI.Prequest  # MPI's own, whatever is put in their places later


class RecordedRequest(_Waits, MPI.Request):  # type: ignore[misc]
    """A request whose waits are recorded."""


class RecordedPrequest(_Waits, MPI.Prequest):  # type: ignore[misc]
    """The same for one that is started again and again."""

    _begin: Callable[[Any], None] | None = None  # counts a start

    def Start(self) -> None:
        """Start the operation once more."""
        super().Start()
        if self._begin is not None:
            self._begin(self)

    @classmethod
    def Startall(cls, requests: Sequence[MPI.Prequest]) -> None:
        """Start all operations once more."""
        for request in requests:
            request.Start()


def _wait_for_each(
    name: str, wait: Callable[..., Any], requests: Sequence[Any], statuses: Statuses
) -> list[Any]:
    if statuses is not None:
        statuses += [MPI.Status() for _ in range(len(requests) - len(statuses))]
    return [
        waiting(
            name,
            getattr(request, "_of", NO_OPERATION),
            wait,
            request,
            None if statuses is None else statuses[i],
        )
        for i, request in enumerate(requests)
    ]


def _any_of(requests: Sequence[Any]) -> Operation:
    """What a wait for one of many is for: their common operation, from nobody in particular."""
    operations = {getattr(request, "_of", NO_OPERATION) for request in requests}
    if len(operations) == 1:
        return operations.pop()
    codes = {operation[-1] for operation in operations}
    return (-1, NOTHING, NOTHING, 0, 0, 0, codes.pop()) if len(codes) == 1 else NO_OPERATION


# -------------------------------------------------------------------- what makes them


def starter(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """`original`, which starts a message, with a note on the request that it returns."""
    code, partners, messages = CODES[name], record.partners_of(name), record.messages_of(name)
    thread = threading.get_ident

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        request = original(self, *args, **kwargs)
        if thread() != record.MAIN:
            return request
        # MPI has taken the arguments, so they are integers.
        peer, other, tag = partners(self._ranks or record.learn_ranks(self), args, kwargs)
        made: RecordedRequest | RecordedPrequest
        if isinstance(request, PlainPrequest):
            made = RecordedPrequest(request)
            made._begin = lambda made: record.count(*messages(peer, other))
        else:
            made = RecordedRequest(request)
            record.count(*messages(peer, other))
        made._of = (peer, other, tag, 0, self._context, self._mask, code)
        return made

    return record.as_original(original, call)


def collective_starter(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """`original`, which starts a collective, with a note on the request that it returns."""
    code, root_at, thread = CODES[name], STARTED_BY_ALL[name], threading.get_ident

    def begin(comm: Any, root: int, made: Any) -> None:
        made._of = record.begin_collective(comm, root, code)

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        request = original(self, *args, **kwargs)
        if thread() != record.MAIN:
            return request
        ranks = self._ranks or record.learn_ranks(self)
        root = record.root_of(root_at, ranks, args, kwargs) if root_at else NOTHING
        if isinstance(request, PlainPrequest):
            repeated = RecordedPrequest(request)
            repeated._begin = lambda made: begin(self, root, made)
            return repeated
        made = RecordedRequest(request)
        begin(self, root, made)
        return made

    return record.as_original(original, call)
