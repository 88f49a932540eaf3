"""The hosts of a cluster are connected and checked; when one is lost, it is tried again or left out."""

from dataclasses import dataclass
from ipaddress import IPv4Interface
from pathlib import Path
from types import SimpleNamespace

import pytest

from mpi_classroom import several_hosts
from mpi_classroom.check import Check
from mpi_classroom.errors import ClusterError
from mpi_classroom.network import Lab
from mpi_classroom.several_hosts import SeveralHosts

HOSTS = ["n1", "n2", "n3"]


class Group:
    """Stands in for the agents: the hosts in `off` do not answer."""

    off: set[str] = set()  # noqa: RUF012
    closed_to: list[Check] = []  # noqa: RUF012
    connected: list[list[str]] = []  # noqa: RUF012

    def __init__(self, names):
        self.hosts = {name: SimpleNamespace(close=lambda: None) for name in names}
        self.facts = {name: facts(name) for name in names if name not in self.off}
        self.question, self.closed = {}, False

    @classmethod
    def connect(cls, names, shell, *, seconds=9.0, report=print):
        cls.connected.append(list(names))
        return cls(names)

    def closed_ports(self, network, address):
        return self.closed_to

    def lost(self):
        return {name: f"{name} does not answer" for name in self.hosts if name in self.off}

    def close(self):
        self.closed = True


def facts(name):
    address = IPv4Interface(f"10.77.0.{name[-1] if name[-1].isdigit() else 254}/24")
    return SimpleNamespace(networks=[address], peer="", cores=2 * int(name[-1]), hostname=name)


@pytest.fixture
def group(monkeypatch):
    here = SimpleNamespace(networks=[IPv4Interface("10.77.0.254/24")])
    monkeypatch.setattr(several_hosts, "HostGroup", Group)
    monkeypatch.setattr(several_hosts.host_checks, "facts", lambda question: here)
    monkeypatch.setattr(several_hosts.host_checks, "problems", lambda *arguments: [])
    monkeypatch.setattr(Group, "off", set())
    monkeypatch.setattr(Group, "connected", [])
    return Group


def test_the_ranks_are_laid_out_on_hosts_that_answer(group):
    hosts = SeveralHosts(5, HOSTS, "ssh -x")
    assert hosts.connect() == "" and group.connected == [HOSTS]
    layout = hosts.layout
    assert (layout.hosts, layout.counts, layout.shell) == (("n1", "n2", "n3"), (2, 2, 1), ("ssh", "-x"))
    assert (layout.network, layout.address, layout.threads) == ("10.77.0.0/24", "10.77.0.254", 1)
    assert hosts.describe() == "n1 (2), n2 (2), n3 (1) over 10.77.0.0/24: 2, 4 and 6 cores, 1 thread per rank"
    assert hosts.connect() == "" and group.connected == [HOSTS], "the agents stay"


def test_a_lab_gives_the_nodes_that_are_on_and_tells_its_end(group, monkeypatch):
    @dataclass
    class Facts:
        interfaces: tuple[str, ...] = ()

        @property
        def networks(self):
            return list(map(IPv4Interface, self.interfaces))

    monkeypatch.setattr(several_hosts.host_checks, "facts", lambda question: Facts())
    on = {"head", "n1", "n3"}
    monkeypatch.setattr(Lab, "is_on", lambda self, host: host in on)
    lab = Lab(Path("/tmp/lab"), dict.fromkeys(["head", "n1", "n2", "n3"], 7), 2, None, False)
    hosts = SeveralHosts(3, lab, "ssh")
    hosts.connect()
    assert group.connected == [["n1", "n3"]] and hosts.layout.shell == ("/bin/sh", "/tmp/lab/agent")
    assert (hosts.layout.counts, hosts.layout.address) == ((2, 1), "10.77.0.254")
    with pytest.raises(ClusterError, match=r"5 ranks do not fit into 4 slots \(n1:2, n3:2\)"):
        SeveralHosts(5, lab, "ssh")
    on.clear()
    group.off = {"n1", "n3"}
    with pytest.raises(ClusterError, match="the lab has ended, and its nodes with it; make a new one"):
        hosts.connect()
    assert set(hosts.lost()) == {"n1", "n3"} and "the lab has ended" in hosts.lost()["n1"]


def test_a_host_that_does_not_answer_or_is_not_fit_stops_the_start(group, monkeypatch):
    group.off = {"n2"}
    with pytest.raises(ClusterError, match=r"n2 does not answer; see what this says: ssh n2 true"):
        SeveralHosts(3, HOSTS, "ssh").connect()
    group.off = set()
    wrong = [Check("n1", False, "n1 has no torch", "install it"), Check("n2", True, "a note")]
    monkeypatch.setattr(several_hosts.host_checks, "problems", lambda *arguments: wrong)
    with pytest.raises(ClusterError, match=r"^n1 has no torch; install it$"):
        SeveralHosts(3, HOSTS, "ssh").connect()


def test_a_firewall_between_the_hosts_stops_the_start(group, monkeypatch):
    closed = Check("network", False, "n1 cannot reach n2 at 10.77.0.2, port 9 (timed out)", "open it")
    monkeypatch.setattr(Group, "closed_to", [closed])
    with pytest.raises(ClusterError, match=r"^n1 cannot reach n2 at .*, port 9 \(timed out\); open it$"):
        SeveralHosts(3, HOSTS, "ssh").connect()


def test_with_replace_a_lost_host_is_tried_again_once(group):
    hosts = SeveralHosts(3, ["n1:1", "n2", "n3"], "ssh")
    hosts.connect()
    group.off = {"n3"}
    with pytest.raises(ClusterError, match=r'start_cluster\(n=2, hosts=\["n1:1", "n2"\], …\)'):
        hosts.connect()
    assert group.connected == [HOSTS, ["n3"]]
    group.off = set()
    assert hosts.connect() == "" and hosts.layout.size == 3


def test_without_replace_the_cluster_goes_on_with_the_others(group):
    hosts = SeveralHosts(3, HOSTS, "ssh", replace=False)
    hosts.connect()
    group.off = {"n2"}
    assert hosts.connect() == "without n2: 2 ranks on n1 and n3"
    assert hosts.layout.hosts == ("n1", "n3") and hosts.layout.size == 2
    assert group.connected == [HOSTS], "nobody waits for a host that is dead"
    hosts.check_places({0: "n1", 1: "n3"})
    with pytest.raises(ClusterError, match="rank 0 runs on n3, not on n1"):
        hosts.check_places({0: "n3", 1: "n3"})
    group.off = {"n1", "n3"}
    for _ in range(2):
        with pytest.raises(
            ClusterError, match=r"^all hosts are lost \(n1 does not answer; n3 does not answer\)"
        ):
            hosts.connect()
    group.off = set()
    hosts.close()  # the cluster stops, and is started again
    assert hosts.connect() == "" and group.connected[1:] == [["n1", "n3"]]
