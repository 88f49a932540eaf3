"""The processes of a cluster: started quietly in a private folder, ended without a trace.

Controller and engines start at once; the engines wait for the controller's connection file. A watchdog (a
shell that reads from the kernel) ends the others when the kernel is gone, however it went.

With ranks on other hosts, the agent of each (see `agent`) makes the same folders there, gets the connection
file over its pipe, and ends what is there. The controller then listens for engines on one more address, and
what it says there is encrypted: the connection file holds its key.

The nodes of a lab (see `network`) cannot be reached from this machine, so controller and mpiexec run on the
lab's head. The kernel speaks to that controller through Unix sockets in the cluster's folder.
"""

import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil

from mpi_classroom import processes
from mpi_classroom.awake import Deadline
from mpi_classroom.errors import ClusterError
from mpi_classroom.first_death import UNKNOWN, Ends, find_deaths
from mpi_classroom.folders import (
    CLUSTER_PREFIX,
    MPIEXEC,
    SEGMENTS,
    SHARED_MEMORY,
    SHARED_MEMORY_PER_RANK,
    folder_environment,
    is_short,
    make_folder,
    remove_job_folders,
    unmarked,
)
from mpi_classroom.host import Host, LocalHost
from mpi_classroom.host_checks import MEMORY_PER_RANK
from mpi_classroom.job_output import node_without_daemon, read_deaths
from mpi_classroom.launch import ALLOW_ROOT, end_job, mpiexec_command, rank_environment, write_wrapper
from mpi_classroom.remote import HostGroup
from mpi_classroom.several_hosts import SeveralHosts
from mpi_classroom.snapshot import Death

MIB = 2**20
ROOM = MIB  # bytes on the disk for a cluster's files
LOG_LINES, LOG_COLUMNS = 15, 200
LISTEN_SECONDS = 3.0  # from the controller's files to its sockets
SOCKET_NAME = 107  # bytes
LOST_SECONDS = 1.0  # mpiexec may end before the agent of the host that is the reason is known to be gone
_NOISE = (
    "heartbeat::",
    "new hearts",
    "No heartbeat in the last",
    "CurveZMQ",
    "debugpy_stream",
    "Monitor message without topic",
    "seconds before aborting",
)


