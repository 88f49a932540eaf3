"""What a lesson says before its Setup cell has run, in the kernel that `course lab` starts."""

from types import SimpleNamespace

import pytest
from ipykernel.kernelspec import get_kernel_dict
from IPython.core.interactiveshell import InteractiveShell
from jupyter_client.kernelspec import get_kernel_spec

from course import kernel
from course.tools.jupyter import lab_environment
from mpi_classroom import before_setup
from mpi_classroom.catch_up import catch_up
from mpi_classroom.cluster import show
from mpi_classroom.errors import ClusterError
from mpi_classroom.practice import Practice


@pytest.fixture(scope="module")
def shell() -> InteractiveShell:
    """A notebook whose kernel has just started."""
    shell = InteractiveShell()
    kernel.load_ipython_extension(shell)
    return shell


@pytest.mark.parametrize(
    "cell",
    [
        "%%px --setup\nfrom mpi4py import MPI",
        "%px rank",
        "%%exercise 00.1\ndef right_neighbour(comm): ...",
        'cluster["mine"]',
        'cluster["answer"] = 42',
        "cluster.restart()",
        "hint()",
        'solution("00.1")',
        'predict("how many?", 3)',
        'outcome("how many?", 4, "s")',
    ],
)
def test_every_word_of_a_lesson_says_what_to_run_first(shell: InteractiveShell, cell: str) -> None:
    error = shell.run_cell(cell, silent=True).error_in_exec
    assert isinstance(error, ClusterError)
    assert error._render_traceback_() == [f"ClusterError: {before_setup.REMEDY}"]


@pytest.mark.parametrize(
    "line",
    [
        "from course_lib.classroom.cluster import start_cluster",
        "from course_lib import cli",
        "import course.tools.gone",
    ],
)
def test_a_copy_of_an_earlier_edition_says_how_to_get_a_fresh_one(
    shell: InteractiveShell, line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("JPY_SESSION_NAME", "/home/x/my_course/04_collectives.ipynb")
    assert not shell.run_cell(line).success
    (said,) = capsys.readouterr().out.strip().splitlines()
    assert said.startswith("OldCopyError: this copy of the lesson is older than the course")
    assert "Type in a terminal: course reset 04. It makes a fresh copy and keeps yours beside it" in said


def test_an_import_that_is_not_ours_is_shown_as_ever(
    shell: InteractiveShell, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not shell.run_cell("import no_such_thing").success
    said = capsys.readouterr().out
    assert "No module named 'no_such_thing'" in said and "OldCopyError" not in said


def test_there_is_nothing_to_stop_and_the_cluster_shows_what_is_missing(shell: InteractiveShell) -> None:
    assert shell.run_cell("cluster.stop()", silent=True).success
    assert "run the Setup cells" in repr(shell.user_ns["cluster"])
    assert shell.run_cell("assert not hasattr(cluster, '_repr_html_')", silent=True).success


def test_the_words_are_those_that_the_setup_cell_brings(shell: InteractiveShell) -> None:
    brought = SimpleNamespace(functions=(), magics=[])
    brought.push = lambda names, interactive: setattr(brought, "functions", tuple(names))
    brought.register_magic_function = lambda function, kind, name: brought.magics.append(name)
    Practice(brought, None).register(catch_up=catch_up, show=show)
    assert set(before_setup.FUNCTIONS) == set(brought.functions)
    assert set(before_setup.MAGICS) == {"px", *brought.magics}


def test_the_lab_starts_python3_as_ipykernel_does_with_these_words_added(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("JUPYTER_PATH", lab_environment()["JUPYTER_PATH"])
    ours = get_kernel_spec("python3")
    theirs = get_kernel_dict()
    assert ours.argv == ["python", *theirs["argv"][1:], f"--ext={kernel.__name__}"]
    assert (ours.display_name, ours.language) == (theirs["display_name"], theirs["language"])
    assert ours.metadata == theirs["metadata"]
