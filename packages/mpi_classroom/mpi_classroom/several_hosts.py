"""The other hosts of a cluster: an agent on each, checks before anything starts, what to do when one dies.

    n4 dies ──▶ replace=True    it is connected again: it may have rebooted
           └──▶ replace=False   the cluster goes on with the ranks of the others

MPI does not survive the loss of a host, so every rank is replaced in both cases. The agents stay: replacing a
cluster needs new connections only to the hosts that were lost. Where Slurm grants the hosts (see `slurm`),
they are known only when its job has begun, and are gone when it ends.
"""

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace as changed
from pathlib import Path

from mpi_classroom import host_checks
from mpi_classroom.errors import ClusterError
from mpi_classroom.layout import Layout, place, read_hosts
from mpi_classroom.network import Lab
from mpi_classroom.network_commands import HEAD, HEAD_ADDRESS
from mpi_classroom.remote import HostGroup
from mpi_classroom.sentences import listed
from mpi_classroom.slurm import Slurm

AGAIN_SECONDS = 5.0  # for a host that was lost to answer again
Report = Callable[[str], None]
Hosts = Sequence[str] | str | Path | Lab


class SeveralHosts:
    """The hosts on which the ranks of one cluster run, and where each rank is.

    `hosts` is a list, a hostfile (`layout.read_hosts`), what Slurm grants, or a lab, whose running nodes are
    used. `shell` is the command that runs a command on a host, as ssh does; nodes of Slurm and of a lab are
    reached by a command of their own. `network` is the one that MPI is to use, "" to choose. Raises
    ClusterError, one sentence with a remedy.
    """

    def __init__(
        self,
        n: int,
        hosts: Hosts | Slurm,
        shell: str | Sequence[str],
        network: str = "",
        *,
        replace: bool = True,
    ) -> None:
        self.n, self.network, self.replace = n, network, replace
        self.shell = tuple(shlex.split(shell) if isinstance(shell, str) else shell)
        self.slurm = hosts if isinstance(hosts, Slurm) else None
        self.lab = hosts if isinstance(hosts, Lab) else None
        if isinstance(hosts, Lab):
            self.shell = tuple(shlex.split(hosts.agent))
            hosts = [f"{node}:{hosts.slots}" for node in hosts.nodes if hosts.is_on(node)]
        self.listed: list[tuple[str, int | None]] = []
        self.counts: dict[str, int] = {}
        if not isinstance(hosts, Slurm):
            try:
                self._place(read_hosts(hosts))
            except ValueError as error:
                raise ClusterError(str(error)) from None
        # Two calls of start_cluster that ask for the same cluster have the same `asked`.
        source = self.slurm.asked if self.slurm else tuple(self.listed)
        self.asked = (source, n, self.shell, network, replace)
        self._group: HostGroup | None = None
        self._layout: Layout | None = None
        self.notes: list[str] = []

    def _place(self, listed: Sequence[tuple[str, int | None]]) -> None:
        """Give each host its ranks. Raises ValueError when they do not fit."""
        self.listed, counts = list(listed), place(self.n, listed)
        self.counts = {name: count for (name, _), count in zip(listed, counts, strict=True) if count}

    @property
    def group(self) -> HostGroup:
        """The agents; raises ClusterError while there are none."""
        if self._group is None:
            raise ClusterError("the cluster is stopped; run the cell with start_cluster() again")
        return self._group

    @property
    def layout(self) -> Layout:
        """Where the ranks run, once the hosts are connected."""
        assert self._layout is not None, "connect() comes first"
        return self._layout

    def connect(self, report: Report = lambda text: None) -> str:
        """Have an agent on each host, checked; return a sentence on hosts that are left out, "" if none is.

        The first time all hosts are connected. Later those that were lost are connected again; without
        `replace` they are dropped.
        """
        left_out = ""
        if self._group is None:
            if self.slurm is not None:
                self._place_on_nodes(self.slurm, report)
            report(f"connecting {len(self.counts)} hosts")
            self._group = HostGroup.connect(list(self.counts), self.shell, report=report)
            if lost := self._group.lost():
                words = self._no_answer(lost)  # before a job of Slurm's is cancelled
                self.close()
                raise ClusterError(words)
        elif lost := self._group.lost():
            if over := self._over():
                raise ClusterError(over)
            if self.replace:
                self._connect_again(self._group, lost, report)
            else:
                left_out = self._go_on_without(self._group, lost)
        self._lay_out(self._group)
        return left_out

    def lost(self, *, ended: bool = False) -> dict[str, str]:
        """The hosts that do not answer any more, each with the reason, one sentence.

        `ended`: the ranks have ended, perhaps because the job of Slurm's has, which takes its nodes away.
        """
        lost = self._group.lost() if self._group is not None else {}
        if (lost or ended) and (over := self._over()):
            return dict.fromkeys(self.counts, over)
        return lost

    def close(self) -> None:
        """End the agents, and with them all that is on their hosts; safe to call twice."""
        if self._group is not None:
            self._group.close()
        self._group = None
        if self.slurm is not None:
            self.slurm.release()

    def _place_on_nodes(self, slurm: Slurm, report: Report) -> None:
        """Wait for the nodes, and place the ranks on them."""
        nodes = slurm.hosts(report)
        self.shell = slurm.shell
        try:
            self._place(nodes)
        except ValueError:
            cpus = ", ".join(f"{name}: {count}" for name, count in nodes)
            raise ClusterError(
                f"Slurm job {slurm.job} has {sum(count for _, count in nodes)} CPUs ({cpus}), too few for "
                f"{self.n} ranks; start fewer ranks, or ask Slurm for more: --ntasks={self.n}"
            ) from None

    # ---------------------------------------------------------------- a host that was lost

    def _over(self) -> str:
        """Why there are no hosts any more, one sentence with a remedy; "" while there may be some."""
        if self.lab is not None and not self.lab.is_on(HEAD):
            return (
                "the lab has ended, and its nodes with it; make a new one, and use the cluster while it "
                "lasts: with network() as lab: start_cluster(hosts=lab)"
            )
        return self.slurm.over() if self.slurm is not None else ""

    def _connect_again(self, group: HostGroup, lost: Mapping[str, str], report: Report) -> None:
        report(f"connecting {listed(lost)} again")
        again = HostGroup.connect(list(lost), self.shell, seconds=AGAIN_SECONDS)
        if still := again.lost():
            again.close()
            raise ClusterError("\n".join([self._no_answer(still), *self._without(still)]))
        group.hosts |= again.hosts
        group.facts |= again.facts

    def _go_on_without(self, group: HostGroup, lost: Mapping[str, str]) -> str:
        if not self.counts.keys() - lost.keys():
            raise ClusterError(
                f"all hosts are lost ({'; '.join(lost.values())}); start the cluster on others"
            )
        for name in lost:
            group.hosts.pop(name).close()
            group.facts.pop(name, None)
            del self.counts[name]
        ranks = sum(self.counts.values())
        where = f"{ranks} rank{'s' * (ranks > 1)} on {listed(self.counts)}"
        return f"without {listed(lost)}: {where}"

    def _without(self, lost: Mapping[str, str]) -> list[str]:
        """How to go on with the rest of the hosts."""
        rest = {name: count for name, count in self.counts.items() if name not in lost}
        if not rest:
            return []
        slots = dict(self.listed)
        hosts = ", ".join(f'"{name}:{slots[name]}"' if slots[name] else f'"{name}"' for name in rest)
        return [f"to go on with the rest: start_cluster(n={sum(rest.values())}, hosts=[{hosts}], …)"]

    def _no_answer(self, lost: Mapping[str, str]) -> str:
        if over := self._over():
            return over
        shell = self.slurm.by_hand if self.slurm is not None else self.shell
        checks = [host_checks.no_answer(name, why, shell) for name, why in lost.items()]
        return "\n".join(f"{check.detail}; {check.remedy}" for check in checks)

    # ---------------------------------------------------------------- checks and layout

    def _lay_out(self, group: HostGroup) -> None:
        """Check the hosts and place the ranks on them."""
        facts, here = group.facts, host_checks.facts(group.question)
        if self.lab is not None:  # mpiexec and the controller run on its head
            here = changed(here, interfaces=(f"{HEAD_ADDRESS}/24",))
        checks = host_checks.problems(facts, here, self.counts, group.question)
        if wrong := [f"{check.detail}; {check.remedy}" for check in checks if not check.ok]:
            raise ClusterError("\n".join(wrong))
        self.notes = [check.detail for check in checks]
        if self.slurm is not None and self.slurm.until:
            self.notes.append(f"Slurm job {self.slurm.job} has these nodes until {self.slurm.until}.")
        try:
            network, address = host_checks.find_network(facts, here, self.network)
        except ValueError as error:
            raise ClusterError(str(error)) from None
        if closed := [f"{check.detail}; {check.remedy}" for check in group.closed_ports(network, address)]:
            raise ClusterError("\n".join(closed))
        threads = min(max(1, facts[name].cores // count) for name, count in self.counts.items())
        hosts, counts = tuple(self.counts), tuple(self.counts.values())
        self._layout = Layout(hosts, counts, network, address, self.shell, threads)

    def check_places(self, names: Mapping[int, str]) -> None:
        """Raise ClusterError unless ranks run where they were placed; `names` are those of their hosts."""
        for rank, name in names.items():
            host = self.layout.host_of(rank)
            if name != self.group.facts[host].hostname:
                raise ClusterError(
                    f"rank {rank} runs on {name}, not on {host}; please report this with what "
                    "`mpi-classroom doctor --hosts FILE` prints"
                )

    def describe(self) -> str:
        """Where the ranks run and what they share: `n1, n2 (2 each) over 10.77.0.0/24: 8 and 4 cores`."""
        cores = [str(self.group.facts[name].cores) for name in self.layout.hosts]
        each = f"{cores[0]} cores each" if len(set(cores)) == 1 else f"{listed(cores)} cores"
        return f"{self.layout} over {self.layout.network}: {each}, {_threads(self.layout.threads)} per rank"


def _threads(number: int) -> str:
    return f"{number} thread{'s' * (number > 1)}"
