"""A lab: one machine plays several nodes, joined by links as slow as you like.

    with network(nodes=2, slots=2, rate="100mbit") as lab:
        print(lab.run_ranks(["-m", "mpi4py.bench", "helloworld"], timeout=60).stdout)
        lab.limit("1gbit")

A node has a network, a host name and a /dev/shm of its own; cores, files and process ids are the machine's.
One more place, the head, has the bridge that joins the nodes. mpiexec runs there.

    head  10.77.0.254   br0 ── n1 ═══ eth0   n1  10.77.0.1
                            └─ n2 ═══ eth0   n2  10.77.0.2      ═══ a veth pair, limited at both ends

The bridge is inside the head, so the machine's own network gets no device, no address and no route, and two
labs cannot collide. A sleeping process, the holder, keeps the namespaces of each place; they end with the
last process inside. Root makes them directly, any other user inside a user namespace.

All processes of a lab carry MPI_CLASSROOM_NETWORK, the lab's folder, and MPI_CLASSROOM_NETWORK_OWNER, the
process that made it. A lab ends with that process, unless it was made to stand until somebody takes it down.
The holders of a standing lab keep its folder locked.

See namespaces(7), veth(4) and tc-tbf(8).
"""

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from mpi_classroom.folders import (
    MPIEXEC,
    PREFIX,
    SEGMENTS,
    TEMPORARY,
    WINDOWS,
    is_ours,
    lock,
    remove_leftovers,
    remove_ours,
    scratch_folder,
)
from mpi_classroom.launch import find_mpiexec, rank_environment, running_job
from mpi_classroom.network_commands import (
    HEAD,
    HOSTFILE,
    SPACES,
    NetworkError,
    address,
    address_script,
    agent_text,
    explain,
    head_script,
    hosts_text,
    limit_script,
    no_limit_script,
    node_script,
    parse_rate,
    plug_script,
    rate_words,
    ssh_text,
)
from mpi_classroom.processes import NETWORK, NETWORK_OWNER, end_marked, marked_processes, owner_alive

MOST_NODES = 16
TOOL_FOLDERS = ("/usr/sbin", "/sbin")  # not on every user's PATH


