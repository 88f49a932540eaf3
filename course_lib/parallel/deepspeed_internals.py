"""What of DeepSpeed's insides the course stands on, by name, and what has moved.

DeepSpeed guarantees none of these. When its pin is raised, `moved()` says which of these names are gone, and
the rank tests say whether the rest still means the same.
"""

import functools
import importlib
import inspect
from typing import Any

DEEPSPEED = "0.19"  # the version these were read in

# It counts modules in its one default, a list.
COUNTER = "deepspeed.runtime.zero.parameter_offload:DeepSpeedZeRoOffload._register_deepspeed_module"
NAMES = [
    "deepspeed:ops.__compatible_ops__",
    "deepspeed:utils.logger",
    "deepspeed:utils.groups._WORLD_GROUP",
    "deepspeed:comm.comm.cdb",
    "deepspeed:zero.GatheredParameters",
    "deepspeed.comm.comm:comms_logger.comms_dict",
    "deepspeed.comm.comm:comms_logger.prof_all",
    "deepspeed.comm.comm:comms_logger.reset_data",
    "deepspeed.runtime.fp16.loss_scaler:DynamicLossScaler",
    "deepspeed.runtime.fp16.loss_scaler:LossScaler",
    "deepspeed.runtime.zero.config:ZeroStageEnum",
    COUNTER,
    "deepspeed.runtime.zero.parameter_offload:FWD_MODULE_STACK",
    "deepspeed.runtime.zero.partition_parameters:Init.param_id",
    "deepspeed.runtime.zero.partition_parameters:InsertPostInitMethodToModuleSubClasses",
    "deepspeed.utils.tensor_fragment:fragment_address",
]
ARGUMENTS = {
    "deepspeed:init_distributed": ["dist_backend", "auto_mpi_discovery", "verbose"],
    "deepspeed.runtime.engine:DeepSpeedEngine.save_checkpoint": ["save_dir", "tag", "save_latest"],
    "deepspeed.runtime.engine:DeepSpeedEngine.load_checkpoint": ["load_dir", "tag"],
}
# Attributes of instances: the file in which DeepSpeed sets or reads them.
SET_IN = {
    "ds_tensor": "deepspeed.runtime.zero.partition_parameters",
    "ds_numel": "deepspeed.runtime.zero.partition_parameters",
    "linear_bk": "deepspeed.runtime.zero.partition_parameters",
    "averaged_gradients": "deepspeed.runtime.zero.stage_1_and_2",
    "all_grad_tensors": "deepspeed.runtime.zero.stage_1_and_2",
    "grad_partitions_flat_buffer": "deepspeed.runtime.zero.stage3",
    "fp32_partitioned_groups_flat": "deepspeed.runtime.zero.stage3",
    "checkpoint_engine": "deepspeed.runtime.engine",
}


def moved() -> list[str]:
    """One line for each name that is not where the course expects it; empty when all are."""
    gone = [name for name in NAMES if not found(name)]
    defaults: tuple[Any, ...] = getattr(looked_up(COUNTER), "__defaults__", None) or ()
    if len(defaults) != 1 or not isinstance(defaults[0], list):
        gone.append(f"{COUNTER} counts modules in its one default, a list")
    for name, module in SET_IN.items():
        if name not in inspect.getsource(importlib.import_module(module)):
            gone.append(f"{name} in {module}")
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
