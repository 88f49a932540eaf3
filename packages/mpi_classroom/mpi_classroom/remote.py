"""Ranks on other hosts, seen from the notebook: a `RemoteHost` is a `Host` whose answers come from its agent.

Every host has an agent (`agent.py`), which is started once and stays while clusters come and go. One thread
per host reads its answers, so that nobody who looks at the ranks waits for a slow network: `look` returns
what came last, with its age, and asks anew when the last question has been answered. The thread asks, too,
when nobody else has for a second. A host is lost when its connection ends, or when it has owed an answer for
SILENT_SECONDS in which this machine was awake.
"""

import base64
import contextlib
import itertools
import json
import math
import os
import selectors
import shlex
import socket
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

from mpi_classroom import host_checks
from mpi_classroom.agent import IDLE_CODE, IDLE_SECONDS, MARK
from mpi_classroom.awake import Awake
from mpi_classroom.check import Check
from mpi_classroom.errors import ClusterError
from mpi_classroom.host import BUSY_STACK_SECONDS, END_SECONDS, FRESH_SECONDS, Look, ProcessState
from mpi_classroom.host_checks import HostFacts
from mpi_classroom.layout import SSH
from mpi_classroom.recording.calls import SIZE

SILENT_SECONDS = 10.0
PING_SECONDS = 1.0  # a host is asked this often when nobody wants to know anything
LOOK_SECONDS = 0.1  # and at most this often
CONNECT_SECONDS = 20.0  # for ssh, and for Python on a busy host
ANSWER_SECONDS = 10.0  # for an answer that an agent has to do something for
ENDED_LOOKS = 5
STACKS_SECONDS = BUSY_STACK_SECONDS + FRESH_SECONDS
LAST_WORDS_SECONDS = 0.5  # for what ssh says when it ends
TICK_SECONDS = 0.2
KEPT = 4000  # bytes of what a host says besides its answers
LINE_BYTES = 2**24  # no answer is as long: 1.1 KB per rank, or the stacks of the ranks

Answer = dict[str, Any]


