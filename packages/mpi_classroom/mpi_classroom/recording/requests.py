"""Requests that know what they are for, so that a wait can note it: `Wait for Irecv from rank 1, tag 5`.

A rank that repeats `Test`, or another of its family, in vain waits too, and is noted (`record.polled`).

Of many requests each is waited for by itself, one after the other: so it is known which one never completes.
"""

import threading
from collections.abc import Callable, Iterable, Sequence
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
            "test", _of(self), PlainRequest.test, self, status, succeeded=lambda found: found[0]
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


PlainRequest, PlainPrequest = MPI.Request, MPI.Prequest  # MPI's own, whatever replaces them later


def _of_many(name: str) -> Any:
    """The class method `name`, such as `Waitany` or `testsome`, with a note of what it waits for."""
    original, kind, objects = getattr(PlainRequest, name), name.lower(), name[0].islower()

    def first(result: Any) -> Any:
        return result[0] if isinstance(result, tuple) else result

    def succeeded(result: Any) -> bool:
        if kind == "testany":
            return bool(result[1])
        return bool(first(result)) if kind == "testall" else first(result) != []

    def complete(requests: Sequence[Any], result: Any) -> Iterable[int]:
        if kind.endswith("any"):
            return [first(result)]
        if kind == "testall":
            return range(len(requests)) if first(result) else ()
        return first(result) or ()

    def run(requests: Sequence[Any], into: Any, statuses: Sequence[MPI.Status], asked: bool) -> Any:
        if kind.startswith("wait"):
            result = waiting(name, _any_of(requests), original, requests, into)
        else:
            result = polled(name, _any_of(requests), original, requests, into, succeeded=succeeded)
        _complete_some(requests, complete(requests, result), statuses, asked or objects)
        return result

    def of_one(cls: Any, requests: Sequence[Any], status: MPI.Status | None = None) -> Any:
        return run(requests, status or _status, [status or _status], status is not None)

    def of_some(cls: Any, requests: Sequence[Any], statuses: Statuses = None) -> Any:
        found = [] if statuses is None else statuses
        return run(requests, found, found, statuses is not None)

    return classmethod(record.as_original(original, of_one if kind.endswith("any") else of_some))


for _name in (
    *("Waitany", "Waitsome", "Testany", "Testsome", "Testall"),
    *("waitany", "waitsome", "testany", "testsome", "testall"),
):
    setattr(_Waits, _name, _of_many(_name))


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
    requests: Sequence[Any], indices: Iterable[int], statuses: Sequence[MPI.Status], asked: bool
) -> None:
    """The same for those of `requests` at `indices`; `statuses` are in the order of `indices`."""
    for i, index in enumerate(indices):
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
