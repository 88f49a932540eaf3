"""A host behind an agent, which a shell with another TMPDIR starts on this machine, in the place of ssh."""

import contextlib
import json
import os
import re
import shlex
import signal
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from mpi_classroom import remote
from mpi_classroom.__main__ import main
from mpi_classroom.agent import Agent
from mpi_classroom.errors import ClusterError
from mpi_classroom.folders import CLUSTER_PREFIX, PREFIX
from mpi_classroom.host_checks import question
from mpi_classroom.processes import CLUSTER, marker
from mpi_classroom.recording.calls import SIZE, call_file, stack_file
from mpi_classroom.remote import HostGroup, RemoteHost

A_RANK = """
import faulthandler, signal, sys, time
faulthandler.register(signal.SIGUSR1, file=open(sys.argv[1], "w"), all_threads=False)
def receive_for_ever():
    while True:
        try:
            print("ready", flush=True)
            time.sleep(600)
        except KeyboardInterrupt:
            print("interrupted", flush=True)
receive_for_ever()
"""
A_NOTEBOOK = """
import sys, time
from pathlib import Path
from mpi_classroom.remote import RemoteHost
from mpi_classroom.host_checks import question
*shell, folder, job = sys.argv[1:]
host = RemoteHost("n1", shell)
host.hello(question())
host.open(Path(folder), [job], {})
print("open", flush=True)
time.sleep(600)
"""


def until(condition, seconds=20):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def login(temporary, before=""):
    """In the place of ssh: `(*login(…), host, command)` runs the command with another TMPDIR and folder."""
    script = f"host=$0; cd /; unset PYTHONPATH; export TMPDIR={shlex.quote(str(temporary))}\n{before}\n"
    script += 'eval "exec $1"'
    return ["/bin/sh", "-c", script]


def agents():
    """The agents that this test has started and that still run."""
    found = []
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if "mpi_classroom.agent" in child.cmdline() and child.status() != psutil.STATUS_ZOMBIE:
                found.append(child)
    return found


@pytest.fixture
def connect(tmp_path, monkeypatch):
    """Connects to hosts; in the end they are closed, and their agents gone."""
    monkeypatch.setattr(remote, "FRESH_SECONDS", 20.0)  # this machine may be busy
    hosts = []

    def connector(name="n1", before=""):
        there = tmp_path / "there"
        there.mkdir(exist_ok=True)
        hosts.append(RemoteHost(name, login(there, before)))
        return hosts[-1]

    yield connector
    for host in hosts:
        host.close()
    for agent in agents():
        agent.resume()
    until(lambda: not agents())


@pytest.fixture
def folder(tmp_path):
    """The name of a cluster's folder, which nobody has made yet."""
    return tmp_path / f"{CLUSTER_PREFIX}x"


@pytest.fixture
def start(tmp_path):
    """Starts what looks like a rank of the cluster in `folder`: blocked, with its record and its stacks."""
    started = []
    (tmp_path / "a_rank.py").write_text(A_RANK)

    def starter(folder, rank, mark=True):
        environment = {name: value for name, value in os.environ.items() if name != CLUSTER}
        if mark:
            environment |= marker(folder, "")
        folder.mkdir(mode=0o700, exist_ok=True)
        command = [sys.executable, "-m", "a_rank", str(stack_file(folder, rank))]
        child = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True)
        started.append(child)
        assert child.stdout.readline() == "ready\n"
        return child

    yield starter
    for child in started:
        child.kill()
        child.wait()
        child.stdout.close()


# -------------------------------------------------------------------- what a host can be asked


def test_an_agent_says_what_its_host_has_whatever_the_login_prints(connect):
    banner = "printf 'Welcome to n1!\\n\\n'; echo 'last login: today' >&2; printf 'no newline '"
    meanwhile = "( while printf 'you have mail '; do sleep 0.005; done ) &"
    host = connect(before=f"{banner}; {meanwhile}")
    facts = host.hello(question())
    assert all(host.look([0], fresh=True)[0].age < remote.FRESH_SECONDS for _ in range(20)) and not host.lost
    assert facts.cores >= 1 and facts.memory > 0 and facts.working
    assert facts.ahead == 0
    assert facts.versions["Python"].startswith("3.")


