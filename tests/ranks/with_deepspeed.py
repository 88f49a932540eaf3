"""DeepSpeed on the ranks of a test job, on CPUs, and what its tests share."""

import contextlib
import os
from collections.abc import Iterator
from datetime import timedelta
from types import ModuleType
from typing import Any

import pytest
import torch.distributed as dist
from mpi4py import MPI

import torch_mpi4py
from tests.ranks.one_process import Tensors, weights_of


@pytest.fixture(scope="module")
def deepspeed() -> Iterator[ModuleType]:
    """DeepSpeed on CPUs, its world the ranks of this job; nothing is compiled."""
    comm = MPI.COMM_WORLD.Dup()
    size = str(comm.size)
    local_rank = os.environ.get("OMPI_COMM_WORLD_LOCAL_RANK", "0")  # it compares; not always the rank
    told = {"DS_ACCELERATOR": "cpu", "RANK": str(comm.rank), "WORLD_SIZE": size}
    told |= {"LOCAL_RANK": local_rank, "LOCAL_SIZE": size}
    # It asks for an address, and does not use it: the process group is there already.
    told |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "DS_DISABLE_LOGS": "1"}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in told.items():
            patch.setenv(name, value)
        import deepspeed as module

        module.ops.__compatible_ops__["deepspeed_shm_comm"] = False
        torch_mpi4py.init_process_group(comm, timeout=timedelta(seconds=50))
        module.init_distributed("mpi4py", auto_mpi_discovery=False, verbose=False)
        yield module
        dist.destroy_process_group()
        module.comm.comm.cdb = None
        module.utils.groups._WORLD_GROUP = None
    comm.Free()


def settings(stage: int) -> dict[str, Any]:
    size = dist.get_world_size()
    return {
        "train_batch_size": 12,
        "train_micro_batch_size_per_gpu": 12 // size,
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
        "gradient_clipping": 0.0,  # clips to a norm of 1 unless told not to
        "steps_per_print": 10**9,
    }


def gathered_weights(deepspeed: ModuleType, engine: Any, stage: int) -> Tensors:
    parameters = list(engine.module.parameters())
    gathered = deepspeed.zero.GatheredParameters(parameters) if stage == 3 else contextlib.nullcontext()
    with gathered:
        return weights_of(engine.module)
