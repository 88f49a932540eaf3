"""A notebook whose ranks live on nodes that a real Slurm grants, in a lab; skipped where it cannot be had."""

import re
import subprocess

import pytest

from mpi_classroom.network_commands import HEAD, SUBNET
from packages.mpi_classroom.tests.kernel import open_notebook
from packages.mpi_classroom.tests.waiting import until

pytestmark = [pytest.mark.timeout(240), pytest.mark.slow]

WHERE = """%%px
import socket
from mpi4py import MPI
print(MPI.COMM_WORLD.rank, socket.gethostname(), MPI.COMM_WORLD.allreduce(1))"""
NODES = ["n1", "n2", "n3", "n4"]
HOLD = "#!/bin/sh\nexec sleep infinity\n"


def start(options=""):
    return f"from mpi_classroom.cluster import start_cluster\ncluster = start_cluster(4{options})"


def slurm(lab, *command, text=""):
    """What a command of Slurm's prints on the head."""
    done = subprocess.run(
        lab.on(HEAD, command), env=lab.environment(), input=text, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def one_rank_on_each_of(nodes, notebook):
    ran = notebook.run(WHERE, within=90)
    for rank, node in enumerate(nodes):
        assert f"{rank} {node} {len(nodes)}" in ran.output, ran.text


def test_a_job_of_its_own_is_submitted_and_goes_with_the_cluster_or_the_kernel(slurm_lab):
    with open_notebook(slurm_lab) as notebook:
        ran = notebook.run(start(', hosts="slurm", sbatch="--time=30"'), within=120)
        assert ran.output.startswith(f"4 ranks on n1, n2, n3, n4 (1 each) over {SUBNET}: "), ran.text
        assert "has these nodes until" in ran.output, ran.text
        one_rank_on_each_of(NODES, notebook)
        assert slurm(slurm_lab, "squeue", "--noheader", "--format=%T %N") == "RUNNING n[1-4]"
        assert notebook.run("cluster.stop()").error == ""
        until(lambda: slurm(slurm_lab, "squeue", "--noheader") == "", 30)
        assert "started in" in notebook.run(start(', hosts="slurm"'), within=120).output
    until(lambda: slurm(slurm_lab, "squeue", "--noheader") == "", 30)


def test_an_allocation_is_found_without_saying_and_its_end_is_told(slurm_lab):
    job = slurm(slurm_lab, "sbatch", "--parsable", "--nodes=4", "--output=/dev/null", text=HOLD)
    until(lambda: slurm(slurm_lab, "squeue", "--noheader", "--format=%T") == "RUNNING", 30)
    with open_notebook(slurm_lab, "n1", SLURM_JOB_ID=job, SLURM_JOB_NUM_NODES="4") as notebook:
        assert "4 ranks on n1, n2, n3, n4" in notebook.run(start(), within=120).output
        one_rank_on_each_of(NODES, notebook)
        slurm(slurm_lab, "scancel", job)
        ran = notebook.run(WHERE, within=90)
        # Whether Slurm's word or the hosts' silence comes first, the cell says what ended and what to do.
        assert re.search(rf"Slurm job {job} has ended.*; get a new allocation", ran.error), ran.text


def test_a_node_of_the_job_that_dies_is_named_and_the_notebook_goes_on_without_it(slurm_lab):
    """The last test: the node stays off."""
    with open_notebook(slurm_lab) as notebook:
        assert "started in" in notebook.run(start(', hosts="slurm", replace=False'), within=120).output
        one_rank_on_each_of(NODES, notebook)
        slurm_lab.power_off("n3")
        ran = notebook.run(WHERE, within=120)
        assert re.search("rank 2( on n3 )? was lost with its host n3", ran.text), ran.text
        assert "without n3: 3 ranks on n1, n2 and n4" in ran.text, ran.text
        one_rank_on_each_of(["n1", "n2", "n4"], notebook)
