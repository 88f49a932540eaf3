"""The agent of a host: runs there, and answers the notebook's questions about the ranks on it.

The notebook starts one agent per host, through ssh or what stands in for it, and speaks with it over the
agent's standard input and output, and whoever can start an agent could do all this without it. It opens a
port only to `listen`, while the hosts try whether they reach each other, and reads nothing from it. A request
and its answer are a line of JSON each:

    → {"id": 7, "ask": "look", "ranks": [2, 3], "fresh": false}
    ← ␞mpi-classroom {"id": 7, "looks": [[2, 81.25, ["", 3.1, true, 0]], [3, …]], "records": "eJzt…"}

    hello     what this host has, see `host_checks.facts`
    listen    let others connect to a port of this host, as ranks will
    reach     open a connection to each of some ports on other machines, as ranks will, and close it again
    close_port  close the port of `listen`
    open      make the folders of a cluster, under the names that they have on the notebook's machine
    put       write a file into the cluster's folder
    ranks     which processes the ranks here are
    look      their records and processes
    stacks    their Python stacks
    signal    send them a signal
    end       end what carries the cluster's mark, remove the folders

No request runs code. A login may print something before the agent starts, so the agent marks its lines. When
its input ends, because the notebook or the connection is gone, it ends what is on its host, and itself.
"""

import base64
import contextlib
import json
import os
import select
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil

from mpi_classroom.awake import Deadline
from mpi_classroom.folders import PREFIXES, lock, remove_leftovers
from mpi_classroom.host import END_SECONDS, Ends, LocalHost
from mpi_classroom.host_checks import facts
from mpi_classroom.processes import CLUSTER, end_marked, stop_orphans

MARK = b"\x1empi-classroom "  # begins each answer
# The notebook asks every second. After so long its machine is off or cut off, and the connection never said
# so; or it sleeps, which looks the same from here.
IDLE_SECONDS = 600.0
IDLE_CODE = 75  # the exit code then
TICK_SECONDS = 0.5
REACH_SECONDS = 5.0
HELD_SECONDS = 0.3  # longer than a search for leftovers holds a folder
INPUT, OUTPUT, ERRORS = 0, 1, 2

Answer = dict[str, Any]


