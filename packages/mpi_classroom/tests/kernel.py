"""A real notebook without a browser: a kernel that runs cells, one after the other, and shows what they gave.

It keeps the rules of a notebook: outputs with a display id are rewritten in place, a cell that raises ends
with its traceback, an interrupt may come at any time.
"""

import contextlib
import os
import re
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from queue import Empty
from typing import Any

from jupyter_client.manager import KernelManager

from mpi_classroom import processes
from mpi_classroom.network import Lab
from mpi_classroom.network_commands import HEAD

MARK = "MPI_CLASSROOM_TEST_KERNEL"
_ANSI = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True, slots=True)
class Ran:
    """What a cell left: its number, its output and its error as plain text, and the seconds it took."""

    number: int
    output: str
    error: str
    seconds: float

    @property
    def text(self) -> str:
        """All that the learner sees."""
        return f"{self.output}\n{self.error}"


class Notebook:
    """A kernel and its cells; with a `lab` it runs there, on `host`, and we speak to it over Unix sockets."""

    def __init__(self, environment: Mapping[str, str], lab: Lab | None = None, host: str = HEAD) -> None:
        self.manager = KernelManager(kernel_name="python3")
        if lab is not None:
            self.manager.transport, self.manager.ip = "ipc", f"{environment['TMPDIR']}/k"
            assert self.manager.kernel_spec is not None
            _, *arguments = self.manager.kernel_spec.argv
            self.manager.kernel_spec.argv = lab.on(host, [sys.executable, *arguments])
        self.manager.start_kernel(env=dict(environment))
        self.client: Any = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=60)

    def run(
        self, source: str, *, within: float = 120, interrupt_after: tuple[float, ...] = (), cell: str = ""
    ) -> Ran:
        """Run a cell; interrupt it so many seconds after its start; fail when it does not end `within`.

        `cell` is the id of the cell, which JupyterLab sends along.
        """
        began = time.monotonic()
        message = self.send(source, cell) if cell else self.client.execute(source)
        timers = [threading.Timer(after, self.manager.interrupt_kernel) for after in interrupt_after]
        for timer in timers:
            timer.start()
        shown = _Shown()
        try:
            while not shown.idle:
                left = began + within - time.monotonic()
                assert left > 0, f"not done after {within} s; so far:\n{shown.text()}\n{shown.error}"
                with contextlib.suppress(Empty):
                    shown.add(self.client.get_iopub_msg(timeout=min(left, 0.5)), message)
                assert self.manager.is_alive(), "the kernel died"
        finally:
            for timer in timers:
                timer.cancel()
        return Ran(shown.number, shown.text(), shown.error, time.monotonic() - began)

    def send(self, source: str, cell: str) -> str:
        """Send a cell with its id, as JupyterLab does; the id of the message."""
        content = {"code": source, "silent": False, "store_history": True, "allow_stdin": False}
        request = self.client.session.msg("execute_request", content, metadata={"cellId": cell})
        self.client.shell_channel.send(request)
        return str(request["header"]["msg_id"])

    @property
    def pid(self) -> int:
        """The kernel's process."""
        return self.manager.provisioner.process.pid  # type: ignore[union-attr]

    def close(self) -> None:
        """Shut the kernel down, as closing a notebook does."""
        self.client.stop_channels()
        self.manager.shutdown_kernel()


class _Shown:
    """The outputs of one cell, in order, as messages arrive."""

    def __init__(self) -> None:
        self.parts: list[list[str]] = []
        self.by_id: dict[str, list[str]] = {}
        self.error, self.idle, self.number = "", False, 0
        self.stream = ""  # its name, while one goes on: a print may come in two messages

    def add(self, message: dict[str, Any], wanted: str) -> None:
        content, kind = message["content"], message["msg_type"]
        display = content.get("transient", {}).get("display_id") if isinstance(content, dict) else None
        if kind == "update_display_data" and display in self.by_id:
            self.by_id[display][0] = content["data"].get("text/plain", "")
        if message["parent_header"].get("msg_id") != wanted:
            return
        if kind == "status":
            self.idle = content["execution_state"] == "idle"
        elif kind == "execute_input":
            self.number = content["execution_count"]
        elif kind == "error":
            self.error = _ANSI.sub("", "\n".join(content["traceback"]))
        elif kind in ("stream", "display_data", "execute_result"):
            text = content["text"] if kind == "stream" else content["data"].get("text/plain", "") + "\n"
            stream = content["name"] if kind == "stream" else ""
            if stream and stream == self.stream:
                self.parts[-1][0] += text
            else:
                self.parts.append([text])
            self.stream = stream
            if display:
                self.by_id[display] = self.parts[-1]

    def text(self) -> str:
        return _ANSI.sub("", "".join(text if text.endswith("\n") else text + "\n" for (text,) in self.parts))


@contextlib.contextmanager
def open_notebook(lab: Lab | None = None, host: str = HEAD, **environment: str) -> Iterator[Notebook]:
    """A notebook with `environment` added to this process's; on leaving, nothing it started is left.

    With a `lab` it runs there, on `host`, in a temporary folder of the lab.
    Not even the folder of a cluster whose watchdog is killed with it.
    """
    mark = uuid.uuid4().hex
    inherited = {name: value for name, value in os.environ.items() if name != "IPP_NONINTERACTIVE"}
    with tempfile.TemporaryDirectory(prefix="notebook-", ignore_cleanup_errors=True) as folder:
        try:
            notebook = Notebook(inherited | {MARK: mark, "TMPDIR": folder} | environment, lab, host)
            try:
                yield notebook
            finally:
                notebook.close()
        finally:
            processes.end_marked(MARK, mark)
