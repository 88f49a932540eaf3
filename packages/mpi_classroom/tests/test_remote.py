"""A host behind an agent, which a shell with another TMPDIR starts on this machine, in the place of ssh."""

import base64
import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
import zlib
from dataclasses import asdict, replace
from pathlib import Path

import psutil
import pytest

from mpi_classroom import folders, remote
from mpi_classroom.__main__ import main
from mpi_classroom.agent import Agent
from mpi_classroom.errors import ClusterError
from mpi_classroom.folders import CLUSTER_PREFIX, PREFIX
from mpi_classroom.host_checks import facts, question
from mpi_classroom.processes import CLUSTER, marker
from mpi_classroom.recording.calls import SIZE, call_file, stack_file
from mpi_classroom.remote import HostGroup, RemoteHost
from packages.mpi_classroom.tests.waiting import until

A_RANK = """
import faulthandler, signal, sys, time
faulthandler.register(signal.SIGUSR1, file=open(sys.argv[1], "w"), all_threads=False)
signal.signal(signal.SIGINT, signal.default_int_handler)  # what runs in the background may ignore it
def receive_for_ever():
    while True:
        try:
            print("ready", flush=True)
            time.sleep(600)
        except KeyboardInterrupt:
            print("interrupted", flush=True)
while time.process_time() < 0.1:  # several ticks of the system's clock
    pass
receive_for_ever()
"""
A_NOTEBOOK = """
import sys, time
from pathlib import Path
from mpi_classroom.remote import RemoteHost
from mpi_classroom.host_checks import facts, question
*shell, folder, job = sys.argv[1:]
host = RemoteHost("n1", shell)
host.hello(question())
host.open(Path(folder), [job], {})
print("open", flush=True)
time.sleep(600)
"""


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
    found = host.hello(question())
    assert all(host.look([0], fresh=True)[0].age < remote.FRESH_SECONDS for _ in range(20)) and not host.lost
    assert found.cores >= 1 and found.memory > 0 and found.working
    assert found.ahead == 0
    assert found.versions["Python"].startswith("3.")


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
    assert look.process.condition == "" and look.process.moved > 0
    until(lambda: host.look([2], fresh=True)[2].process.cpu_seconds)  # its first hundredth of a second
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


@pytest.mark.parametrize("old_kernel", [False, True])
def test_hosts_say_when_each_of_their_ranks_ended(connect, folder, start, tmp_path, monkeypatch, old_kernel):
    if old_kernel:  # its agents do not find the function
        (tmp_path / "sitecustomize.py").write_text("import os\ndel os.pidfd_open\n")
        monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    hosts = [connect("n1"), connect("n2")]
    group = HostGroup([])
    group.hosts = {host.name: host for host in hosts}
    ranks = {number: start(folder, number) for number in range(3)}
    pids = {number: rank.pid for number, rank in ranks.items()}
    group.open(folder, [], pids)
    hosts[0].look([0, 1], fresh=True)
    hosts[1].look([2], fresh=True)
    assert group.ended() == {}
    for number in (2, 0, 1):
        ranks[number].kill()
        ranks[number].wait()
        time.sleep(0.3)
    times = group.ended()
    assert times.keys() == {0, 1, 2} and all(after <= before for after, before in times.values())
    assert times[2] < times[0] < times[1]
    hosts[0].close()
    assert group.ended() is None, "a rank there may have been first"


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


def test_a_host_listens_until_it_is_close_ported(connect):
    one, other = connect("n1"), connect("n2")
    port = one.listen("127.0.0.1")
    assert other.try_ports([("127.0.0.1", port), ("127.0.0.1", port)]) == ["", ""]
    again = one.listen("127.0.0.1")  # one port at a time
    one.close_port()
    assert one.try_ports([("127.0.0.1", again)]) == ["Connection refused"]  # answered after that
    assert other.try_ports([("127.0.0.1", port), ("127.0.0.1", again)]) == ["Connection refused"] * 2
    with pytest.raises(ClusterError, match="Cannot assign requested address"):
        one.listen("192.0.2.1")


def test_only_processes_with_the_mark_of_the_cluster_get_a_signal(connect, folder, start, tmp_path):
    host = connect()
    host.open(folder, [], {0: start(folder, 0, mark=False).pid, 1: start(tmp_path / "other", 1).pid})
    assert host.ask_stacks([0, 1])() == {}
    host.signal([0, 1], signal.SIGKILL)
    looks = host.look([0, 1], fresh=True)  # answered after the signal
    assert {look.process.condition for look in looks.values()} == {""}
    host.end()
    assert all(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE for pid in host.pids.values())


