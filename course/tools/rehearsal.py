"""The first minutes of a class on its own JupyterHub: all learners of a list at once, before the day.

    REHEARSAL_TOKEN=… python -m course.tools.rehearsal learners.txt --hub http://127.0.0.1:8000

For each learner the hub starts a server, the server a kernel, the kernel four ranks that import PyTorch and
add up a number. Then the servers are ended. Printed are the seconds of the slowest, the memory that the
machine has left, and what failed, by name. docs/teaching/classroom_hub.py lets the token in.
"""

import argparse
import json
import os
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import websocket

DEADLINE = 300.0  # seconds for a server to start, and for the cell to end
CELL = """
from mpi_classroom.cluster import start_cluster
cluster = start_cluster(n=4)
ranks = cluster.view.execute("import torch; from mpi4py import MPI; total = MPI.COMM_WORLD.allreduce(1)")
ranks.get(timeout=240)
print("total", cluster["total"])
"""
EXPECTED = "total [4, 4, 4, 4]"


@dataclass(frozen=True, slots=True)
class Rehearsed:
    """What one learner had: seconds until the server was there, and of the cell; or what failed."""

    name: str
    server: float = 0.0
    cell: float = 0.0
    failed: str = ""


class Hub:
    """The hub's REST API, and the servers behind it, asked with one token."""

    def __init__(self, address: str, token: str) -> None:
        self.address, self.headers = address.rstrip("/"), {"Authorization": f"token {token}"}

    def ask(self, path: str, method: str = "GET", body: object = None) -> Any:
        """The JSON of an answer, None where it has none; raises OSError with the path and the reason."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.address + path, data, self.headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                text = answer.read()
        except urllib.error.HTTPError as error:
            raise OSError(f"{method} {path}: {error.code} {error.reason}") from None
        return json.loads(text) if text else None

    def start_server(self, name: str) -> None:
        """Start the learner's server and wait until it is ready; raises OSError, TimeoutError."""
        self.ask(f"/hub/api/users/{name}/server", "POST")
        end = time.monotonic() + DEADLINE
        while not self.ask(f"/hub/api/users/{name}")["servers"].get("", {}).get("ready"):
            if time.monotonic() > end:
                raise TimeoutError(f"no server after {DEADLINE:.0f} s")
            time.sleep(1)

    def run_cell(self, name: str, source: str) -> str:
        """What a cell prints in a new kernel beside the lessons; raises OSError, WebSocketException."""
        asked = {"name": "python3", "path": ""}  # without a path it would start in the learner's home
        kernel = self.ask(f"/user/{name}/api/kernels", "POST", asked)["id"]
        address = f"{self.address}/user/{name}/api/kernels/{kernel}/channels".replace("http", "ws", 1)
        lines = [f"{key}: {value}" for key, value in self.headers.items()]
        channel = websocket.create_connection(address, header=lines, timeout=DEADLINE)
        header = {"msg_id": uuid.uuid4().hex, "msg_type": "execute_request", "username": "", "version": "5.3"}
        message = {"header": header | {"session": "1"}, "parent_header": {}, "metadata": {}}
        channel.send(json.dumps(message | {"content": {"code": source}, "channel": "shell"}))
        said = ""
        while (answer := json.loads(channel.recv()))["msg_type"] != "execute_reply":
            said += answer["content"].get("text", "") + answer["content"].get("evalue", "")
        channel.close()
        return said


def rehearse(hub: Hub, name: str) -> Rehearsed:
    """What `name` has in the first minutes."""
    began = time.monotonic()
    try:
        hub.start_server(name)
        server = time.monotonic()
        said = hub.run_cell(name, CELL)
    except (OSError, websocket.WebSocketException) as error:
        return Rehearsed(name, failed=str(error) or type(error).__name__)
    if EXPECTED not in said:
        return Rehearsed(
            name, failed=said.strip().splitlines()[-1] if said.strip() else "the cell said nothing"
        )
    return Rehearsed(name, server - began, time.monotonic() - server)


def rehearse_all(hub: Hub, names: Sequence[str]) -> tuple[list[Rehearsed], int]:
    """All learners at once, and the bytes that the machine had left while all had their ranks."""
    try:
        with ThreadPoolExecutor(len(names)) as pool:
            return list(pool.map(lambda name: rehearse(hub, name), names)), psutil.virtual_memory().available
    finally:
        for name in names:
            try:
                hub.ask(f"/hub/api/users/{name}/server", "DELETE")
            except OSError as error:
                print(f"{name}'s server was not ended: {error}", file=sys.stderr)


def words(found: Sequence[Rehearsed], free: int) -> list[str]:
    """The result in a few lines."""
    failed = [each for each in found if each.failed]
    lines = [f"{len(found) - len(failed)} of {len(found)} learners had four ranks."]
    if went := [each for each in found if not each.failed]:
        server, cell = max(each.server for each in went), max(each.cell for each in went)
        lines.append(
            f"The slowest server came after {server:.0f} s, the slowest cell took {cell:.0f} s more."
        )
    lines.append(f"Memory left while all had them: {free / 1e9:.1f} GB. A lesson takes more: one-server.md.")
    return [*lines, *(f"{each.name}: {each.failed}" for each in failed)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Rehearse and print; 0 when all learners had their ranks."""
    parser = argparse.ArgumentParser(description="Rehearse the first minutes of a class on its JupyterHub.")
    parser.add_argument("learners", type=Path, help="a file with one name per line")
    parser.add_argument("--hub", default="http://127.0.0.1:8000", help="its address (default: %(default)s)")
    chosen = parser.parse_args(arguments)
    names = chosen.learners.read_text().split()
    token = os.environ.get("REHEARSAL_TOKEN")
    if not (names and token):
        parser.error("it needs names in the file, and REHEARSAL_TOKEN as the hub has it")
    found, free = rehearse_all(Hub(chosen.hub, token), names)
    print("\n".join(words(found, free)))
    return 1 if any(each.failed for each in found) else 0


if __name__ == "__main__":
    raise SystemExit(main())
