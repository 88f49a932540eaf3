"""Learners of a real JupyterHub, with the configurations as they are shipped: plain users of the host log in.

Each has a server of `course lab`, ranks, and a copy of the lessons. The test needs root, to give the hub a
host of its own: accounts with passwords that PAM asks for, their homes, the course in /opt/course. What a hub
needs comes from its lock by pip, the proxy by npm, both into build/tools.

Not tried: SystemdSpawner, DockerSpawner, The Littlest JupyterHub.
"""

import http.cookiejar
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import npm
import psutil
import pytest

from course.paths import ROOT
from course.tools.pins import pins
from course.tools.rehearsal import Hub
from packages.mpi_classroom.tests.waiting import until
from tests.ports import free_port

pytestmark = [pytest.mark.release, pytest.mark.timeout(600)]
TOKEN = "a-token-that-only-this-test-knows"
PASSWORD = "three words suffice"
LEARNERS = {"one": 20001, "two": 20002}  # and their user ids
LOCKS = {"6": ROOT / "requirements-hub.lock", "5": ROOT / "requirements-hub-5.lock"}
# What a test needs beside the shipped configuration: ports, and a service that may look and make tokens.
CONFIG = """
load_subconfig("/opt/course/docs/hub/{name}")
c.JupyterHub.bind_url = "http://127.0.0.1:{port}/"
c.JupyterHub.hub_port = {hub_port}
c.ConfigurableHTTPProxy.api_url = "http://127.0.0.1:{api_port}"
c.ConfigurableHTTPProxy.command = [{proxy!r}]
"""
OWN = f"""
c.JupyterHub.services = [{{"name": "test", "api_token": {TOKEN!r}}}]
c.JupyterHub.load_roles = [
    {{"name": "test", "services": ["test"], "scopes": ["admin:users", "admin:servers", "tokens"]}}
]
"""
HOST = """
set -e
for file in passwd group shadow; do mount --bind "$0/$file" "/etc/$file"; done
mount --bind "$0/home" /home
mount -t tmpfs -o mode=0755 tmpfs /opt
mkdir /opt/course /opt/hub
mount --bind "$1" /opt/course
mount --bind "$2" /opt/hub
[ ! -e "$0/changed.py" ] || mount --bind "$0/changed.py" "/opt/course/docs/hub/$3"
if [ -n "$4" ]; then # a folder that others cannot enter, and Python is in it: they see Python alone
  mkdir /opt/python
  mount --bind "$5" /opt/python
  mount -t tmpfs -o mode=0755 tmpfs "$4"
  mkdir -p "$5"
  mount --bind /opt/python "$5"
fi
cd "$0"
exec /opt/course/.venv/bin/python -m jupyterhub
"""
CELL = """
import os
from mpi_classroom.cluster import start_cluster
cluster = start_cluster(n=4)
cluster.view.execute("from mpi4py import MPI; total = MPI.COMM_WORLD.allreduce(1)").get(timeout=60)
print(cluster["total"], os.getcwd())
cluster.stop()
"""


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


# -------------------------------------------------------------------- a host of its own


def needs_root_and_a_readable_course() -> None:
    if os.name != "posix" or os.geteuid() or not all(map(shutil.which, ("unshare", "openssl"))):
        pytest.skip("only root gives a hub accounts and mounts of its own, with unshare and openssl")
    if closed_folder(ROOT):
        pytest.skip(f"other users cannot enter {closed_folder(ROOT)}")


def closed_folder(path: Path) -> str:
    """The first folder on the way to a path that other users cannot enter; empty when there is none."""
    way = [*reversed(path.parents), path]
    return next((str(folder) for folder in way if not folder.stat().st_mode & 0o001), "")


