"""The launcher and ranks on several hosts, without starting any: who died first, and who is asked."""

from types import SimpleNamespace

import pytest

from mpi_classroom.launcher import Launcher
from mpi_classroom.layout import Layout
from mpi_classroom.snapshot import Death

LAYOUT = Layout(("n1", "n2"), (2, 1), "10.77.0.0/24", "10.77.0.254")
FOLLOWED = """[n1:00000] *** An error occurred in Socket closed
[n1:00000] *** reported by process [682885121,0]
prterun has exited due to process rank 0 with PID 0 on node n1 calling "abort"."""
LOST = """PRTE has lost communication with a remote daemon.
  HNP daemon   : [prterun-head-4960@0,0] on node head
  Remote daemon: [prterun-head-4960@0,3] on node n2.org
This is usually due to either a failure of the TCP network"""
KILLED = "prterun noticed that process rank 2 with PID 4 on node n2 exited on signal 9 (Killed)."


@pytest.fixture
def launcher(tmp_path):
    """A launcher whose ranks have written to ranks.log; `asked` counts how often the hosts were asked.

    Their answers are those in `later`, then `ends`.
    """
    made = object.__new__(Launcher)
    made.folder, made._pids, made.asked = tmp_path, {0: 5, 1: 6, 2: 7}, 0

    def ended():
        made.asked += 1
        return made.later.pop(0) if made.later else made.ends

    group = SimpleNamespace(
        hosts={name: SimpleNamespace(name=name) for name in LAYOUT.hosts},
        ended=ended,
    )
    made.later = []
    made.ends = {0: (5.0, 5.1), 1: (6.0, 6.1), 2: (3.0, 3.1)}
    made._hosts = SimpleNamespace(layout=LAYOUT, group=group, lost=lambda ended: {})
    return made


def died(launcher, log):
    (launcher.folder / "ranks.log").write_text(log)
    return launcher.deaths()


def test_a_rank_that_mpiexec_names_is_told_with_its_host_and_nobody_else_is_asked(launcher):
    assert died(launcher, KILLED) == {2: Death(2, "signal", 9, host="n2")}
    assert launcher.asked == 0


def test_a_host_may_notice_late_that_a_rank_has_ended(launcher):
    noticed = {rank: launcher.ends[rank] for rank in (0, 1)}
    launcher.later = [noticed, noticed]
    assert died(launcher, FOLLOWED) == {2: Death(2, "first", host="n2")} and launcher.asked == 3


def test_a_rank_whose_end_no_host_has_noticed_may_have_died_first(launcher, monkeypatch):
    monkeypatch.setattr("mpi_classroom.launcher.LOST_SECONDS", 0.01)
    launcher.ends = {0: (5.0, 5.1), 1: (6.0, 6.1)}
    perhaps = {1: Death(1, "perhaps", host="n1"), 2: Death(2, "perhaps", host="n2")}
    assert died(launcher, FOLLOWED) == perhaps


def test_a_host_whose_daemon_mpiexec_lost_is_asked_whether_it_is_there(launcher):
    """A connection through srun, or to a machine without power, may look alive for long."""
    asked = []
    group = launcher._hosts.group
    group.facts = {name: SimpleNamespace(hostname=f"{name}.org") for name in LAYOUT.hosts}
    for host in group.hosts.values():
        host.must_answer = lambda why, name=host.name: asked.append((name, why))
    (launcher.folder / "ranks.log").write_text(LOST)
    assert launcher._lost() == {} and asked == []
    assert launcher._lost(0.01) == {} and asked == [("n2", "mpiexec has lost the connection to it")]
