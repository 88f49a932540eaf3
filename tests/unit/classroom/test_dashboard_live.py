"""The dashboard in a real kernel, whose main thread `%%px` blocks: frames come while the cell runs."""

import json
import time

import pytest

from tests.notebooks.kernel import Notebook, open_notebook

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

START = """
from mpi_classroom.cluster import start_cluster
cluster = start_cluster(n=3)
cluster.dashboard()
"""
SETUP = """%%px --setup
from mpi4py import MPI
import numpy as np, time
comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
"""
DEADLOCK = """%%px --timeout 4
mine = np.full(125_000, rank)
comm.Send(mine, (rank + 1) % size)
comm.Recv(np.empty_like(mine), (rank - 1) % size)
"""


@pytest.fixture(scope="module")
def notebook():
    with open_notebook() as opened:
        assert "3 ranks" in opened.run(START, within=120).output
        assert opened.run(SETUP).error == ""
        yield opened


def frames_of(notebook: Notebook, source: str) -> tuple[list[dict], dict[str, float], float]:
    """The frames that came while a cell ran; when which of its other messages came; its seconds."""
    began, wanted = time.monotonic(), notebook.client.execute(source)
    frames, others = [], {}
    while True:
        message = notebook.client.get_iopub_msg(timeout=60)
        if message["parent_header"].get("msg_id") != wanted:
            continue
        seconds, kind, content = time.monotonic() - began, message["msg_type"], message["content"]
        state = content.get("data", {}).get("state", {}) if kind == "comm_msg" else {}
        if "frame" in state:
            frames.append(json.loads(state["frame"]) | {"at": seconds})
        elif kind == "status" and content["execution_state"] == "idle":
            return frames, others, seconds
        else:
            others[kind] = seconds


def test_lanes_change_while_the_cell_runs_and_the_waiting_ranks_are_named(notebook: Notebook) -> None:
    frames, _, seconds = frames_of(notebook, "%%px\ntime.sleep(2.5 * (rank == 1))\ncomm.Barrier()")
    assert 4 <= len(frames) <= 10 * seconds + 3
    words = "waiting in Barrier for rank 1"
    waiting = [frame for frame in frames if frame["lanes"][0]["now"].startswith(words)]
    assert len(waiting) >= 2 and waiting[0]["lanes"][1]["doing"] == "computing"
    assert [lane["doing"] for lane in frames[-1]["lanes"]] == ["finished"] * 3
    lengths = [len(frame["lanes"][0]["ticks"]) for frame in frames]
    assert lengths == sorted(lengths), "in order"


def test_the_circle_is_shown_before_the_report(notebook: Notebook) -> None:
    frames, others, _ = frames_of(notebook, DEADLOCK)
    circle = [frame["at"] for frame in frames if "rank 0 → rank 1 → rank 2 → rank 0" in frame["note"]]
    assert circle and others["error"] - circle[0] > 1.5
    assert all(lane["circle"] for lane in frames[-1]["lanes"])
    after, others, _ = frames_of(notebook, "%%px\nprint(comm.allreduce(rank))")
    assert "error" not in others and after[-1]["note"] == ""
    assert {lane["doing"] for lane in after[-1]["lanes"]} == {"finished"}


def test_the_last_frame_stays_as_a_picture_when_the_cluster_is_stopped(notebook: Notebook) -> None:
    notebook.client.execute("cluster.stop()")
    while (message := notebook.client.get_iopub_msg(timeout=60))["msg_type"] != "update_display_data":
        pass
    data = message["content"]["data"]
    assert data.keys() == {"text/plain", "text/html"}
    assert (
        'alt="Timeline: one lane per rank' in data["text/html"] and "rank 2: finished" in data["text/plain"]
    )
