"""What of ipyparallel's and ipykernel's insides the classroom stands on, by name, and what has moved.

Neither promises these. When a pin is raised, `moved()` says which of these names are gone or look different,
and the tests of the cluster and of the guarded cells say whether the rest still means the same.
"""

import functools
import importlib
import inspect
from collections.abc import Callable
from typing import Any

import ipykernel
from IPython.core import magic_arguments

SUBSHELLS = [  # since ipykernel 7; before it, there is nothing to switch off
    "ipykernel.kernelbase:Kernel._supports_kernel_subshells",
    "ipykernel.kernelbase:Kernel.shell_channel_thread",
]
NAMES = [
    *(SUBSHELLS if ipykernel.version_info >= (7,) else []),
    "ipyparallel.controller.app:IPController.broadcast_scheduler_depth",
    "ipyparallel.controller.heartmonitor:HeartMonitor.max_heartmonitor_misses",
    "ipyparallel.controller.heartmonitor:HeartMonitor.period",
    "ipyparallel.client.asyncresult:AsyncResult.split",
    "ipyparallel.client.client:Client._unwrap_exception",
    "ipyparallel.client.magics:ParallelMagics._eval_target_str",
    "ipyparallel.client.magics:ParallelMagics.result",
    "ipyparallel.client.magics:exec_args",
    "ipyparallel.client.magics:output_args",
    "ipyparallel.engine.app:IPEngine.enable_nanny",
    "ipyparallel.engine.app:IPEngine.max_heartbeat_misses",
    "ipyparallel.engine.app:IPEngine.url_file",
    "ipyparallel.engine.app:IPEngine.wait_for_url_file",
]
ARGUMENTS = {
    "ipykernel.compiler:get_tmp_hash_seed": [],
    "ipykernel.compiler:murmur2_x86": ["data", "seed"],
    "ipyparallel.client.asyncresult:AsyncResult.__init__": ["fname", "targets"],
    "ipyparallel.client.client:Client._handle_apply_reply": ["msg"],
    "ipyparallel.client.magics:ParallelMagics.parallel_execute": [
        "cell", "block", "groupby", "save_name", "stream_output", "progress_after", "signal_on_interrupt",
    ],
}  # fmt: skip


def with_local(magic: Callable[..., Any]) -> Callable[..., Any]:
    """Give a magic the option `--local`, unless ipyparallel's `exec_args` has: it does before version 9."""
    options: list[Any] = getattr(magic, "decorators", [])
    if any("--local" in getattr(option, "args", ()) for option in options):
        return magic
    return magic_arguments.argument(
        "--local", action="store_true", help="also execute the cell in the notebook"
    )(magic)


def moved() -> list[str]:
    """One line for each name that is not where the classroom expects it; empty when all are."""
    gone = [name for name in NAMES if not found(name)]
    changed = [(name, wanted) for name, wanted in ARGUMENTS.items() if not takes(name, wanted)]
    return gone + [f"{name}({', '.join(wanted)})" for name, wanted in changed]


def looked_up(name: str) -> Any:
    """What `module:attribute.attribute` names; None when something of it is missing."""
    module, _, path = name.partition(":")
    try:
        thing = importlib.import_module(module)
        return functools.reduce(getattr, path.split(".") if path else [], thing)
    except (ImportError, AttributeError):
        return None


def found(name: str) -> bool:
    """Whether there is something of that name, None included."""
    module, _, path = name.partition(":")
    owner, _, attribute = path.rpartition(".")
    holder = looked_up(f"{module}:{owner}")
    return holder is not None and (not attribute or hasattr(holder, attribute))


def takes(name: str, wanted: list[str]) -> bool:
    """Whether the function has these arguments."""
    function = looked_up(name)
    return function is not None and set(wanted) <= set(inspect.signature(function).parameters)
