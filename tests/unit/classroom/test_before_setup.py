"""What a lesson says before its Setup cell has run, in the kernel that `course lab` starts."""

import pytest
from ipykernel.kernelspec import get_kernel_dict
from IPython.core.interactiveshell import InteractiveShell
from jupyter_client.kernelspec import get_kernel_spec

from course import kernel
from course.tools.jupyter import lab_environment
from mpi_classroom import before_setup
from mpi_classroom.errors import ClusterError


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
        "%%exercise 00.1\ndef right_neighbour(comm): ...",
        'cluster["mine"]',
        "cluster.restart()",
        "hint()",
        'predict("how many?", 3)',
    ],
)
def test_every_word_of_a_lesson_says_what_to_run_first(shell: InteractiveShell, cell: str) -> None:
    error = shell.run_cell(cell, silent=True).error_in_exec
    assert isinstance(error, ClusterError)
    assert error._render_traceback_() == [f"ClusterError: {before_setup.REMEDY}"]


def test_an_import_that_is_not_ours_is_shown_as_ever(
    shell: InteractiveShell, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not shell.run_cell("import no_such_thing").success
    said = capsys.readouterr().out
    assert "No module named 'no_such_thing'" in said and "OldCopyError" not in said


def test_the_lab_starts_python3_as_ipykernel_does_with_these_words_added(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("JUPYTER_PATH", lab_environment()["JUPYTER_PATH"])
    ours = get_kernel_spec("python3")
    theirs = get_kernel_dict()
    assert ours.argv == ["python", *theirs["argv"][1:], f"--ext={kernel.__name__}"]
    assert (ours.display_name, ours.language) == (theirs["display_name"], theirs["language"])
    assert ours.metadata == theirs["metadata"]
