"""The dashboard sends whole frames in order, and leaves the last one as a picture with alt text."""

import json
import re
from pathlib import Path

import pytest

from mpi_classroom import dashboard
from mpi_classroom.dashboard import WIDGET, Dashboard, as_sent
from mpi_classroom.recording.calls import Call, Counts
from mpi_classroom.snapshot import RankState, Snapshot

SCRIPT = Path(dashboard.__file__).with_name("dashboard.js").read_text()


def send(rank, to, since=0.0):
    call = Call("Send", to, None, 0, 1)
    return RankState(rank, "waiting", call, since=since, counts=Counts(sent=2, sent_bytes=2**20))


def deadlock(seconds):
    return Snapshot(seconds, (send(0, 1), send(1, 0)))


class Display:
    """What IPython gives for an output that can be changed later: the bundles that it showed."""

    def __init__(self) -> None:
        self.shown: list[dict] = []

    def __call__(self, bundle, raw, display_id):
        self.shown.append(bundle)
        return self

    def update(self, bundle, raw):
        self.shown.append(bundle)


@pytest.fixture
def shown(monkeypatch):
    display = Display()
    monkeypatch.setattr(dashboard, "display", display)
    return display.shown


def stuck_for(seconds, live=None):
    live = live or Dashboard(2)
    live.begin(7, {})
    for n in range(int(seconds * 50)):
        live.show(deadlock(n / 50))
    return live


def sent_by(live):
    """The frames that a dashboard sends from now on."""
    frames: list[dict] = []
    live.view.observe(lambda change: frames.append(json.loads(change["new"])), "frame")
    return frames


def test_five_frames_per_second_are_sent_in_order_and_each_says_everything():
    live = Dashboard(2)
    frames = sent_by(live)
    live.begin(7, {})
    for n in range(100):  # a computing rank and a sending one change places with every look
        busy, idle = n // 5 % 2, 1 - n // 5 % 2
        live.show(Snapshot(n / 50, (send(busy, idle), RankState(idle, "computing"))))
    live.end()
    assert len(frames) == 1 + 10 + 1
    assert [len(frame["lanes"][0]["ticks"]) for frame in frames] == [*range(0, 21, 2), 20], (
        "two ticks per frame"
    )
    assert [frame["running"] for frame in frames] == [True] * 11 + [False]
    assert max(len(json.dumps(frame)) for frame in frames) < 2 * 400, "bytes, on two ranks"


def test_while_all_ranks_go_on_with_what_they_do_one_frame_per_second_is_sent():
    live = Dashboard(2)
    frames = sent_by(live)
    stuck_for(5.0, live)
    assert len(frames) == 1 + 5
    assert frames[-1]["note"] == "Circle of waiting: rank 0 → rank 1 → rank 0."
    assert frames[-1]["lanes"][1]["now"] == "waiting in Send to rank 0, tag 0, for 4 s"


def test_the_script_uses_what_is_sent_and_nothing_else():
    live = stuck_for(1.0)
    sent = as_sent(live.lanes.frame, "cell [7]", True)
    assert set(re.findall(r"\bframe\.(\w+)", SCRIPT)) == sent.keys()
    assert set(re.findall(r"\blane\.(\w+)", SCRIPT)) == sent["lanes"][0].keys()
    (look, *_) = live.view.looks["looks"]
    assert set(re.findall(r"\blook\.(\w+)", SCRIPT)) | {"facecolor", "hatch"} == look.keys()
    assert re.findall(r'SHARES = \["(.+)"\]', SCRIPT) == ['", "'.join(dashboard.SHARES)]
    (names,) = re.findall(r"const \{ (.+) \} = model", SCRIPT)
    assert names.split(", ") == list(live.view.looks)


def test_before_the_first_cell_there_are_words_and_the_widget(shown):
    Dashboard(3)._ipython_display_()
    assert shown[0].keys() == {"text/plain", WIDGET}
    assert shown[0]["text/plain"].startswith("3 ranks, no cell yet\nrank 0: idle.")


def test_a_page_that_never_answers_gets_words_after_each_cell_and_a_picture_in_the_end(shown):
    live = Dashboard(2)
    live._ipython_display_()
    stuck_for(1.0, live).end()
    assert shown[-1].keys() == {"text/plain", WIDGET}
    assert shown[-1]["text/plain"].startswith("2 ranks, cell [7] after 0 s\nrank 0: waiting in Send")
    live.close()
    assert shown[-1].keys() == {"text/plain", "text/html"}, "no widget any more"
    assert 'alt="Timeline: one lane per rank' in shown[-1]["text/html"]


def test_a_page_that_shows_the_widget_keeps_it_until_the_cluster_is_stopped(shown):
    live = Dashboard(2)
    live._ipython_display_()
    live.view._handle_custom_msg({"seen": True}, [])
    stuck_for(1.0, live).end()
    assert len(shown) == 1
    live.close()
    live.close()
    assert len(shown) == 2 and WIDGET not in shown[-1]
    live.show(deadlock(1.0))  # a cell that stops the cluster
    live.end()
