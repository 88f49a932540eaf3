"""A study on several hosts: where its jobs run, and what its results say of the hosts; (slow) in a lab."""

import json
import subprocess
import sys

import pytest
from rows import ABOUT, PROGRAM, a_case
from test_run import Ranks

from course.lessons.l07_ddp_on_mnist.study_results import MACHINE, OWN_MPI, REPORT, load
from course.tools.study import job
from course.tools.study.command import measure
from course.tools.study.hosts import StudyHosts
from course.tools.study.job import StudyError
from mpi_classroom.layout import Layout
from mpi_classroom.network import network
from mpi_classroom.network_commands import HEAD, NetworkError

MACHINES = ABOUT["machine"] | {
    "hosts": "n1:2, n2:1",
    "link": "10.77.0.0/24, 100 Mbit/s",
    "link_mbit_per_s": 93.5,
}
HOSTS = StudyHosts(
    [("n1", 2), ("n2", 1)], Layout(("n1", "n2"), (1, 1), "10.77.0.0/24", "10.77.0.254"), MACHINES
)


def test_ranks_that_do_not_fit_are_refused_before_anything_runs(tmp_path, monkeypatch):
    ranks = Ranks(monkeypatch)
    with pytest.raises(StudyError, match="4 ranks do not fit"):
        measure(tmp_path, quick=True, parts=["timing"], ranks=[2, 4], connect=lambda: HOSTS)
    assert ranks.measured == []


def test_a_study_that_stops_lets_mpiexec_end_the_ranks_on_other_hosts(tmp_path, monkeypatch):
    """Here mpiexec is a program that, when it is asked to end, takes half a second for its ranks."""
    ended = tmp_path / "ended"
    program = (
        "import signal, sys, time; from pathlib import Path\n"
        f"def end(*_): time.sleep(0.5); Path({str(ended)!r}).touch(); sys.exit()\n"
        f"signal.signal(signal.SIGTERM, end); print({job.MARK!r} + '{{}}', flush=True); time.sleep(99)"
    )
    words = []

    def mpiexec(size, command, arguments):
        words.extend(arguments)
        return [sys.executable, "-c", program]

    monkeypatch.setattr(job, "mpiexec_command", mpiexec)
    recorded = job.run_job([a_case(OWN_MPI, 2)], ("draw", 640, 100), layout=HOSTS.layout(2))
    assert next(recorded) == {}
    assert words[:2] == ["--host", "n1:1,n2:1"]
    recorded.close()
    assert ended.exists()


@pytest.mark.release
@pytest.mark.timeout(300)
def test_the_ranks_of_a_study_run_on_the_nodes_of_a_lab(tmp_path):
    try:
        with network(2, rate="100mbit") as lab:
            sample = ["study", "--quick", "--only", "timing", "--ranks", "1,2", "--results", str(tmp_path)]
            where = ["--hosts", "n1,n2", "--agent", lab.agent, "--link", "100 Mbit/s"]
            words = lab.on(HEAD, [sys.executable, "-c", PROGRAM, *sample, *where])
            done = subprocess.run(words, capture_output=True, text=True, timeout=280)
    except NetworkError as error:
        pytest.skip(str(error))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Time of an epoch on n1, n2 (10.77.0.0/24, 100 Mbit/s)" in done.stdout
    machine = json.loads((tmp_path / MACHINE).read_text())["machine"]
    assert machine["hosts"] == "n1, n2" and 5 < machine["link_mbit_per_s"] < 110
    rows = load(tmp_path).rows
    assert {(row.engine, row.ranks) for row in rows} == {
        ("sequential", 1),
        ("mpi", 2),
        ("ddp-gloo", 2),
        ("ddp-mpi4py", 2),
    }
    assert {row.cores for row in rows} == {machine["cores"]}
    # The gradients of a step are 0.4 MB, or 33 ms on the link; all other seconds depend on the machine.
    steps = 1280 // rows[0].batch_size
    slow = [row.wait_seconds + row.transfer_seconds for row in rows if row.ranks == 2]
    assert min(slow) > 0.03 * steps
    assert "100 Mbit/s" in (tmp_path / REPORT).read_text()
