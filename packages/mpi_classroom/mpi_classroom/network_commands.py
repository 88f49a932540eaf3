"""What a lab runs (see `network`): pure text, which a test can read without a network.

Scripts run in places: the head, or a node. `explain` says in one sentence what went wrong in one of them.
"""

import contextlib
import os
import re
import shlex
from collections.abc import Iterable
from pathlib import Path

from mpi_classroom.errors import CourseError
from mpi_classroom.launch import ALLOW_ROOT
from mpi_classroom.processes import NETWORK, NETWORK_OWNER

HEAD = "head"
HOSTFILE = "hosts.mpi"
SUBNET, HEAD_ADDRESS = "10.77.0.0/24", "10.77.0.254"
SPACES = ("--net", "--uts", "--mount")
UNITS = {"k": 10**3, "m": 10**6, "g": 10**9}
SLOWEST = 10**6  # bit/s
# After a pause so many bytes pass at full speed. With more, small messages would not notice the limit. With
# fewer, a busy machine wakes too late for the next packet, and the link is slower than its rate.
BURST_SECONDS, SMALLEST_BURST = 1e-3, 16 * 1024
QUEUE_MS = 50
LONGEST_PACKET = 2**16  # bytes, as Linux has it


class NetworkError(CourseError):
    """The lab could not be made, or a node of it is not there."""


def parse_rate(text: str) -> int:
    """Bits per second of a rate such as `100mbit`, `2.5 Gbit/s` or `500kbit`, else raises NetworkError."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmg])bit(?:/s|ps)?", text.strip().lower())
    if not found:
        raise NetworkError(
            f"cannot read the rate {text!r}; write a number and its unit, as in 100mbit or 1gbit"
        )
    rate = round(float(found[1]) * UNITS[found[2]])
    if rate < SLOWEST:
        raise NetworkError(
            f"the rate {text!r} is below 1mbit, where a job takes minutes to start; choose a higher one"
        )
    return rate


def rate_words(rate: int | None) -> str:
    """A rate for people: `at 100 Mbit/s`, or `not limited`."""
    if rate is None:
        return "not limited"
    return f"at {rate / 10**9:g} Gbit/s" if rate >= 10**9 else f"at {rate / 10**6:g} Mbit/s"


def names_script(host: str, folder: Path) -> str:
    """What each place runs first: its host name, and the names of all."""
    return f"hostname {host}\nmount --bind {shlex.quote(str(folder / 'hosts'))} /etc/hosts\nip link set lo up"


def head_script(folder: Path) -> str:
    """What the head runs: the bridge, with the address at which nodes reach mpiexec."""
    return "\n".join(
        [
            names_script(HEAD, folder),
            "ip link add br0 type bridge",
            f"ip addr add {HEAD_ADDRESS}/24 dev br0",
            "ip link set br0 up",
        ]
    )


def node_script(node: str, folder: Path) -> str:
    """What a node runs before it is connected: memory that only its own ranks share."""
    return f"{names_script(node, folder)}\nmount -t tmpfs -o mode=1777,size=1g shm /dev/shm"


def plug_script(node: str, pid: int) -> str:
    """What the head runs to connect the node that `pid` holds."""
    return f"ip link add {node} type veth peer name eth0 netns {pid}\nip link set {node} master br0 up"


def address(host: str) -> str:
    """The address of a node, or of the head."""
    return HEAD_ADDRESS if host == HEAD else f"10.77.0.{host.removeprefix('n')}"


def address_script(node: str) -> str:
    """What a node runs when it is connected."""
    return f"ip addr add {address(node)}/24 dev eth0\nip link set eth0 up"


def burst_nbytes(rate: int) -> int:
    """How many bytes the bucket of a link of `rate` bit/s holds."""
    return max(SMALLEST_BURST, round(rate / 8 * BURST_SECONDS))


def packet_nbytes(rate: int) -> int:
    """How long a packet may be that TCP hands to a link of `rate` bit/s, to be cut at its end (GSO).

    A packet that is longer than the bucket is cut before it, into packets of 1,514 bytes. That takes so much
    CPU that one core carried 280 Mbit/s on a link of 500 Mbit/s, and carries 500 without it.
    """
    return min(LONGEST_PACKET, burst_nbytes(rate) // 2)


def limit_script(device: str, rate: int) -> str:
    """What limits the bytes that leave through `device`: a token bucket, refilled at `rate` bit/s."""
    bucket = f"rate {rate}bit burst {burst_nbytes(rate)}b latency {QUEUE_MS}ms"
    packets = f"ip link set dev {device} gso_max_size {packet_nbytes(rate)}"
    return f"{packets}\ntc qdisc replace dev {device} root tbf {bucket}"


def no_limit_script(device: str) -> str:
    """What takes the limit of `device` away, if it has one."""
    packets = f"ip link set dev {device} gso_max_size {LONGEST_PACKET}"
    return f"{packets}\ntc qdisc delete dev {device} root 2>/dev/null || true"


def hosts_text(hosts: Iterable[str]) -> str:
    """/etc/hosts of every place."""
    return "".join(f"{line}\n" for line in ["127.0.0.1 localhost", *(f"{address(h)} {h}" for h in hosts)])


def agent_text(folder: Path, pids: dict[str, int], owner: str) -> str:
    """The shell script that stands in for ssh, with the settings of Open MPI that hold anywhere in the lab.

    If a holder has ended and its process id was given away, the process that has it lacks the lab's mark.
    The head and the nodes share a user namespace, and a process cannot enter the one that it is in.
    """
    here = shlex.quote(str(folder))
    holders = "\n".join(f"  {host}) pid={pid};;" for host, pid in pids.items())
    settings = {
        NETWORK: str(folder),
        NETWORK_OWNER: owner,
        "PRTE_MCA_plm_ssh_agent": f"/bin/sh {folder / 'agent'}",
        "PRTE_MCA_prte_default_hostfile": str(folder / HOSTFILE),
        "PRTE_MCA_prte_if_include": SUBNET,
        "PRTE_MCA_rmaps_default_mapping_policy": "slot",  # ":oversubscribe" puts all ranks on the first node
        "OMPI_MCA_btl_tcp_if_include": SUBNET,
        **ALLOW_ROOT,  # in the lab's user namespace a plain user appears as root
    }
    exports = "\n".join(f"export {name}={shlex.quote(value)}" for name, value in settings.items())
    return f"""\
