"""The lab: what it would run, whom it ends, and (slow, where namespaces are allowed) what it is."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest

from mpi_classroom import leftovers, network
from mpi_classroom.folders import PREFIX
from mpi_classroom.network_commands import (
    NetworkError,
    agent_text,
    explain,
    limit_script,
    packet_nbytes,
    parse_rate,
    rate_words,
    ssh_text,
)
from mpi_classroom.processes import NETWORK, NETWORK_OWNER, marked_processes
from packages.mpi_classroom.tests.waiting import until

FOLDER = Path("/tmp/course-mpi-network-x")

# ------------------------------------------------------------------ what would be run


@pytest.mark.parametrize(
    ("text", "rate", "words"),
    [
        ("100mbit", 10**8, "at 100 Mbit/s"),
        (" 2.5 Gbit/s", 2_500_000_000, "at 2.5 Gbit/s"),
        ("5000Kbit", 5_000_000, "at 5 Mbit/s"),
    ],
)
def test_a_rate_is_read_as_people_write_it(text, rate, words):
    assert parse_rate(text) == rate
    assert rate_words(rate) == words


@pytest.mark.parametrize("text", ["", "100", "100 MB/s", "-5mbit", "1e3mbit", "10kbit", "0mbit"])
def test_what_is_no_rate_is_refused_with_an_example(text):
    with pytest.raises(NetworkError, match=r"100mbit|choose a higher one") as error:
        parse_rate(text)
    assert repr(text) in str(error.value)


def test_about_a_millisecond_of_bytes_passes_at_once():
    packets, tbf = "ip link set dev eth0 gso_max_size", "tc qdisc replace dev eth0 root tbf"
    assert (
        limit_script("eth0", 10**9) == f"{packets} 62500\n{tbf} rate 1000000000bit burst 125000b latency 50ms"
    )
    assert limit_script("eth0", 10**7) == f"{packets} 8192\n{tbf} rate 10000000bit burst 16384b latency 50ms"
    assert packet_nbytes(10**11) == 65536


def ask_agent(*words):
    text = agent_text(FOLDER, {"head": os.getpid(), "n1": 2**22 + 1}, "1:2.00")
    return subprocess.run(["/bin/sh", "-c", text, "agent", *words], capture_output=True, text=True)


def test_the_agent_says_which_nodes_there_are_and_which_are_off():
    unknown = ask_agent("n7", "true")
    assert (unknown.returncode, unknown.stderr) == (
        255,
        "there is no node n7 in this lab; there are: head n1\n",
    )
    assert ask_agent("n1", "true").stderr.startswith("n1 is off;")


def test_the_agent_enters_no_process_that_lacks_the_mark_of_its_lab():
    assert ask_agent("head", "true").returncode == 255  # the process id of this test, which is no holder


@pytest.mark.parametrize(
    "words",
    [
        ["-o", "PasswordAuthentication=no", "-p", "22", "n1", "hostname", "-I"],  # DeepSpeed's launcher
        ["-2", "-a", "-x", "-lroot", "n1", "hostname -I"],  # pdsh
        ["somebody@n1", "hostname", "-I"],
    ],
)
def test_ssh_in_the_lab_is_the_agent_without_options_and_without_the_callers_variables(tmp_path, words):
    (tmp_path / "agent").write_text('echo "$@" in "$PWD" with "${SECRET-nothing}"\n')
    given = os.environ | {"SECRET": "s", "HOME": "/"}
    command = ["/bin/sh", "-c", ssh_text(tmp_path), "ssh", *words]
    assert (
        subprocess.run(command, env=given, capture_output=True, text=True).stdout
        == "n1 hostname -I in / with nothing\n"
    )


# ------------------------------------------------------------------ why not


@pytest.mark.parametrize(
    ("errors", "remedy"),
    [
        ("unshare: unshare failed: Operation not permitted", "does not let you make network namespaces"),
        ("RTNETLINK answers: Operation not permitted", "does not let you make network namespaces"),
        ("mount: /dev/shm: permission denied.", "does not let you make network namespaces"),
        ("unshare: unshare failed: No space left on device", "sysctl user.max_user_namespaces=10000"),
        ("Error: Unknown device type.", "modprobe -a bridge veth"),
        ("Error: Specified qdisc kind is unknown.", "modprobe sch_tbf"),
        ("", "mpi-classroom doctor"),
    ],
)
def test_every_failure_is_one_sentence_with_its_remedy(errors, remedy):
    sentence = explain(errors)
    assert remedy in sentence
    assert ";" in sentence
    assert "\n" not in sentence


def test_a_missing_tool_is_named_with_its_package(monkeypatch, tmp_path):
    monkeypatch.setattr(network, "TOOL_FOLDERS", ())
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NetworkError, match=r"`ip`.*apt install iproute2"):
        network.check_machine(2, 1, None)
    for tool in ("ip", "hostname", "unshare", "nsenter"):
        (tmp_path / tool).touch(mode=0o755)
    network.check_machine(2, 1, None)
    with pytest.raises(NetworkError, match=r"`tc`.*apt install iproute2"):
        network.check_machine(2, 1, 10**8)


@pytest.mark.parametrize(("nodes", "slots"), [(0, 1), (17, 1), (2, 0)])
def test_a_number_that_makes_no_lab_is_refused(nodes, slots):
    with pytest.raises(NetworkError, match="choose"):
        network.check_machine(nodes, slots, None)


def test_a_folder_that_mpiexec_cannot_use_is_refused(monkeypatch, tmp_path):
    monkeypatch.setattr(network, "check_machine", lambda *numbers: None)
    (tmp_path / "a b").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "a b"))
    with pytest.raises(NetworkError, match="set TMPDIR"):
        network.up(2)
    assert not list((tmp_path / "a b").iterdir())


# ------------------------------------------------------------------ leftovers


@pytest.fixture
def lab_process():
    """Starts a process that carries the mark of a lab, in a folder of the lab's kind."""
    started = []

    def start(owner):
        folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}network-"))
        mark = {NETWORK: str(folder), NETWORK_OWNER: owner}
        started.append(subprocess.Popen(["sleep", "600"], env=os.environ | mark))
        return folder, started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def test_what_a_killed_lab_left_is_ended_by_its_mark_and_a_lab_in_use_is_not(lab_process):
    left, orphan = lab_process(f"{os.getpid()}:1.00")  # this process's pid, another start time
    used, wanted = lab_process(f"{os.getpid()}:{psutil.Process().create_time():.2f}")
    assert leftovers.clean() == ["Removed what was left of a lab that was killed: 1 processes."]
    assert orphan.wait(5) is not None
    assert not left.exists()
    assert wanted.poll() is None
    assert leftovers.clean(everything=True) == ["Removed a lab in use: 1 processes."]
    assert wanted.wait(5) is not None
    assert not used.exists()