class Agent:
    """Answers requests about the ranks of this host; `send` writes a line to the notebook."""

    def __init__(self, send: Callable[[bytes], None]) -> None:
        self._send, self._sending = send, threading.Lock()
        self._pids: dict[int, int] = {}
        self._ends = Ends()
        self._folder: Path | None = None
        self._host: LocalHost | None = None
        self._made: list[Path] = []  # the folders that were not there
        self._locks: dict[Path, int] = {}  # of all
        self._port: socket.socket | None = None
        self._requests: dict[str, Callable[..., Answer]] = {
            "hello": lambda question: {"facts": asdict(facts(question)), "clock": time.time()},
            "listen": self._listen,
            "reach": self._reach,
            "close_port": self._close_port,
            "open": self._open,
            "put": self._put,
            "ranks": self._ranks,
            "look": self._look,
            "ended": self._ended,
            "signal": self._signal,
            "end": self.end,
        }

    def answer(self, line: bytes) -> None:
        """Answer the request in `line`; one that cannot be answered gets a sentence that says why."""
        number = None
        try:
            request = json.loads(line)
            number, ask = request.pop("id"), request.pop("ask")
            if ask == "stacks":
                self._answer_with_stacks(number, request["ranks"])
                return
            answer = self._requests[ask](**request)
        except OSError as error:
            answer = {"error": str(error)}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        self._reply(number, answer)

    def _reply(self, number: int | None, answer: Answer) -> None:
        with self._sending, contextlib.suppress(OSError):  # nobody listens: then the input ends, too
            self._send(MARK + json.dumps({"id": number} | answer).encode() + b"\n")

    # ---------------------------------------------------------------- connections

    def _listen(self, address: str) -> Answer:
        """Open a port that the system chooses. The system accepts for us: nobody reads what is sent there."""
        self._close_port()
        self._port = socket.create_server((address, 0))
        return {"port": self._port.getsockname()[1]}

    def _reach(self, ports: list[tuple[str, int]]) -> Answer:
        """Try all at once: a firewall that drops packets takes REACH_SECONDS each."""
        with ThreadPoolExecutor(max(1, len(ports))) as pool:
            return {"errors": list(pool.map(_connect, ports))}

    def _close_port(self) -> Answer:
        if self._port is not None:
            self._port.close()
        self._port = None
        return {}

    # ---------------------------------------------------------------- folders and files

    def _open(self, folder: str, folders: list[str]) -> Answer:
        self.end()
        self._folder = Path(folder)
        self._host = LocalHost(self._folder, self._pids, counts_bytes=True)
        stop_orphans()  # what killed agents of others left here
        for name in (folder, *folders):
            self._make(Path(name))
        return {}

    def _make(self, folder: Path) -> None:
        """Make `folder`, and the folder of ours that it is or lies in.

        One that exists already belongs to the notebook or to another of our agents: `end` leaves it.
        """
        ours = folder if folder.name.startswith(PREFIXES) else folder.parent
        if not ours.name.startswith(PREFIXES):
            raise PermissionError(f"{ours} is not a private folder of ours")
        if ours not in self._locks:
            remove_leftovers(ours.parent)  # a killed agent of this notebook left the same name
            self._hold(ours)
        folder.mkdir(mode=0o700, exist_ok=True)

    def _hold(self, ours: Path) -> None:
        """Make the folder if it is not there, and lock it, so that nobody takes it for a leftover.

        Until it is locked, a search for leftovers may lock and remove it. So a lock of others counts only if
        they keep it.
        """
        made, last = False, time.monotonic() + HELD_SECONDS
        while True:
            with contextlib.suppress(FileExistsError):
                ours.mkdir(mode=0o700)
                made = True
            try:
                held = lock(ours)
            except BlockingIOError:
                if time.monotonic() > last:
                    break  # the notebook itself, on its own machine, or another agent with the same folders
            except FileNotFoundError:  # a search for leftovers has removed it
                pass
            except PermissionError as error:  # so it has, or another user made it
                if os.path.lexists(ours):
                    raise PermissionError(f"{error}; restart the kernel, which takes another name") from None
            else:
                self._locks[ours] = held
                break
            time.sleep(0.01)
        if made:
            self._made.append(ours)

    def _put(self, name: str, content: str) -> Answer:
        """Write a file, whole or not at all: whoever waits for it reads it as soon as it has its name."""
        if self._folder is None or not name or Path(name).name != name or name == "..":
            raise ValueError(f"there is no place for a file {name!r}")
        descriptor, part = tempfile.mkstemp(prefix=f"{name}.", dir=self._folder)  # mode 0600
        with open(descriptor, "wb") as file:
            file.write(base64.b64decode(content))
        os.replace(part, self._folder / name)
        return {}

    def end(self) -> Answer:
        """End every process here that carries the cluster's mark; remove the folders that this agent made."""
        if self._folder is not None:
            end_marked(CLUSTER, str(self._folder), timeout=END_SECONDS)
        for folder in self._made:
            shutil.rmtree(folder, ignore_errors=True)
        for held in self._locks.values():
            os.close(held)
        self._made.clear()
        self._locks.clear()
        self._pids.clear()
        self._ends = Ends()
        self._folder = self._host = None
        return {}

    # ---------------------------------------------------------------- ranks

    def _ranks(self, pids: dict[str, int]) -> Answer:
        for rank, pid in pids.items():
            self._pids[int(rank)] = pid
            self._ends.wait_for(int(rank), pid)
        return {}

    def _ended(self) -> Answer:
        """How many seconds ago ranks ended."""
        now = time.monotonic()
        return {"ended": [(rank, now - at) for rank, at in self._ends.at.copy().items()]}

    def _look(self, ranks: list[int], fresh: bool) -> Answer:
        looks = self._host.look(ranks, fresh=fresh) if self._host else {}
        records = zlib.compress(b"".join(look.record for look in looks.values()), 1)  # mostly zeros
        return {
            "looks": [(rank, look.now, look.process) for rank, look in looks.items()],
            "records": base64.b64encode(records).decode(),
        }

    def _answer_with_stacks(self, number: int, ranks: list[int]) -> None:
        """Ask the ranks now and answer when they have: meanwhile other requests are answered."""
        collect = self._host.ask_stacks(self._marked(ranks)) if self._host else dict
        threading.Thread(
            target=lambda: self._reply(number, {"stacks": list(collect().items())}), daemon=True
        ).start()

    def _signal(self, ranks: list[int], number: int) -> Answer:
        if self._host is not None:
            self._host.signal(self._marked(ranks), number)
        return {}

    def _marked(self, ranks: Iterable[int]) -> list[int]:
        """Those of `ranks` whose process carries the cluster's mark: a later one with its number does not."""
        found = []
        for rank in ranks:
            with contextlib.suppress(psutil.Error, OSError, KeyError, ValueError):
                if psutil.Process(self._pids[rank]).environ().get(CLUSTER) == str(self._folder):
                    found.append(rank)
        return found


def _connect(port: Sequence[Any]) -> str:
    """Why no connection to `port` (address, number) can be opened, "" if it can."""
    try:
        socket.create_connection((port[0], port[1]), timeout=REACH_SECONDS).close()
    except OSError as error:
        return error.strerror or str(error)
    return ""


def requests() -> Iterator[bytes]:
    """The lines of the standard input, until it ends; TimeoutError when none comes for IDLE_SECONDS awake."""
    rest, idle = b"", Deadline(IDLE_SECONDS)
    while not idle.over:
        if not select.select([INPUT], [], [], TICK_SECONDS)[0]:
            continue
        chunk = os.read(INPUT, 2**16)
        if not chunk:
            return
        *lines, rest = (rest + chunk).split(b"\n")
        idle = Deadline(IDLE_SECONDS)
        yield from lines
    raise TimeoutError


def main() -> int:
    """`python -m mpi_classroom.agent`: answer the notebook until it is gone."""
    output = os.dup(OUTPUT)
    os.dup2(ERRORS, OUTPUT)  # what anybody prints from here on is no answer

    def send(line: bytes) -> None:
        rest, stuck = memoryview(line), Deadline(IDLE_SECONDS)
        while rest:
            if select.select([], [output], [], TICK_SECONDS)[1]:
                rest = rest[os.write(output, rest[: select.PIPE_BUF]) :]  # so few bytes do not block
                stuck = Deadline(IDLE_SECONDS)
            elif stuck.over:
                os.kill(os.getpid(), signal.SIGTERM)  # also from a thread: the agent ends
                raise BrokenPipeError("nobody reads the answers")

    def leave(*_: object) -> None:
        raise SystemExit

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in (signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, leave)
    agent = Agent(send)
    try:
        for line in requests():
            agent.answer(line)
    except TimeoutError:
        return IDLE_CODE
    finally:
        for number in (signal.SIGHUP, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        agent.end()
    return 0


if __name__ == "__main__":
    sys.exit(main())