class Launcher:
    """Controller, engines and watchdog of one cluster."""

    def __init__(self, n: int, hosts: SeveralHosts | None = None) -> None:
        """Start the processes of a cluster with `n` ranks, on this machine or on connected `hosts`.

        Raises ClusterError when they cannot run there.
        """
        self.note = check_machine(n) if hosts is None else ""
        self._hosts = hosts
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._pids: dict[int, int] = {}
        self._listening: Deadline | None = None
        self._environment = rank_environment(n, layout=hosts.layout if hosts else None)
        self.folder, self._held = private_folder()
        try:
            self._start(n)
        except (OSError, ValueError) as error:
            self.end()
            raise ClusterError(f"the cluster cannot be started: {error}") from None
        except BaseException:
            self.end()
            raise

    def _start(self, n: int) -> None:
        mark = processes.marker(self.folder, os.environ.get("JPY_SESSION_NAME", ""))
        quiet = [f"--profile-dir={self.folder}", "--log-level=WARN"]
        listen, elsewhere, secrecy = ["--ip=127.0.0.1"], list[str](), dict[str, str]()
        if self._hosts is not None:
            layout = self._hosts.layout
            # `--ip` would be for engines, too. Without it clients get loopback.
            listen, secrecy = [f"--IPController.engine_ip={layout.address}"], {"IPP_ENABLE_CURVE": "1"}
            if self._hosts.lab is not None:
                listen += [
                    "--IPController.client_transport=ipc",
                    f"--IPController.client_ip={self._sockets()}",
                ]
                self._environment |= ALLOW_ROOT  # a plain user appears as root there
            self._sign_messages()
            self._make_folders(self._hosts)
            environment = self._environment | mark
            wrapper = write_wrapper(self.folder, layout, environment)
            elsewhere = layout.mpiexec_arguments(wrapper, environment)
        controller = [sys.executable, "-m", "ipyparallel.controller", *quiet]
        controller += [*listen, "--location=127.0.0.1", "--IPController.broadcast_scheduler_depth=0"]
        # Engines register with the first heartbeat; a rank that computes for long must not count as dead.
        # Who dies is known from mpiexec; missed heartbeats only show that a rank was stopped for a while.
        controller += ["--HeartMonitor.period=200", f"--HeartMonitor.max_heartmonitor_misses={10**7}"]
        engine = [
            sys.executable,
            "-m",
            "ipyparallel.engine",
            *quiet,
            "--mpi",
            "--IPEngine.enable_nanny=False",
        ]
        engine += [f"--IPEngine.url_file={self.folder / 'engine.json'}", "--IPEngine.wait_for_url_file=60"]
        engine += ["--IPEngine.timeout=60", "--IPEngine.max_heartbeat_misses=0"]
        try:
            ranks = mpiexec_command(n, engine, elsewhere)
        except FileNotFoundError as error:
            raise ClusterError(str(error)) from None
        watchdog = 'trap "" TERM; read nothing; exec "$0" -m mpi_classroom.processes "$1"'
        if self._hosts is not None and self._hosts.lab is not None:
            controller, ranks = self._hosts.lab.inside(controller), self._hosts.lab.inside(ranks)
        self._spawn("watchdog", ["/bin/sh", "-c", watchdog, sys.executable, str(self.folder)], unmarked())
        self._spawn("controller", controller, os.environ | secrecy | mark)
        self._spawn("ranks", ranks, self._environment | mark)

    def _sign_messages(self) -> None:
        """Give the controller a key to sign messages with, which it would not do beside the encryption.

        Anybody who knows the controller's public key could speak to it otherwise.
        """
        path = self.folder / "ipcontroller_config.py"
        path.touch(mode=0o600)
        path.write_text(f"c.Session.key = {secrets.token_hex(32).encode()!r}\n")

    def _sockets(self) -> Path:
        """How the names of the controller's Unix sockets begin; raises ClusterError if they are too long."""
        sockets = self.folder / "s"
        if len(str(sockets)) + len(":65535") > SOCKET_NAME:
            raise ClusterError(
                f"the folder {self.folder.parent} has too long a name for Unix sockets; set TMPDIR to a "
                "shorter one, such as /tmp, and restart the kernel"
            )
        return sockets

    def _make_folders(self, hosts: SeveralHosts) -> None:
        """Let every host have the folders that the job has here, under the same names."""
        self._environment |= folder_environment()
        jobs = [self._environment[name] for name in (SEGMENTS, MPIEXEC) if name in self._environment]
        hosts.group.open(self.folder, jobs, self._pids)

    def _spawn(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> None:
        with open(self.folder / f"{name}.log", "wb") as log:
            self._processes[name] = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.PIPE if name == "watchdog" else subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # an interrupt of the kernel is not for them
            )

    def connection_file(self) -> Path | None:
        """The client's connection file once the controller is up, else None; the engines get theirs then."""
        security = self.folder / "security"
        client, engine = (security / f"ipcontroller-{who}.json" for who in ("client", "engine"))
        if not (_is_json(client) and _is_json(engine)):
            return None
        if self._hosts is not None:
            self._listening = self._listening or Deadline(LISTEN_SECONDS)
            port = json.loads(engine.read_text())["registration"]
            try:
                self._hosts.group.reach(self._hosts.layout.address, port)
            except ClusterError:  # the controller writes its files first
                if self._listening.over or self._lost():
                    raise
                return None
            if self._hosts.lab is not None:
                _link_sockets(self._sockets(), client)
            self._hosts.group.put("engine.json", engine.read_bytes())
            return client
        # The engines must not read half a file, and the controller, which may still be at work on its own,
        # must find it where it was.
        aside = self.folder / "engine.json.part"
        try:
            aside.touch(mode=0o600)
            aside.write_text(engine.read_text())
            os.replace(aside, self.folder / "engine.json")
        except OSError as error:
            raise ClusterError(f"the cluster cannot be started: {error}") from None
        return client

    def check_alive(self) -> None:
        """Raise ClusterError, with the processes' own last words, when controller or ranks have ended."""
        if not self.folder.is_dir():
            raise ClusterError(f"the cluster's folder {self.folder} was removed")
        if lost := self._lost():
            raise ClusterError("; ".join(dict.fromkeys(lost.values())))
        for name, words in (("controller", "the controller"), ("ranks", "the MPI job with the ranks")):
            code = self._processes[name].poll()
            if code is not None:
                if lost := self._lost(LOST_SECONDS):
                    raise ClusterError("; ".join(dict.fromkeys(lost.values())))
                how = f"exit code {code}" if code >= 0 else f"signal {-code}"
                raise ClusterError(f"{words} ended with {how}\n{self.last_words()}")

    def _lost(self, seconds: float = 0.0) -> dict[str, str]:
        """The hosts that do not answer any more, and why; with `seconds` after mpiexec has ended.

        Its reason may take so long to be known. A host that mpiexec has lost is asked, because a connection
        to a dead host may look alive for SILENT_SECONDS (see `remote`).
        """
        if self._hosts is None:
            return {}
        if seconds and (node := node_without_daemon(self._log())):
            for name in self._hosts.layout.hosts:
                if node in (name, self._hosts.group.facts[name].hostname):
                    self._hosts.group.hosts[name].must_answer("mpiexec has lost the connection to it")
        deadline = time.monotonic() + seconds
        while not (lost := self._hosts.lost(ended=seconds > 0)) and time.monotonic() < deadline:
            time.sleep(0.02)
        return lost

    def hosts(self) -> dict[int, Host]:
        """The host of every rank."""
        if self._hosts is None:
            return dict.fromkeys(self._pids, LocalHost(self.folder, self._pids))
        group, layout = self._hosts.group, self._hosts.layout
        return {rank: group.hosts[layout.host_of(rank)] for rank in self._pids}

    def learn_pids(self, pids: Mapping[int, int]) -> None:
        """Take note of the processes of the ranks, by rank."""
        self._pids.update(pids)
        for rank, host in self.hosts().items():
            host.look([rank], fresh=False)  # its agent watches it from now on

    def last_words(self) -> str:
        """The last lines that controller and engines wrote: warnings and errors."""
        tails = []
        for name in ("controller", "ranks"):
            path = self.folder / f"{name}.log"
            lines = path.read_text(errors="replace").splitlines() if path.exists() else []
            telling = [
                line[:LOG_COLUMNS] for line in lines if line.strip() and not any(n in line for n in _NOISE)
            ]
            if telling:
                tails.append("\n".join([f"--- last lines from the {name}", *telling[-LOG_LINES:]]))
        return "\n".join(tails)

    def deaths(self) -> dict[int, Death]:
        """How ranks died: with their host, or else as mpiexec reports it, which reports the first only.

        On several hosts mpiexec may report a neighbour of the rank that died (see `first_death`).
        """
        if self._hosts is not None and (lost := self._lost()):
            layout = self._hosts.layout
            return {
                rank: Death(rank, "host", host=name)
                for name in lost
                if name in layout.hosts
                for rank in layout.ranks_of(name)
            }
        if self._hosts is None:
            return {death.rank: death for death in read_deaths(self._log())}
        hosts, group = self.hosts(), self._hosts.group
        deaths = find_deaths(self._log(), lambda: self._ends(group))
        return {
            death.rank: replace(death, host=hosts[death.rank].name) for death in deaths if death.rank in hosts
        }

    def _ends(self, group: HostGroup) -> Ends | None:
        """When each rank ended; None if a host does not answer.

        mpiexec may have ended before a busy host has noticed how its ranks did: it gets LOST_SECONDS for it.
        """
        deadline = time.monotonic() + LOST_SECONDS
        while (ends := group.ended()) is not None and not ends.keys() >= self._pids.keys():
            if time.monotonic() > deadline:
                return dict.fromkeys(self._pids, UNKNOWN) | ends
            time.sleep(0.02)
        return ends

    def _log(self) -> str:
        """The end of what mpiexec and the engines wrote."""
        path = self.folder / "ranks.log"
        return path.read_text(errors="replace")[-20_000:] if path.exists() else ""

    def end(self) -> None:
        """End all processes at once and remove the folder; safe to call twice."""
        if self._hosts is not None:
            self._hosts.group.end()
        for process in reversed(self._processes.values()):  # ranks, controller, watchdog
            _end(process)
        if self._processes:
            processes.end_marked(processes.CLUSTER, str(self.folder), timeout=1.0)
        self._processes = {}
        remove_job_folders(self._environment)
        shutil.rmtree(self.folder, ignore_errors=True)
        if self._held is not None:
            os.close(self._held)
        self._held = None


