"""What the driver of a cell does besides asking the watch."""

import threading
from types import SimpleNamespace

from mpi_classroom import running_cell
from mpi_classroom.errors import ClusterError
from mpi_classroom.recording.calls import Counts
from mpi_classroom.running_cell import RunningCell
from mpi_classroom.watch import GO_ON, Decision


def test_an_error_outside_the_main_thread_is_shown_alone():
    seen = []

    def give_up():
        try:
            with running_cell._uninterrupted():
                raise KeyError("the report")
        except KeyError as problem:
            seen.append(problem.__context__)

    thread = threading.Thread(target=give_up)
    thread.start()
    thread.join()
    assert seen == [None]


def test_a_close_look_that_finds_no_standstill_lets_the_cell_go_on():
    ticks = iter([Decision("look closer"), Decision("look closer"), Decision("end")])
    asked = []

    def decide(now):
        asked.append(now)
        return GO_ON

    seen = SimpleNamespace(
        watch=SimpleNamespace(decide=decide),
        result=SimpleNamespace(wait_for_output=asked.append),
        _until=lambda *_: next(ticks),
        _snapshot=lambda close: f"{close=}",
        _show_output=lambda: asked.append("output"),
        _show_results=lambda: asked.append("results"),
    )
    RunningCell.run(seen)
    assert asked == ["close=True", "close=True", 1, "output", "results"]


def test_messages_of_earlier_cells_are_not_forgotten_when_nobody_could_be_asked():
    def ask(*_):
        raise ClusterError("no answer")

    after = {0: Counts({}, 2, 0)}
    magics = SimpleNamespace(busy=set, earlier_unreceived=True)
    seen = SimpleNamespace(
        magics=magics,
        before={0: Counts({}, 1, 0)},
        cluster=SimpleNamespace(ask=ask),
        observer=SimpleNamespace(counts=lambda ranks: after),
    )
    assert RunningCell._unreceived(seen, discard=True) == ""
    assert magics.earlier_unreceived
    after[0] = Counts({}, 2, 2)
    assert RunningCell._unreceived(seen, discard=True) == "" and not magics.earlier_unreceived
