"""What of nbval's insides the plug-in stands on, by name, and what has moved.

nbval guarantees none of these. When its pin is raised, `moved()` says which of these names are gone or look
different, and `tests/notebooks/test_nbval_is_red.py` says whether the rest still means the same.
"""

import importlib
import inspect

from mpi_classroom.internals import found, takes

NAMES = [
    "nbval.plugin:IPyNbCell.raise_cell_error",
    "nbval.plugin:IPyNbCell.runtest",
    "nbval.plugin:IPyNbFile.collect",
    "nbval.plugin:IPyNbFile.setup",
    "nbval.plugin:IPyNbFile.teardown",
    "nbval.plugin:NbCellError",
    "nbval.plugin:RunningKernel",
    "nbval.kernel:RunningKernel._ensure_iopub_up",
    "nbval.kernel:RunningKernel.get_message",
    "nbval.kernel:RunningKernel.is_alive",
    "nbval.kernel:RunningKernel.stop",
]
ARGUMENTS = {
    "nbval.kernel:RunningKernel.__init__": ["kernel_name", "cwd", "startup_timeout"],
    "nbval.kernel:RunningKernel.await_reply": ["msg_id", "timeout"],
    "nbval.kernel:RunningKernel.execute_cell_input": ["cell_input", "allow_stdin"],
    "nbval.kernel:start_new_kernel": ["startup_timeout", "kernel_name", "kwargs"],
    "nbval.plugin:IPyNbCell.__init__": ["cell_num", "cell", "options"],
}
USED_IN_PLUGIN = ["skip_compare", "timed_out", "test_outputs", "check_exception", "nbval_current_env"]


def moved() -> list[str]:
    """One line for each name that is not where the plug-in expects it; empty when all are."""
    gone = [name for name in NAMES if not found(name)]
    source = inspect.getsource(importlib.import_module("nbval.plugin"))
    gone += [f"{name} in nbval/plugin.py" for name in USED_IN_PLUGIN if name not in source]
    changed = [(name, wanted) for name, wanted in ARGUMENTS.items() if not takes(name, wanted)]
    return gone + [f"{name}({', '.join(wanted)})" for name, wanted in changed]
