"""`make test` must be red when a notebook is broken, and leave no process behind, whatever went wrong.

Notebooks are written into a folder outside the project and checked by pytest in a process of its own. Its
environment is marked, and so is that of all it starts: what is left afterwards is found by that mark.
"""

import os
import signal
import subprocess
import sys
import uuid
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import nbformat
import pytest
from nbformat import NotebookNode

from course.tools.nbval_plugin import CELL_SECONDS
from course.tools.parts import MORE
from mpi_classroom import processes
from packages.mpi_classroom.tests.waiting import until

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.timeout(600)
MARK = "MPI_CLASSROOM_META_TEST"
SESSION_SECONDS = 240
CONFTEST = f"""
import os
import pytest
from mpi_classroom import processes

@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item, nextitem):
    result = yield
    if nextitem is None or nextitem.parent is not item.parent:
        mine = os.environ["{MARK}"]
        left = [p.cmdline() for p, env in processes.marked_processes("{MARK}") if env["{MARK}"] == mine]
        with open("left_behind.txt", "a") as file:
            print(item.parent.path.stem, left, file=file)
    return result
"""
IGNORED = ("nbval-ignore-output",)
START = "from mpi_classroom.cluster import start_cluster\n\ncluster = start_cluster(n=2)"


def code(
    source: str, *outputs: str | NotebookNode, tags: tuple[str, ...] = (), ran: bool = True
) -> NotebookNode:
    """A code cell with recorded outputs; a string is what it printed."""
    recorded = [
        nbformat.v4.new_output("stream", text=each) if isinstance(each, str) else each for each in outputs
    ]
    cell = nbformat.v4.new_code_cell(source, outputs=recorded, execution_count=1 if ran else None)
    if tags:
        cell.metadata["tags"] = list(tags)
    return cell


def image(data: str) -> NotebookNode:
    return nbformat.v4.new_output("display_data", {"image/png": data, "text/plain": "a picture"})


SHOW_IMAGE = (
    'from IPython.display import display\ndisplay({"image/png": "aGk=", "text/plain": "a picture"}, raw=True)'
)
AFTER = code("1 + 1", tags=IGNORED)
ON_RANKS = (
    "%%px --setup\nfrom mpi4py import MPI\ncomm = MPI.COMM_WORLD\nrank = comm.rank\nprint('rank', rank)"
)
RANKS_SAY = "[stdout:0] \nrank 0\n[stdout:1] \nrank 1\n"

# Cells of one notebook, one after the other; those that begin with "good" pass, all others fail.
CELLS: dict[str, NotebookNode] = {
    "good": code("print('yes')", "yes\n"),
    "good_image": code(SHOW_IMAGE, image("aGk=")),
    "good_new_file": code("%%writefile kept.txt\nhello", "Writing kept.txt\n"),
    "good_old_file": code("%%writefile kept.txt\nhello", "Writing kept.txt\n"),
    "changed_output": code("print('yes')", "no\n"),
    "lost_output": code("pass", "yes\n"),
    "new_output": code("print('yes')"),
    "changed_image": code(SHOW_IMAGE, image("aG8=")),
    "not_recorded": code("print('yes')", ran=False),
    "no_cluster": code("%%px\nprint('yes')", tags=IGNORED),
    "no_such_magic": code("%no_such_magic", tags=IGNORED),
    "exception": code("1 / 0", tags=IGNORED),
    "no_exception": code("1 / 1", tags=("raises-exception", *IGNORED)),
    "child_outlives_the_kernel": code(
        "import subprocess\nsubprocess.Popen(['sleep', '99'], start_new_session=True)\n1 / 0", tags=IGNORED
    ),
    "good_after_all": AFTER,
}
CELLS_ON_RANKS: dict[str, NotebookNode] = {
    "cluster_does_not_start": code(START.replace("n=2", "n=100_000"), tags=IGNORED),
    "good_start": code(START, tags=IGNORED),
    "good_ranks": code(ON_RANKS, RANKS_SAY),
    "changed_on_rank_1": code(ON_RANKS, RANKS_SAY.replace("rank 1", "rank 2")),
    "rank_raises": code("%%px\nif rank == 1:\n    raise ValueError('boom')", tags=IGNORED),
    "ranks_hang": code("%%px --timeout 3\nif rank == 1:\n    comm.Barrier()", tags=IGNORED),
    "good_after_the_hang": code(
        "%%px\nprint('sum', comm.allreduce(1))",
        RANKS_SAY.replace("rank 0", "sum 2").replace("rank 1", "sum 2"),
    ),
    "good_stop": code("cluster.stop()", tags=IGNORED),
}
# The second cell of these never ends, so nothing runs after it.
UNFINISHED: dict[str, list[NotebookNode]] = {
    "kernel_dies": [AFTER, code("import os\nos.kill(os.getpid(), 9)", tags=IGNORED), AFTER],
    "swallows_interrupt": [
        AFTER,
        code("import time\ntry:\n    time.sleep(99)\nexcept KeyboardInterrupt:\n    pass", tags=IGNORED),
        AFTER,
    ],
    "deaf": [
        AFTER,
        code(
            "import time\nwhile True:\n    try: time.sleep(99)\n    except KeyboardInterrupt: pass",
            tags=IGNORED,
        ),
        AFTER,
    ],
}
UNFINISHED_ON_RANKS = [
    code(START, tags=IGNORED),
    code("import os\nos.kill(os.getpid(), 9)", tags=IGNORED),
    AFTER,
]
HANG_WITHOUT_DEADLINE = [
    code(START, tags=IGNORED),
    code("%%px --timeout 1000\nimport time\ntime.sleep(1000)", tags=IGNORED),
    AFTER,
]


