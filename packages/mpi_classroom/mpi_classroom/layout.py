"""Place the ranks of a job on several hosts, find the network between them. Only `read_hosts` reads a file.

    layout = Layout(("n1", "n2"), (2, 2), network="10.77.0.0/24", address="10.77.0.254", shell=("ssh",))

Ranks are placed in blocks: n1 has ranks 0 and 1, n2 has ranks 2 and 3. Messages between the hosts use TCP on
one network, and no other one. mpiexec starts a daemon on every host with `shell`, a command that is called as
ssh is: `(*shell, host, "command line")`.
"""

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Interface, IPv4Network, IPv6Address
from pathlib import Path

# Whatever ~/.ssh/config says, there is no terminal, which would change what our agent reads, and no
# forwarding of keys and ports, which the host could use.
SSH = (
    *("ssh", "-x", "-T", "-a", "-oClearAllForwardings=yes"),
    *("-oBatchMode=yes", "-oConnectTimeout=5", "-oServerAliveInterval=5"),
)
# What ranks on other hosts get of the environment, apart from what is set for the job. mpiexec sends these
# values over the network unencrypted, so nothing secret may be among them. It adds its own (OMPI_, PMIX_,
# PRTE_) unasked.
PASSED_ON = ("LD_LIBRARY_PATH", "PATH", "VIRTUAL_ENV")
PASSED_ON_PREFIXES = ("COURSE_", "MKL_", "MPI_CLASSROOM_", "OMP_", "OPENBLAS_", "PYTHON")
# When a rank dies, Open MPI aborts all ranks that were connected to it, and mpiexec reports only the end of
# which it learns first. So every abort is delayed, even that of a rank that calls Abort: meanwhile mpiexec
# learns how the rank died.
ABORT_SECONDS = 1  # Open MPI takes whole seconds
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_HOSTFILE_OPTION = re.compile(r"(slots|max[_-]slots)=(\d+)")


@dataclass(frozen=True, slots=True)
class Layout:
    """`counts[0]` ranks on `hosts[0]`, the next `counts[1]` on `hosts[1]`, and so on.

    `network` is the one that MPI uses between the hosts, such as "10.77.0.0/24"; `address` is where they
    reach this machine. `threads` is how many each rank may run.
    """

    hosts: tuple[str, ...]
    counts: tuple[int, ...]
    network: str
    address: str
    shell: tuple[str, ...] = SSH
    threads: int = 1

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return sum(self.counts)

    def host_of(self, rank: int) -> str:
        """The host of `rank`."""
        return next(host for host in self.hosts if rank in self.ranks_of(host))

    def ranks_of(self, host: str) -> range:
        """The ranks on `host`."""
        at = self.hosts.index(host)
        begin = sum(self.counts[:at])
        return range(begin, begin + self.counts[at])

    def mpiexec_arguments(self, wrapper: Path, environment: Mapping[str, str]) -> list[str]:
        """The arguments of mpiexec for a job with `environment`; `wrapper` has the text of `wrapper_text`."""
        where = ",".join(f"{host}:{count}" for host, count in zip(self.hosts, self.counts, strict=True))
        arguments = ["--host", where, "--map-by", "slot", "--leave-session-attached"]
        arguments += ["--prtemca", "plm_ssh_agent", f"/bin/sh {wrapper}"]
        for name in sorted(environment):
            if name in PASSED_ON or name.startswith(PASSED_ON_PREFIXES):
                arguments += ["-x", name]
        return arguments

    def environment(self) -> dict[str, str]:
        """The variables that differ from those of a job on this machine alone."""
        threads = str(self.threads)
        return {
            "OMPI_MCA_btl": "self,sm,tcp",
            "OMPI_MCA_btl_tcp_if_include": self.network,
            "OMPI_MCA_opal_abort_delay": str(ABORT_SECONDS),
            "PRTE_MCA_prte_if_include": self.network,
            "PRTE_MCA_prte_keep_fqdn_hostnames": "true",  # otherwise it cuts names at the first dot
            "OMP_NUM_THREADS": threads,
            "MKL_NUM_THREADS": threads,
            "OPENBLAS_NUM_THREADS": threads,
        }

    def __str__(self) -> str:
        """Where the ranks are: `n1, n2 (2 each)`, or `n1 (2), n2 (1)`."""
        if len(set(self.counts)) == 1:
            each = f" ({self.counts[0]} each)" if len(self.hosts) > 1 else ""
            return ", ".join(self.hosts) + each
        return ", ".join(f"{host} ({count})" for host, count in zip(self.hosts, self.counts, strict=True))


def wrapper_text(shell: Sequence[str], marks: Mapping[str, str]) -> str:
    """The shell script by which mpiexec starts its daemons: `shell`, with `marks` for what it starts.

    ssh passes no environment on. Without the marks we could not find the processes to end them. mpiexec's
    command line is several commands (`PRTE_PREFIX=…; export PRTE_PREFIX; prted …`), so a shell of its own,
    which has the marks, runs it.
    """
    settings = shlex.join(["env", *(f"{name}={value}" for name, value in sorted(marks.items()))])
    return f"""\
#!/bin/sh
host=$1; shift
command=$(printf '%s\\n' "$*" | sed "s/'/'\\\\\\\\''/g")
exec {shlex.join(shell)} "$host" {shlex.quote(settings)}" /bin/sh -c '$command'"
"""