def packages_of(lock: Path) -> Path:
    """A folder with what a lock pins, which pip makes once."""
    folder = ROOT / "build" / "tools" / lock.stem
    pip = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--quiet", "--no-deps"]
    pip += ["--target", str(folder), "--require-hashes", "--requirement", str(lock)]
    wanted = pins(lock.read_text())["jupyterhub"]
    if (folder / f"jupyterhub-{wanted}.dist-info").exists():
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    ran = subprocess.run(pip, text=True, capture_output=True)
    if ran.returncode:
        shutil.rmtree(folder, ignore_errors=True)
        pytest.skip(f"pip could not install {lock.name}: {ran.stderr.strip().splitlines()[-1]}")
    return folder


def write_accounts(folder: Path) -> None:
    """The host's accounts and those of the learners, with homes and a password; the host's own files stay."""
    hashed = subprocess.run(
        ["openssl", "passwd", "-6", PASSWORD], text=True, capture_output=True, check=True
    ).stdout.strip()
    lines = {name: Path("/etc", name).read_text() for name in ("passwd", "group", "shadow")}
    for learner, number in LEARNERS.items():
        lines["passwd"] += f"{learner}:x:{number}:{number}::/home/{learner}:/bin/bash\n"
        lines["group"] += f"{learner}:x:{number}:\n"
        lines["shadow"] += f"{learner}:{hashed}:20000:0:99999:7:::\n"
        home = folder / "home" / learner
        home.mkdir(parents=True, mode=0o700)
        os.chown(home, number, number)
    for name, text in lines.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o600 if name == "shadow" else 0o644)


@contextmanager
def running(
    folder: Path, name: str, number: str = "6", change: tuple[str, str] | None = None, own: str = OWN
) -> Iterator[Any]:
    """A hub with the shipped file `name`, or with that file changed: its address and its folder."""
    needs_root_and_a_readable_course()
    proxy, packages = (
        npm.program("configurable-http-proxy", "configurable-http-proxy"),
        packages_of(LOCKS[number]),
    )
    write_accounts(folder)
    port = free_port()
    ports = {"port": port, "hub_port": free_port(), "api_port": free_port()}
    config = CONFIG.format(name=name, proxy=proxy, **ports) + own
    (folder / "jupyterhub_config.py").write_text(config)
    if change:
        text = (ROOT / "docs" / "hub" / name).read_text()
        assert change[0] in text
        (folder / "changed.py").write_text(text.replace(*change))
    environment = {
        key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "PYTEST"))
    }
    environment |= {"PYTHONPATH": "/opt/hub", "PATH": "/usr/local/bin:/usr/bin:/bin"}
    command = ["unshare", "--mount", "sh", "-c", HOST, str(folder), str(ROOT), str(packages), name]
    command += [closed_folder(Path(sys.base_prefix)), sys.base_prefix]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        address = f"http://127.0.0.1:{port}"
        until(lambda: process.poll() is not None or ask(f"{address}/hub/api/")[0] == 200, 120)
        assert process.poll() is None, (folder / "log").read_text()
        yield SimpleNamespace(address=address, folder=folder)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)
        for left in processes_of_learners():
            left.kill()


def processes_of_learners() -> list[psutil.Process]:
    """The processes of learners that still run."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.uids().real in LEARNERS.values() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


# -------------------------------------------------------------------- a learner's browser


class Browser:
    """What a learner does in a browser: it keeps cookies and follows redirections."""

    def __init__(self, hub: Any) -> None:
        self.hub, self.cookies = hub, http.cookiejar.CookieJar()
        self.opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(self.cookies))

    def get(self, path: str, form: dict[str, str] | None = None) -> tuple[int, str, str]:
        """The status of a page, its address after redirections, and its text."""
        data = urllib.parse.urlencode(form).encode() if form else None
        try:
            with self.opener.open(self.hub.address + path, data, timeout=60) as answer:
                return answer.status, answer.url, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.url, error.read().decode()

    def log_in(self, learner: str, password: str = PASSWORD) -> tuple[int, str, str]:
        _, _, page = self.get("/hub/login")
        (secret,) = set(re.findall(r'name="_xsrf"\s+value="([^"]+)"', page))
        return self.get("/hub/login?next=", {"_xsrf": secret, "username": learner, "password": password})

    def open_server(self, learner: str) -> str:
        """Wait for the learner's own server, which asks the hub who this is; the page that it opens with."""

        found = list[str]()

        def is_there() -> bool:
            status, where, text = self.get(f"/user/{learner}/lab")
            found.append(text)
            return status == 200 and f"/user/{learner}/lab" in where

        until(is_there, 120)
        return found[-1]