@dataclass(frozen=True)
class Session:
    """How a pytest session ended: its exit code, each cell's outcome, its output, and what it left behind."""

    code: int
    cells: dict[str, list[str]]
    text: str
    left_by_notebook: dict[str, str]
    left: list[int]


def write_notebooks(folder: Path, notebooks: dict[str, list[NotebookNode]]) -> None:
    """One notebook each; the cells get ids by their place."""
    for name, cells in notebooks.items():
        numbered = [nbformat.from_dict({**cell, "id": f"cell-{n}"}) for n, cell in enumerate(cells)]
        nbformat.write(nbformat.v4.new_notebook(cells=numbered), folder / f"{name}.ipynb")


def pytest_command(*options: str) -> list[str]:
    ours = ["-p", "no:cacheprovider", "--color=no", "-rs", "--junitxml=out.xml"]
    return [sys.executable, "-m", "pytest", *ours, *options]


def marked(mark: str) -> list[int]:
    return [process.pid for process, env in processes.marked_processes(MARK) if env[MARK] == mark]


def check(folder: Path, notebooks: dict[str, list[NotebookNode]], *options: str) -> Session:
    """Run `pytest *options` on notebooks in `folder`, in a process of its own."""
    write_notebooks(folder, notebooks)
    (folder / "conftest.py").write_text(CONFTEST)
    mark = uuid.uuid4().hex
    done = subprocess.run(
        pytest_command(*options),
        cwd=folder,
        env={**os.environ, MARK: mark, "COLUMNS": "200"},
        timeout=SESSION_SECONDS,
        capture_output=True,
        text=True,
    )
    left = dict(line.split(" ", 1) for line in (folder / "left_behind.txt").read_text().splitlines())
    return Session(done.returncode, outcomes(folder / "out.xml"), done.stdout, left, marked(mark))


def outcomes(report: Path) -> dict[str, list[str]]:
    """What a JUnit report says of every cell, by notebook: passed, failed, error or skipped."""
    found: dict[str, list[str]] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        notebook = case.attrib["classname"].rpartition(".ipynb")[0].rpartition(".")[2]
        kinds = [child.tag for child in case if child.tag in ("failure", "error", "skipped")]
        found.setdefault(notebook, []).append(
            {"failure": "failed"}.get(kinds[0], kinds[0]) if kinds else "passed"
        )
    return found


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Session:
    """All notebooks, outputs compared: those that start a cluster must be given more time for a cell."""
    folder = tmp_path_factory.mktemp("strict")

    def part(name: str, notebooks: dict[str, list[NotebookNode]], seconds: int) -> Session:
        (folder / name).mkdir()
        return check(folder / name, notebooks, "--nbval", f"--nbval-cell-timeout={seconds}")

    without_ranks = {"cells": list(CELLS.values()), **UNFINISHED}
    on_ranks = {"cells_on_ranks": list(CELLS_ON_RANKS.values()), "dies_with_ranks": UNFINISHED_ON_RANKS}
    with ThreadPoolExecutor() as both:  # they wait more than they compute
        without = both.submit(part, "without", without_ranks, 4)
        with_ = both.submit(part, "with", on_ranks, 60)
    one, two = without.result(), with_.result()
    return Session(
        min(one.code, two.code),
        one.cells | two.cells,
        one.text + two.text,
        one.left_by_notebook | two.left_by_notebook,
        one.left + two.left,
    )


