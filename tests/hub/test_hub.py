"""Learners of a real JupyterHub: each has a server of `course lab`, ranks, and a copy of the lessons.

It needs what learners do not install: pip install --no-deps --requirement requirements-hub.lock, and npm's
configurable-http-proxy on the path.
"""

import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from course.paths import ROOT

NEEDED = importlib.util.find_spec("jupyterhub") and shutil.which("configurable-http-proxy")
pytestmark = [
    pytest.mark.release,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not NEEDED, reason="JupyterHub or configurable-http-proxy is not installed"),
]
TOKEN = "a-token-that-only-this-test-knows"
LEARNERS = ("one", "two")
# The course's own configuration, and what a test needs: any password, local processes, a home for each.
CONFIG = """
load_subconfig({course!r})
from pathlib import Path
c.JupyterHub.authenticator_class = "dummy"
c.Authenticator.allow_all = True
c.JupyterHub.spawner_class = "simple"
c.SimpleLocalProcessSpawner.home_dir_template = {homes!r} + "/{{username}}"
c.Spawner.cmd = {cmd!r}
c.JupyterHub.bind_url = "http://127.0.0.1:{port}/"
c.JupyterHub.hub_port = {hub_port}
c.ConfigurableHTTPProxy.api_url = "http://127.0.0.1:{api_port}"
c.JupyterHub.services = [{{"name": "test", "api_token": {token!r}}}]
c.JupyterHub.load_roles = [
    {{"name": "test", "services": ["test"], "scopes": ["admin:users", "admin:servers", "tokens"]}}
]
"""
CELL = """
import os
from mpi_classroom.cluster import start_cluster
cluster = start_cluster(n=4)
cluster.view.execute("from mpi4py import MPI; total = MPI.COMM_WORLD.allreduce(1)").get(timeout=60)
print(cluster["total"], os.getcwd())
cluster.stop()
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def ask(address: str, method: str = "GET", token: str = TOKEN, body: object = None) -> tuple[int, Any]:
    """The status and the JSON of the hub's answer."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(address, data, {"Authorization": f"token {token}"}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            text = answer.read()
            return answer.status, json.loads(text) if text[:1] in (b"{", b"[") else text
    except urllib.error.HTTPError as error:
        return error.code, None
    except OSError:
        return 0, None


def wait_for(condition, seconds: float = 120) -> Any:
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.5)
    return found


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    """A running hub: its address, and the folder of its users' homes."""
    folder = tmp_path_factory.mktemp("hub")
    port = free_port()
    settings = {
        "course": str(ROOT / "docs" / "hub" / "one_install.py"),
        "homes": str(folder),
        "cmd": [sys.executable, "-m", "course.tools.cli", "lab", "--no-browser"],
        "token": TOKEN,
    }
    config = CONFIG.format(port=port, hub_port=free_port(), api_port=free_port(), **settings)
    (folder / "jupyterhub_config.py").write_text(config)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "jupyterhub"], cwd=folder, env=environment, stdout=log, stderr=log
        )
        try:
            address = f"http://127.0.0.1:{port}"
            wait_for(lambda: process.poll() is not None or ask(f"{address}/hub/api/")[0] == 200)
            assert process.poll() is None, (folder / "log").read_text()
            yield SimpleNamespace(address=address, folder=folder, process=process)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


def start_server(hub, learner: str) -> str:
    """Start a learner's server; a token of this learner's."""
    api = f"{hub.address}/hub/api/users/{learner}"
    ask(api, "POST")
    assert ask(f"{api}/server", "POST")[0] in (201, 202)
    ready = wait_for(lambda: (ask(api)[1] or {}).get("servers", {}).get("", {}).get("ready"))
    assert ready, (hub.folder / "log").read_text()
    return ask(f"{api}/tokens", "POST", body={})[1]["token"]


def run_cell(hub, learner: str, token: str, source: str) -> str:
    """What a cell prints in a new kernel of the learner's server."""
    import websocket

    base = f"{hub.address}/user/{learner}/api/kernels"
    status, kernel = ask(base, "POST", token, {"name": "python3", "path": "01_mpi_basics.ipynb"})
    assert status == 201
    address = f"{base}/{kernel['id']}/channels".replace("http", "ws", 1)
    channel = websocket.create_connection(address, header=[f"Authorization: token {token}"], timeout=180)
    header = {"msg_id": "1", "msg_type": "execute_request", "username": "", "session": "1", "version": "5.3"}
    content = {"code": source, "silent": False}
    message = {"header": header, "parent_header": {}, "metadata": {}, "content": content, "channel": "shell"}
    channel.send(json.dumps(message))
    said = ""
    while (answer := json.loads(channel.recv()))["msg_type"] != "execute_reply":
        said += answer["content"].get("text", "") + "\n".join(answer["content"].get("traceback", []))
    channel.close()
    return said


def test_two_learners_have_ranks_and_copies_of_their_own(hub) -> None:
    tokens = {learner: start_server(hub, learner) for learner in LEARNERS}
    for learner, token in tokens.items():
        mine = hub.folder / learner / "course" / "my_course"
        assert f"[4, 4, 4, 4] {mine}" in run_cell(hub, learner, token, CELL)
        assert len(list(mine.glob("*.ipynb"))) == len(list((ROOT / "notebooks").glob("*.ipynb")))
        (other,) = set(LEARNERS) - {learner}
        assert ask(f"{hub.address}/user/{other}/api/contents", token=token)[0] in (403, 404)
    assert not (ROOT / "my_course" / "log").exists()
    for learner in LEARNERS:
        assert ask(f"{hub.address}/hub/api/users/{learner}/server", "DELETE")[0] in (202, 204)
    wait_for(lambda: not processes_of(hub.folder), 60)


def processes_of(homes: Path) -> list[psutil.Process]:
    """The processes of learners of the hub that still run."""
    found = []
    for process in psutil.process_iter():
        try:
            home = process.environ().get("HOME", "")
        except psutil.Error:
            continue
        if home.startswith(f"{homes}/") and process.status() != psutil.STATUS_ZOMBIE:
            found.append(process)
    return found