@pytest.mark.parametrize("number", LOCKS)
def test_a_plain_user_logs_in_to_the_hub_as_it_is_shipped(tmp_path: Path, number: str) -> None:
    with running(tmp_path, "one_install.py", number) as hub:
        browser = Browser(hub)
        status, where, page = browser.log_in("one")
        assert status == 200 and "/hub/login" not in where, page
        assert "JupyterLab" in browser.open_server("one")
        assert ask(f"{hub.address}/hub/api/users/one")[1]["admin"] is False
        assert list((tmp_path / "home/one/course/my_course").glob("00_*.ipynb"))
        assert browser.get("/user/two/lab")[0] in (403, 404)
        assert "Invalid username or password" in Browser(hub).log_in("two", "guessed")[2]


def test_without_a_word_of_who_may_log_in_nobody_may(tmp_path: Path) -> None:
    change = ("c.PAMAuthenticator.allow_all = True\n", "")
    with running(tmp_path, "one_install.py", change=change) as hub:
        status, _, page = Browser(hub).log_in("one")
        assert status == 403, page


# -------------------------------------------------------------------- a class


def test_a_class_is_rehearsed_and_who_is_not_on_its_list_stays_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "learners.txt").write_text("one\n")
    monkeypatch.setenv("REHEARSAL_TOKEN", TOKEN + "-rehearsal")
    with running(tmp_path, "../teaching/classroom_hub.py", own="") as hub:
        assert Browser(hub).log_in("two")[0] == 403
        command = [sys.executable, "-m", "course.tools.rehearsal", str(tmp_path / "learners.txt"), "--hub"]
        ran = subprocess.run([*command, hub.address], capture_output=True, text=True, timeout=400)
        assert ran.returncode == 0 and "1 of 1 learners had four ranks" in ran.stdout, ran.stdout + ran.stderr
        until(lambda: not processes_of_learners(), 60)
        (tmp_path / "learners.txt").write_text("two\n")
        ran = subprocess.run([*command, hub.address], capture_output=True, text=True, timeout=400)
        assert ran.returncode == 1 and "0 of 1 learners had four ranks" in ran.stdout, ran.stdout + ran.stderr


# -------------------------------------------------------------------- ranks


def test_two_learners_have_ranks_and_copies_of_their_own(tmp_path: Path) -> None:
    with running(tmp_path, "one_install.py") as hub:
        users = f"{hub.address}/hub/api/users"
        for learner in LEARNERS:
            browser = Browser(hub)
            browser.log_in(learner)
            browser.open_server(learner)
        tokens = {name: ask(f"{users}/{name}/tokens", "POST", body={})[1]["token"] for name in LEARNERS}
        for learner, token in tokens.items():
            said = Hub(hub.address, token).run_cell(learner, CELL)
            assert f"[4, 4, 4, 4] /home/{learner}/course/my_course" in said
            mine = tmp_path / "home" / learner / "course" / "my_course"
            assert len(list(mine.glob("*.ipynb"))) == len(list((ROOT / "notebooks").glob("*.ipynb")))
            (other,) = LEARNERS.keys() - {learner}
            assert ask(f"{hub.address}/user/{other}/api/contents", token=token)[0] in (403, 404)
        for learner in LEARNERS:
            assert ask(f"{users}/{learner}/server", "DELETE")[0] in (202, 204)
        until(lambda: not processes_of_learners(), 60)
