"""Agents on the nodes of a lab: what they see of ranks on four hosts, and how a host that dies is named."""

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import time

import pytest

from mpi_classroom import network
from mpi_classroom.folders import CLUSTER_PREFIX, PREFIX
from mpi_classroom.host import process_state
from mpi_classroom.launch import find_mpiexec
from mpi_classroom.network_commands import HEAD, NetworkError
from mpi_classroom.observer import Observer
from mpi_classroom.processes import marker
from mpi_classroom.remote import HostGroup

pytestmark = pytest.mark.slow

A_CIRCLE = """
import os, sys
from pathlib import Path
from mpi4py import MPI
from mpi_classroom.recording.recorder import install
folder = Path(sys.argv[1])
rank, size, pid, _ = install(folder)
(folder / f"pid-{rank}.part").write_text(str(pid))
os.replace(folder / f"pid-{rank}.part", folder / f"pid-{rank}")
MPI.COMM_WORLD.recv(source=(rank + 1) % size)
"""
# In the place of sshd and ssh: a command on a node, which the links of the lab connect with its caller.
SERVER = """
import socket, subprocess
server = socket.create_server(("", 2222))
print("ready", flush=True)
while True:
    peer, _ = server.accept()
    command = peer.makefile("rb", buffering=0).readline()
    subprocess.Popen(["/bin/sh", "-c", command], stdin=peer, stdout=peer)
    peer.close()
"""
CLIENT = """
import os, shlex, socket, sys, threading
peer = socket.create_connection((sys.argv[1], 2222))
peer.sendall(shlex.join(sys.argv[2:]).encode() + b"\\n")
def forward():
    while data := os.read(0, 65536):
        peer.sendall(data)
    peer.shutdown(socket.SHUT_WR)
threading.Thread(target=forward, daemon=True).start()
while data := peer.recv(65536):
    os.write(1, data)
"""


@pytest.fixture
def lab():
    """Four nodes; skips, with the reason, where this machine cannot have a lab."""
    with contextlib.ExitStack() as stack:
        try:
            made = stack.enter_context(network.network(4))
        except NetworkError as error:
            pytest.skip(str(error))
        yield made


@pytest.fixture
def group(lab):
    """An agent on each node, through the lab's stand-in for ssh."""
    group = HostGroup.connect(lab.nodes, lab.agent.split())
    yield group
    group.close()