@dataclass(slots=True)
class Lab:
    """Nodes `n1`, `n2`, … and the head, with the process id of each one's holder; `limit` changes `rate`."""

    folder: Path
    pids: dict[str, int]
    slots: int
    rate: int | None  # bit/s of each link, in each direction; None: not limited
    stands: bool  # until it is taken down

    @property
    def nodes(self) -> tuple[str, ...]:
        """The host names of the nodes; `n1` has the address 10.77.0.1."""
        return tuple(name for name in self.pids if name != HEAD)

    @property
    def size(self) -> int:
        """How many ranks a job in every slot has."""
        return len(self.nodes) * self.slots

    @property
    def hostfile(self) -> Path:
        """The nodes and their slots; in the lab, mpiexec uses it by itself."""
        return self.folder / HOSTFILE

    @property
    def agent(self) -> str:
        """The command that stands in for ssh: `agent HOST COMMAND…` runs COMMAND on a node or the head."""
        return f"/bin/sh {self.folder / 'agent'}"

    def on(self, host: str, command: Sequence[str]) -> list[str]:
        """The command line that runs `command` on a node or on the head."""
        return [*self.agent.split(), host, f"exec {shlex.join(command)}"]

    def inside(self, command: Sequence[str]) -> list[str]:
        """The command line that runs `command` on the head, in the caller's environment and folder."""
        return [*_enter(self.pids[HEAD])[:-1], f"--wd={os.getcwd()}", "--", *command]

    def environment(self) -> dict[str, str]:
        """The environment for a job in every slot: messages between nodes cross the links."""
        environment = rank_environment(self.size, connects=True)
        for name in (SEGMENTS, *WINDOWS, MPIEXEC, TEMPORARY):  # folders of the machine; a node has its own
            environment.pop(name, None)
        environment["PATH"] = os.pathsep.join([str(find_mpiexec().parent), _environment()["PATH"]])
        return environment

    def add_command(self, name: str, script: str) -> None:
        """Let programs in the lab find the shell script `script` as the command `name`."""
        path = self.folder / "bin" / name
        path.write_text(script)
        path.chmod(0o700)

    def run_ranks(
        self, arguments: Sequence[str], *, timeout: float, environment: Mapping[str, str] | None = None
    ) -> "subprocess.CompletedProcess[str]":
        """Run `python *arguments` in every slot, within `timeout` seconds; return exit code and output.

        `environment` is added to the lab's, for example {"OMPI_MCA_coll": "^han"}.

        Raises subprocess.TimeoutExpired when the job is not done by then; all its ranks are gone.
        """
        mpiexec = [str(find_mpiexec()), "-n", str(self.size)]
        command = self.on(HEAD, [*mpiexec, sys.executable, *arguments])
        pipe = subprocess.PIPE
        surroundings = self.environment() | dict(environment or {})
        with running_job(command, surroundings, stdout=pipe, stderr=pipe, text=True) as job:
            output, errors = job.communicate(timeout=timeout)
        return subprocess.CompletedProcess(command, job.returncode, output, errors)

    def describe(self) -> list[str]:
        """The nodes with their addresses, line by line."""
        return [
            f"{len(self.nodes)} nodes, {self.slots} ranks per node, links {rate_words(self.rate)}",
            *(f"{name:4} {address(name):12} {'on' if self.is_on(name) else 'off'}" for name in self.nodes),
        ]

    def is_on(self, host: str) -> bool:
        """Whether the holder of this place is there, and so its network."""
        try:
            return psutil.Process(self.pids[host]).environ().get(NETWORK) == str(self.folder)
        except (psutil.Error, OSError):
            return False

    def limit(self, rate: str | None) -> None:
        """Limit every link to `rate`, such as `250mbit`, from now on; None takes the limit away.

        Jobs may run meanwhile. Raises NetworkError for what is no rate, and leaves the links as they are.
        """
        limit = None if rate is None else parse_rate(rate)
        check_machine(len(self.nodes), self.slots, limit)
        if not self.is_on(HEAD):
            raise NetworkError("this lab is off; make a new one")
        _limit({host: pid for host, pid in self.pids.items() if self.is_on(host)}, limit)
        self.rate = limit
        self.save()

    def save(self) -> None:
        """Write what another process needs to know of this lab."""
        state = {"pids": self.pids, "slots": self.slots, "rate": self.rate, "stands": self.stands}
        part = self.folder / "lab.json.part"
        part.write_text(json.dumps(state))
        os.replace(part, self.folder / "lab.json")

    def power_off(self, node: str) -> None:
        """Kill every process of a node at once, as a power cut does."""
        if node not in self.nodes:
            raise NetworkError(f"there is no node {node}; the nodes are {', '.join(self.nodes)}")
        if self.is_on(node):
            _kill_inside(self.pids[node])

    def end(self) -> int:
        """Kill every process in the lab and remove its files; return how many processes that were."""
        inside = sum(_kill_inside(pid) for host, pid in self.pids.items() if self.is_on(host))
        return inside + _end(self.folder)


# ------------------------------------------------------------------ up and down


@contextlib.contextmanager
def network(nodes: int = 2, *, rate: str | None = None, slots: int = 1) -> Iterator[Lab]:
    """A lab of `nodes` nodes with `slots` ranks each, for the length of the block; `rate` limits every link.

    When this process is killed, its watchdog ends the lab. Raises NetworkError, with what to do, where this
    machine cannot have one.
    """
    place = scratch_folder()
    if place is None:
        raise NetworkError("there is no temporary folder for the lab; set TMPDIR to a folder that you own")
    lab = _make(Path(tempfile.mkdtemp(prefix="network-", dir=place)), nodes, rate, slots, stands=False)
    try:
        yield lab
    finally:
        lab.end()


def up(nodes: int, *, rate: str | None = None, slots: int = 1) -> Lab:
    """A lab that stands until `down`; first removes what a killed one left. Raises NetworkError."""
    clean()
    if lab := standing():
        raise NetworkError(f"a lab of {len(lab.nodes)} nodes is up already; take it down first (down)")
    try:
        folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}network-"))
    except OSError as error:
        raise NetworkError(
            f"cannot create a folder for the lab ({error.strerror}); set TMPDIR to a folder that you own"
        ) from None
    return _make(folder, nodes, rate, slots, stands=True)


