"""Agents on the nodes of a lab: a host without its cable, and what the doctor of hosts says of ports."""

import re
import subprocess
import sys

import pytest

from mpi_classroom import network
from mpi_classroom.network_commands import HEAD
from mpi_classroom.remote import HostGroup
from packages.mpi_classroom.tests.waiting import until

pytestmark = pytest.mark.slow

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


@pytest.mark.timeout(120)
def test_a_node_without_its_cable_is_named_and_the_others_go_on(lab):
    """The last test: n3 stays without it."""
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
