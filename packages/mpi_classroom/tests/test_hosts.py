"""A notebook whose ranks live on the four nodes of a lab: it works, and breaks, as on one machine.

The kernel runs on the head of the lab, because a process outside has no address that the nodes reach. All of
it is slow, and skipped with the reason where a lab is not possible (it needs namespaces and iproute2).
"""

import re

import pytest

from mpi_classroom.network_commands import SUBNET
from packages.mpi_classroom.tests.broken_cells import BROKEN_CELLS
from packages.mpi_classroom.tests.kernel import Notebook, open_notebook
from packages.mpi_classroom.tests.test_guard import SETUP

pytestmark = [pytest.mark.timeout(240), pytest.mark.slow]

NODES = ["n1", "n2", "n3", "n4"]
WHERE = "%%px\nimport socket\nprint(rank, socket.gethostname(), comm.allreduce(rank))"
# One of every way to break, and to be free again.
BROKEN = {
    "rank 0 raises before a collective",
    "a collective skipped by one rank",
    "a Sendrecv that receives from the side to which it sends",
    "an endless loop",
}


def start(lab, nodes=NODES, options=""):
    return f"""
from mpi_classroom import watch
from mpi_classroom.cluster import start_cluster
watch.STANDSTILL_SECONDS = 4.0
cluster = start_cluster(n={len(nodes)}, hosts={nodes}, agent={lab.agent!r}{options})
"""


@pytest.fixture(scope="module")
def notebook(lab):
    with open_notebook(lab) as opened:
        ran = opened.run(start(lab), within=150)
        assert ran.output.startswith(f"4 ranks on n1, n2, n3, n4 (1 each) over {SUBNET}: "), ran.text
        assert opened.run(SETUP).text.strip() == ""
        yield opened


def hosts_of(ran):
    """Which host each rank printed, by rank."""
    return {int(rank): host for rank, host in re.findall(r"\](\d) (n\d) \d", ran.output.replace("] ", "]"))}


def works(notebook: Notebook, nodes=NODES) -> None:
    ran = notebook.run(WHERE, within=90)
    assert ran.error == "", ran.text
    assert hosts_of(ran) == dict(enumerate(nodes)), ran.text


@pytest.mark.parametrize("broken", [b for b in BROKEN_CELLS if b.name in BROKEN], ids=lambda b: b.name)
def test_a_broken_cell_ends_with_its_report_and_the_next_one_works(notebook, broken):
    ran = notebook.run(f"%%px {broken.options}\n{broken.source}", within=90)
    for pattern in broken.reads:
        there = re.sub(r"\^rank (\d)  ", lambda found: f"^rank {found[1]} on n{int(found[1]) + 1}  ", pattern)
        assert re.search(there, ran.error), f"{there!r} is not in\n{ran.text}"
    works(notebook)


KILL = "os.kill(os.getpid(), 9)"
IN_A_RING = """%%px
import time
comm.sendrecv(rank, (rank + 1) % 4, source=(rank - 1) % 4)
if rank == {rank}: time.sleep(0.5); {end}
comm.Barrier()"""


@pytest.mark.parametrize(
    ("rank", "end", "how"),
    [
        (0, KILL, "was killed"),
        (3, "os._exit(3)", "ended itself with exit code 3"),
        (1, "comm.Abort(3)", "called Abort"),
    ],
)
def test_a_rank_that_dies_is_named_with_its_host_also_when_others_abort_before_mpiexec_knows(
    notebook, rank, end, how
):
    """Its neighbours lose their connections and abort; on a busy machine mpiexec may report one of these."""
    ran = notebook.run(IN_A_RING.format(rank=rank, end=end), within=90)
    died = rf"({how}|died first)" if how != "called Abort" else how
    assert re.search(rf"^rank {rank} on n{rank + 1}  {died}", ran.error, re.MULTILINE), ran.text
    assert f"Likely cause: rank {rank} died; MPI then ends all the others." in ran.error, ran.text
    works(notebook)


def test_a_rank_that_dies_while_no_cell_runs_is_named_with_its_host(notebook):
    notebook.run("pid = cluster.facts[1].pid\nimport os, time\nos.kill(pid, 9)\ntime.sleep(3)")
    ran = notebook.run(WHERE, within=90)
    assert re.search(r"\brank 1 on n2 (died first|was killed)", ran.text), ran.text
    works(notebook)


IN_A_BLOCK = f"""
from mpi_classroom.cluster import start_cluster
from mpi_classroom.network import network
with network(2, slots=2, rate="100mbit") as lab:
    cluster = start_cluster(4, hosts=lab)
    get_ipython().run_cell_magic("px", "", {SETUP.partition(chr(10))[2]!r})
    get_ipython().run_cell_magic("px", "", {WHERE.partition(chr(10))[2]!r})
"""


def test_a_notebook_outside_a_lab_has_its_ranks_inside():
    with open_notebook() as notebook:
        ran = notebook.run(IN_A_BLOCK, within=150)
        if "NetworkError" in ran.error:
            pytest.skip(ran.error)
        assert f"4 ranks on n1, n2 (2 each) over {SUBNET}" in ran.output, ran.text
        assert hosts_of(ran) == {0: "n1", 1: "n1", 2: "n2", 3: "n2"} and ran.error == "", ran.text
        after = notebook.run(WHERE, within=90)
        assert "the lab has ended, and its nodes with it; make a new one" in after.error, after.text


def test_a_node_that_dies_is_named_and_the_notebook_goes_on_without_it(lab):
    with open_notebook(lab) as notebook:
        assert "started in" in notebook.run(start(lab, options=", replace=False")).output
        assert notebook.run(SETUP).text.strip() == ""
        works(notebook)
        lab.power_off("n3")
        ran = notebook.run("%%px\nimport socket\nprint(socket.gethostname())", within=60)
        assert re.search("rank 2( on n3 )? was lost with its host n3", ran.text), ran.text
        assert "without n3: 3 ranks on n1, n2 and n4" in ran.text
        works(notebook, ["n1", "n2", "n4"])
        again = notebook.run(start(lab), within=60)
        assert "n3" in again.error and "n3 is off" in again.error, again.text