def standing() -> Lab | None:
    """The lab that stands on this machine, of this user, if there is one."""
    return next((lab for lab in map(_load, _folders()) if lab and lab.stands and lab.is_on(HEAD)), None)


def down() -> list[str]:
    """End the lab that stands and what killed ones left; a sentence for each."""
    done = clean()
    if lab := standing():
        lab.end()
        done.append(f"Took down the lab of {len(lab.nodes)} nodes.")
    return done


def clean(*, everything: bool = False) -> list[str]:
    """End what killed labs left, with `everything` all other labs too; a sentence for each."""
    done = []
    for folder, owner in _folders().items():
        lab = _load(folder)
        wanted = owner_alive(owner) or (lab is not None and lab.stands and lab.is_on(HEAD))
        if wanted and not everything:
            continue
        ended = lab.end() if lab else _end(folder)
        what = "a lab in use" if wanted else "what was left of a lab that was killed"
        done.append(f"Removed {what}: {ended} processes.")
    remove_leftovers()
    return done


def check_machine(nodes: int, slots: int, rate: int | None) -> None:
    """Raise NetworkError where the numbers make no lab, or a tool is missing."""
    if not 1 <= nodes <= MOST_NODES:
        raise NetworkError(f"a lab has 1 to {MOST_NODES} nodes, not {nodes}; choose a number in between")
    if slots < 1:
        raise NetworkError(f"a node has at least one slot, not {slots}; choose 1 or more")
    if not sys.platform.startswith("linux"):
        raise NetworkError(
            "a lab needs Linux, for its namespaces; use the container image on Linux, or a virtual machine"
        )
    path = _environment()["PATH"]
    packages = {"ip": "iproute2", "hostname": "hostname", "unshare": "util-linux", "nsenter": "util-linux"}
    for tool, package in (packages if rate is None else packages | {"tc": "iproute2"}).items():
        if not shutil.which(tool, path=path):
            raise NetworkError(
                f"there is no command `{tool}`; on Debian or Ubuntu: sudo apt install {package}"
            )


def _make(folder: Path, nodes: int, rate: str | None, slots: int, *, stands: bool) -> Lab:
    """Make the lab in `folder`; raises NetworkError and leaves nothing where that fails."""
    held: tuple[int, ...] = ()
    try:
        limit = None if rate is None else parse_rate(rate)
        check_machine(nodes, slots, limit)
        if re.search(r"[\s:]", str(folder)):
            raise NetworkError(
                f"mpiexec cannot use the folder {folder}; set TMPDIR to one without spaces and colons"
            )
        if stands:  # else the process that uses it has locked the folder around it
            held = (lock(folder),)
        return _build(folder, nodes, limit, slots, stands, held)
    except OSError as error:
        _end(folder)
        raise NetworkError(f"the lab could not be made: {error}; free some memory and disk space") from None
    except BaseException:
        _end(folder)
        raise
    finally:
        for descriptor in held:
            os.close(descriptor)  # the holders have it