def private_folder() -> tuple[Path, int | None]:
    """A new folder for a cluster's files, readable for its owner only, and its lock (see `make_folder`).

    Raises ClusterError when it cannot be made, or the disk is full.
    """
    where = tempfile.gettempdir() if tempfile.tempdir is None else tempfile.tempdir
    folder, held = None, None
    try:
        folder, held = make_folder(CLUSTER_PREFIX, Path(where))
        (folder / "room").write_bytes(bytes(ROOM))
    except OSError as error:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
        if held is not None:
            os.close(held)
        raise ClusterError(
            f"cannot create a folder in {where} ({error.strerror}); free some disk space, or set TMPDIR to a "
            "folder that you own, and restart the kernel"
        ) from None
    (folder / "room").unlink()
    return folder, held


def check_machine(n: int) -> str:
    """A note on what too small a /dev/shm costs `n` ranks, "" where it holds them.

    Raises ClusterError when nothing can hold their shared memory, or the machine has too little memory.
    """
    free = psutil.virtual_memory().available
    if free < n * MEMORY_PER_RANK:
        needed = _needed(n, MEMORY_PER_RANK)
        raise ClusterError(
            f"the memory of this machine has {free / MIB:.0f} MiB free and {needed}; close other programs, "
            "or start fewer ranks"
        )
    if not is_short(SHARED_MEMORY, n):
        return ""
    files, needed = Path(tempfile.gettempdir()), _needed(n, SHARED_MEMORY_PER_RANK)
    small = f"{SHARED_MEMORY} has {shutil.disk_usage(SHARED_MEMORY).free / MIB:.0f} MiB free"
    remedy = "in Docker, start the container with --shm-size=1g"
    if is_short(files, n):
        room = shutil.disk_usage(files).free / MIB
        raise ClusterError(f"{small}, {files} {room:.0f} MiB, and {needed}; {remedy}")
    return (
        f"{small} and {needed}, so they exchange messages through files in {files}: these take that much of "
        f"the disk, and a busy disk slows messages down. To avoid it: {remedy}."
    )


def _needed(n: int, per_rank: int) -> str:
    return f"{n} rank{'s need' if n > 1 else ' needs'} {n * per_rank / MIB:.0f} MiB"


def _link_sockets(sockets: Path, connection: Path) -> None:
    """Let clients find the controller's Unix sockets: it binds `s-PORT`, and they connect to `s:PORT`."""
    for port in json.loads(connection.read_text()).values():
        if isinstance(port, int):
            with suppress(FileExistsError):
                os.symlink(f"{sockets.name}-{port}", f"{sockets}:{port}")


def _is_json(path: Path) -> bool:
    """Whether the file is there and complete."""
    try:
        json.loads(path.read_text())
    except (OSError, ValueError):
        return False
    return True


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process of ours and its children, at once."""
    if process.stdin is not None:  # the watchdog, which would take the closed pipe for the end of the kernel
        process.kill()
        process.stdin.close()
    end_job(process)