def read_hosts(hosts: Sequence[str] | str | Path) -> list[tuple[str, int | None]]:
    """Names and slots (None: no limit) of a list such as `["n1", "n2:2"]`, or of a hostfile.

    A line of a hostfile is `n1 slots=2`. Raises ValueError, in one sentence.
    """
    if isinstance(hosts, str | Path):
        found = _read_hostfile(Path(hosts).expanduser())
    else:
        found = [_read_entry(entry) for entry in hosts]
    if not found:
        raise ValueError("the list of hosts is empty; write their names, as in hosts=['n1', 'n2']")
    names = [name for name, _ in found]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(
                f"{name} is in the list of hosts twice; for two ranks there write {name}:2, once"
            )
    return found


def _read_hostfile(path: Path) -> list[tuple[str, int | None]]:
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        raise ValueError(
            f"cannot read the hostfile {path}; if that is the name of a host, write hosts=['{path}']"
        ) from None
    found = []
    for line in lines:
        entry, *options = line.partition("#")[0].split() or [""]
        if not entry:
            continue
        name, slots = _read_entry(entry)
        for option in options:
            known = _HOSTFILE_OPTION.fullmatch(option)
            if not known:
                raise ValueError(f"cannot read {option!r} in {path}; a line of a hostfile is: {name} slots=2")
            if known[1] == "slots":
                slots = _slots(name, known[2])
        found.append((name, slots))
    return found


def _read_entry(entry: str) -> tuple[str, int | None]:
    name, colon, slots = entry.strip().partition(":")
    if _is_ipv6(entry.strip()):
        raise ValueError(
            f"{entry} is an IPv6 address; write the host's name, which must have an IPv4 address"
        )
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not the name of a host; write it as in ssh NAME, without options")
    return name, _slots(name, slots) if colon else None


def _is_ipv6(text: str) -> bool:
    try:
        IPv6Address(text)
    except ValueError:
        return False
    return True


def _slots(name: str, text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"{name} cannot have {text!r} slots; write a number of at least 1, as in {name}:2")
    return int(text)


def place(n: int, hosts: Sequence[tuple[str, int | None]]) -> tuple[int, ...]:
    """How many of `n` ranks each host gets: as even as the slots allow, earlier hosts first.

    Raises ValueError, in one sentence, when they do not fit.
    """
    counts = [0] * len(hosts)
    for _ in range(n):
        free = [at for at, (_, slots) in enumerate(hosts) if slots is None or counts[at] < slots]
        if not free:
            room = ", ".join(f"{name}:{slots}" for name, slots in hosts)
            raise ValueError(
                f"{n} ranks do not fit into {sum(counts)} slots ({room}); start fewer ranks, or add slots"
            )
        counts[min(free, key=lambda at: counts[at])] += 1
    return tuple(counts)


def common_network(
    addresses: Mapping[str, Iterable[IPv4Interface]],
    here: Iterable[IPv4Interface],
    reached_at: Mapping[str, str],
    wanted: str = "",
) -> tuple[str, str]:
    """The network in which every host has an address of its own, and where the hosts reach this machine.

    `addresses` are those of each host, `here` those of this machine. `reached_at` is this machine's address
    as a host sees it, for those that know (a host that was reached by ssh does). `wanted` is the network to
    use, "" to choose. Raises ValueError, in one sentence.
    """
    everybody = {host: [face for face in faces if not face.is_loopback] for host, faces in addresses.items()}
    mine = [face for face in here if not face.is_loopback]
    if wanted:
        network = _network(wanted)
        for host, faces in everybody.items():
            if not any(face.ip in network for face in faces):
                raise ValueError(f"{host} has no address in {network}; it has {_list(faces)}")
        if not _all_differ(
            [{face.ip for face in faces if face.ip in network} for faces in everybody.values()]
        ):
            raise ValueError(
                f"some hosts have the same address in {network} ({_lists(everybody)}); name another network"
            )
    else:
        shared = [
            network
            for network in _networks(everybody)
            if _all_differ(
                [{face.ip for face in faces if face.network == network} for faces in everybody.values()]
            )
        ]
        if not shared:
            raise ValueError(
                f"the hosts have no network in common ({_lists(everybody)}); "
                'connect them, or name the network: network="10.0.0.0/24"'
            )
        network = next((net for net in shared if any(face.ip in net for face in mine)), shared[0])
    seen = {address for address in reached_at.values() if address}
    inside = [str(face.ip) for face in mine if face.ip in network]
    if inside:
        return str(network), inside[0]
    if len(seen) == 1:
        return str(network), seen.pop()
    raise ValueError(
        f"this machine has no address in {network}, the network of the hosts ({_list(mine)}); "
        'name one that it shares with them: network="10.0.0.0/24"'
    )


def _network(text: str) -> IPv4Network:
    try:
        return IPv4Network(text, strict=False)
    except ValueError:
        raise ValueError(f"{text!r} is not an IPv4 network; write it as in 10.0.0.0/24") from None


def _networks(addresses: Mapping[str, Sequence[IPv4Interface]]) -> list[IPv4Network]:
    """The networks of the first host, in its order."""
    return [face.network for face in next(iter(addresses.values()))]


def _all_differ(addresses: Sequence[set[IPv4Address]]) -> bool:
    """Whether each host has an address that no other has; docker0 has the same one everywhere."""
    return all(addresses) and len(set[IPv4Address]().union(*addresses)) == sum(map(len, addresses))


def _list(faces: Sequence[IPv4Interface]) -> str:
    return ", ".join(map(str, faces)) or "none"


def _lists(addresses: Mapping[str, Sequence[IPv4Interface]]) -> str:
    return "; ".join(f"{host}: {_list(faces)}" for host, faces in addresses.items())
