"""What the live view of the ranks costs: CPU time per second, of all processes that work for it.

    kernel ── makes a frame and sends it ──▶ Jupyter server ── passes it on ──▶ page ── draws it

Four ranks exchange small messages fifty times per second, so that every frame is different. The same cell
runs with the view and without it, in turn; the difference is what the view costs. Kernel and server are real
ones, and a client reads what a page would. The ranks do nothing for the view. The limit is 1 % of a core.

A page of its own, in Chromium, draws the frames that were sent. Half of what it takes is the browser's own
work for each change of a page, so beside it stands a page that changes one digit, as often. Without Chromium
there is no such row.

    python -m benchmarks.dashboard [--quick] [--json FILE]
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import psutil
from jupyter_server.services.kernels.connection.base import deserialize_msg_from_ws_v1, serialize_msg_to_ws_v1
from tornado.httpclient import AsyncHTTPClient, HTTPError, HTTPRequest
from tornado.websocket import WebSocketClientConnection, websocket_connect

from benchmarks.harness import Row, Timing, main, row
from mpi_classroom import dashboard
from mpi_classroom.dashboard import legend

RANKS = 4
LIMIT = Timing(10.0, 0.0)  # milliseconds per second
TOKEN = "benchmark"
SETTLE_MILLISECONDS = 2500  # until a view that gets no more frames stands still
SCRIPT = Path(dashboard.__file__).with_name("dashboard.js")
PROTOCOL = "v1.kernel.websocket.jupyter.org"  # as JupyterLab speaks it
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
START = f"""
import os
from mpi_classroom.cluster import start_cluster
cluster = start_cluster(n={RANKS})
view = cluster.dashboard()
print("pid", os.getpid())
"""
SETUP = """%%px --setup
import time
from mpi4py import MPI
comm = MPI.COMM_WORLD
right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
"""
CELL = """%%px --timeout {timeout}
for step in range({steps}):
    time.sleep(0.02)
    comm.sendrecv(step, right, source=left)
