"""What users of notebooks do out of habit works: await, progress bars, a second start."""

import importlib.util
import re
from collections.abc import Iterator

import pytest

from packages.mpi_classroom.tests.kernel import Notebook, open_notebook

pytestmark = pytest.mark.timeout(240)

SETUP = "%%px --setup\nimport asyncio, time\nfrom mpi4py import MPI\ncomm = MPI.COMM_WORLD\nrank = comm.rank"


@pytest.fixture(scope="module")
def notebook() -> Iterator[Notebook]:
    """A notebook on a cluster of two ranks."""
    with open_notebook() as opened:
        started = opened.run("from mpi_classroom.cluster import start_cluster\ncluster = start_cluster(n=2)")
        assert started.output.startswith("2 ranks"), started.text
        assert opened.run(SETUP).text.strip() == ""
        yield opened


# -------------------------------------------------------------------- await


def test_a_cell_that_awaits_ends_when_its_await_does(notebook: Notebook) -> None:
    ran = notebook.run("%%px --timeout 20\nawait asyncio.sleep(0.1)\nprint('awake', rank)\nrank + 40")
    assert ran.error == "" and sorted(re.findall(r"awake (\d)", ran.output)) == ["0", "1"]
    assert re.findall(r"Out\[\d:\d+\]: (\d+)", ran.output) == ["40", "41"]


def test_a_task_of_one_cell_is_awaited_in_the_next_beside_mpi(notebook: Notebook) -> None:
    notebook.run("%%px\ntask = asyncio.create_task(asyncio.sleep(0.1, 'slept'))")
    ran = notebook.run("%%px --timeout 20\nprint(await task, comm.allreduce(rank))")
    assert ran.error == "" and ran.output.count("slept 1") == 2


def test_an_error_after_an_await_has_its_line(notebook: Notebook) -> None:
    ran = notebook.run("%%px --timeout 20\nawait asyncio.sleep(0)\n1 / 0")
    assert "ranks 0, 1 raised ZeroDivisionError: division by zero" in ran.error
    assert "cell line 3   1 / 0" in ran.error


def test_an_await_that_never_ends_is_interrupted_and_the_ranks_keep_their_variables(
    notebook: Notebook,
) -> None:
    notebook.run("%%px\nkept = rank + 5")
    ran = notebook.run("%%px --timeout 1\nawait asyncio.Event().wait()")
    assert "Not done after 1 s" in ran.error and "their variables are as the cell left them" in ran.error
    assert notebook.run("cluster['kept']").output == "[5, 6]\n"


@pytest.mark.slow
def test_without_our_repair_such_a_cell_never_ends(notebook: Notebook) -> None:
    """Known wrong: ipykernel on an engine of ipyparallel. When this fails, the repair can go."""
    notebook.run("%%px\nget_ipython().kernel.shell_channel_thread = None")
    ran = notebook.run("%%px --timeout 1\nawait asyncio.sleep(0)", within=90)
    assert "Not done after 1 s" in ran.error and "The ranks were restarted" in ran.error


# -------------------------------------------------------------------- progress bars

LOOP = "for i in {bar}(range(5)): time.sleep(0.03)"
BARS = [
    "from tqdm.auto import tqdm\n" + LOOP.format(bar="tqdm"),
    "from tqdm.notebook import tqdm\n" + LOOP.format(bar="tqdm"),
    "from rich.progress import track\n" + LOOP.format(bar="track"),
]


@pytest.mark.parametrize("stream", ["", "--no-stream"], ids=["live", "at the end"])
@pytest.mark.parametrize("cell", BARS, ids=["auto", "notebook", "rich"])
def test_a_progress_bar_is_one_line_of_text_per_rank(notebook: Notebook, cell: str, stream: str) -> None:
    if importlib.util.find_spec(cell.split()[1].partition(".")[0]) is None:
        pytest.skip("the library of this bar is not installed")
    ran = notebook.run(f"%%px {stream}\n{cell}")
    assert ran.error == "" and "[output:" not in ran.output
    assert len(re.findall("^.*%", ran.output, re.MULTILINE)) == ran.output.count("100%") == 2, ran.output
    assert ran.output.count("%") == 2 and "\r" not in ran.output and "?25" not in ran.output, ran.output


# -------------------------------------------------------------------- a second start; it comes last


def test_another_size_says_what_it_replaces_and_what_is_lost_and_runs_the_setup_cells(
    notebook: Notebook,
) -> None:
    number = notebook.run("%%px\nmine = rank").number
    ran = notebook.run("cluster = start_cluster(n=1)")
    assert "It replaces the cluster of 2 ranks and the setup cell run again; lost on the ranks:" in ran.output
    assert "mine" in ran.output and f"[{number}]" in ran.output
    assert notebook.run("%%px\nprint('rank', comm.rank, rank)").output == "[stdout:0] rank 0 0\n"
    assert "NameError" in notebook.run("cluster['mine']").error
