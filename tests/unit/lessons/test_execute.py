"""Lessons run unattended on real kernels: what goes wrong is one line, and nothing is left behind."""

import os
import sys
import time
from pathlib import Path

import nbformat
import psutil
import pytest
from jupyter_client.kernelspec import KernelSpecManager

from course.tools import runner
from course.tools.catalogue import find_lessons
from course.tools.execute import run_lesson
from course.tools.runner import Deadlines
from mpi_classroom import leftovers, processes
from mpi_classroom.folders import scratch_folder
from packages.mpi_classroom.tests.waiting import is_running

SLEEPER = (
    "import subprocess\nchild = subprocess.Popen(['sleep', '600'], start_new_session=True)\nprint(child.pid)"
)

WATCHED = """
import os, psutil
from mpi_classroom.folders import scratch_folder
print(scratch_folder())
(watchdog,) = psutil.Process().children()
print(watchdog.pid)
"""
KILLED = "watchdog.suspend()\nos.kill(os.getpid(), 9)"


@pytest.fixture
def lesson_of(tmp_path):
    """Makes the lesson 01_tiny out of code cells, after one cell of text."""

    def make(*sources):
        folder = tmp_path / "notebooks"
        folder.mkdir(exist_ok=True)
        cells = [nbformat.v4.new_markdown_cell("# 01 · Tiny\n[02](02_monte_carlo_pi.ipynb#setup)")]
        cells += [nbformat.v4.new_code_cell(source) for source in sources]
        nbformat.write(nbformat.v4.new_notebook(cells=cells), folder / "01_tiny.ipynb")
        return find_lessons(folder)[0]

    return make


@pytest.fixture
def build(tmp_path):
    return tmp_path / "build"


def marked_by_this_process():
    """Processes that a run of this process has left."""
    return [pid for pid, mark in all_marked() if mark.startswith(f"{os.getpid()}:")]


def all_marked():
    return [(process.pid, env[leftovers.RUN]) for process, env in processes.marked_processes(leftovers.RUN)]


def printed(build, number):
    notebook = nbformat.read(build / "01_tiny.ipynb", as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return "".join(output.get("text", "") for output in code[number].outputs).strip()


@pytest.fixture
def foreign_kernel(tmp_path, monkeypatch):
    """A kernel python3 that Jupyter finds before this Python's own, and that is no kernel at all."""
    folder = tmp_path / "elsewhere" / "kernels" / "python3"
    folder.mkdir(parents=True)
    (folder / "kernel.json").write_text('{"argv": ["/bin/false"], "display_name": "x", "language": "python"}')
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "elsewhere"))


def test_a_lesson_runs_beside_its_notebook_on_this_python(lesson_of, build, foreign_kernel):
    lesson = lesson_of(
        "import os, sys\nprint(sys.executable)",
        "",
        "print(os.getcwd())",
        "print(os.environ['IPP_NONINTERACTIVE'])",
        SLEEPER,
        "1/0 # on purpose",
    )
    notebook = nbformat.read(lesson.path, as_version=4)
    notebook.cells[-1].metadata["tags"] = ["raises-exception"]
    nbformat.write(notebook, lesson.path)
    assert KernelSpecManager().get_kernel_spec("python3").argv == ["/bin/false"]  # what asking Jupyter gives
    seen = []
    result = run_lesson(lesson, build=build, report=lambda *cell: seen.append(cell))
    assert (result.ok, result.failure, result.cells_run, result.cells) == (True, None, 5, 5)
    assert seen == [(k, 5) for k in (1, 2, 3, 4, 5)]
    assert printed(build, 0) == sys.executable
    assert printed(build, 2) == str(lesson.path.parent)
    assert printed(build, 3) == "1"
    assert not is_running(int(printed(build, 4)))  # what the lesson started is gone with its kernel
    assert marked_by_this_process() == []
    page = (build / "01_tiny.html").read_text()
    assert 'href="02_monte_carlo_pi.html#setup"' in page
    assert "02_monte_carlo_pi.ipynb" in (build / "01_tiny.ipynb").read_text()


def test_what_a_kernel_is_reached_by_goes_with_this_process_also_when_it_is_killed(lesson_of, build):
    """Its connection file holds a key; no other process of ours would remove it."""
    result = run_lesson(lesson_of("from ipykernel import *\nprint(get_connection_file())"), build=build)
    assert result.ok, result.failure
    path = Path(printed(build, 0))
    assert path.parent == Path(scratch_folder()) and not path.exists()


