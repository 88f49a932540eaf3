"""A class on one server: who may come in, what a container may do, what ends, and a rehearsal.

tests/hub does it with a real JupyterHub.
"""

from pathlib import Path

import pytest
import yaml
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


def test_a_learners_container_has_the_limits_of_compose() -> None:
    compose = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]["course"]
    config = Config()
    exec((HUB / "containers.py").read_text(), {"get_config": lambda: config})
    asked, limits = config.DockerSpawner, dict(config.DockerSpawner.extra_host_config)
    tmpfs = [f"{place}:{options}" for place, options in limits.pop("tmpfs").items()]
    assert limits == {name: compose[name] for name in limits} and len(limits) == 5
    assert tmpfs == compose["tmpfs"]
    assert (asked.mem_limit, asked.cpu_limit) == ("4G", 2)
    assert asked.environment["COURSE_OFFLINE"] == "1"
    assert asked.image == "mpi-course-hub"
    assert asked.volumes == {"my_course-{username}": "/course/my_course"}, "their work outlives the container"
    assert config.PAMAuthenticator.allow_all is True and "allow_all" not in config.Authenticator


def test_the_names_of_the_settings_are_those_of_jupyter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from jupyter_server.serverapp import ServerApp
    from jupyter_server.services.kernels.kernelmanager import MappingKernelManager

    known = {"ServerApp": ServerApp, "MappingKernelManager": MappingKernelManager}
    for argument in configured(tmp_path, monkeypatch, REHEARSAL_TOKEN="x").Spawner.args:
        owner, _, name = argument.lstrip("-").partition("=")[0].partition(".")
        assert name in known[owner].class_trait_names(), argument


def test_who_got_no_ranks_is_named_and_every_server_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def ask(self: Hub, path: str, method: str = "GET", body: object = None) -> object:
        asked.append(f"{method} {path}")
        if "mallory" in path:
            raise OSError(f"{method} {path}: 403 Forbidden")
        return {"servers": {"": {"ready": True}}}

    said = {"ann": rehearsal.EXPECTED, "ben": "Traceback\nClusterError: no memory"}
    monkeypatch.setattr(Hub, "ask", ask)
    monkeypatch.setattr(Hub, "run_cell", lambda self, name, source: said[name])
    found, free = rehearse_all(Hub("http://hub", "token"), ["ann", "ben", "mallory"])
    assert [each.failed for each in found] == [
        "",
        "ClusterError: no memory",
        "POST /hub/api/users/mallory/server: 403 Forbidden",
    ]
    assert free > 0
    assert {f"DELETE /hub/api/users/{name}/server" for name in ("ann", "ben", "mallory")} < set(asked)
