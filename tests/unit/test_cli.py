"""The `course` command as a learner, a maintainer and a workflow see it."""

import os
import shutil
import signal
import socket
import subprocess
import sys

import nbformat
import psutil
import pytest
from typer.testing import CliRunner

from course import doctor, paths
from course.tools import cli, jupyter
from course_lib.data import mnist
from course_lib.data.storage import DataError
from mpi_classroom import leftovers, processes
from mpi_classroom.check import Check
from packages.mpi_classroom.tests.waiting import until

# The same command on the lessons of a test.
PROGRAM = """
import sys
from pathlib import Path
from course.tools import cli, jupyter
from course import doctor, paths
here = Path(sys.argv.pop(1))
paths.NOTEBOOKS, paths.BUILD, paths.MY_COURSE = here / "notebooks", here / "build", here / "my_course"
cli.app()
"""
CLUSTER = "from mpi_classroom.cluster import start_cluster\ncluster = start_cluster(n=2)"
SLOW = "import os, time\nopen('started', 'w').write(str(os.getpid()))\ntime.sleep(600)"


def write_lesson(folder, stem, *sources):
    cells = [nbformat.v4.new_code_cell(source) for source in sources]
    (folder / "notebooks").mkdir(exist_ok=True)
    nbformat.write(nbformat.v4.new_notebook(cells=cells), folder / "notebooks" / f"{stem}.ipynb")


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A folder in which the command finds its lessons."""
    for name in ("notebooks", "build", "my_course"):
        monkeypatch.setattr(paths, name.upper(), tmp_path / name)
    (tmp_path / "notebooks").mkdir()
    return tmp_path


def course(*arguments):
    return CliRunner().invoke(cli.app, [str(argument) for argument in arguments])


def start_course(home, *arguments, **options):
    command = [sys.executable, "-c", PROGRAM, str(home), *arguments]
    streams = {"text": True, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.Popen(command, preexec_fn=interruptible, **streams, **options)


def interruptible() -> None:
    """What a shell starts in its background ignores interrupts; a learner's run does not."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def kernel_of(home):
    """The pid of the kernel, once the slow cell runs."""
    started = home / "notebooks" / "started"
    until(lambda: started.exists() and started.read_text(), 60)
    return int(started.read_text())


def alive(pid):
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def marked_by(pid):
    found = processes.marked_processes(leftovers.RUN)
    return [process.pid for process, env in found if f"{pid}:" in env[leftovers.RUN]]


# ------------------------------------------------------------------ run


def test_run_continues_after_a_failure_and_ends_with_a_table(home):
    write_lesson(home, "00_start_here", "1/0", "x = 1")
    write_lesson(home, "01_mpi_basics", "x = 1", "y = 2")
    result = course("run", "1")
    assert (result.exit_code, "1 lesson ran" in result.output) == (0, True)
    assert {path.stem for path in (home / "build").iterdir()} == {"01_mpi_basics"}
    result = course("run")
    assert result.exit_code == 1
    table = [line.rstrip() for line in result.output[result.output.index("lesson ") :].splitlines()]
    assert table[1].split()[0:4:3] == ["00_start_here", "0/2"]
    assert table[1].endswith("cell 1: ZeroDivisionError: division by zero")
    assert table[2].split()[0:4:3] == ["01_mpi_basics", "2"]
    assert table[2].endswith("ok")
    assert "1 of 2 lessons failed" in table[-1]
    assert {path.name for path in (home / "build").iterdir()} == {
        f"{stem}.{kind}" for stem in ("00_start_here", "01_mpi_basics") for kind in ("html", "ipynb")
    }
    assert "\x1b" not in result.output  # not a terminal: calm lines


def test_an_interrupt_ends_with_the_table_so_far_and_nothing_running(home):
    write_lesson(home, "00_start_here", "x = 1")
    write_lesson(home, "01_mpi_basics", "x = 1", "import time\ntime.sleep(600)")
    write_lesson(home, "02_monte_carlo_pi", "x = 1", SLOW)
    run = start_course(home, "run", "--at-once", "2")
    kernel = kernel_of(home)
    assert "01_mpi_basics" not in course("clean").output and alive(kernel), "a living run is left alone"
    run.send_signal(signal.SIGINT)
    output, _ = run.communicate(timeout=60)
    assert run.returncode == 130
    assert output.strip().splitlines()[-1] == "Stopped after 1 of 3 lessons. Nothing is left running."
    assert "Traceback" not in output
    assert not alive(kernel)
    assert marked_by(run.pid) == []


def test_clean_ends_what_a_killed_run_left_when_it_cannot_end_itself(home):
    write_lesson(home, "01_mpi_basics", CLUSTER, SLOW)
    run = start_course(home, "run")
    kernel = kernel_of(home)
    os.kill(kernel, signal.SIGSTOP)
    run.kill()
    run.wait()
    engines = [cluster for cluster in processes.running_clusters() if cluster.owner_pid == kernel]
    assert len(engines[0].pids) >= 4  # controller, mpiexec and two ranks
    result = course("clean")
    assert "Stopped a run that was killed at 01_mpi_basics.ipynb" in result.output
    assert not alive(kernel)
    assert marked_by(run.pid) == []
    assert not any(alive(pid) for pid in engines[0].pids)
    assert not engines[0].folder.exists()


# ------------------------------------------------------------------ lab, reset