def test_a_cell_that_raises_ends_the_lesson_and_is_shown_in_the_results(lesson_of, build):
    result = run_lesson(lesson_of("x = 1", "raise ValueError('boom\\nmore')", "print('later')"), build=build)
    assert str(result.failure) == "cell 2: ValueError: boom"
    assert (result.cells_run, result.cells) == (1, 3)
    assert "boom" in (build / "01_tiny.html").read_text()
    assert printed(build, 2) == ""


def test_a_cell_that_is_interrupted_at_its_deadline_shows_where_it_was(lesson_of, build):
    lesson = lesson_of("x = 1", "import time\ntime.sleep(600)  # here")
    result = run_lesson(lesson, build=build, deadlines=Deadlines(cell=1))
    assert str(result.failure) == "cell 2: did not end within 1 s: import time"
    (error,) = nbformat.read(build / "01_tiny.ipynb", as_version=4).cells[-1].outputs
    assert error.ename == "KeyboardInterrupt" and "# here" in "".join(error.traceback)


@pytest.mark.slow
def test_many_short_cells_end_at_the_deadline_of_the_lesson(lesson_of, build):
    cells = ["import time", *["time.sleep(1)"] * 30]
    result = run_lesson(lesson_of(*cells), build=build, deadlines=Deadlines(cell=20, lesson=4))
    assert "the lesson did not end within 4 s; it was at: time.sleep(1)" in str(result.failure)
    assert 0 < result.cells_run < 10


def test_a_dead_kernel_is_one_sentence_with_its_last_words(lesson_of, build):
    cell = "import os; os.write(2, b'bye\\n'); os._exit(3)"
    result = run_lesson(lesson_of("x = 1", cell, "x"), build=build)
    assert str(result.failure) == "cell 2: the kernel ended by itself with exit code 3: bye"
    assert (result.cells_run, result.cells) == (1, 3)
    assert (build / "01_tiny.ipynb").exists()


def test_a_missing_kernel_is_one_sentence_with_its_last_words(lesson_of, build, tmp_path, monkeypatch):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho No module named ipykernel_launcher >&2\nexit 1\n")
    python.chmod(0o755)
    monkeypatch.setattr(runner.sys, "executable", str(python))
    result = run_lesson(lesson_of("1"), build=build)
    assert str(result.failure) == "the kernel did not start: No module named ipykernel_launcher"


def test_a_kernel_that_never_answers_is_given_up(lesson_of, build, tmp_path, monkeypatch):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexec sleep 600\n")
    python.chmod(0o755)
    monkeypatch.setattr(runner.sys, "executable", str(python))
    result = run_lesson(lesson_of("1"), build=build, deadlines=Deadlines(start=1))
    assert str(result.failure) == "the kernel did not start: Kernel didn't respond in 1 seconds"
    assert marked_by_this_process() == []


def test_a_full_disk_is_one_sentence_and_leaves_no_half_file(lesson_of, build):
    build.mkdir()
    (build / ".01_tiny.ipynb.part").symlink_to("/dev/full")
    result = run_lesson(lesson_of("1"), build=build)
    assert "No space left on device; free some disk space and run again" in str(result.failure)
    assert list(build.iterdir()) == []


@pytest.mark.parametrize("text", ['{"cells": [', '{"nbformat": 4, "nbformat_minor": 5, "metadata": {}}'])
def test_a_damaged_notebook_is_one_sentence(lesson_of, build, text):
    lesson = lesson_of("1")
    lesson.path.write_text(text)
    assert str(run_lesson(lesson, build=build).failure).startswith("01_tiny.ipynb is not a readable notebook")


def test_the_watchdog_of_a_killed_kernel_may_take_longer_than_the_run_and_clears_up(
    lesson_of, build, tmp_path, monkeypatch
):
    """On a busy machine it is slow. One that ends with the run leaves the files of the kernel's jobs."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # where no test beside this one looks for leftovers
    result = run_lesson(lesson_of(WATCHED, KILLED), build=build)
    folder, pid = printed(build, 0).split()
    assert result.failure.cell == 2 and Path(folder).is_dir()
    psutil.Process(int(pid)).resume()
    end = time.monotonic() + 60
    while Path(folder).exists():
        assert time.monotonic() < end
        time.sleep(0.02)
