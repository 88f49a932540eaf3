"""What a lesson says before its Setup cell has run: after Kernel → Restart, `%%px` says what to run first.

An IPython extension, loaded by every kernel of `course lab`; `start_cluster` puts the real ones in place.
"""

from typing import Any, NoReturn

from mpi_classroom.commands import offer_commands
from mpi_classroom.errors import ClusterError
from mpi_classroom.launch import keep_mpi_private

MAGICS = ("px", "exercise")
FUNCTIONS = ("hint", "solution", "predict", "outcome", "continue_with", "catch_up", "show")
REMEDY = """\
this notebook has no ranks yet. Run the Setup cells at the top of the lesson first;
to have everything back that the cells above this one made: menu Run → Run All Above Selected Cell."""


class NotStarted:
    """Stands where the cluster will be: there is nothing to ask it, and nothing to stop."""

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(name)  # IPython looks for ways to display it
        refuse()

    def __getitem__(self, name: str) -> NoReturn:
        refuse()

    def __setitem__(self, name: str, value: Any) -> NoReturn:
        refuse()

    def __repr__(self) -> str:
        return "<no cluster yet: run the Setup cells at the top of the lesson>"

    def stop(self) -> None:
        """Nothing runs."""


def refuse(*args: Any, **options: Any) -> NoReturn:
    """Say what to run first."""
    raise ClusterError(REMEDY)


def load_ipython_extension(shell: Any) -> None:
    """Called by IPython, in a new kernel."""
    keep_mpi_private()
    offer_commands()
    for name in MAGICS:
        shell.register_magic_function(refuse, "line_cell", name)
    shell.push({"cluster": NotStarted()} | dict.fromkeys(FUNCTIONS, refuse), interactive=False)
