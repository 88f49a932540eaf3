"""Ranks are placed on hosts, and mpiexec is told so."""

import os
import shutil
import subprocess
from ipaddress import IPv4Interface
from pathlib import Path

import pytest

from mpi_classroom import launch
from mpi_classroom.job_output import read_deaths
from mpi_classroom.launch import mpiexec_command, rank_environment, run_ranks, write_wrapper
from mpi_classroom.layout import ABORT_SECONDS, SSH, Layout, common_network, place, read_hosts, wrapper_text
from mpi_classroom.snapshot import Death

TWO = Layout(("n1", "n2"), (2, 3), "10.77.0.0/24", "10.77.0.254", ("ssh",), threads=4)

# -------------------------------------------------------------------- lists and hostfiles


def test_a_list_names_hosts_with_or_without_slots():
    assert read_hosts(["n1", "n2:3", "a.b-c.example"]) == [("n1", None), ("n2", 3), ("a.b-c.example", None)]


def test_a_hostfile_has_comments_slots_and_empty_lines_and_may_be_in_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    path = tmp_path / "hosts"
    path.write_text("# ours\n\nn1 slots=2  # the fast one\n  n2 slots=1 max_slots=4\nn3\nn4:7\n")
    found = [("n1", 2), ("n2", 1), ("n3", None), ("n4", 7)]
    assert read_hosts(path) == read_hosts("~/hosts") == found


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ("-oProxyCommand=x", "not the name of a host"),
        ("", "not the name of a host"),
        ("me@n1", "not the name of a host"),
        ("fe80::1", "IPv6"),
        ("n1:0", "at least 1"),
        ("n1:", "at least 1"),
    ],
)
def test_what_is_no_host_is_refused(entry, words):
    with pytest.raises(ValueError, match=words):
        read_hosts([entry])


def test_a_list_without_hosts_or_with_one_twice_is_refused(tmp_path):
    with pytest.raises(ValueError, match="empty"):
        read_hosts([])
    with pytest.raises(ValueError, match="n1:2"):
        read_hosts(["n1", "n2", "n1"])
    with pytest.raises(ValueError, match="hosts="):
        read_hosts("n1")
    (tmp_path / "hosts").write_text("n1 cores=2")
    with pytest.raises(ValueError, match="cores=2"):
        read_hosts(tmp_path / "hosts")


# -------------------------------------------------------------------- placement


@pytest.mark.parametrize(
    ("n", "hosts", "counts"),
    [
        (5, [("a", None), ("b", None)], (3, 2)),
        (6, [("a", 1), ("b", None), ("c", None)], (1, 3, 2)),
        (8, [("a", 2), ("b", 6)], (2, 6)),
        (1, [("a", None), ("b", None)], (1, 0)),
    ],
)
def test_ranks_are_spread_as_evenly_as_the_slots_allow(n, hosts, counts):
    assert place(n, hosts) == counts


def test_more_ranks_than_slots_are_refused():
    with pytest.raises(ValueError, match=r"5 ranks do not fit into 4 slots \(a:1, b:3\)"):
        place(5, [("a", 1), ("b", 3)])


def test_a_host_has_a_block_of_neighbours():
    assert [TWO.host_of(rank) for rank in range(5)] == ["n1", "n1", "n2", "n2", "n2"]
    assert (TWO.ranks_of("n1"), TWO.ranks_of("n2"), TWO.size) == (range(2), range(2, 5), 5)
    assert str(TWO) == "n1 (2), n2 (3)"


# -------------------------------------------------------------------- networks


def faces(*texts):
    return [IPv4Interface(text) for text in texts]


HERE = faces("127.0.0.1/8", "10.77.0.254/24")


def test_the_network_is_the_one_in_which_all_hosts_differ():
    addresses = {
        "n1": faces("127.0.0.1/8", "127.0.1.1/8", "172.17.0.1/16", "10.77.0.1/24"),
        "n2": faces("127.0.0.1/8", "127.0.1.1/8", "172.17.0.1/16", "10.77.0.2/24"),
    }
    assert common_network(addresses, HERE, {}) == ("10.77.0.0/24", "10.77.0.254")


def test_of_two_networks_it_is_the_one_that_has_this_machine_too_or_the_one_that_is_wanted():
    addresses = {
        "n1": faces("192.168.5.1/24", "10.77.0.1/24"),
        "n2": faces("192.168.5.2/24", "10.77.0.2/24"),
    }
    assert common_network(addresses, HERE, {})[0] == "10.77.0.0/24"
    seen = {"n1": "10.77.0.254", "n2": "10.77.0.254"}
    assert common_network(addresses, HERE, seen, "192.168.5.0/24") == ("192.168.5.0/24", "10.77.0.254")


def test_a_login_node_outside_is_reached_where_the_hosts_saw_it():
    addresses = {"n1": faces("10.1.0.1/24"), "n2": faces("10.1.0.2/24")}
    assert common_network(addresses, faces("10.9.9.9/24"), {"n1": "10.9.9.9", "n2": ""}) == (
        "10.1.0.0/24",
        "10.9.9.9",
    )
    with pytest.raises(ValueError, match="this machine has no address"):
        common_network(addresses, faces("10.9.9.9/24"), {})