"""
PAGE = """
async ([script, looks, frames]) => {
    const blob = new Blob([script], { type: "text/javascript" });
    const { default: { render } } = await import(URL.createObjectURL(blob));
    const changed = [], state = { frame: frames[0], looks };
    const on = (event, callback) => changed.push(callback);
    render({ model: { get: name => state[name], on, send: () => {} }, el: document.body });
    const digit = document.createElement("span");
    document.body.append(digit);
    let next = 0, timer;
    window.view = () => {
        state.frame = frames[next++ % frames.length];
        changed.forEach(callback => callback());
    };
    window.digit = () => { digit.textContent = next++ % 10; };
    window.play = (step, milliseconds) => { timer = setInterval(step, milliseconds); };
    window.pause = () => clearInterval(timer);
}"""


def measure(quick: bool) -> list[Row]:
    """Milliseconds of CPU time per second: kernel, server, both together, and a page."""
    repetitions, seconds = (2, 3) if quick else (7, 10)
    cost, frames = asyncio.run(of_kernel_and_server(repetitions, seconds))
    cost["kernel and server together"] = [sum(each) for each in zip(*cost.values(), strict=True)]
    rows = [
        row(f"CPU time per second: {name}", RANKS, Timing.of(values), LIMIT, "1 % of a core", unit="ms")
        for name, values in cost.items()
    ]
    if (browser := chromium()) is not None:
        view, digit = of_page(browser, frames, repetitions, seconds)
        rows.append(row("CPU time per second: page", RANKS, view, digit, "a page with one digit", unit="ms"))
    return rows


def cpu_seconds(pids: Sequence[int]) -> float:
    """CPU time of all threads of the processes so far."""
    nanoseconds = 0
    for pid in pids:
        for thread in Path(f"/proc/{pid}/task").glob("*"):
            with contextlib.suppress(OSError):  # it has ended
                nanoseconds += int((thread / "schedstat").read_text().split()[0])
    return nanoseconds / 1e9


# -------------------------------------------------------------------- kernel and server


async def of_kernel_and_server(repetitions: int, seconds: float) -> tuple[dict[str, list[float]], list[str]]:
    """Milliseconds per second that the view costs kernel and server, per repetition; the frames that came."""
    cost: dict[str, list[float]] = {"kernel": [], "Jupyter server": []}
    async with notebook() as (kernel, server_pid):
        await kernel.run(START)
        await kernel.run(SETUP)
        pids = {"kernel": [kernel.pid], "Jupyter server": [server_pid]}
        await kernel.run("view")
        kernel.answer_as_page()
        cell = CELL.format(timeout=20 * seconds, steps=int(50 * seconds))
        await kernel.run(cell)
        for _ in range(repetitions):
            used: dict[str, dict[str, float]] = {}
            for how in ("view", "None"):
                await kernel.run(f"cluster.live = {how}")
                before = {name: cpu_seconds(its) for name, its in pids.items()}
                took = await kernel.run(cell)
                used[how] = {name: (cpu_seconds(its) - before[name]) / took for name, its in pids.items()}
            for name, values in cost.items():
                values.append(1000 * (used["view"][name] - used["None"][name]))
        frames = kernel.frames
        await kernel.run("cluster.live = view\ncluster.stop()")
    return cost, frames


class Kernel:
    """A kernel behind a Jupyter server, as a page sees it."""

    def __init__(self, socket: WebSocketClientConnection) -> None:
        self._socket, self._session = socket, uuid.uuid4().hex
        self.pid, self.model, self.frames = 0, "", list[str]()

    async def run(self, source: str) -> float:
        """Run a cell, read everything that it sends, and return its seconds."""
        began = time.perf_counter()
        wanted = self._send("execute_request", {"code": source, "silent": False, "store_history": True})
        while True:
            kind, parent, content = decoded(await self._socket.read_message())
            if kind == "error":
                raise RuntimeError("\n".join(content["traceback"]))
            if kind == "stream" and content["text"].startswith("pid"):
                self.pid = int(content["text"].split()[1])
            if kind == "comm_open" and "frame" in content["data"]["state"]:
                self.model = content["comm_id"]
            if kind == "comm_msg" and content["comm_id"] == self.model:
                self.frames.append(content["data"]["state"]["frame"])
            if kind == "status" and parent.get("msg_id") == wanted and content["execution_state"] == "idle":
                return time.perf_counter() - began

    def answer_as_page(self) -> None:
        """Answer that the widget is shown."""
        data = {"method": "custom", "content": {"seen": True}}
        self._send("comm_msg", {"comm_id": self.model, "data": data})

    def _send(self, kind: str, content: dict[str, Any]) -> str:
        number = uuid.uuid4().hex
        header = {
            "msg_id": number,
            "msg_type": kind,
            "session": self._session,
            "username": "",
            "version": "5.3",
        }
        parts = [json.dumps(part).encode() for part in (header, {}, {}, content)]
        self._socket.write_message(serialize_msg_to_ws_v1(parts, "shell"), binary=True)
        return number


def decoded(message: Any) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """Type, parent header and content of a message."""
    if message is None:
        raise RuntimeError("the Jupyter server has closed the connection")
    _, (header, parent, _, content, *_) = deserialize_msg_from_ws_v1(message)
    return json.loads(header)["msg_type"], json.loads(parent), json.loads(content)


@contextlib.asynccontextmanager
async def notebook() -> AsyncIterator[tuple[Kernel, int]]:
    """A kernel behind a Jupyter server of this machine, and the server's process id."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        settings = [
            f"--ServerApp.port={port}",
            "--ServerApp.port_retries=0",
            f"--IdentityProvider.token={TOKEN}",
        ]
        settings += ["--no-browser", "--allow-root", f"--ServerApp.root_dir={folder}"]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        server = subprocess.Popen(
            [sys.executable, "-m", "jupyter_server", *settings],
            env=environment | {"JUPYTER_RUNTIME_DIR": folder, "JUPYTER_CONFIG_DIR": folder},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            kernel = await started_kernel(f"127.0.0.1:{port}")
            address = f"ws://127.0.0.1:{port}/api/kernels/{kernel}/channels?token={TOKEN}"
            socket_ = await websocket_connect(address, subprotocols=[PROTOCOL], max_message_size=2**26)
            yield Kernel(socket_), server.pid
            socket_.close()
        finally:
            server.terminate()
            server.wait()


async def started_kernel(address: str) -> str:
    """The id of a new kernel, once the server answers."""
    url = f"http://{address}/api/kernels?token={TOKEN}"
    request = HTTPRequest(url, method="POST", body="{}", request_timeout=60)
    for _ in range(600):
        with contextlib.suppress(OSError):
            try:
                answer = await AsyncHTTPClient().fetch(request)
                return str(json.loads(answer.body)["id"])
            except HTTPError as error:
                if error.code != 599:
                    raise
        await asyncio.sleep(0.1)
    raise RuntimeError("the Jupyter server did not answer within 60 s")


# -------------------------------------------------------------------- a page


def chromium() -> str | None:
    """The path of a Chromium or Chrome, and None without one or without Playwright."""
    with contextlib.suppress(ImportError):
        import playwright.sync_api  # noqa: F401

        return next(filter(None, map(shutil.which, (os.environ.get("COURSE_CHROMIUM", ""), *BROWSERS))), None)
    return None


def of_page(program: str, frames: Sequence[str], repetitions: int, seconds: float) -> tuple[Timing, Timing]:
    """Milliseconds per second of a page that draws `frames`, and of one that changes a digit as often."""
    from playwright.sync_api import sync_playwright

    cost: dict[str, list[float]] = {"view": [], "digit": []}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--disable-dev-shm-usage"])
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.set_content("<!doctype html><title>ranks</title>")
        page.evaluate(PAGE, [SCRIPT.read_text(), legend(RANKS), list(frames)])
        for _ in range(repetitions):
            for name, values in cost.items():
                page.evaluate(f"play({name}, {200 if name == 'view' else 100})")  # a frame has two ticks
                page.wait_for_timeout(500)
                pids = [
                    each.pid for each in psutil.Process().children(recursive=True) if "chrom" in each.name()
                ]
                before, began = cpu_seconds(pids), time.perf_counter()
                page.wait_for_timeout(1000 * seconds)
                values.append(1000 * (cpu_seconds(pids) - before) / (time.perf_counter() - began))
                page.evaluate("pause()")
                page.wait_for_timeout(SETTLE_MILLISECONDS)
        browser.close()
    return Timing.of(cost["view"]), Timing.of(cost["digit"])


if __name__ == "__main__":
    main("What the live view of the ranks costs", measure)
