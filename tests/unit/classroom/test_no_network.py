"""Without a network, and with a host name that nobody knows, cluster, exercises and doctor work as ever."""

import os
import shutil
import subprocess
import sys

import pytest

pytestmark = pytest.mark.timeout(240)

NAME = "nowhere-at-all"
ALONE = f"ip link set lo up && hostname {NAME} && exec {sys.executable} -c "
PROGRAM = """
import socket
try:
    socket.gethostbyname(socket.gethostname())
    raise SystemExit("the host name is known")
except OSError:
    print("name:", socket.gethostname())
from course.doctor import check_torch
from mpi_classroom import doctor
from mpi_classroom.cluster import start_cluster
from mpi_classroom.answer_job import check
from mpi_classroom.lessons import find_exercise

cluster = start_cluster(n=3)
cluster.view.execute("from mpi4py import MPI; total = MPI.COMM_WORLD.allreduce(1)").get(timeout=60)
print("cluster:", cluster["total"])
cluster.restart()
print("restarted:", cluster.alive)
cluster.stop()
exercise = find_exercise("01.1")
print("exercise:", check(exercise, exercise.solution).state)
for found in (doctor.check_ports(), doctor.check_ranks(), check_torch()):
    print("doctor:", found.name, found.ok, found.detail)
"""


def alone(program):
    """What `program` prints in a network of its own that has only the loopback, under another host name."""
    if shutil.which("unshare") is None or shutil.which("ip") is None:
        pytest.skip("unshare or ip is not installed")
    own = ["unshare", "--net", "--uts", *(["--map-root-user"] if os.geteuid() else [])]
    if subprocess.run([*own, "sh", "-c", "ip link set lo up && hostname x"], capture_output=True).returncode:
        pytest.skip("this machine does not let us make a network of our own")
    command = [*own, "sh", "-c", f'{ALONE} "$0"', program]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=200, stdin=subprocess.DEVNULL)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


@pytest.mark.slow
def test_without_a_network_and_with_an_unknown_host_name_everything_works():
    said = alone(PROGRAM)
    assert f"name: {NAME}" in said
    assert "cluster: [3, 3, 3]" in said and "restarted: True" in said
    assert "exercise: right" in said
    assert said.count("doctor: ") == 3 and "False" not in said, said