def until(condition, seconds=20.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.timeout(120)
def test_ranks_on_four_hosts_are_seen_stopped_and_ended(lab, group, tmp_path):
    assert not group.lost()
    assert [facts.hostname for facts in group.facts.values()] == ["n1", "n2", "n3", "n4"]
    folder, memory = tmp_path / f"{CLUSTER_PREFIX}x", f"/dev/shm/{PREFIX}kernel-{os.getpid()}"
    pids = {}
    group.open(folder, [f"{memory}/1.0"], pids)
    (tmp_path / "a_circle.py").write_text(A_CIRCLE)
    ranks = [str(find_mpiexec()), "-n", "4", sys.executable, "-m", "a_circle", str(folder)]
    environment = lab.environment() | marker(folder, "")
    with subprocess.Popen(lab.on(HEAD, ranks), cwd=tmp_path, env=environment) as job:
        try:
            until(lambda: all((folder / f"pid-{rank}").exists() for rank in range(4)))
            pids.update({rank: int((folder / f"pid-{rank}").read_text()) for rank in range(4)})
            hosts = dict(enumerate(group.hosts.values()))
            observer = Observer(hosts, lambda file: None)
            until(lambda: all(state.call for state in observer.look(range(4))))
            states = observer.snapshot(range(4), ended={}, close=True).ranks
            assert [state.what() for state in states] == [
                f"waiting in recv from rank {(rank + 1) % 4}" for rank in range(4)
            ]
            assert all(" in call" in state.inside for state in states)  # the recorder's own line
            stacks = [host.ask_stacks([rank])()[rank] for rank, host in hosts.items()]
            assert all(re.search(r'a_circle.py", line 10 in <module>', stack) for stack in stacks)
            assert all((state.cpu_seconds or 0) > 0 for state in states)

            hosts[2].signal([2], signal.SIGSTOP)
            until(lambda: observer.look([2])[0].kind == "stopped")
            hosts[2].signal([2], signal.SIGCONT)
            until(lambda: observer.look([2])[0].kind == "waiting")

            shown = subprocess.run(lab.on("n3", ["ls", memory]), capture_output=True, text=True)
            assert shown.stdout == "1.0\n"
            assert not os.path.exists(memory)
            group.end()
            job.wait(20)
        finally:
            job.kill()
    until(lambda: {process_state(pid).condition for pid in pids.values()} == {"gone"})
    until(lambda: not folder.exists())
    for node in lab.nodes:
        until(lambda node=node: subprocess.run(lab.on(node, ["test", "-e", memory])).returncode == 1)
    assert not group.lost()


@pytest.mark.timeout(120)
def test_a_node_without_power_is_named_and_the_others_go_on(lab, group):
    lab.power_off("n3")
    until(group.lost, seconds=10)
    assert group.lost() == {"n3": "the connection to n3 has ended"}
    group.end()  # nobody waits for n3
    assert set(group.lost()) == {"n3"}


@pytest.mark.timeout(120)
def test_a_node_without_its_cable_is_named_and_the_others_go_on(lab):
    servers = []
    try:
        for node in lab.nodes:
            command = lab.on(node, [sys.executable, "-c", SERVER])
            servers.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
            assert servers[-1].stdout.readline() == "ready\n"
        group = HostGroup.connect(lab.nodes, lab.on(HEAD, [sys.executable, "-c", CLIENT]))
        assert not group.lost()
        subprocess.run(lab.on(HEAD, ["ip", "link", "set", "n3", "down"]), check=True)
        until(group.lost, seconds=30)
        assert group.lost() == {"n3": "n3 has not answered for 10 s"}
        until(lambda: group.hosts["n2"].look([0], fresh=True)[0].age < 1)
        group.close()
    finally:
        for server in servers:
            server.kill()
            server.wait()
            server.stdout.close()


@pytest.mark.timeout(120)
def test_the_doctor_examines_the_hosts_of_a_hostfile(lab):
    doctor = [sys.executable, "-m", "mpi_classroom", "doctor", "--hosts", str(lab.hostfile)]
    command = lab.on(HEAD, [*doctor, "--agent", lab.agent])
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, shlex.join(command) + done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert [line.split()[:2] for line in lines] == [["ok", name] for name in (*lab.nodes, "network")]
    assert lines[-1].endswith("10.77.0.0/24, where the hosts reach this machine at 10.77.0.254")
    lab.power_off("n2")
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "FIX  n2             n2 does not answer: n2 is off" in done.stdout


@pytest.mark.timeout(120)
def test_a_port_between_two_hosts_that_drops_packets_is_named_before_ranks_start(lab):
    """n2 sends what is for n3 to an address that no device has, as if a firewall dropped it."""
    network._run_in(lab.pids["n2"], "ip neigh replace 10.77.0.3 lladdr 02:00:00:00:00:99 dev eth0")
    doctor = [sys.executable, "-m", "mpi_classroom", "doctor", "--hosts", str(lab.hostfile)]
    command = lab.on(HEAD, [*doctor, "--agent", lab.agent])
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    sentence = r"FIX  network +(\S+) cannot reach (\S+) at (\S+), port \d+ \(timed out\)"
    closed = re.findall(sentence, done.stdout)
    assert sorted(closed) == [("n2", "n3", "10.77.0.3"), ("n3", "n2", "10.77.0.2")], done.stdout + done.stderr
    start = "from mpi_classroom.several_hosts import SeveralHosts; import sys\n"
    start += "SeveralHosts(2, sys.argv[1:3], sys.argv[3]).connect()"
    for hosts, code in ((["n1", "n2"], 0), (["n2", "n3"], 1)):
        command = lab.on(HEAD, [sys.executable, "-c", start, *hosts, lab.agent])
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == code, done.stderr
    assert "n2 cannot reach n3 at 10.77.0.3" in done.stderr
