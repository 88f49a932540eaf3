"""What a learner types after `!` in a lesson prints what it should, before and after `start_cluster`."""

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from course.tools.jupyter import lab_environment
from mpi_classroom.lessons import find_exercise
from mpi_classroom.processes import marked_processes
from packages.mpi_classroom.tests.kernel import MARK, Notebook, open_notebook
from packages.mpi_classroom.tests.waiting import until

WINDOW = r"""
import os, sys
from mpi4py import MPI
comm = MPI.COMM_WORLD
window = MPI.Win.Allocate(8, comm=comm)
window.Fence()
window.Free()
print(f"{comm.rank} {comm.size} {sys.prefix} {os.environ['OMP_NUM_THREADS']}\n", end="", flush=True)
"""
SPAWN = """
import sys
from mpi4py import MPI
if (parent := MPI.Comm.Get_parent()) == MPI.COMM_NULL:
    children = MPI.COMM_SELF.Spawn(sys.executable, [__file__], maxprocs=2)
    print(children.reduce(None, MPI.SUM, root=MPI.ROOT), flush=True)
else:
    parent.reduce(21, MPI.SUM, root=0)
"""
HANGS = """
import signal, time
from mpi4py import MPI
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
print("up", flush=True)
MPI.COMM_WORLD.Barrier() if MPI.COMM_WORLD.rank else time.sleep(600)
"""
TORCH = r"""
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
print(f"{dist.get_rank()} {int(total)} {torch.get_num_threads()}\n", end="", flush=True)
dist.destroy_process_group()
"""
DEEPSPEED = r"""
import deepspeed, torch, torch.distributed as dist
deepspeed.ops.__compatible_ops__ = {}
deepspeed.init_distributed("gloo", verbose=False)
total = torch.ones(1)
dist.all_reduce(total)
print(f"{dist.get_rank()} {int(total)} {torch.get_num_threads()}\n", end="", flush=True)
dist.destroy_process_group()
"""
PROGRAMS = {"window": WINDOW, "spawn": SPAWN, "hangs": HANGS, "torch_sum": TORCH, "deepspeed_sum": DEEPSPEED}


