"""Requests that know what they are for, so that a wait can note it: `Wait for Irecv from rank 1, tag 5`.

A rank that repeats `Test`, or another of its family, in vain waits too, and is noted (`record.polled`).

Of many requests each is waited for by itself, one after the other: so it is known which one never completes.
"""

import threading
from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from typing import Any

from mpi4py import MPI

from mpi_classroom.recording import checks, record
from mpi_classroom.recording.calls import CODES, NOTHING, STARTED, STARTED_BY_ALL, STARTED_REDUCTIONS
from mpi_classroom.recording.record import NO_OPERATION, Operation, polled, waiting

Statuses = list[MPI.Status] | None


def _of(request: Any) -> Operation:
    """What a request is for; a library may hand over a plain one, of which nothing is known."""
    return getattr(request, "_of", NO_OPERATION)


def _posted(request: Any) -> bool:
    """Whether it is one of ours that has started and is not known to be complete."""
    return getattr(request, "_posted", False)


class _Waits:
    """The waits of a request; as functions of the class they take a plain request too."""

    _of: Operation = NO_OPERATION
    _posted = False  # started, and not known to be complete
    _transfer: checks.Transfer | None = None  # its memory, from the start to the end

    def Cancel(self) -> None:
        """Ask that the operation does not take place."""
        if self._transfer is not None:
            self._transfer.cancelled = True
        super().Cancel()  # type: ignore[misc]

    cancel = Cancel

    def Wait(self, status: MPI.Status | None = None) -> bool:
        """Wait until the operation is complete."""
        status, asked = status or _status, status is not None
        done = waiting("Wait", _of(self), PlainRequest.Wait, self, status)
        if _posted(self):
            _complete(self, status, asked)
        return bool(done)

    def wait(self, status: MPI.Status | None = None) -> Any:
        """Wait until the operation is complete, and return the message."""
        status = status or _status
        message = waiting("wait", _of(self), PlainRequest.wait, self, status)
        if _posted(self):
            _complete(self, status, True)
        return message

    def Test(self, status: MPI.Status | None = None) -> bool:
        """Whether the operation is complete."""
        status, asked = status or _status, status is not None
        done = polled("Test", _of(self), PlainRequest.Test, self, status, succeeded=bool)
        if done and _posted(self):
            _complete(self, status, asked)
        return bool(done)

    def test(self, status: MPI.Status | None = None) -> tuple[bool, Any | None]:
        """Whether the operation is complete, and the message."""
        status = status or _status
        found: tuple[bool, Any | None] = polled(
            "test", _of(self), PlainRequest.test, self, status, succeeded=_first
        )
        if found[0] and _posted(self):
            _complete(self, status, True)
        return found

    @classmethod
    def Waitall(cls, requests: Sequence[MPI.Request], statuses: Statuses = None) -> bool:
        """Wait until all are complete."""
        _wait_for_each("Waitall", requests, statuses)
        return True

    @classmethod
    def waitall(cls, requests: Sequence[MPI.Request], statuses: Statuses = None) -> list[Any]:
        """Wait until all are complete, and return the messages."""
        return _wait_for_each("waitall", requests, statuses)

    @classmethod
    def Waitany(cls, requests: Sequence[MPI.Request], status: MPI.Status | None = None) -> int:
        """Wait until one is complete, and return which."""
        status, asked = status or _status, status is not None
        index = int(waiting("Waitany", _any_of(requests), PlainRequest.Waitany, requests, status))
        _complete_some(requests, [index], [status], asked)
        return index

    @classmethod
    def waitany(cls, requests: Sequence[MPI.Request], status: MPI.Status | None = None) -> tuple[int, Any]:
        """Wait until one is complete, and return which, and the message."""
        status = status or _status
        found: tuple[int, Any] = waiting("waitany", _any_of(requests), PlainRequest.waitany, requests, status)
        _complete_some(requests, [found[0]], [status])
        return found

    @classmethod
    def Waitsome(cls, requests: Sequence[MPI.Request], statuses: Statuses = None) -> list[int] | None:
        """Wait until some are complete, and return which."""
        asked, statuses = statuses is not None, [] if statuses is None else statuses
        found: list[int] | None = waiting(
            "Waitsome", _any_of(requests), PlainRequest.Waitsome, requests, statuses
        )
        _complete_some(requests, found, statuses, asked)
        return found

    @classmethod
    def waitsome(
        cls, requests: Sequence[MPI.Request], statuses: Statuses = None
    ) -> tuple[list[int] | None, list[Any] | None]:
        """Wait until some are complete, and return which, and their messages."""
        statuses = [] if statuses is None else statuses
        found: tuple[list[int] | None, list[Any] | None] = waiting(
            "waitsome", _any_of(requests), PlainRequest.waitsome, requests, statuses
        )
        _complete_some(requests, found[0], statuses)
        return found

    @classmethod
    def Testall(cls, requests: Sequence[MPI.Request], statuses: Statuses = None) -> bool:
        """Whether all are complete."""
        asked, statuses = statuses is not None, [] if statuses is None else statuses
        done = polled("Testall", _any_of(requests), PlainRequest.Testall, requests, statuses, succeeded=bool)
        if done:
            _complete_some(requests, range(len(requests)), statuses, asked)
        return bool(done)

    @classmethod
    def testall(
        cls, requests: Sequence[MPI.Request], statuses: Statuses = None
    ) -> tuple[bool, list[Any] | None]:
        """Whether all are complete, and the messages."""
        statuses = [] if statuses is None else statuses
        found: tuple[bool, list[Any] | None] = polled(
            "testall", _any_of(requests), PlainRequest.testall, requests, statuses, succeeded=_first
        )
        if found[0]:
            _complete_some(requests, range(len(requests)), statuses)
        return found

    @classmethod
    def Testany(cls, requests: Sequence[MPI.Request], status: MPI.Status | None = None) -> tuple[int, bool]:
        """Which one is complete, and whether one is."""
        status, asked = status or _status, status is not None
        found: tuple[int, bool] = polled(
            "Testany", _any_of(requests), PlainRequest.Testany, requests, status, succeeded=_second
        )
        if found[1]:
            _complete_some(requests, [found[0]], [status], asked)
        return found

    @classmethod
    def testany(
        cls, requests: Sequence[MPI.Request], status: MPI.Status | None = None
    ) -> tuple[int, bool, Any | None]:
        """Which one is complete, whether one is, and its message."""
        status = status or _status
        found: tuple[int, bool, Any | None] = polled(
            "testany", _any_of(requests), PlainRequest.testany, requests, status, succeeded=_second
        )
        if found[1]:
            _complete_some(requests, [found[0]], [status])
        return found

    @classmethod
    def Testsome(cls, requests: Sequence[MPI.Request], statuses: Statuses = None) -> list[int] | None:
        """Which are complete."""
        asked, statuses = statuses is not None, [] if statuses is None else statuses
        found: list[int] | None = polled(
            *("Testsome", _any_of(requests), PlainRequest.Testsome, requests, statuses),
            succeeded=lambda indices: indices != [],
        )
        _complete_some(requests, found, statuses, asked)
        return found

    @classmethod
    def testsome(
        cls, requests: Sequence[MPI.Request], statuses: Statuses = None
    ) -> tuple[list[int] | None, list[Any] | None]:
        """Which are complete, and their messages."""
        statuses = [] if statuses is None else statuses
        found: tuple[list[int] | None, list[Any] | None] = polled(
            *("testsome", _any_of(requests), PlainRequest.testsome, requests, statuses),
            succeeded=lambda found: found[0] != [],
        )
        _complete_some(requests, found[0], statuses)
        return found


