"""No door stands open: what a cluster, a job, a check and a kernel listen on, and what they leave behind."""

import ipaddress
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from mpi_classroom.cluster import Cluster
from mpi_classroom.launch import run_ranks
from mpi_classroom.processes import running_clusters
from packages.mpi_classroom.tests.kernel import open_notebook
from packages.mpi_classroom.tests.waiting import until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows the sockets of a process")

LISTENERS = """
import json, pathlib, psutil, re
from mpi4py import MPI

def doors():
    found = psutil.Process().net_connections("inet")
    return [c.laddr.ip for c in found if c.status == psutil.CONN_LISTEN]

def shared():
    maps = pathlib.Path("/proc/self/maps").read_text()
    return re.findall(r"(/dev/shm/[^ \\n]+)", maps)
"""


def routable(address: str) -> bool:
    return not ipaddress.ip_address(address).is_loopback


def open_doors(pid: int) -> set[str]:
    """The names of the processes from `pid` down that listen on an address that others can reach."""
    process = psutil.Process(pid)
    return {
        member.name()
        for member in [process, *process.children(recursive=True)]
        for connection in member.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN and routable(connection.laddr.ip)
    }


# -------------------------------------------------------------------- who listens


def test_of_a_cluster_only_mpiexec_listens_where_others_can_reach_it() -> None:
    cluster = Cluster(2)
    cluster.start()
    try:
        pids = next(found for found in running_clusters() if found.folder == cluster.folder).pids
        assert {fact.pid for fact in cluster.facts} <= set(pids)
        assert {name for pid in pids for name in open_doors(pid)} <= {"prterun", "mpiexec"}
    finally:
        cluster.stop()


def test_the_ranks_of_a_job_listen_on_nothing() -> None:
    done = run_ranks(
        2, ["-c", f"{LISTENERS}\nMPI.COMM_WORLD.Barrier(); print(doors(), flush=True)"], timeout=60
    )
    assert done.stdout.splitlines() == ["[]", "[]"], done.stderr


# -------------------------------------------------------------------- the kernel

KERNEL = f"""
from mpi_classroom.cluster import start_cluster
cluster = start_cluster(n=1)
{LISTENERS}
import tempfile
from mpi_classroom import folders
MPI.Win.Allocate_shared(1000, 1, comm=MPI.COMM_SELF)
ours = [folders.own_folder(folders.SHARED_MEMORY), folders.own_folder(pathlib.Path(tempfile.gettempdir()))]
print("found", json.dumps([doors(), [*shared(), *filter(None, ours), str(cluster.folder)]]))
"""


def test_a_killed_kernel_that_started_mpi_listened_on_loopback_and_leaves_nothing() -> None:
    with open_notebook() as notebook:
        said = notebook.run(KERNEL).text
        assert "found " in said, said
        doors, names = json.loads(said.partition("found ")[2].splitlines()[0])
        assert doors and not [address for address in doors if routable(address)]
        paths = {Path(name) for name in names}
        assert any(path.is_dir() for path in paths)
        os.kill(notebook.pid, signal.SIGKILL)
        until(lambda: not any(map(Path.exists, paths)))


FILES = """
import os, pathlib, signal, tempfile
from mpi_classroom import folders
from mpi_classroom.cluster import Cluster

cluster = Cluster(2)
cluster.start()
places = [folders.own_folder(place) for place in (folders.SHARED_MEMORY, pathlib.Path(tempfile.gettempdir()))]
killed = cluster.facts[1].pid if {who!r} == "rank" else cluster._launcher._processes[{who!r}].pid
os.kill(killed, signal.SIGKILL)
cluster.stop()
print([str(path) for place in places for path in pathlib.Path(place).rglob("*")])
"""


@pytest.mark.parametrize(
    "who", ["ranks", *(pytest.param(one, marks=pytest.mark.slow) for one in ("rank", "controller"))]
)
def test_whatever_was_killed_nothing_of_a_cluster_is_left_when_it_has_ended(who: str) -> None:
    """`ranks` is mpiexec."""
    done = subprocess.run(
        [sys.executable, "-c", FILES.format(who=who)], capture_output=True, text=True, timeout=120
    )
    assert done.stdout.strip() == "[]", done.stdout + done.stderr