def test_hosts_without_a_network_in_common_are_refused():
    alike = {"n1": faces("172.17.0.1/16"), "n2": faces("172.17.0.1/16")}
    for addresses in (alike, {"n1": faces("10.1.0.1/24"), "n2": faces("10.2.0.1/24")}, {"n1": []}):
        with pytest.raises(ValueError, match="no network in common"):
            common_network(addresses, HERE, {})
    with pytest.raises(ValueError, match=r"n2 has no address in 10\.1\.0\.0/24"):
        common_network({"n1": faces("10.1.0.1/24"), "n2": []}, HERE, {}, "10.1.0.0/24")
    with pytest.raises(ValueError, match=r"same address in 172\.17\.0\.0/16 \(n1: 172.*; n2: 172"):
        common_network(alike, HERE, {}, "172.17.0.0/16")
    with pytest.raises(ValueError, match="not an IPv4 network"):
        common_network(alike, HERE, {}, "eth0")


# -------------------------------------------------------------------- commands and environments


def test_mpiexec_is_told_the_hosts_and_what_the_ranks_need(tmp_path):
    environment = {"PATH": "/bin", "SECRET_TOKEN": "x", "OMPI_MCA_btl": "y", "MPI_CLASSROOM_JOB": "/tmp/j"}
    environment |= {"PATH_TO_MY_PASSWORDS": "/home/me/passwords", "PYTHONPATH": "/p"}
    arguments = TWO.mpiexec_arguments(Path("/tmp/w"), environment)
    assert arguments == [
        *("--host", "n1:2,n2:3", "--map-by", "slot", "--leave-session-attached"),
        *("--prtemca", "plm_ssh_agent", "/bin/sh /tmp/w"),
        *("-x", "MPI_CLASSROOM_JOB", "-x", "PATH", "-x", "PYTHONPATH"),
    ]
    command = mpiexec_command(5, ["python"], arguments)
    assert command == [str(launch.find_mpiexec()), *arguments, "-n", "5", "python"]
    assert mpiexec_command(5, ["python"]) == [str(launch.find_mpiexec()), "-n", "5", "python"]


def test_a_job_on_hosts_uses_one_network_and_no_folder_of_this_machine():
    base = {"SLURM_JOB_ID": "7", "PRTE_MCA_prte_default_hostfile": "/etc/hosts", "HOME": "/h"}
    environment = rank_environment(5, base, layout=TWO)
    assert environment["OMPI_MCA_btl"] == "self,sm,tcp"
    assert environment["OMPI_MCA_btl_tcp_if_include"] == "10.77.0.0/24"
    assert environment["PRTE_MCA_prte_if_include"] == "10.77.0.0/24"
    assert environment["OMP_NUM_THREADS"] == "4" and environment["HOME"] == "/h"
    surrounding = {"SLURM_JOB_ID", "PRTE_MCA_prte_default_hostfile"}
    assert not environment.keys() & {*surrounding, *launch.OF_THIS_MACHINE}
    assert launch.JOB in environment
    here = rank_environment(2, {"SLURM_JOB_ID": "7", "SLURMISH": "x"})
    assert [name for name in here if name.startswith("SLURM")] == ["SLURMISH"]


@pytest.mark.slow
def test_this_open_mpi_delays_an_abort_of_a_job_on_hosts():
    """The delay alone: the other settings of a layout need its network."""
    delay = {name: value for name, value in TWO.environment().items() if "abort" in name}
    program = "from mpi4py import MPI\nif MPI.COMM_WORLD.rank: MPI.COMM_WORLD.Split(1).Abort(3)\n"
    job = run_ranks(
        2, ["-c", f"{program}MPI.COMM_WORLD.Split(2)"], timeout=60, environment=os.environ | delay
    )
    assert f"Delaying for {ABORT_SECONDS} seconds before aborting" in job.stderr
    assert "MPI_ABORT was invoked on rank 0" in job.stderr and read_deaths(job.stderr) == [Death(1, "abort")]


def test_what_the_wrapper_starts_carries_the_marks(tmp_path):
    """The shell here runs the command line that it is given, as sshd does on the other host."""
    shell = tmp_path / "like ssh"
    shell.write_text('#!/bin/sh\necho "on $1"; shift; exec env -i PATH="$PATH" /bin/sh -c "$*"\n')
    shell.chmod(0o700)
    environment = {"MPI_CLASSROOM_CLUSTER_NOTEBOOK": "it's a lesson.ipynb", "OTHER": "x"}
    layout = Layout(("n1",), (1,), "", "", (str(shell),))
    wrapper = write_wrapper(tmp_path, layout, environment)
    code = """A='is set'; export A; /bin/sh -c 'echo "$A|$MPI_CLASSROOM_CLUSTER_NOTEBOOK|$OTHER"'"""
    done = subprocess.run(
        ["/bin/sh", str(wrapper), "n1", code],
        env=os.environ | environment,
        capture_output=True,
        text=True,
    )
    assert done.stdout == "on n1\nis set|it's a lesson.ipynb|\n", done.stderr
    assert "BatchMode=yes" in wrapper_text(SSH, {})


@pytest.mark.skipif(not shutil.which("ssh"), reason="there is no ssh here")
def test_ssh_forwards_neither_keys_nor_ports_nor_a_terminal(tmp_path):
    settings = tmp_path / "config"
    settings.write_text("Host *\nForwardAgent yes\nForwardX11 yes\nRequestTTY force\n")
    command = [SSH[0], "-F", str(settings), "-G", *SSH[1:], "n1"]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert {"forwardagent no", "forwardx11 no", "requesttty false", "clearallforwardings yes"} <= set(found)


def test_a_folder_that_mpiexec_cannot_name_is_refused(tmp_path):
    with pytest.raises(ValueError, match="TMPDIR"):
        write_wrapper(tmp_path / "a b", TWO, {})