@pytest.fixture(scope="module")
def notebook(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    """A notebook as `course lab` opens it, where another MPI's mpiexec comes first on PATH."""
    folder = tmp_path_factory.mktemp("typed")
    for name, text in PROGRAMS.items():
        (folder / f"{name}.py").write_text(text)
    for name in ("mpiexec", "mpirun", "torchrun", "deepspeed"):
        (folder / name).write_text(f"#!/bin/sh\necho fake {name}\n")
        (folder / name).chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUPYTER_PATH", lab_environment()["JUPYTER_PATH"])
        for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
            patch.delenv(name, raising=False)
        with open_notebook(PATH=f"{folder}{os.pathsep}{os.environ['PATH']}") as notebook:
            assert not notebook.run(f"%cd -q {folder}").text.strip()
            yield notebook


def lines(notebook: Notebook, typed: str) -> list[str]:
    """The lines that a cell prints, sorted: ranks print in any order."""
    return sorted(filter(None, map(str.strip, notebook.run(typed, within=120).text.splitlines())))


def ranks(size: int, threads: str = "1") -> list[str]:
    return [f"{rank} {size} {sys.prefix} {threads}" for rank in range(size)]


def test_ranks_with_a_window_print_their_lines_and_nothing_else(notebook: Notebook) -> None:
    assert lines(notebook, "!mpiexec -n 4 python window.py") == ranks(4)


def test_the_same_holds_after_the_cluster_was_started(notebook: Notebook) -> None:
    started = notebook.run("from mpi_classroom.cluster import start_cluster; cluster = start_cluster(n=2)")
    assert not started.error
    assert lines(notebook, "!mpirun -n 8 python window.py") == ranks(8)
    assert lines(notebook, "!OMP_NUM_THREADS=3 mpiexec -n 2 python window.py") == ranks(2, "3")
    of_subprocess = "import subprocess; print(subprocess.run(['mpiexec', '-n', '2', 'python', 'window.py'],"
    assert lines(notebook, f"{of_subprocess} capture_output=True, text=True).stdout)") == ranks(2)


SAVED = "%%px --save 00_ring.py\n"
FIRST = f'''{SAVED}"""Who is next?"""

from pathlib import Path

from mpi4py import MPI

comm = MPI.COMM_WORLD'''
LAST = f"{SAVED}print(Path(__file__).parent.name, comm.rank, right_neighbour(comm), flush=True)"
RIGHT = "def right_neighbour(comm):\n    return (comm.rank + 1) % comm.size\n"


@pytest.fixture
def folder(notebook: Notebook, tmp_path: Path) -> Iterator[Path]:
    """An empty folder, in which the notebook and its two ranks are for a while."""
    notebook.run("from mpi_classroom.cluster import start_cluster; cluster = start_cluster(n=2)")
    notebook.run(f"import os; before = os.getcwd(); os.chdir({str(tmp_path)!r})")
    yield tmp_path
    notebook.run("os.chdir(before)")


def test_cells_that_are_saved_run_and_are_a_program(notebook: Notebook, folder: Path) -> None:
    assert not notebook.run(FIRST, cell="a").text.strip()
    stub = find_exercise("00.1").cell
    told = notebook.run(f"%%exercise 00.1 --save 00_ring.py\n{stub}", cell="b", within=120).text
    assert "the next cells and code/00_ring.py run the course's solution." in told
    assert sorted(re.findall(r"code (\d \d)", notebook.run(LAST, cell="c").text)) == ["0 1", "1 0"]
    assert lines(notebook, "!mpiexec -n 3 python code/00_ring.py") == ["code 0 1", "code 1 2", "code 2 0"]
    notebook.run(f"%%exercise 00.1 --save 00_ring.py\n{RIGHT}", cell="b", within=120)
    notebook.run(LAST.replace("comm.rank, ", "comm.size, "), cell="c")
    program = (folder / "code" / "00_ring.py").read_text()
    assert program.count("def right_neighbour") == 1 and "The course's" not in program
    assert lines(notebook, "!mpiexec -n 1 python code/00_ring.py") == ["code 1 0"]


def test_a_cell_that_cannot_be_saved_says_so_and_runs(notebook: Notebook, folder: Path) -> None:
    (folder / "code").write_text("a file where the folder should be")
    ran = notebook.run("%%px --save 00_ring.py\nprint(__file__[-15:])").text
    assert "code/00_ring.py was not written (File exists); the cell itself ran" in ran
    assert ran.count("code/00_ring.py\n") == 2
    ran = notebook.run("%%px --save ../00_ring.py\nprint(6 * 7)").text
    assert "give a file name such as 02_pi.py, without a folder" in ran and ran.count("42") == 2


def test_a_program_can_spawn_ranks(notebook: Notebook) -> None:
    assert lines(notebook, "!mpiexec -n 1 python spawn.py") == ["42"]


def test_an_interrupt_ends_ranks_that_ignore_it(notebook: Notebook) -> None:
    before = here(notebook)
    ran = notebook.run("!mpiexec -n 3 python hangs.py", interrupt_after=(4.0,))
    assert ran.text.count("up") == 3
    until(
        lambda: not here(notebook) - before
    )  # an impatient notebook kills mpiexec, whose watchdog clears up


@pytest.mark.slow
def test_torchrun_prints_what_its_program_prints(notebook: Notebook) -> None:
    assert lines(notebook, "!torchrun --nproc-per-node 2 torch_sum.py") == ["0 2 1", "1 2 1"]


@pytest.mark.slow
def test_so_does_the_launcher_of_deepspeed_without_a_gpu(notebook: Notebook) -> None:
    assert lines(notebook, "!deepspeed --num_gpus 2 deepspeed_sum.py") == ["0 2 1", "1 2 1"]


def here(notebook: Notebook) -> set[int]:
    """The processes that the notebook has started, and their commands of ours."""
    mark = Path(f"/proc/{notebook.pid}/environ").read_bytes().split(f"{MARK}=".encode())[1].split(b"\0")[0]
    return {process.pid for process, names in marked_processes(MARK) if names[MARK] == mark.decode()}