#!/bin/sh
# agent HOST COMMAND…   run COMMAND on HOST, a node of this lab or its head; for mpiexec in the place of ssh
host=$1; shift
case $host in
{holders}
  *) echo "there is no node $host in this lab; there are: {" ".join(pids)}" >&2; exit 255;;
esac
if ! {{ tr '\\0' '\\n' </proc/$pid/environ; }} 2>/dev/null | grep -qxF {NETWORK}={here}; then
  echo "$host is off; the other nodes go on, and a new lab has them all" >&2; exit 255
fi
user="--user --preserve-credentials"
test "$(readlink /proc/self/ns/user)" = "$(readlink /proc/$pid/ns/user)" && user=
{exports}
export TMPDIR={here}/$host PATH={here}/bin:"$PATH"
exec nsenter --target $pid $user {" ".join(SPACES)} --wd="$PWD" -- /bin/sh -c "$*"
"""


def ssh_text(folder: Path) -> str:
    """The shell script that programs in the lab find as `ssh`: the agent, without ssh's options.

    The command gets none of the caller's variables, as over a real ssh, and starts in the home folder.
    """
    agent = shlex.quote(str(folder / "agent"))
    return f"""\
#!/bin/sh
# ssh [OPTIONS] HOST COMMAND…   for programs in the lab; nothing is encrypted, nobody is asked for a password
while :; do
  case $1 in
    -[BbcDEeFIiJLlmOopQRSWw]) shift 2;;
    -*) shift;;
    *) break;;
  esac
done
host=${{1#*@}}; shift
cd
exec env -i HOME="$HOME" PATH=/usr/local/bin:/usr/bin:/bin /bin/sh {agent} "$host" "$@"
"""


def explain(errors: str) -> str:
    """One sentence with its remedy for what `unshare`, `ip`, `mount` or `tc` printed."""
    last = (errors.strip().splitlines() or ["no message"])[-1]
    if "qdisc" in errors and "unknown" in errors:
        return (
            "this kernel cannot limit a rate; load the module with `modprobe sch_tbf`, or leave the rate out"
        )
    if "Unknown device type" in errors or "not supported" in errors:
        return f"this kernel has no bridge or no veth ({last}); load them with `modprobe -a bridge veth`"
    if "No space left" in errors and "unshare" in errors:
        limits = " ".join(f"user.max_{kind}_namespaces=10000" for kind in ("user", "net", "uts", "mnt"))
        return f"this machine allows no more namespaces; let an administrator run: sysctl {limits}"
    if "not permitted" in errors or "denied" in errors:
        return f"this machine does not let you make network namespaces ({last}); {_permission()}"
    return f"the lab could not be made: {last}; please report it with the output of `mpi-classroom doctor`"


def _permission() -> str:
    """What permits network namespaces here."""
    if Path("/.dockerenv").exists() or Path("/run/.containerenv").exists():
        return (
            "start the container with --security-opt seccomp=unconfined --security-opt apparmor=unconfined, "
            "or as root with --cap-add SYS_ADMIN --cap-add NET_ADMIN --security-opt apparmor=unconfined"
        )
    if os.geteuid() == 0:
        return (
            "this root lacks the capabilities SYS_ADMIN and NET_ADMIN, so use the root of the whole machine"
        )
    for name, value in (("unprivileged_userns_clone", 1), ("apparmor_restrict_unprivileged_userns", 0)):
        with contextlib.suppress(OSError):
            if int(Path("/proc/sys/kernel", name).read_text()) != value:
                return f"run it as root, or let an administrator run: sysctl kernel.{name}={value}"
    return "run it as root"