def _build(
    folder: Path, nodes: int, rate: int | None, slots: int, stands: bool, held: tuple[int, ...]
) -> Lab:
    me = psutil.Process()
    owner = f"{me.pid}:{me.create_time():.2f}"
    names = [f"n{number}" for number in range(1, nodes + 1)]
    for name in (HEAD, *names, "bin"):
        (folder / name).mkdir(mode=0o700)
    (folder / "hosts").write_text(hosts_text([HEAD, *names]))
    (folder / HOSTFILE).write_text("".join(f"{name} slots={slots}\n" for name in names))
    environment = _environment() | {
        NETWORK: str(folder),
        NETWORK_OWNER: owner,
        "LC_ALL": "C",
    }  # see `explain`

    def hold(entrance: list[str], script: str) -> int:
        stay = "echo ready\nexec sleep infinity >/dev/null 2>&1"
        pipe = subprocess.PIPE
        holder = subprocess.Popen(
            [*entrance, "/bin/sh", "-ec", f"{script}\n{stay}"],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=pipe,
            stderr=pipe,
            text=True,
            pass_fds=held,
            start_new_session=True,
        )
        assert holder.stdout is not None and holder.stderr is not None
        with holder.stdout, holder.stderr:
            if holder.stdout.readline() != "ready\n":
                errors = holder.stderr.read()
                holder.wait()
                raise NetworkError(explain(errors))
        holder.returncode = 0  # it is to outlive this object; who ends it also reaps it
        return holder.pid

    user = [] if _is_root() else ["--user", "--map-root-user"]
    pids = {HEAD: hold(["unshare", *user, *SPACES], head_script(folder))}
    for name in names:
        entrance = [*_enter(pids[HEAD]), "unshare", *SPACES]
        pids[name] = hold(entrance, node_script(name, folder))
        _run_in(pids[HEAD], plug_script(name, pids[name]))
        _run_in(pids[name], address_script(name))
    if rate is not None:
        _limit(pids, rate)
    (folder / "agent").write_text(agent_text(folder, pids, owner))
    lab = Lab(folder, pids, slots, rate, stands)
    lab.add_command("ssh", ssh_text(folder))
    lab.save()
    return lab


def _limit(pids: Mapping[str, int], rate: int | None) -> None:
    """Limit both ends of each link to `rate` bit/s; `pids` has the places that are on."""
    nodes = [host for host in pids if host != HEAD]

    def script(device: str) -> str:
        return no_limit_script(device) if rate is None else limit_script(device, rate)

    for node in nodes:
        _run_in(pids[node], script("eth0"))
    _run_in(pids[HEAD], "\n".join(map(script, nodes)))


def _run_in(pid: int, script: str) -> None:
    """Run a script in the place that `pid` holds; raises NetworkError when it fails."""
    environment = _environment() | {"LC_ALL": "C"}  # see `explain`
    done = subprocess.run(
        [*_enter(pid), "/bin/sh", "-ec", script], env=environment, capture_output=True, text=True
    )
    if done.returncode:
        raise NetworkError(explain(done.stderr))


def _load(folder: Path) -> Lab | None:
    """The lab of a folder; None where it was never finished."""
    try:
        return Lab(folder, **json.loads((folder / "lab.json").read_text()))
    except (OSError, ValueError, TypeError):
        return None


def _folders() -> dict[Path, str]:
    """The folders of all labs of which a process is here, each with its owner."""
    return {Path(found[NETWORK]): found.get(NETWORK_OWNER, "") for _, found in marked_processes(NETWORK)}


def _is_root() -> bool:
    return os.geteuid() == 0


def _enter(pid: int) -> list[str]:
    user = [] if _is_root() else ["--user", "--preserve-credentials"]
    return ["nsenter", "--target", str(pid), *user, *SPACES, "--"]


def _environment() -> dict[str, str]:
    """This process's environment, with the folders on PATH where `ip` and `tc` are."""
    return os.environ | {"PATH": os.pathsep.join([os.environ.get("PATH", os.defpath), *TOOL_FOLDERS])}


def _kill_inside(holder: int) -> int:
    """Kill all processes in the network namespace of `holder`; return how many there were."""
    space = os.readlink(f"/proc/{holder}/ns/net")
    assert space != os.readlink("/proc/self/ns/net"), "never the machine's own"
    killed = set()
    deadline = time.monotonic() + 3
    while (
        inside := _inside(space)
    ) and time.monotonic() < deadline:  # somebody may have been starting just now
        for pid in inside:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        killed |= inside
        time.sleep(0.005)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(holder, 0)  # whoever started the others learns from them how they ended
    return len(killed)


def _inside(space: str) -> set[int]:
    """The living processes in a network namespace."""
    found = set()
    for pid in psutil.pids():
        with contextlib.suppress(OSError):  # gone, or another user's
            if os.readlink(f"/proc/{pid}/ns/net") == space:
                found.add(pid)
    return found


def _end(folder: Path) -> int:
    """End what carries the mark of the lab in `folder`, and remove the folder."""
    ended = end_marked(NETWORK, str(folder))
    if is_ours(folder.parent):  # of the process that used it
        shutil.rmtree(folder, ignore_errors=True)
    remove_ours(folder)
    return ended