def test_a_cluster_is_opened_watched_and_ended_on_a_host(connect, folder, start, tmp_path):
    host, job = connect(), tmp_path / f"{PREFIX}kernel" / "4711.0"
    pids = {}
    host.open(folder, [str(job)], pids)
    assert [stat.S_IMODE(made.stat().st_mode) for made in (folder, job.parent, job)] == [0o700] * 3
    host.put("engine.json", b'{"key": "secret"}')
    assert (folder / "engine.json").read_bytes() == b'{"key": "secret"}'
    assert stat.S_IMODE((folder / "engine.json").stat().st_mode) == 0o600

    assert host.look([2], fresh=True)[2].record == bytes(SIZE)  # nothing done, no process known
    rank = start(folder, 2)
    pids[2] = rank.pid
    for number in (1, 2, 3):  # a fresh look is never that of before
        call_file(folder, 2).write_bytes(bytes([number]) * SIZE)
        look = host.look([2], fresh=True)[2]
        assert look.record == bytes([number]) * SIZE
    assert look.process.condition == "" and look.process.cpu_seconds > 0 and look.process.moved > 0
    assert 0 < look.age < remote.FRESH_SECONDS and look.now > 0

    stacks = host.ask_stacks([2])()
    assert "in receive_for_ever" in stacks[2]
    host.signal([2], signal.SIGINT)
    assert rank.stdout.readline() == "interrupted\n"
    host.signal([2], signal.SIGSTOP)
    until(lambda: host.look([2], fresh=False)[2].process.condition == "stopped")
    host.signal([2], signal.SIGCONT)

    host.end()
    assert rank.wait(20) != 0
    until(lambda: not folder.exists() and not job.parent.exists())
    assert not host.lost
    host.open(folder, [str(job)], {})  # the next cluster
    assert folder.exists() and host.look([2], fresh=True)[2].record == bytes(SIZE)


def test_a_host_says_whether_it_reaches_the_notebook(connect):
    host = connect()
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        host.reach("127.0.0.1", port)
    with pytest.raises(ClusterError) as error:
        host.reach("127.0.0.1", port)
    assert str(error.value).startswith(f"n1 cannot reach this machine at 127.0.0.1, port {port} (")
    assert "refused" in str(error.value)
    assert str(error.value).endswith("let the firewall here admit connections from n1")


def test_only_processes_with_the_mark_of_the_cluster_get_a_signal(connect, folder, start, tmp_path):
    host = connect()
    host.open(folder, [], {0: start(folder, 0, mark=False).pid, 1: start(tmp_path / "other", 1).pid})
    assert host.ask_stacks([0, 1])() == {}
    host.signal([0, 1], signal.SIGKILL)
    looks = host.look([0, 1], fresh=True)  # answered after the signal
    assert {look.process.condition for look in looks.values()} == {""}
    host.end()
    assert all(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE for pid in host.pids.values())


def test_a_folder_that_was_there_stays_and_one_that_is_not_private_is_refused(connect, folder, tmp_path):
    host = connect()
    folder.mkdir(mode=0o700)
    (folder / "notes").touch()
    host.open(folder, [], {})
    host.end()
    assert (folder / "notes").exists()
    folder.chmod(0o755)
    with pytest.raises(ClusterError, match=f"n1: {folder} is not a private folder of ours"):
        host.open(folder, [], {})
    with pytest.raises(ClusterError, match="not a private folder"):
        host.open(tmp_path / "somebody" / "else", [], {})


def test_no_request_runs_code_or_leaves_the_folder(folder):
    answers = []
    agent = Agent(lambda line: answers.append(json.loads(line.partition(b" ")[2])))
    agent.answer(b'{"id": 1, "ask": "open", "folder": "%s", "folders": []}' % str(folder).encode())
    asked = [
        b"import os",
        b'{"id": 2, "ask": "_make", "folder": "/tmp/x"}',
        b'{"id": 3, "ask": "put", "name": "../x", "content": ""}',
        b'{"id": 4, "ask": "put", "name": "..", "content": ""}',
        b'{"id": 5, "ask": "look"}',
    ]
    for line in asked:
        agent.answer(line)
    agent.end()
    assert answers[0] == {"id": 1}
    assert [answer["id"] for answer in answers[1:]] == [None, 2, 3, 4, 5]
    assert all(answer["error"] for answer in answers[1:])
    assert list(folder.parent.iterdir()) == []


# -------------------------------------------------------------------- hosts that are lost


@pytest.mark.parametrize(
    ("before", "why"),
    [
        ("echo 'ssh: connect to host n1 port 22: No route to host' >&2; exit 255", "No route to host"),
        ("echo Welcome; echo 'Host key verification failed.' >&2; exit 255", "Host key verification failed."),
        ("set -- /no/such/python; ", "not found"),
        ("exit 3", "its agent ended at once, with exit code 3"),
    ],
)
def test_a_host_without_an_agent_is_lost_and_says_why(connect, before, why):
    host = connect(before=before)
    with pytest.raises(ClusterError, match=r"^n1 does not answer: ") as error:
        host.hello(question())
    assert str(error.value).endswith(why) and "\n" not in str(error.value)
    assert host.lost == str(error.value)
    assert host.look([0], fresh=True)[0].process.condition == ""  # and nobody waits for it
    assert host.ask_stacks([0])() == {}
    host.signal([0], signal.SIGINT)
    host.end()


def test_a_host_is_lost_when_there_is_no_ssh(folder):
    host = RemoteHost("n1", ["/no/such/ssh"])
    assert host.lost.startswith("n1 cannot be reached: ") and "/no/such/ssh" in host.lost
    with pytest.raises(ClusterError, match="n1 cannot be reached"):
        host.open(folder, [], {})
    host.close()