def test_a_folder_in_use_stays_and_one_that_is_not_private_is_refused(connect, folder, tmp_path):
    host = connect()
    folder.mkdir(mode=0o700)
    (folder / "notes").touch()
    held = folders.lock(folder)
    host.open(folder, [], {})
    host.end()
    os.close(held)
    assert (folder / "notes").exists()
    folder.chmod(0o755)
    with pytest.raises(ClusterError, match=f"n1: {folder} is not a private folder of ours") as error:
        host.open(folder, [], {})
    assert "restart the kernel" in str(error.value)
    with pytest.raises(ClusterError, match="not a private folder"):
        host.open(tmp_path / "somebody" / "else", [], {})


@pytest.fixture
def answered():
    """An agent in this process and its answers so far."""
    answers = []
    agent = Agent(lambda line: answers.append(json.loads(line.partition(b" ")[2])))
    yield agent, answers
    agent.end()


def opening(folder):
    return json.dumps({"id": 1, "ask": "open", "folder": str(folder), "folders": []}).encode()


@pytest.mark.parametrize("when", ["holds it", "has removed it"])
def test_a_folder_that_a_search_for_leftovers_takes_away_is_made_again_and_held(
    when, answered, folder, monkeypatch
):
    """It is there unlocked for a moment, and any process of this user may look for leftovers then."""
    agent, answers = answered
    searches = iter([when])

    def locking(ours):
        search = next(searches, "")
        if search == "has removed it":
            shutil.rmtree(ours)
        if search == "holds it":
            held = folders.lock(ours)
            try:
                return folders.lock(ours)
            finally:
                shutil.rmtree(ours)
                os.close(held)
        return folders.lock(ours)

    monkeypatch.setattr("mpi_classroom.agent.lock", locking)
    agent.answer(opening(folder))
    assert answers == [{"id": 1}]
    assert folder.is_dir() and folders.is_held(folder)
    agent.end()
    assert not folder.exists()


def test_no_request_runs_code_or_leaves_the_folder(answered, folder):
    agent, answers = answered
    agent.answer(opening(folder))
    asked = [
        b"import os",
        b'{"id": 2, "ask": "_make", "folder": "/tmp/x"}',
        b'{"id": 3, "ask": "put", "name": "../x", "content": ""}',
        b'{"id": 5, "ask": "put", "name": "", "content": ""}',
    ]
    for line in asked:
        agent.answer(line)
    assert answers[0] == {"id": 1}
    assert [answer["id"] for answer in answers[1:]] == [None, 2, 3, 5]
    assert all(answer["error"] for answer in answers[1:])
    assert list(folder.iterdir()) == []
    agent.end()
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


def answering(answer):
    """In the place of an agent: answers the first request by `answer`, then nothing."""
    line = shlex.quote(json.dumps({"id": 0} | answer))
    return f"read -r request; printf '\\036mpi-classroom %s\\n' {line}; exec sleep 600"


FACTS = asdict(facts(question()))
SKEWED = "n1 has another version of mpi_classroom"


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ({"error": "[Errno 5] a disk is broken"}, "n1 cannot report what it has: [Errno 5] a disk is broken"),
        ({"clock": 1.0, "facts": FACTS | {"cores": "four"}}, SKEWED),
        ({"clock": None, "facts": FACTS}, SKEWED),
    ],
)
def test_a_host_that_cannot_answer_what_it_has_is_lost(connect, answer, why):
    host = connect(before=answering(answer))
    with pytest.raises(ClusterError) as error:
        host.hello(question())
    assert str(error.value) == host.lost == why


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


IMPATIENT = "import sys; from mpi_classroom import agent; agent.IDLE_SECONDS = 1.0; sys.exit(agent.main())"


def impatient():
    """What starts an agent that waits for its notebook for one second."""
    command = ["env", f"PYTHONPATH={os.environ.get('PYTHONPATH', '')}", sys.executable, "-c", IMPATIENT]
    return f"set -- {shlex.quote(shlex.join(command))}"


def test_a_host_that_heard_nothing_for_long_says_why_it_is_lost(connect, monkeypatch):
    monkeypatch.setattr(remote, "PING_SECONDS", 60.0)  # as if this machine slept
    host = connect(before=impatient())
    host.hello(question())
    until(lambda: host.lost)
    assert (
        host.lost == "n1 has ended its ranks because it had heard nothing from this notebook for 10 minutes"
    )


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