def test_lab_opens_the_first_lesson_of_the_learners_copy(home, monkeypatch):
    write_lesson(home, "00_start_here", "x = 1")
    started = []
    monkeypatch.setattr(os, "execve", lambda *arguments: started.append(arguments))
    monkeypatch.setenv("MAKELEVEL", "1")
    result = course("lab", "--no-browser", "--port", "8899", "--", "--ServerApp.ip=127.0.0.1")
    assert result.exit_code == 0
    assert "Added to your copy: 00_start_here." in result.output
    (program, command, environment), *_ = started
    assert program == sys.executable
    assert f"--ServerApp.root_dir={home / 'my_course'}" in command
    assert "--LabApp.default_url=/lab/tree/00_start_here.ipynb" in command
    assert {"--no-browser", "--ServerApp.port=8899", "--ServerApp.ip=127.0.0.1"} <= set(command)
    assert not any("token" in word or "password" in word for word in command)
    kernels, prefix, *_ = environment["JUPYTER_PATH"].split(os.pathsep)
    assert kernels.endswith("course/tools/jupyter_data") and prefix == f"{sys.prefix}/share/jupyter"
    assert shutil.which("course", path=environment["PATH"]) == shutil.which(
        "course", path=f"{sys.prefix}/bin"
    )
    assert "MAKELEVEL" not in environment


def test_lab_says_when_its_port_is_in_use(home, monkeypatch):
    write_lesson(home, "00_start_here", "x = 1")
    monkeypatch.setattr(os, "execve", lambda *arguments: None)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert f"Port {port} is in use" in course("lab", "--port", port).output
    assert "in use" not in course("lab", "--port", port).output


# ------------------------------------------------------------------ doctor and the rest


def test_doctor_shows_the_remedy_of_what_is_red(monkeypatch):
    checks = [Check("Python", True, "3.11"), Check("memory", False, "1 GiB", "close programs")]
    monkeypatch.setattr(doctor, "CHECKS", tuple((lambda check=check: check) for check in checks))
    result = course("doctor")
    assert result.exit_code == 1
    assert "FIX  memory" in result.output
    assert "→ close programs" in result.output


def test_fetch_says_why_there_is_no_data(monkeypatch):
    def fail():
        raise DataError("no mirror of MNIST could be reached; try again later")

    monkeypatch.setattr(mnist, "fetch_mnist", fail)
    result = course("fetch")
    sentence = "course: no mirror of MNIST could be reached; try again later\n"
    assert (result.exit_code, result.output) == (1, sentence)


def test_the_command_starts_without_the_heavy_packages():
    program = "import sys, course.tools.cli; print([name for name in sys.modules])"
    loaded = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout
    for heavy in ("torch", "numpy", "ipyparallel", "nbclient", "nbconvert", "jupyter_client", "matplotlib"):
        assert f"'{heavy}'" not in loaded


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["up", "2", "--rate", "100mbps"], "course: cannot read the rate '100mbps'; write a number"),
        (["up", "40"], "course: a lab has 1 to 16 nodes, not 40; choose a number in between"),
        (["run", "hostname"], "course: no lab is up; make one: course lab-network up 4"),
        (["slurm"], "course: no lab is up; make one: course lab-network up 4"),
        (["down"], "No lab is up."),
    ],
)
def test_without_a_lab_the_command_says_in_one_sentence_what_to_do(arguments, sentence):
    (line,) = course("lab-network", *arguments).output.strip().splitlines()
    assert line.startswith(sentence)


@pytest.mark.parametrize(
    ("error", "code"), [(OSError(28, "No space left on device"), 1), (KeyboardInterrupt(), 130)]
)
def test_trouble_is_one_sentence(home, monkeypatch, error, code):
    def fail(**options):
        raise error

    monkeypatch.setattr(leftovers, "clean", fail)
    result = course("clean")
    assert result.exit_code == code
    assert len(result.output.strip().splitlines()) == 1


# -------------------------------------------------------------------- many learners on one machine


def test_a_hub_decides_on_the_port_and_who_may_come_in(monkeypatch, tmp_path):
    monkeypatch.delenv("JUPYTERHUB_SERVICE_URL", raising=False)
    alone = jupyter.lab_command(8888, False, folder=tmp_path)
    assert alone[2] == "jupyterlab" and "--ServerApp.port=8888" in alone
    monkeypatch.setenv("JUPYTERHUB_SERVICE_URL", "http://127.0.0.1:1234/user/one/")
    in_hub = jupyter.lab_command(8888, False, folder=tmp_path)
    assert in_hub[2] == "jupyterhub.singleuser" and f"--ServerApp.root_dir={tmp_path}" in in_hub
    assert not any("ServerApp.port" in word for word in in_hub)


# -------------------------------------------------------------------- progress


def test_progress_of_the_second_edition_is_kept_under_its_old_names_and_does_not_count(home):
    write_lesson(home, "06_data_parallel_by_hand", "x = 1")
    (home / "my_course").mkdir()
    file = home / "my_course" / ".progress.json"
    file.write_text('{"06.1": {"passed": true, "tries": 3}, "06.4": {"passed": true, "tries": 1}}')
    output = course("progress").output
    assert "06.1   A share of the loss                           not attempted" in output
    assert "passed before the lessons changed (edition 2): 06.1, 06.4" in output
    assert "0 of 2 exercises passed" in output