def test_a_folder_that_is_not_ours_stays_whoever_names_it(tmp_path):
    mark = {NETWORK: str(tmp_path), NETWORK_OWNER: ""}
    process = subprocess.Popen(["sleep", "600"], env=os.environ | mark)
    network.clean()
    assert process.wait(5) is not None
    assert tmp_path.exists()


# ------------------------------------------------------------------ a real one

TEXT = {"capture_output": True, "text": True}
RECEIVE = """
import socket, time
server = socket.create_server(("", 7000))
print("listening", flush=True)
peer, (address, _) = server.accept()
received, start = len(peer.recv(1)), time.perf_counter()
while data := peer.recv(1 << 20):
    received += len(data)
print(address, received, time.perf_counter() - start, flush=True)
"""
SEND = "import socket; socket.create_connection(('n2', 7000), timeout=20).sendall(bytes({nbytes}))"
HELLO = """
from mpi4py import MPI
import socket
comm = MPI.COMM_WORLD
names = comm.gather((comm.rank, socket.gethostname(), comm.allreduce(comm.rank)))
if comm.rank == 0:
    print(*names, sep="\\n")
"""
KILLED = """
import subprocess, sys, time
from mpi_classroom.network import network, up
if sys.argv[1] == "up":
    up(2)
with network(2) if sys.argv[1] == "network" else open("/dev/null") as lab:
    if sys.argv[1] == "network":
        subprocess.Popen(lab.on("n1", ["env", "-i", "sleep", "611"]))  # it has thrown its mark away
    print("ready", flush=True)
    time.sleep(600)
"""


@pytest.fixture(scope="module")
def machine():
    """Skips, with the reason, where this machine cannot have a lab."""
    try:
        with network.network(1, rate="1gbit"):
            pass
    except NetworkError as error:
        pytest.skip(str(error))


def own_network():
    """All that the machine's own network consists of."""
    shown = [["ip", "-o", what] for what in ("link", "addr", "route", "rule")]
    return [subprocess.run(command, capture_output=True, text=True).stdout for command in shown]


def labs():
    """The folders of the labs of this test session, as their processes name them."""
    return {environment[NETWORK] for _, environment in marked_processes(NETWORK)}


def transfer(lab, nbytes):
    """Send so many bytes from n1 to n2; return the sender's address, the bytes received and the seconds."""
    pipe = subprocess.PIPE
    receiver = subprocess.Popen(lab.on("n2", [sys.executable, "-c", RECEIVE]), stdout=pipe, text=True)
    with receiver:
        assert receiver.stdout.readline() == "listening\n"
        send = [sys.executable, "-c", SEND.format(nbytes=nbytes)]
        subprocess.run(lab.on("n1", send), check=True, timeout=30)
        sender, received, seconds = receiver.communicate(timeout=30)[0].split()
    return sender, int(received), float(seconds)


