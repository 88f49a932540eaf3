"""What of nbval's insides the plug-in stands on, by name, and what has moved.

nbval guarantees none of these. When its pin is raised, `moved()` says which of these names are gone or look
different, and `tests/notebooks/test_nbval_is_red.py` says whether the rest still means the same.
"""

import importlib
import inspect

from mpi_classroom.internals import found, takes

NAMES = [
    "nbval.plugin:IPyNbCell.compare_outputs",
    "nbval.plugin:IPyNbCell.raise_cell_error",
    "nbval.plugin:IPyNbCell.runtest",
    "nbval.plugin:IPyNbCell.setup",
    "nbval.plugin:IPyNbFile.collect",
    "nbval.plugin:IPyNbFile.setup",
    "nbval.plugin:IPyNbFile.setup_sanitize_files",
    "nbval.plugin:IPyNbFile.teardown",
    "nbval.plugin:coalesce_streams",
]
ARGUMENTS = {
    "nbval.plugin:IPyNbCell.__init__": ["cell_num", "cell", "options"],
    "nbval.plugin:IPyNbCell.compare_outputs": ["test", "ref"],
}
USED_IN_PLUGIN = [
    *("skip_compare", "comparison_traceback", "test_outputs", "check_exception"),
    *("nbval_cell_timeout", "nbval-kernel-startup-timeout"),
]


def moved() -> list[str]:
    """One line for each name that is not where the plug-in expects it; empty when all are."""
    gone = [name for name in NAMES if not found(name)]
    source = inspect.getsource(importlib.import_module("nbval.plugin"))
    gone += [f"{name} in nbval/plugin.py" for name in USED_IN_PLUGIN if name not in source]
    changed = [(name, wanted) for name, wanted in ARGUMENTS.items() if not takes(name, wanted)]
    return gone + [f"{name}({', '.join(wanted)})" for name, wanted in changed]
