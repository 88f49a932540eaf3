"""What of torch's insides the backend stands on, by name, and what has moved.

torch promises none of these, and versions differ: group.py has the names of all that the bounds allow. When
the upper bound is raised, `moved()` says which of these names are gone or look different, and the rank tests
say whether the rest still means the same.
"""

import inspect
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

TORCH = "2.13"  # the version these were read in
NAMES_OF_2_12 = {
    "all_gather_single": "_allgather_base", "reduce_scatter_single": "_reduce_scatter_base",
    "all_gather_single_coalesced": "allgather_into_tensor_coalesced",
    "reduce_scatter_single_coalesced": "reduce_scatter_tensor_coalesced",
    "all_to_all_single": "alltoall_base",
}  # fmt: skip

# Methods of the group that C++ looks up by name (PyProcessGroup.hpp), and of a work.
CALLED_FROM_CPP = [
    "getBackendName", "getRank", "getSize", "getGroupName", "setGroupName", "getGroupDesc", "setGroupDesc",
    "abort", "splitGroup", "mergeRemoteGroup", "allgather", "all_gather_single_coalesced", "allreduce",
    "allreduce_coalesced", "all_to_all_single", "barrier", "broadcast", "reduce_scatter",
    "reduce_scatter_single_coalesced", "send", "recv",
]  # fmt: skip
CALLED_FROM_CPP_ON_WORK = ["wait", "get_future"]

# Methods that torch.distributed calls from Python: name -> where the call stands in distributed_c10d.py.
CALLED_FROM_PYTHON = {
    "all_gather_single": "group.all_gather_single(", "reduce_scatter_single": "group.reduce_scatter_single(",
    "alltoall": "group.alltoall(", "gather": "group.gather(", "scatter": "group.scatter(",
    "reduce": "group.reduce(",
    "recv_anysource": "group.recv_anysource(", "allgather_coalesced": "group.allgather_coalesced(",
    "_start_coalescing": "group._start_coalescing(", "_end_coalescing": "group._end_coalescing(",
    "shutdown": ".shutdown()", "_device_types": "group._device_types", "_get_backend": "group._get_backend(",
}  # fmt: skip

OPTIONS = {
    "AllreduceOptions": ["reduceOp", "timeout", "asyncOp"],
    "ReduceOptions": ["reduceOp", "rootRank", "timeout", "asyncOp"],
    "BroadcastOptions": ["rootRank", "timeout", "asyncOp"],
    "ReduceScatterOptions": ["reduceOp", "timeout", "asyncOp"],
    "AllgatherOptions": ["timeout", "asyncOp"],
    "GatherOptions": ["rootRank", "timeout", "asyncOp"],
    "ScatterOptions": ["rootRank", "timeout", "asyncOp"],
    "AllToAllOptions": ["timeout", "asyncOp"],
    "BarrierOptions": ["timeout", "asyncOp"],
}
BACKEND_OPTIONS = ["store", "group_rank", "group_size", "timeout", "group_id", "global_ranks_in_group"]
REGISTER = ["name", "func", "extended_api", "devices"]


def moved() -> list[str]:
    """One line for each name of torch that is not where the backend expects it; empty when all are."""
    insides = torch._C._distributed_c10d
    gone = [
        f"{name}.{field}"
        for name, fields in OPTIONS.items()
        for field in fields
        if not has(insides, name, field)
    ]
    gone += [
        f"_DistributedBackendOptions.{f}"
        for f in BACKEND_OPTIONS
        if not has(insides, "_DistributedBackendOptions", f)
    ]
    gone += [
        f"ReduceOp.{name}"
        for name in ("op", "__getstate__", "PREMUL_SUM", "AVG")
        if not hasattr(dist.ReduceOp, name)
    ]
    if list(inspect.signature(dist.Backend.register_backend).parameters)[:4] != REGISTER:
        gone.append(f"the first arguments of Backend.register_backend are no longer {REGISTER}")
    source = inspect.getsource(distributed_c10d)
    gone += [
        f"{call} in distributed_c10d.py"
        for name, call in CALLED_FROM_PYTHON.items()
        if not calls(source, name, call)
    ]
    if not hasattr(distributed_c10d, "_get_default_group"):
        gone.append("_get_default_group")
    if not hasattr(torch._C, "_current_graph_task_id"):
        gone.append("torch._C._current_graph_task_id")
    text = header_text()
    return gone + [
        f"{name} in PyProcessGroup.hpp"
        for name in [*CALLED_FROM_CPP, *CALLED_FROM_CPP_ON_WORK]
        if name not in text and NAMES_OF_2_12.get(name, name) not in text
    ]


def header_text() -> str:
    """What of a Python group torch's C++ calls; "" when the header is not where any version has it."""
    folder = Path(torch.__file__).parent / "include/torch/csrc/distributed/c10d"
    headers = [folder / "PyProcessGroup.hpp", folder / "py/PyProcessGroup.hpp"]  # the second from 2.14 on
    return next((header.read_text() for header in headers if header.exists()), "")


def calls(source: str, name: str, call: str) -> bool:
    """Whether torch's Python calls this method of a group, by its name now or by the one in 2.12."""
    return call in source or (name in NAMES_OF_2_12 and f"group.{NAMES_OF_2_12[name]}(" in source)


def refuse_flight_recorder(backend: str) -> None:
    """Let torch 2.15 attach no flight recorder to groups of `backend`: it cannot record a group in Python."""
    recorded_elsewhere: set[str] = getattr(distributed_c10d, "_FR_SELF_RECORDING_BACKENDS", set())
    recorded_elsewhere.add(backend)


def has(module: object, name: str, field: str) -> bool:
    return hasattr(getattr(module, name, None), field)