@pytest.mark.parametrize("notebook", ["cells", "cells_on_ranks"])
def test_a_broken_cell_is_red_and_a_good_one_green(strict: Session, notebook: str) -> None:
    names = CELLS if notebook == "cells" else CELLS_ON_RANKS
    found = dict(zip(names, strict.cells[notebook], strict=True))
    assert found == {name: "passed" if name.startswith("good") else "failed" for name in names}, strict.text
    assert strict.code == 1


@pytest.mark.parametrize("name", [*UNFINISHED, "dies_with_ranks"])
def test_cells_after_one_that_never_ended_are_not_run(strict: Session, name: str) -> None:
    assert strict.cells[name] == ["passed", "failed", "skipped"]
    assert "not run: cell 1 did not finish" in strict.text


def test_the_report_says_what_was_wrong(strict: Session) -> None:
    for words in ("division by zero", "ValueError: boom", "the kernel was killed", "did not end within 4 s"):
        assert words in strict.text
    assert "waiting in Barrier" in strict.text and "The ranks were restarted" in strict.text


def test_no_notebook_leaves_a_process_behind(strict: Session) -> None:
    assert set(strict.left_by_notebook) == {"cells", "cells_on_ranks", "dies_with_ranks", *UNFINISHED}
    assert set(strict.left_by_notebook.values()) == {"[]"}, strict.left_by_notebook
    assert strict.left == []


@pytest.mark.slow
def test_only_differing_outputs_are_forgiven_when_outputs_are_not_compared(tmp_path: Path) -> None:
    names = ("changed_output", "no_cluster", "no_such_magic", "exception", "no_exception")
    notebooks = {"cells": [CELLS[name] for name in names], "kernel_dies": UNFINISHED["kernel_dies"]}
    lax = check(tmp_path, notebooks, "--nbval-lax", "--nbval-cell-timeout=6")
    assert lax.cells["cells"] == ["passed", *["failed"] * 4], lax.text
    assert lax.cells["kernel_dies"] == ["passed", "failed", "skipped"], lax.text


@pytest.mark.slow
def test_ranks_that_hang_longer_than_nbval_waits_are_red(tmp_path: Path) -> None:
    session = check(tmp_path, {"hang": HANG_WITHOUT_DEADLINE}, "--nbval", "--nbval-cell-timeout=20")
    assert session.code == 1 and session.cells["hang"] == ["passed", "failed", "skipped"], session.text
    assert session.left_by_notebook == {"hang": "[]"} and session.left == []


@pytest.mark.slow
def test_the_core_of_a_lesson_can_be_run_alone(tmp_path: Path) -> None:
    more = code("1 / 0", tags=[*IGNORED, MORE])
    notebooks = {"cut": [AFTER, more], "without_more": [AFTER, AFTER]}
    session = check(tmp_path, notebooks, "--nbval", "--core")
    assert session.cells == {"cut": ["passed"], "without_more": ["passed"] * 2}, session.text
    assert session.code == 0 and session.left == []


@pytest.mark.parametrize(("options", "seconds"), [([], CELL_SECONDS), (["--nbval-cell-timeout=7"], 7)])
def test_a_cell_may_take_minutes_unless_the_command_line_says_otherwise(
    pytester: pytest.Pytester, options: list[str], seconds: float
) -> None:
    assert pytester.parseconfig("--nbval", *options).option.nbval_cell_timeout == seconds


@dataclass(frozen=True)
class Running:
    """A pytest session whose ranks are busy in a cell."""

    process: subprocess.Popen[str]
    mark: str


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    """A session that stands in a `%%px` cell."""
    busy = tmp_path / "busy"
    text = f"%%px --timeout 1000\nimport time\nopen({str(busy)!r}, 'w').close()\ntime.sleep(1000)"
    write_notebooks(tmp_path, {"hang": [code(START, tags=IGNORED), code(text, tags=IGNORED)]})
    mark = uuid.uuid4().hex
    with subprocess.Popen(
        pytest_command("--nbval"),
        cwd=tmp_path,
        env={**os.environ, MARK: mark},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # ignored in a shell's background
    ) as process:
        until(busy.exists, 60)
        yield Running(process, mark)
        process.kill()


def test_an_interrupted_run_is_red_and_leaves_nothing(running: Running) -> None:
    running.process.send_signal(signal.SIGINT)
    assert running.process.wait(60) == pytest.ExitCode.INTERRUPTED
    assert marked(running.mark) == []
