"""What a watch does between two looks at the ranks."""

import threading
from types import SimpleNamespace

import pytest

from mpi_classroom import undelivered, watch
from mpi_classroom.errors import ClusterError
from mpi_classroom.recording.calls import Counts
from mpi_classroom.watch import Watch


def test_an_error_outside_the_main_thread_is_shown_alone():
    seen = []

    def give_up():
        try:
            with watch._uninterrupted():
                raise KeyError("the report")
        except KeyError as problem:
            seen.append(problem.__context__)

    thread = threading.Thread(target=give_up)
    thread.start()
    thread.join()
    assert seen == [None]


def test_messages_of_earlier_cells_are_not_forgotten_when_nobody_could_be_asked(monkeypatch, tmp_path):
    def ask(*_):
        raise ClusterError("no answer")

    monkeypatch.setattr(undelivered, "counts", lambda *_: {0: Counts(0, 2, 0)})
    magics = SimpleNamespace(busy=set, earlier_unreceived=True)
    seen = SimpleNamespace(
        magics=magics, before={0: Counts(0, 1, 0)}, cluster=SimpleNamespace(folder=tmp_path, ask=ask)
    )
    assert Watch._left_over(seen, throw_away=True) == ""
    assert magics.earlier_unreceived
    monkeypatch.setattr(undelivered, "counts", lambda *_: {0: Counts(0, 2, 2)})
    assert Watch._left_over(seen, throw_away=True) == "" and not magics.earlier_unreceived


@pytest.mark.parametrize(("elapsed", "reason"), [(0.5, ""), (1.5, ""), (2.6, "A rank raised an error")])
def test_the_others_get_their_time_after_a_raise(monkeypatch, tmp_path, elapsed, reason):
    call = object()
    monkeypatch.setattr(watch, "read_call", lambda *_: call)
    starved = SimpleNamespace(restart=lambda: None, starved=lambda _: False)
    seen = SimpleNamespace(
        cluster=SimpleNamespace(check_alive=lambda: None, folder=tmp_path, facts={}),
        timeout=60,
        magics=SimpleNamespace(busy=set),
        parts=[0, 1],
        turns=starved,
        raised_at=1.0,
        _unfinished=lambda: [1],
        still_since=0.0,
        last_calls=(call,),
        elapsed=elapsed,
    )
    assert Watch._reason_to_stop(seen).startswith(reason)
    assert bool(Watch._reason_to_stop(seen)) is bool(reason)