_first, _second = itemgetter(0), itemgetter(1)  # where a test says whether it succeeded


PlainRequest, PlainPrequest = MPI.Request, MPI.Prequest  # MPI's own, whatever replaces them later


class RecordedRequest(_Waits, MPI.Request):  # type: ignore[misc]
    """A request whose waits are recorded."""


class RecordedPrequest(_Waits, MPI.Prequest):  # type: ignore[misc]
    """The same for one that is started again and again."""

    _begin: Callable[[Any], None] | None = None  # counts a start

    def Start(self) -> None:
        """Start the operation once more."""
        if self._posted:
            checks.started_twice(self)
        super().Start()
        if self._begin is not None:
            self._begin(self)

    @classmethod
    def Startall(cls, requests: Sequence[MPI.Prequest]) -> None:
        """Start all operations once more."""
        for request in requests:
            request.Start()


def _maker(make: Callable[[Any], Any]) -> Any:
    return classmethod(lambda cls, value: cls(make(value)))


for _kind, _plain in ((RecordedRequest, PlainRequest), (RecordedPrequest, PlainPrequest)):
    for _name in ("fromhandle", "fromint", "f2py"):
        setattr(_kind, _name, _maker(getattr(_plain, _name)))


def _wait_for_each(name: str, requests: Sequence[Any], statuses: Statuses) -> list[Any]:
    if isinstance(statuses, list):
        statuses += [MPI.Status() for _ in range(len(requests) - len(statuses))]
    wait = PlainRequest.Wait if name == "Waitall" else PlainRequest.wait
    found = []
    for i, request in enumerate(requests):
        status = _status if statuses is None else statuses[i]
        found.append(waiting(name, _of(request), wait, request, status))
        if _posted(request):
            _complete(request, status, statuses is not None)
    return found


