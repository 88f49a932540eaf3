"""What of the insides of nbval and DeepSpeed the course stands on, by name, and what has moved.

Neither guarantees any of these. When a pin is raised, `moved()` says which of these names are gone or look
different, and `tests/notebooks/test_nbval_is_red.py` and `tests/ranks/test_deepspeed_engine.py` say whether
the rest still means the same.
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
    "deepspeed:ops.__compatible_ops__",
    "deepspeed:utils.logger",
    "deepspeed:utils.groups._WORLD_GROUP",
    "deepspeed:comm.comm.cdb",
    "deepspeed:zero.GatheredParameters",
    "deepspeed.comm.comm:comms_logger.comms_dict",
    "deepspeed.comm.comm:comms_logger.prof_all",
    "deepspeed.comm.comm:comms_logger.reset_data",
    "deepspeed.runtime.zero.partition_parameters:InsertPostInitMethodToModuleSubClasses",
]
ARGUMENTS = {
    "nbval.plugin:IPyNbCell.__init__": ["cell_num", "cell", "options"],
    "nbval.plugin:IPyNbCell.compare_outputs": ["test", "ref"],
    "deepspeed:init_distributed": ["dist_backend", "auto_mpi_discovery", "verbose"],
}
# Words of options, and attributes of instances: the file that sets or reads them.
SET_IN = {
    **dict.fromkeys(("skip_compare", "comparison_traceback", "test_outputs"), "nbval.plugin"),
    **dict.fromkeys(
        ("check_exception", "nbval_cell_timeout", "nbval-kernel-startup-timeout"), "nbval.plugin"
    ),
    **dict.fromkeys(("ds_tensor", "linear_bk"), "deepspeed.runtime.zero.partition_parameters"),
    **dict.fromkeys(("averaged_gradients", "all_grad_tensors"), "deepspeed.runtime.zero.stage_1_and_2"),
    "grad_partitions_flat_buffer": "deepspeed.runtime.zero.stage3",
    "fp32_partitioned_groups_flat": "deepspeed.runtime.zero.stage3",
}


def moved() -> list[str]:
    """One line for each name that is not where the course expects it; empty when all are."""
    gone = [name for name in NAMES if not found(name)]
    for name, module in SET_IN.items():
        if name not in inspect.getsource(importlib.import_module(module)):
            gone.append(f"{name} in {module}")
    changed = [(name, wanted) for name, wanted in ARGUMENTS.items() if not takes(name, wanted)]
    return gone + [f"{name}({', '.join(wanted)})" for name, wanted in changed]
