"""Slurm in the lab: its files, why it does not start, and (slow, where it can be had) jobs on four nodes."""

import subprocess
import sys
from pathlib import Path

import pytest

from mpi_classroom import network_slurm
from mpi_classroom.network_commands import NetworkError
from mpi_classroom.network_slurm import client_text, find_slurm, not_started
from packages.mpi_classroom.tests.waiting import until


def test_a_command_of_slurm_hides_the_labs_hostfile_and_agent_from_its_jobs(tmp_path):
    tool = tmp_path / "squeue"
    tool.write_text('#!/bin/sh\necho "$SLURM_CONF" "$PRTE_MCA_plm_ssh_agent" "$@"\n')
    tool.chmod(0o700)
    text = client_text(tool, Path("/a b/slurm.conf"))
    given = {"PRTE_MCA_plm_ssh_agent": "agent"}
    said = subprocess.run(["/bin/sh", "-c", text, "squeue", "-a"], env=given, capture_output=True, text=True)
    assert said.stdout == "/a b/slurm.conf  -a\n"


def test_a_missing_command_is_named_with_its_package_and_root_is_needed(monkeypatch, tmp_path):
    monkeypatch.setattr(network_slurm, "TOOL_FOLDERS", ())
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NetworkError, match=r"`slurmctld`.*apt install --no-install-recommends slurmctld"):
        find_slurm(0)
    for tool in network_slurm.PACKAGES:
        (tmp_path / tool).touch(mode=0o755)
    assert find_slurm(0) == tmp_path
    with pytest.raises(NetworkError, match="need root; try it as root"):
        find_slurm(1000)


def test_why_it_did_not_start_is_the_last_error_of_its_logs(tmp_path):
    log = tmp_path / "slurmctld.log"
    log.write_text("error: first\nfatal: no such plugin\nslurmctld ends\n")
    assert "(fatal: no such plugin); take the lab down" in not_started("its nodes are down", [log])
    log.write_text("")
    assert "(no message)" in not_started("its nodes are down", [log])


# ------------------------------------------------------------------ a real one

WAITS = """#!/bin/sh
#SBATCH --requeue --open-mode=append
echo start ${SLURM_RESTART_COUNT:-0} on $SLURM_JOB_NODELIST
test ${SLURM_RESTART_COUNT:-0} = 1 || sleep 600
"""


def submit(lab, folder, script):
    """Submit `script`, whose output goes to `folder`/out; return the job's number."""
    (folder / "job.sh").write_text(script)
    command = ["sbatch", "--parsable", f"--output={folder / 'out'}", str(folder / "job.sh")]
    done = subprocess.run(lab.on("head", command), env=lab.environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.slow
def test_a_job_whose_node_is_gone_starts_again_on_another(slurm_lab, tmp_path):
    submit(slurm_lab, tmp_path, WAITS)
    out = tmp_path / "out"
    until(lambda: out.exists() and out.read_text().endswith("\n"), 30)
    first = out.read_text().split()[-1]
    slurm_lab.power_off(first)
    until(lambda: "start 1" in out.read_text(), 90)
    assert out.read_text().split()[-1] != first


CHECKED = """#!/bin/sh
#SBATCH --nodes=2
{python} -m mpi_classroom.launch --check 3 {program}
echo exit status $?
"""
MISTAKE = """
import numpy as np
from mpi4py import MPI
comm, b = MPI.COMM_WORLD, np.empty(4)
if comm.rank == 0: comm.Send(np.arange(4), 1)
if comm.rank == 1: comm.Recv(b, 0)
"""


@pytest.mark.slow
def test_a_batch_job_checks_the_calls_of_a_program(slurm_lab, tmp_path):
    (tmp_path / "program.py").write_text(MISTAKE)
    submit(slurm_lab, tmp_path, CHECKED.format(python=sys.executable, program=tmp_path / "program.py"))
    out = tmp_path / "out"
    until(lambda: out.exists() and "exit status" in out.read_text(), 60)
    said = out.read_text()
    assert "Mistake: rank 0 sent 4 int64 (program.py, line 5:" in said and "exit status 1" in said, said
