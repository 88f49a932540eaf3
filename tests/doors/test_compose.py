"""Docker Compose itself reads compose.yaml, with and without the profile of several nodes.

`docker compose config` needs no engine. Compose is the one on this machine, or Debian 13's in a folder of it.
"""

import json
import shutil
import subprocess
from collections.abc import Callable
from typing import Any

import pytest
from debian_13 import inside

from course.paths import ROOT

pytestmark = [pytest.mark.release, pytest.mark.timeout(1200)]
Compose = Callable[[str, str], tuple[int, str]]
PROFILES = ("", "--profile nodes")


def here() -> bool:
    """Whether this machine has Docker Compose."""
    command = ["docker", "compose", "version"]
    return bool(shutil.which("docker")) and subprocess.run(command, capture_output=True).returncode == 0


@pytest.fixture(scope="module")
def compose(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Compose:
    """A function that gives Compose a file and options; it returns the exit code and what Compose said."""
    debian = None if here() else request.getfixturevalue("debian")
    project = debian / "tmp" / "course" if debian else tmp_path_factory.mktemp("course")
    project.mkdir(exist_ok=True)

    def ask(text: str, options: str) -> tuple[int, str]:
        (project / "compose.yaml").write_text(text)
        words = f"{options} config --format json"
        if debian:
            ran = inside(debian, f"cd /tmp/course && docker-compose {words}")
        else:
            ran = subprocess.run(
                f"docker compose {words} 2>&1", shell=True, cwd=project, text=True, stdout=-1
            )
        return ran.returncode, ran.stdout

    return ask


def merged(compose, profile: str) -> dict[str, Any]:
    code, words = compose((ROOT / "compose.yaml").read_text(), profile)
    assert code == 0, words
    return json.loads(words)["services"]


@pytest.mark.parametrize("profile", PROFILES)
def test_compose_accepts_the_file(compose, profile: str) -> None:
    assert set(merged(compose, profile)) == ({"course", "nodes"} if profile else {"course"})


def test_the_service_of_several_nodes_differs_in_two_filters_alone(compose) -> None:
    services = merged(compose, "--profile nodes")
    course, nodes = services["course"], services["nodes"]
    assert nodes.pop("security_opt") == [
        *course.pop("security_opt"),
        "seccomp=unconfined",
        "apparmor=unconfined",
    ]
    assert nodes.pop("profiles") == ["nodes"]
    assert nodes == course