def test_a_host_whose_agent_is_killed_is_lost_at_once(connect):
    host = connect()
    host.hello(question())
    agents()[0].kill()
    until(lambda: host.lost)
    assert host.lost == "the connection to n1 has ended"


def test_a_host_that_goes_silent_holds_up_nobody_and_is_lost(connect, folder, monkeypatch):
    monkeypatch.setattr(remote, "SILENT_SECONDS", 3.0)
    host = connect()
    host.open(folder, [], {})
    fresh = host.look([0], fresh=True)[0]
    agents()[0].suspend()
    looks = []
    while not host.lost:
        looks.append(host.look([0], fresh=False)[0])
        time.sleep(0.02)
    assert len(looks) > 20  # none waited
    assert fresh.age < looks[-1].age and looks[-1].age > 2
    assert host.lost == "n1 has not answered for 3 s"
    agents()[0].resume()  # and finds that nobody listens
    until(lambda: not folder.exists())


def test_a_host_that_sends_nonsense_is_lost(connect):
    host = connect(before=r"printf '\036mpi-classroom {]\n'; exec sleep 600")
    until(lambda: host.lost)
    assert host.lost.startswith("n1 sends what is no answer: ")


# -------------------------------------------------------------------- a notebook that is lost


@pytest.mark.parametrize("how", ["killed", "hung up on", "ended", "idle"])
def test_nothing_stays_on_a_host_when_notebook_or_agent_end(how, connect, folder, start, tmp_path):
    job = tmp_path / f"{PREFIX}kernel" / "4711.0"
    code = "from mpi_classroom import agent; agent.IDLE_SECONDS = 1.0; agent.main()"
    command = ["env", f"PYTHONPATH={os.environ.get('PYTHONPATH', '')}", sys.executable, "-c", code]
    before = f"set -- {shlex.quote(shlex.join(command))}" if how == "idle" else ""
    if how == "killed":
        arguments = [*login(tmp_path), str(folder), str(job)]
        command = [sys.executable, "-c", A_NOTEBOOK, *arguments]
        notebook = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert notebook.stdout.readline() == "open\n"
    elif how == "idle":
        notebook = subprocess.Popen(
            [*login(tmp_path, before), "n1", ""], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        request = {"id": 0, "ask": "open", "folder": str(folder), "folders": [str(job)]}
        notebook.stdin.write(json.dumps(request).encode() + b"\n")
        notebook.stdin.flush()
        assert b'{"id": 0}' in notebook.stdout.readline()
    else:
        connect().open(folder, [str(job)], {})
    rank = start(folder, 0)
    if how == "killed":
        notebook.kill()
    elif how != "idle":
        agents()[0].send_signal(signal.SIGHUP if how == "hung up on" else signal.SIGTERM)
    assert rank.wait(30) != 0
    until(lambda: not folder.exists() and not job.parent.exists())
    if how in ("killed", "idle"):
        notebook.wait(20)
        notebook.stdout.close()
        if notebook.stdin:
            notebook.stdin.close()


# -------------------------------------------------------------------- all hosts


def test_the_doctor_checks_the_hosts_of_a_hostfile(tmp_path, capsys):
    hostfile = tmp_path / "hosts"
    hostfile.write_text("n1 slots=2\nn2\nn3  # which is off\n")
    agent = login(tmp_path, 'test $host = n3 && { echo "Permission denied (publickey)." >&2; exit 255; }')
    assert main(["doctor", "--hosts", str(hostfile), "--agent", shlex.join(agent)]) == 1
    said = capsys.readouterr().out
    assert re.search(r"(?m)^ok   n1  +\d+ cores? for 2 ranks, ", said), said
    assert "FIX  n2             n1 and n2 are one host" in said
    assert "FIX  n3             n3 does not answer: Permission denied (publickey).\n" in said
    assert "→ let ssh log in without a password: ssh-copy-id n3\n" in said
    assert main(["doctor", "--hosts", "/no/such/file"]) == 1
    assert capsys.readouterr().out.startswith("FIX  hosts          cannot read the hostfile /no/such/file\n")
    until(lambda: not agents())


def test_hosts_are_asked_at_once_and_one_that_is_off_stops_nobody(folder, tmp_path):
    group = HostGroup.connect(
        ["n1", "n2", "n3"],
        login(tmp_path, 'test $host = n3 && { echo "n3 is off" >&2; exit 255; }'),
        report=print,
    )
    try:
        assert group.lost() == {"n3": "n3 does not answer: n3 is off"}
        assert set(group.facts) == {"n1", "n2"} and all(facts.sees for facts in group.facts.values())
        assert not list(Path.cwd().glob(".mpi-classroom-*"))
        with pytest.raises(ClusterError, match="n3 does not answer"):
            group.open(folder, [], {})
        with pytest.raises(ClusterError, match="n3 does not answer"):
            group.put("engine.json", b"{}")
        assert (folder / "engine.json").read_bytes() == b"{}"
        group.end()
        assert not folder.exists()
    finally:
        group.close()
    until(lambda: not agents())
