"""A class on one server: who may come in, what ends, and a rehearsal that says who got no ranks.

tests/hub does it with a real JupyterHub.
"""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest
from traitlets.config import Config

from course.paths import ROOT
from course.tools import rehearsal
from course.tools.rehearsal import Hub, rehearse_all

HUB = ROOT / "docs" / "hub"


def configured(folder: Path, monkeypatch: pytest.MonkeyPatch, **environment: str) -> Config:
    """What the shipped configuration of a class sets, in a folder with a list of two learners."""
    (folder / "learners.txt").write_text("ann\nben\n")
    monkeypatch.chdir(folder)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    config = Config()

    def load_subconfig(path: str) -> None:
        assert path == "/opt/course/docs/hub/one_install.py"
        exec((HUB / "one_install.py").read_text(), {"get_config": lambda: config})

    names = {"get_config": lambda: config, "load_subconfig": load_subconfig}
    exec((ROOT / "docs" / "teaching" / "classroom_hub.py").read_text(), names)
    return config


def test_only_who_is_on_the_list_comes_in_and_what_is_idle_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("REHEARSAL_TOKEN", raising=False)
    config = configured(tmp_path, monkeypatch)
    assert config.Authenticator.allowed_users == {"ann", "ben"}
    assert config.PAMAuthenticator.allow_all is False
    assert "allow_all" not in config.Authenticator, "with another authenticator it would admit strangers"
    assert (config.Spawner.mem_limit, config.Spawner.cpu_limit) == ("4G", 2)
    assert config.Spawner.environment["COURSE_OFFLINE"] == "1"
    assert any("cull_idle_timeout" in each for each in config.Spawner.args)
    assert "services" not in config.JupyterHub, "without a token nobody may start servers"


def test_the_names_of_the_settings_are_those_of_jupyter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from jupyter_server.serverapp import ServerApp
    from jupyter_server.services.kernels.kernelmanager import MappingKernelManager

    known = {"ServerApp": ServerApp, "MappingKernelManager": MappingKernelManager}
    for argument in configured(tmp_path, monkeypatch, REHEARSAL_TOKEN="x").Spawner.args:
        owner, _, name = argument.lstrip("-").partition("=")[0].partition(".")
        assert name in known[owner].class_trait_names(), argument


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """What a hub answers; the cells of its servers are answered by the test."""
    asked: list[str] = []

    class Answers(BaseHTTPRequestHandler):
        def reply(self) -> None:
            asked.append(f"{self.command} {self.path}")
            code = 403 if "mallory" in self.path else 200
            self.send_response(code)
            self.end_headers()
            self.wfile.write(json.dumps({"servers": {"": {"ready": True}}}).encode())

        do_GET = do_POST = do_DELETE = reply

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield SimpleNamespace(hub=Hub(f"http://127.0.0.1:{server.server_port}", "token"), asked=asked)
    server.shutdown()
    server.server_close()


def test_who_got_no_ranks_is_named_and_every_server_is_ended(
    hub: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = {"ann": rehearsal.EXPECTED, "ben": "Traceback\nClusterError: no memory"}
    monkeypatch.setattr(Hub, "run_cell", lambda self, name, source: said[name])
    found, free = rehearse_all(hub.hub, ["ann", "ben", "mallory"])
    assert [each.failed for each in found] == [
        "",
        "ClusterError: no memory",
        "POST /hub/api/users/mallory/server: 403 Forbidden",
    ]
    assert free > 0
    assert {f"DELETE /hub/api/users/{name}/server" for name in ("ann", "ben")} < set(hub.asked)