class RemoteHost:
    """One other host, and the ranks of a cluster on it."""

    def __init__(self, name: str, shell: Sequence[str] = SSH) -> None:
        """Start the agent and return at once: `(*shell, name, command line)` runs a command on the host."""
        self.name, self.lost = name, ""
        self.pids: Mapping[int, int] = {}
        self._told: dict[int, int] = {}  # the pids that the agent knows
        self._ranks: set[int] = set()  # who was ever looked at
        self._looks: dict[int, Look] = {}
        # When the last look was asked for, and when the last of those that were answered.
        self._asked_at = self._known_at = time.monotonic()
        self._under_way: Future[Answer] | None = None  # the last look
        self._numbers = itertools.count()
        self._waiting: dict[int, Future[Answer]] = {}
        self._changing, self._writing = threading.RLock(), threading.Lock()
        self._clock, self._owing_since, self._heard, self._words = Awake(), 0.0, False, b""
        agent = [sys.executable, "-P", "-m", "mpi_classroom.agent"]
        if path := os.environ.get("PYTHONPATH"):  # a login has none, and the ranks get it from mpiexec
            agent = ["env", f"PYTHONPATH={path}", *agent]
        pipe = subprocess.PIPE
        try:
            self._process = subprocess.Popen(
                [*shell, name, shlex.join(agent)],
                stdin=pipe,
                stdout=pipe,
                stderr=pipe,
                bufsize=0,
                start_new_session=True,  # an interrupt of the notebook is not for it
            )
        except OSError as error:
            self.lost = f"{name} cannot be reached: {error}"
            return
        assert self._process.stdin is not None
        os.set_blocking(self._process.stdin.fileno(), False)
        threading.Thread(target=self._read, name=f"answers of {name}", daemon=True).start()

    # ---------------------------------------------------------------- what a Host can be asked

    def look(self, ranks: Iterable[int], *, fresh: bool, processes: bool = True) -> dict[int, Look]:
        """Each of `ranks` as its host last said; a `fresh` look was asked for now, if it comes within 2 s.

        The age of a look says how old it is. A rank that no answer has had yet has done nothing. `processes`
        makes no difference: the agent always sends both.
        """
        ranks = list(ranks)
        with self._changing:
            self._ranks.update(ranks)
        if fresh:
            self._look_anew()
        elif time.monotonic() - self._asked_at >= LOOK_SECONDS:
            self._ask_look(fresh=False)
        with self._changing:
            unknown = Look(bytes(SIZE), 0.0, ProcessState(""))
            age = time.monotonic() - self._known_at
            return {rank: self._looks.get(rank, unknown)._replace(age=age) for rank in ranks}

    def ask_stacks(self, ranks: Iterable[int]) -> Callable[[], dict[int, str]]:
        """Ask `ranks` for their Python stacks; the call that is returned waits for them, at most 5 s."""
        ranks = self._tell(ranks)
        asked = self._ask("stacks", ranks=ranks)

        def collect() -> dict[int, str]:
            with contextlib.suppress(ClusterError, KeyError, TypeError, ValueError):  # or they cannot be read
                return {int(rank): str(text) for rank, text in self._result(asked, STACKS_SECONDS)["stacks"]}
            return {}

        return collect

    def signal(self, ranks: Iterable[int], number: int) -> None:
        """Send a signal to `ranks`, without waiting for it."""
        self._ask("signal", ranks=self._tell(ranks), number=number)

    def ended(self) -> dict[int, tuple[float, float]]:
        """When ranks there ended, on this machine's monotonic clock: after the first time, before the second.

        Raises ClusterError when the host does not answer.
        """
        times: dict[int, tuple[float, float]] = {}
        for _ in range(ENDED_LOOKS):  # an answer may have been on its way for long; the next one perhaps not
            asked = time.monotonic()
            answer = self._result(self._ask("ended"), FRESH_SECONDS)
            answered = time.monotonic()
            try:
                ago = {int(rank): float(seconds) for rank, seconds in answer["ended"]}
            except (KeyError, TypeError, ValueError):
                raise ClusterError(f"{self.name} does not say which of its ranks ended") from None
            for rank, seconds in ago.items():
                after, before = times.get(rank, (-math.inf, math.inf))
                times[rank] = max(after, asked - seconds), min(before, answered - seconds)
        return times

    def must_answer(self, why: str) -> None:
        """Count the host as lost, which `why` lets us expect, unless it answers within 2 s."""
        try:
            self._result(self._ask("ended"), FRESH_SECONDS)
        except ClusterError:
            self._lose(f"{self.name} does not answer: {why}")

    def end(self) -> None:
        """End the cluster's processes on the host and remove its folders; waits 2 s at most."""
        wait([self._ask("end")], 2 * END_SECONDS)

    # ---------------------------------------------------------------- the cluster on it

    def hello(self, question: Mapping[str, str], seconds: float = CONNECT_SECONDS) -> HostFacts:
        """What the host has, asked by a `host_checks.question`.

        Raises ClusterError if it does not answer, or by what is no answer to that; the host is then lost.
        """
        sent = time.time()
        try:
            answer = self._ask("hello", question=question).result(seconds)
            facts, there = host_checks.read_facts(answer["facts"]), float(answer["clock"])
        except TimeoutError:
            why = f"its agent did not start within {seconds:.0f} s, or a folder there does not answer"
            self._lose(f"{self.name} does not answer: {why}")
        except ClusterError as error:
            why = str(error).removeprefix(f"{self.name}: ")
            self._lose(f"{self.name} cannot report what it has: {why}")  # unless it is lost already
        except (KeyError, TypeError, ValueError):
            self._lose(f"{self.name} has another version of mpi_classroom")
        else:
            here = time.time()
            ahead = there - min(max(there, sent), here)  # it was read some time between question and answer
            return replace(facts, ahead=ahead)
        raise ClusterError(self.lost)

    def open(self, folder: Path, folders: Sequence[str], pids: Mapping[int, int]) -> None:
        """Make a cluster's `folder` and job `folders` on the host, after the end of what was open before.

        `pids` has the processes of the ranks there, and may grow while they start. Raises ClusterError.
        """
        names = [str(name) for name in folders]
        self._result(self._ask("open", folder=str(folder), folders=names), ANSWER_SECONDS)
        with self._changing:
            self.pids = pids
            self._told.clear()
            self._ranks.clear()
            self._looks.clear()

    def reach(self, address: str, port: int) -> None:
        """Raise ClusterError unless the host can connect to this machine, at `address` and `port`."""
        if error := self.try_ports([(address, port)])[0]:
            raise ClusterError(
                f"{self.name} cannot reach this machine at {address}, port {port} ({error}); "
                f"let the firewall here admit connections from {self.name}"
            )

    def listen(self, address: str) -> int:
        """Let others connect to the host at `address` until `close_port`; return the port. ClusterError."""
        return int(self._result(self._ask("listen", address=address), ANSWER_SECONDS)["port"])

    def try_ports(self, ports: Sequence[tuple[str, int]]) -> list[str]:
        """Per port (address, number), why the host cannot connect to it, "" if it can. ClusterError."""
        errors = self._result(self._ask("reach", ports=list(ports)), ANSWER_SECONDS)["errors"]
        if len(errors) != len(ports):
            raise ClusterError(f"{self.name} has another version of mpi_classroom")
        return [str(error) for error in errors]

    def close_port(self) -> None:
        """Close the port of `listen`, without waiting for it."""
        self._ask("close_port")

    def put(self, name: str, content: bytes) -> None:
        """Write a file into the cluster's folder, readable for its owner only. Raises ClusterError."""
        encoded = base64.b64encode(content).decode()
        self._result(self._ask("put", name=name, content=encoded), ANSWER_SECONDS)

    def close(self) -> None:
        """Let the agent end all that is on the host, and itself; the host is lost from here on."""
        self._lose(f"the connection to {self.name} was closed")

    # ---------------------------------------------------------------- questions

    def _ask(self, ask: str, **arguments: Any) -> "Future[Answer]":
        """Send a request; its answer, or the ClusterError that there is none, comes in the future."""
        future: Future[Answer] = Future()
        with self._changing:
            if self.lost:
                future.set_exception(ClusterError(self.lost))
                return future
            number = next(self._numbers)
            self._waiting[number] = future
        line = json.dumps({"id": number, "ask": ask} | arguments).encode() + b"\n"
        if not self._write(line):
            self._lose(f"the connection to {self.name} is stuck")
        return future

    def _write(self, line: bytes) -> bool:
        """Write without waiting: the pipe has room for all that can be under way."""
        with self._writing:
            assert self._process.stdin is not None
            try:
                return os.write(self._process.stdin.fileno(), line) == len(line)
            except BrokenPipeError:
                return True  # the connection has ended, and the thread that reads says why
            except (OSError, ValueError):  # it is full, or was closed
                return False

    def _result(self, asked: "Future[Answer]", seconds: float) -> Answer:
        try:
            return asked.result(seconds)
        except TimeoutError:
            raise ClusterError(f"{self.name} has not answered for {seconds:.0f} s") from None

    def _tell(self, ranks: Iterable[int]) -> list[int]:
        """Let the agent know the processes of `ranks`; return those that have one."""
        known = {rank: self.pids[rank] for rank in ranks if rank in self.pids}
        if news := {rank: pid for rank, pid in known.items() if self._told.get(rank) != pid}:
            self._ask("ranks", pids=news)
            self._told.update(news)
        return list(known)

    def _ask_look(self, *, fresh: bool) -> "tuple[Future[Answer], bool]":
        """The look under way, and whether it was asked for just now because there was none."""
        with self._changing:
            if self._under_way is not None and not self._under_way.done():
                return self._under_way, False
            ranks = sorted(self._ranks)
            self._tell(ranks)
            self._asked_at, self._owing_since = time.monotonic(), self._clock.seconds
            self._under_way = self._ask("look", ranks=ranks, fresh=fresh)
            return self._under_way, True

    def _look_anew(self) -> None:
        """Ask, and wait for the answer: after that to a look that is under way."""
        deadline, mine = time.monotonic() + FRESH_SECONDS, False
        while not mine and (left := deadline - time.monotonic()) > 0:
            asked, mine = self._ask_look(fresh=True)
            wait([asked], left)

    # ---------------------------------------------------------------- the thread that reads

    def _read(self) -> None:
        try:
            self._read_answers()
        except Exception as error:
            self._lose(
                f"{self.name} has sent an answer that cannot be read ({type(error).__name__}: {error}); "
                "is another version of mpi_classroom installed there?"
            )
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(END_SECONDS)
        self._process.terminate()  # ssh, if it still waits
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(END_SECONDS)
        self._process.kill()
        self._process.wait()

    def _read_answers(self) -> None:
        """Until the host is lost."""
        output, errors = self._process.stdout, self._process.stderr
        assert output is not None and errors is not None
        rest, ended = b"", 0.0
        with selectors.DefaultSelector() as selector, output, errors:
            selector.register(output, selectors.EVENT_READ)
            selector.register(errors, selectors.EVENT_READ)
            while not self.lost:
                for key, _ in selector.select(TICK_SECONDS):
                    chunk = os.read(key.fd, 2**16)
                    if not chunk:
                        selector.unregister(key.fileobj)
                        if key.fileobj is output:
                            self._words, ended = (self._words + rest)[-KEPT:], time.monotonic()
                    elif key.fileobj is errors:
                        self._words = (self._words + chunk)[-KEPT:]
                    else:
                        *lines, rest = (rest + chunk).split(b"\n")
                        if len(rest) > LINE_BYTES:
                            raise ValueError("a line is too long")
                        for line in lines:
                            self._take(line)
                self._clock.tick()
                if ended and (not selector.get_map() or time.monotonic() - ended > LAST_WORDS_SECONDS):
                    self._lose(self._how_it_ended())
                elif self._heard:
                    self._ping()

    def _take(self, line: bytes) -> None:
        """Give an answer to whoever waits for it; what a login says is kept for `lost`."""
        words, marked, text = line.partition(MARK)
        if not marked:
            self._words = (self._words + words + b"\n")[-KEPT:]
            return
        self._heard = True
        answer = _printable(json.loads(text))
        with self._changing:
            if "looks" in answer:
                self._keep(answer)
            waiting = self._waiting.pop(answer["id"], None)
        if waiting is None:
            return
        if "error" in answer:
            waiting.set_exception(ClusterError(f"{self.name}: {str(answer['error'])[:KEPT]}"))
        else:
            waiting.set_result(answer)

    def _keep(self, answer: Answer) -> None:
        """Keep looks that were asked for; raises TypeError, ValueError or zlib.error where they are none."""
        looks, size = answer["looks"], len(answer["looks"]) * SIZE
        records = zlib.decompressobj().decompress(base64.b64decode(answer["records"]), size + 1)
        if len(records) != size:
            raise ValueError("the records have another size")
        read = {}
        for place, (rank, now, (condition, used, runnable, moved)) in enumerate(looks):
            state = ProcessState(
                str(condition),
                None if used is None else float(used),
                bool(runnable),
                None if moved is None else int(moved),
            )
            read[rank] = Look(records[place * SIZE : (place + 1) * SIZE], float(now), state)
        self._looks |= {rank: look for rank, look in read.items() if rank in self._ranks}
        self._known_at = self._asked_at

    def _ping(self) -> None:
        """Ask, if nobody has for a while; a host that has owed the answer for too long is lost.

        The agent answers in turn, so a look without an answer shows that it is stuck or gone.
        """
        owing = self._under_way is not None and not self._under_way.done()
        if not owing:
            if time.monotonic() - self._asked_at >= PING_SECONDS:
                self._ask_look(fresh=False)
        elif self._clock.seconds - self._owing_since > SILENT_SECONDS:
            self._lose(f"{self.name} has not answered for {SILENT_SECONDS:.0f} s")

    def _how_it_ended(self) -> str:
        """One sentence: why there will be no more answers."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(END_SECONDS)
        code = self._process.poll()
        words = _printable(self._words.decode(errors="replace"))
        said = [line.strip() for line in words.splitlines() if line.strip()]
        if not self._heard:
            reason = said[-1] if said else f"its agent ended at once, with exit code {code}"
            return f"{self.name} does not answer: {reason}"
        if code == IDLE_CODE:
            why = f"it had heard nothing from this notebook for {IDLE_SECONDS / 60:.0f} minutes"
            return f"{self.name} has ended its ranks because {why}"
        reason = f" ({said[-1]})" if code == 255 and said else ""  # ssh's own
        return f"the connection to {self.name} has ended{reason}"

    def _lose(self, why: str) -> None:
        """No more questions; the agent finds its input closed, and ends what is on the host."""
        with self._changing:
            if self.lost:
                return
            self.lost = why
            waiting = list(self._waiting.values())
            self._waiting.clear()
        for future in waiting:
            future.set_exception(ClusterError(why))
        with self._writing:
            assert self._process.stdin is not None
            self._process.stdin.close()


class HostGroup:
    """All hosts of a cluster; stays while clusters come and go, so that a new one costs no ssh, no checks."""

    def __init__(self, names: Sequence[str], shell: Sequence[str] = SSH) -> None:
        self.shell = tuple(shell)
        self.hosts = {name: RemoteHost(name, shell) for name in names}
        self.facts: dict[str, HostFacts] = {}
        self.question: dict[str, str] = {}

    @classmethod
    def connect(
        cls,
        names: Sequence[str],
        shell: Sequence[str] = SSH,
        *,
        seconds: float = CONNECT_SECONDS,
        report: Callable[[str], None] = lambda _: None,
    ) -> "HostGroup":
        """Start an agent on every host, all at once, and ask what each has; `lost` has who did not answer."""
        group = cls(names, shell)
        with _witness() as witness:
            group.question = host_checks.question(witness)

            def hello(host: RemoteHost) -> HostFacts:
                facts = host.hello(group.question, seconds)
                group.facts[host.name] = facts
                report(f"{len(group.facts)} of {len(group.hosts)} hosts answer")
                return facts

            group._each(hello)  # a host has facts after that, or is lost
        group.facts = {name: group.facts[name] for name in names if name in group.facts}
        return group

    def lost(self) -> dict[str, str]:
        """The hosts that do not answer any more, each with the reason, one sentence."""
        return {name: host.lost for name, host in self.hosts.items() if host.lost}

    def ended(self) -> dict[int, tuple[float, float]] | None:
        """When ranks ended, see `RemoteHost.ended`; None if a host does not answer."""
        times: dict[int, tuple[float, float]] = {}
        if self._each(lambda host: times.update(host.ended())):
            return None
        return times

    def open(self, folder: Path, folders: Sequence[str], pids: Mapping[int, int]) -> None:
        """Make a cluster's folders on every host, see `RemoteHost.open`; raises the first ClusterError."""
        self._check(self._each(lambda host: host.open(folder, folders, pids)))

    def reach(self, address: str, port: int) -> None:
        """Raise the ClusterError of the first host that cannot connect to this machine there."""
        self._check(self._each(lambda host: host.reach(address, port)))

    def closed_ports(self, network: str, address: str) -> list[Check]:
        """A check per machine to which some host cannot connect in `network`: what its firewall refuses.

        Every host listens on a port that its system chooses, as ranks do, and so does this machine, at its
        `address`; every host tries the others. A port that drops packets takes 5 s, however many there are.
        """
        inside, hosts = IPv4Network(network), [host for host in self.hosts.values() if not host.lost]
        ports: dict[str, tuple[str, int]] = {}
        tried: dict[str, dict[str, str]] = {}

        def listen(host: RemoteHost) -> None:
            own = next(str(face.ip) for face in self.facts[host.name].networks if face.ip in inside)
            ports[host.name] = own, host.listen(own)

        def try_others(host: RemoteHost) -> None:
            others = [name for name in ports if name != host.name]
            errors = host.try_ports([ports[name] for name in others])
            tried[host.name] = dict(zip(others, errors, strict=True))

        with contextlib.ExitStack() as stack:
            with contextlib.suppress(OSError):  # behind a router, the address is not one of this machine
                own = stack.enter_context(socket.create_server((address, 0)))
                ports[host_checks.HERE] = address, own.getsockname()[1]
            stack.callback(self._each, RemoteHost.close_port, hosts)
            errors = [*self._each(listen, hosts), *self._each(try_others, hosts)]
        failed = [Check("network", False, str(error), "run this again") for error in errors]
        return failed + host_checks.closed_ports(ports, tried, network)

    def put(self, name: str, content: bytes) -> None:
        """Write a file into the cluster's folder on every host; raises the first ClusterError."""
        self._check(self._each(lambda host: host.put(name, content)))

    def end(self) -> None:
        """End the cluster on every host, at once; one that does not answer holds up nobody."""
        self._each(RemoteHost.end)

    def close(self) -> None:
        """Let every agent end what is on its host, and itself."""
        for host in self.hosts.values():
            host.close()

    def _each(
        self, do: Callable[[RemoteHost], object], hosts: Sequence[RemoteHost] | None = None
    ) -> list[ClusterError]:
        """Do it for all `hosts` (default: of the group) at once; return the errors."""
        hosts = list(self.hosts.values()) if hosts is None else hosts

        def guarded(host: RemoteHost) -> ClusterError | None:
            try:
                do(host)
            except ClusterError as error:
                return error
            return None

        with ThreadPoolExecutor(max(1, len(hosts))) as pool:
            try:
                return [error for error in pool.map(guarded, hosts) if error]
            except BaseException:  # an interrupt: nobody waits any more
                self.close()
                raise

    @staticmethod
    def _check(errors: Sequence[ClusterError]) -> None:
        if errors:
            raise errors[0]


def _printable(sent: Any) -> Any:
    """What a host sent, with a ? for each character that a terminal or a notebook might obey."""
    match sent:
        case str():
            if sent.isprintable():
                return sent
            return "".join(letter if letter.isprintable() or letter == "\n" else "?" for letter in sent)
        case list():
            return [_printable(part) for part in sent]
        case dict():
            return {_printable(name): _printable(part) for name, part in sent.items()}
    return sent


@contextlib.contextmanager
def _witness() -> Iterator[str]:
    """The name of an empty file in the working folder, by which a host sees that it has the same one.

    "" where nobody can write there.
    """
    try:
        descriptor, path = tempfile.mkstemp(prefix=".mpi-classroom-", dir=os.getcwd())
    except OSError:
        yield ""
        return
    os.close(descriptor)
    try:
        yield os.path.basename(path)
    finally:
        os.unlink(path)
