"""Remote calls over tags: results, errors, deadlines, and replies that come too late."""

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from mpi4py import MPI

from course.lessons.l15_when_things_fail import rpc
from course.lessons.l15_when_things_fail.rpc import RemoteError, call, serve, stop

COMM = MPI.COMM_WORLD
SERVER, RELEASE = COMM.size - 1, 7
here: MPI.Intracomm = COMM  # the communicator of the test that runs
pytestmark = pytest.mark.skipif(COMM.size < 2, reason="one rank has nobody to call")


def until_released(caller: int) -> str:
    """As slow as a test needs, on any machine."""
    here.recv(source=caller, tag=RELEASE)
    return "released"


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "add": lambda a, b: a + b,
    "divide": lambda a, b: a / b,
    "wait": until_released,
    "lock": threading.Lock,
    "closure": lambda: lambda: None,
}


def with_a_server(client: Callable[[], None]) -> None:
    """The last rank serves; the others are clients. Errors of any rank are those of all."""
    comm, error = COMM.Dup(), None
    clients = comm.Split(0 if comm.rank != SERVER else 1)
    globals()["here"] = comm
    if comm.rank == SERVER:
        serve(comm, FUNCTIONS)
    else:
        try:
            client()
        except Exception as caught:
            error = caught
        clients.Barrier()
        if comm.rank == 0:
            stop(comm, SERVER)
    clients.Free()
    everyone = comm.allgather(error)
    comm.Free()
    if any(everyone):
        raise next(each for each in everyone if each)


def test_results_come_back_to_each_caller() -> None:
    def client() -> None:
        for number in range(5):
            assert call(here, SERVER, "add", here.rank, number) == here.rank + number
            assert call(here, SERVER, "add", [here.rank], [number]) == [here.rank, number]

    with_a_server(client)


def test_an_error_is_raised_where_the_call_was_made_and_the_server_lives() -> None:
    def client() -> None:
        with pytest.raises(
            RemoteError, match=f"divide on rank {SERVER} raised ZeroDivisionError: division by"
        ):
            call(here, SERVER, "divide", 1, 0)
        with pytest.raises(RemoteError, match="KeyError: 'no such'"):
            call(here, SERVER, "no such")
        assert call(here, SERVER, "divide", 1, 2) == 0.5

    with_a_server(client)


def test_a_result_that_cannot_be_pickled_is_an_error_of_the_call_and_the_server_lives() -> None:
    def client() -> None:
        with pytest.raises(
            RemoteError, match=rf"lock on rank {SERVER} raised TypeError: cannot pickle '_thread.lock'"
        ):
            call(here, SERVER, "lock")
        with pytest.raises(RemoteError, match=r"closure on rank \d raised .*<lambda>"):
            call(here, SERVER, "closure")
        assert call(here, SERVER, "add", 1, 2) == 3

    with_a_server(client)


def test_a_late_reply_is_not_taken_for_the_next() -> None:
    def client() -> None:
        if here.rank == 0:
            with pytest.raises(TimeoutError, match=r"has not answered wait\(0,\) after 0.1 s"):
                call(here, SERVER, "wait", 0, seconds=0.1)
            here.send(None, SERVER, RELEASE)
            assert call(here, SERVER, "add", 1, 1) == 2

    with_a_server(client)


class LateReplies:
    """A communicator on which only replies to older calls arrive."""

    def send(self, *_: Any) -> None: ...

    def Iprobe(self, *_: Any) -> bool:
        return True

    def recv(self, **_: Any) -> tuple[int, Any, None]:
        return 0, "late", None


def test_late_replies_do_not_prolong_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0

    def reply_after_4_seconds(_: Callable[[], bool], seconds: float) -> bool:
        nonlocal now
        now += min(4.0, seconds)
        assert now < 100, "waited ten times as long as asked"
        return seconds > 4

    monkeypatch.setattr(rpc, "wait_until", reply_after_4_seconds)
    monkeypatch.setattr(rpc, "time", SimpleNamespace(monotonic=lambda: now), raising=False)
    with pytest.raises(TimeoutError, match="after 10 s"):
        call(LateReplies(), SERVER, "add", 1, 1, seconds=10)  # type: ignore[arg-type]
    assert now == 10


def call_without_numbers(comm: MPI.Intracomm, rank: int, name: str, *arguments: Any, seconds: float) -> Any:
    """Known-wrong: the first reply that arrives is taken for this call's."""
    comm.send((next(rpc._numbers), name, arguments), rank, rpc.REQUEST)
    if not rpc.wait_until(lambda: comm.Iprobe(rank, rpc.REPLY), seconds):
        raise TimeoutError
    _, result, _ = comm.recv(source=rank, tag=rpc.REPLY)
    return result


def test_without_numbers_a_late_reply_is_taken_for_the_next() -> None:
    def client() -> None:
        if here.rank == 0:
            with pytest.raises(TimeoutError):
                call_without_numbers(here, SERVER, "wait", 0, seconds=0.1)
            here.send(None, SERVER, RELEASE)
            assert call_without_numbers(here, SERVER, "add", 1, 1, seconds=10) == "released"
            here.recv(source=SERVER, tag=rpc.REPLY)  # the sum

    with_a_server(client)
