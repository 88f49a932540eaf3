"""What a lesson says before its Setup cell has run, in the kernel that `course lab` starts."""

from types import SimpleNamespace

import pytest
from ipykernel.kernelspec import get_kernel_dict
from IPython.core.interactiveshell import InteractiveShell
from jupyter_client.kernelspec import get_kernel_spec

from course.tools.jupyter import lab_environment
from mpi_classroom import before_setup
from mpi_classroom.errors import ClusterError
from mpi_classroom.practice import Practice


@pytest.fixture(scope="module")
def shell() -> InteractiveShell:
    """A notebook whose kernel has just started."""
    shell = InteractiveShell()
    before_setup.load_ipython_extension(shell)
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


def test_there_is_nothing_to_stop_and_the_cluster_shows_what_is_missing(shell: InteractiveShell) -> None:
    assert shell.run_cell("cluster.stop()", silent=True).success
    assert "run the Setup cells" in repr(shell.user_ns["cluster"])
    assert shell.run_cell("assert not hasattr(cluster, '_repr_html_')", silent=True).success


def test_the_words_are_those_that_the_setup_cell_brings(shell: InteractiveShell) -> None:
    brought = SimpleNamespace(functions=(), magics=[])
    brought.push = lambda names, interactive: setattr(brought, "functions", tuple(names))
    brought.register_magic_function = lambda function, kind, name: brought.magics.append(name)
    Practice(brought, None).register()
    assert set(before_setup.FUNCTIONS) == set(brought.functions)
    assert set(before_setup.MAGICS) == {"px", *brought.magics}


def test_the_lab_starts_python3_as_ipykernel_does_with_these_words_added(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("JUPYTER_PATH", lab_environment()["JUPYTER_PATH"])
    ours = get_kernel_spec("python3")
    theirs = get_kernel_dict()
    assert ours.argv == ["python", *theirs["argv"][1:], f"--ext={before_setup.__name__}"]
    assert (ours.display_name, ours.language) == (theirs["display_name"], theirs["language"])
    assert ours.metadata == theirs["metadata"]