@pytest.mark.slow
def test_two_nodes_see_each_other_and_the_rate_holds_within_a_factor(machine):
    before = own_network()
    with network.network(2, rate="20mbit") as lab:
        assert own_network() == before
        sender, received, seconds = transfer(lab, 2_000_000)
        folder = lab.folder
    assert (sender, received) == ("10.77.0.1", 2_000_000)
    assert 0.8 * 2_000_000 * 8 / 20e6 < seconds < 4 * 2_000_000 * 8 / 20e6
    assert own_network() == before
    assert not labs()
    assert not folder.exists()


@pytest.mark.slow
def test_the_rate_of_a_living_lab_can_be_changed(machine):
    lab = network.up(2, rate="20mbit")
    try:
        lab.limit("200mbit")
        assert network.standing() == lab and lab.rate == 2 * 10**8
        assert transfer(lab, 2_000_000)[2] < 0.8 * 2_000_000 * 8 / 20e6
        lab.limit(None)
        shown = subprocess.run(lab.on("n1", ["tc", "qdisc", "show", "dev", "eth0"]), **TEXT).stdout
        assert "tbf" not in shown and lab.describe()[0].endswith("links not limited")
        lab.limit(None)
        lab.limit("20mbit")
        assert transfer(lab, 500_000)[2] > 0.8 * 500_000 * 8 / 20e6
        lab.power_off("n2")
        lab.limit("50mbit")
        assert [lab.is_on(node) for node in lab.nodes] == [True, False]
        with pytest.raises(NetworkError, match="the nodes are n1, n2"):
            lab.power_off("head")
    finally:
        network.down()
    with pytest.raises(NetworkError, match="this lab is off"):
        lab.limit("1gbit")


@pytest.mark.slow
def test_in_a_user_namespace_it_is_the_same(machine, monkeypatch):
    monkeypatch.setattr(network, "_is_root", lambda: False)
    try:
        lab = network.up(2, slots=2, rate="1gbit")
    except NetworkError as error:
        pytest.skip(str(error))
    try:
        space = os.readlink(f"/proc/{lab.pids['n1']}/ns/user")
        assert space != os.readlink("/proc/self/ns/user")
        job = lab.run_ranks(["-c", HELLO], timeout=60)
        assert [line.split("'")[1] for line in job.stdout.splitlines()] == ["n1", "n1", "n2", "n2"], (
            job.stderr
        )
    finally:
        assert network.down() == ["Took down the lab of 2 nodes."]


@pytest.mark.slow
def test_a_standing_lab_is_the_only_one_and_down_ends_what_runs_in_it(machine):
    lab = network.up(2, rate="100mbit")
    try:
        assert network.standing() == lab
        job = subprocess.Popen(lab.on("n1", ["env", "-i", "sleep", "600"]))  # it has thrown its mark away
        assert network.clean() == []
        with pytest.raises(NetworkError, match="a lab of 2 nodes is up already; take it down first"):
            network.up(2)
        until(lambda: psutil.Process(job.pid).cmdline()[:1] == ["sleep"])
    finally:
        sentences = network.down()
    assert sentences == ["Took down the lab of 2 nodes."]
    assert job.wait(10) == -signal.SIGKILL
    assert network.standing() is None
    assert not lab.folder.exists()


@pytest.mark.slow
def test_a_lab_that_cannot_be_finished_leaves_nothing(machine, monkeypatch):
    monkeypatch.setattr(network, "limit_script", lambda device, rate: "echo no such thing >&2; false")
    with pytest.raises(NetworkError, match="no such thing"), network.network(2, rate="1gbit"):
        pytest.fail("there is no lab")
    assert not labs()


@pytest.mark.slow
@pytest.mark.parametrize("way", ["network", "up"])
def test_a_killed_lab_leaves_nothing_after_down(machine, way):
    before = own_network()
    with subprocess.Popen([sys.executable, "-c", KILLED, way], stdout=subprocess.PIPE) as user:
        assert user.stdout.readline() == b"ready\n"
        folder = Path(next(iter(labs())))
        user.kill()
    if way == "network":  # its watchdog is enough
        until(lambda: not labs() and not folder.exists())
        assert not [one for one in psutil.process_iter(["cmdline"]) if "611" in (one.info["cmdline"] or ())]
    else:
        holders = network.standing().pids
        os.kill(holders["head"], signal.SIGKILL)
        until(lambda: network.standing() is None)
        assert network.down() == ["Removed what was left of a lab that was killed: 2 processes."]
    assert not labs()
    assert not folder.exists()
    assert own_network() == before


@pytest.mark.slow
def test_the_next_lab_removes_the_folder_of_one_whose_processes_were_all_killed(machine):
    lab = network.up(1)
    for pid in lab.pids.values():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    until(lambda: not labs())
    assert lab.folder.exists()
    network.up(1)
    assert not lab.folder.exists()
    assert len(network.down()) == 1
