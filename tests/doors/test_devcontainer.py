"""The container of a workspace in the cloud, as far as it goes without a container engine.

The Dev Containers CLI reads the configuration; it asks an engine whether the container runs already, and a
program that says nothing answers here. What the container runs at its start is run here for real.
"""

import http.cookiejar
import json
import os
import re
import shutil
import signal
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

import npm
import psutil
import pytest

from course.paths import ROOT

pytestmark = [pytest.mark.release, pytest.mark.timeout(400)]
FORWARDED = "https://a-name-8888.app.github.dev"


def test_the_dev_containers_cli_reads_what_is_shipped() -> None:
    command = [
        npm.program("@devcontainers/cli", "devcontainer"),
        "read-configuration",
        "--workspace-folder",
        ROOT,
    ]
    ran = subprocess.run([*command, "--docker-path", "true"], text=True, capture_output=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)["configuration"]
    assert found.pop("configFilePath")["path"] == str(ROOT / ".devcontainer" / "devcontainer.json")
    assert found == json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text())


class Workspace:
    """A folder as it is after `make setup`, in which start.sh runs."""

    def __init__(self, folder: Path, **environment: str) -> None:
        self.folder = folder
        (folder / ".devcontainer").mkdir()
        shutil.copy(ROOT / ".devcontainer" / "start.sh", folder / ".devcontainer")
        (folder / ".venv").symlink_to(ROOT / ".venv")
        runtime = str(folder / "runtime")
        self.environment = (
            os.environ | {"COURSE_HOME": str(folder), "JUPYTER_RUNTIME_DIR": runtime} | environment
        )

    def run(self, *words: str) -> str:
        """What start.sh prints; it comes back although what it started goes on."""
        command = [str(self.folder / ".devcontainer" / "start.sh"), *words]
        ran = subprocess.run(command, env=self.environment, text=True, capture_output=True, timeout=120)
        assert ran.returncode == 0, ran.stderr + (self.folder / "build" / "lab.log").read_text()
        return ran.stdout

    def stop(self) -> None:
        for process in psutil.process_iter():
            try:
                ours = process.environ().get("COURSE_HOME") == str(self.folder)
            except psutil.Error:
                continue
            if ours and process.pid != os.getpid():
                process.send_signal(signal.SIGKILL)


def status(browser: urllib.request.OpenerDirector, address: str, origin: str) -> int:
    try:
        return int(
            browser.open(urllib.request.Request(address, headers={"Origin": origin}), timeout=30).status
        )
    except urllib.error.HTTPError as error:
        return error.code


@pytest.mark.parametrize("codespace", ["a-name", ""])
def test_a_server_starts_detached_on_the_learners_copy(tmp_path: Path, codespace: str) -> None:
    workspace = Workspace(tmp_path, **({"CODESPACE_NAME": codespace} if codespace else {}))
    try:
        assert workspace.run() == ""
        shown = workspace.run("address")
        found = re.search(r"(http://\S+:\d+)/\?token=(\w+) :: (\S+)", shown)
        assert found and Path(found[3]) == tmp_path / "my_course", shown
        assert (tmp_path / "my_course" / "00_start_here.ipynb").exists()
        cookies = urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar())
        browser = urllib.request.build_opener(cookies)
        assert browser.open(f"{found[1]}/lab?token={found[2]}", timeout=30).status == 200
        contents = f"{found[1]}/api/contents"
        assert status(browser, contents, FORWARDED) == (200 if codespace else 404)
        assert status(browser, contents, FORWARDED.replace("a-name", "another")) == 404
    finally:
        workspace.stop()