_status = MPI.Status()  # where MPI says how much was received, when the caller does not want to know
_BY_ALL = frozenset(CODES[name] for name in STARTED_BY_ALL)
_RECEIVE = frozenset(code for name, code in CODES.items() if name in STARTED and "recv" in name.lower())


def _complete(request: Any, status: MPI.Status, asked: bool) -> None:
    """Count a request of ours that is known to be complete for the first time; `asked`: for its status."""
    checks.completed(request, status, asked)
    request._posted = False
    record.request_completed(status.Get_count(MPI.BYTE) if request._of[-1] in _RECEIVE else 0)


def _complete_some(
    requests: Sequence[Any],
    indices: Iterable[int] | None,
    statuses: Sequence[MPI.Status],
    asked: bool = True,
) -> None:
    """The same for those of `requests` at `indices`; `statuses` are in the order of `indices`."""
    for i, index in enumerate(indices or ()):
        known = 0 <= index < len(requests)  # MPI.UNDEFINED: all were complete before
        if known and _posted(requests[index]):
            _complete(requests[index], statuses[i], asked)


def _any_of(requests: Sequence[Any]) -> Operation:
    """What a wait for one of many is for: their common operation, from nobody in particular.

    Of several collectives nothing is said: they may have different roots and communicators.
    """
    operations = {_of(request) for request in requests}
    if len(operations) == 1:
        return operations.pop()
    codes = {operation[-1] for operation in operations}
    if len(codes) > 1 or codes <= _BY_ALL:
        return NO_OPERATION
    return (-1, NOTHING, NOTHING, 0, 0, 0, codes.pop())


# -------------------------------------------------------------------- what makes them


def starter(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """`original`, which starts a message, with a note on the request that it returns."""
    code, partners, messages = CODES[name], record.partners_of(name), record.messages_of(name)
    thread, buffered, original = threading.get_ident, name[0].isupper(), record.of_objects(name, original)
    buffer_name = record.BUFFER_NAMES.get(name, "buf")

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        pickled = record.pickled_so_far()
        request = original(self, *args, **kwargs)
        if thread() != record.MAIN:
            checks.distrust(self)
            return request
        # MPI has taken the arguments, so they are integers.
        found = partners(self._ranks or record.learn_ranks(self), args, kwargs)
        peer, other, tag = found
        sent, received = messages(peer, other)
        nbytes = 0
        if sent:
            buffer = args[0] if args else kwargs.get(buffer_name)
            nbytes = record.buffer_bytes(buffer) if buffered else record.pickled_so_far() - pickled
        made: RecordedRequest | RecordedPrequest

        def start(made: Any) -> None:
            _start(made, sent, received, nbytes)
            checks.started(made, name, self, args, kwargs, found)

        if isinstance(request, PlainPrequest):
            made = RecordedPrequest(request)
            made._begin = start
        else:
            made = RecordedRequest(request)
            start(made)
        made._of = (peer, other, tag, 0, self._context, self._mask, code)
        return made

    return record.as_original(original, call)


def _start(made: Any, sent: int, received: int, nbytes: int) -> None:
    record.request_started(sent, received, nbytes)
    made._posted = True


def collective_starter(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """`original`, which starts a collective, with a note on the request that it returns."""
    code, root_at, thread = CODES[name], STARTED_BY_ALL[name], threading.get_ident
    operator_at = STARTED_REDUCTIONS.get(name)

    check = checks.collective_note(name)

    def begin(comm: Any, root: int, operator: int, made: Any, args: Any, kwargs: Any) -> None:
        repeated = isinstance(made, PlainPrequest)
        made._of, made._posted = record.begin_collective(comm, root, operator, code, repeated), True
        checks.all_started(made, name, comm, *check(comm, args, kwargs, root, operator))

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        request = original(self, *args, **kwargs)
        if thread() != record.MAIN:
            checks.distrust(self)
            return request
        ranks = self._ranks or record.learn_ranks(self)
        root = record.root_of(root_at, ranks, args, kwargs) if root_at else NOTHING
        operator = record.operator_of(operator_at, args, kwargs) if operator_at else 0
        if isinstance(request, PlainPrequest):
            repeated = RecordedPrequest(request)
            repeated._begin = lambda made: begin(self, root, operator, made, args, kwargs)
            return repeated
        made = RecordedRequest(request)
        begin(self, root, operator, made, args, kwargs)
        return made

    return record.as_original(original, call)