def test_a_host_that_must_answer_now_is_lost_if_it_does_not(connect, monkeypatch):
    host = connect()
    host.hello(question())
    host.must_answer("somebody has lost it")
    assert not host.lost
    monkeypatch.setattr(remote, "FRESH_SECONDS", 0.2)
    (agent,) = agents()
    agent.suspend()
    host.must_answer("somebody has lost it")
    assert host.lost == "n1 does not answer: somebody has lost it"


def test_a_host_that_sends_a_line_without_end_is_lost(connect, monkeypatch):
    monkeypatch.setattr(remote, "LINE_BYTES", 2**20)
    host = connect(before="exec cat /dev/zero")
    until(lambda: host.lost)
    assert "(ValueError: a line is too long)" in host.lost


def packed(records):
    return base64.b64encode(zlib.compress(records)).decode()


@pytest.mark.parametrize(
    "answer",
    [
        {"looks": [[0, 1.0, ["", 0.5, True, 0]]], "records": packed(bytes(SIZE - 1))},
        {"looks": [[0, 1.0, ["", 0.5, True, 0]]], "records": packed(bytes(2**25))},
        {"looks": [[0, 1.0, ["", "much", True, 0]]], "records": packed(bytes(SIZE))},
        {"looks": [[0, 1.0, [""]]], "records": packed(bytes(SIZE))},
    ],
)
def test_a_host_whose_looks_cannot_be_read_is_lost_and_shows_nothing_of_them(connect, answer):
    host = connect(before=answering(answer))
    host.look([0], fresh=True)
    assert host.lost.startswith("n1 has sent an answer that cannot be read (")
    assert host.lost.endswith("); is another version of mpi_classroom installed there?")
    assert host.look([0], fresh=False)[0].record == bytes(SIZE)


@pytest.mark.parametrize("stacks", [5, {"0": "File"}])
def test_stacks_that_cannot_be_read_are_none(connect, stacks):
    host = connect(before=answering({"stacks": stacks}))
    host.pids = {0: 4711}
    host._told.update(host.pids)
    assert host.ask_stacks([0])() == {}


def test_what_a_host_sends_cannot_control_the_terminal(connect):
    host = connect(before=answering({"error": "red: \x1b[31m"}))
    with pytest.raises(ClusterError, match=r"n1 cannot report what it has: red: \?\[31m"):
        host.hello(question())
    host = connect(name="n2", before=r"printf '\033[31mn2 is off' >&2; exit 255")
    until(lambda: host.lost)
    assert host.lost == "n2 does not answer: ?[31mn2 is off"


def test_a_stand_in_for_ssh_that_does_not_end_is_killed(connect):
    host = connect(before="trap '' TERM; echo ready >&2; while :; do sleep 0.2; done")
    shell = host._process
    until(lambda: b"ready" in host._words)
    host.close()
    until(lambda: shell.poll() is not None)


# -------------------------------------------------------------------- a notebook that is lost


def test_an_agent_whose_answers_nobody_reads_ends():
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", IMPATIENT], stdin=pipe, stdout=pipe) as agent:
        for _ in range(2):  # the answers, which repeat the id, do not both fit into a pipe
            agent.stdin.write(json.dumps({"id": "x" * 50_000, "ask": "nothing"}).encode() + b"\n")
        agent.stdin.flush()
        try:
            agent.wait(20)
        finally:
            agent.kill()


@pytest.mark.parametrize("how", ["killed", "hung up on", "ended"])
def test_nothing_stays_on_a_host_when_notebook_or_agent_end(how, connect, folder, start, tmp_path):
    job = tmp_path / f"{PREFIX}kernel" / "4711.0"
    pipe, notebook = subprocess.PIPE, None
    if how == "killed":
        command = [sys.executable, "-c", A_NOTEBOOK, *login(tmp_path), str(folder), str(job)]
        notebook = subprocess.Popen(command, stdin=pipe, stdout=pipe)
        assert notebook.stdout.readline() == b"open\n"
    else:
        connect().open(folder, [str(job)], {})
    rank = start(folder, 0)
    if how == "killed":
        notebook.kill()
    else:
        agents()[0].send_signal(signal.SIGHUP if how == "hung up on" else signal.SIGTERM)
    assert rank.wait(30) != 0
    until(lambda: not folder.exists() and not job.parent.exists())
    if notebook:
        notebook.communicate(timeout=20)


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
        assert set(group.facts) == {"n1", "n2"} and all(found.sees for found in group.facts.values())
        group.facts = {name: replace(has, interfaces=["127.0.0.1/8"]) for name, has in group.facts.items()}
        assert group.closed_ports("127.0.0.0/8", "127.0.0.1") == []
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
