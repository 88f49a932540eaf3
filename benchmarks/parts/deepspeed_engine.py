"""DeepSpeed's world and engine on ranks of MPI, for the benchmarks.

    with deepspeed_world(comm):                    the ranks of `comm`; "mpi4py" moves the bytes, or "gloo"
        engine = start_engine(model, config)       deepspeed.initialize: model, optimizer, JSON in one object
        step = deepspeed_step(engine, loss_fn)     a step for `fit`: forward, engine.backward, engine.step

DeepSpeed keeps its world in module globals and environment variables; both are put back. It would compile C++
when it starts, so every compiled operator is reported to it as unavailable. All ranks start, step, gather and
end together.
"""

import contextlib
import gc
import os
import socket
import warnings
import weakref
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any
from unittest.mock import patch

import torch
from mpi4py import MPI
from torch import nn

from course_lib.parallel import ddp
from course_lib.training.flat import flatten
from course_lib.training.loop import Batch, Step, SummedLoss, microbatches

Config = dict[str, Any]
ENGINES: weakref.WeakSet[Any] = weakref.WeakSet()  # those that nobody has ended yet

# ---------------------------------------------------------------- the configuration


def stage_config(
    stage: int,
    ranks: int,
    *,
    micro_batch: int = 8,
    accumulation: int = 1,
    learning_rate: float = 1e-3,
    warmup_steps: int = 0,
    total_steps: int = 0,
    clip: float = 0.0,
    bucket: int = 500_000,
) -> Config:
    """The contents of a DeepSpeed file that trains on `ranks` CPUs in the ZeRO `stage`, compiling nothing.

    With `total_steps`, the learning rate climbs for `warmup_steps` updates and then falls to 0. A `clip` of 0
    leaves the gradient as it is. `bucket` counts parameters.
    """
    config: Config = {
        "train_batch_size": micro_batch * accumulation * ranks,
        "train_micro_batch_size_per_gpu": micro_batch,
        "gradient_accumulation_steps": accumulation,
        "optimizer": {"type": "AdamW", "params": {"lr": learning_rate, "torch_adam": True}},
        "gradient_clipping": clip,
        "zero_optimization": zero_settings(stage, bucket),
        "zero_allow_untested_optimizer": True,
        "steps_per_print": 10**9,
    }
    if total_steps:
        climb = {
            "warmup_max_lr": learning_rate,
            "warmup_type": "linear",
            "warmup_num_steps": max(1, warmup_steps),
        }
        config["scheduler"] = {"type": "WarmupDecayLR", "params": climb | {"total_num_steps": total_steps}}
    return config


def zero_settings(stage: int, bucket: int) -> Config:
    """The part "zero_optimization": DeepSpeed's defaults are for large GPUs, these save memory."""
    settings: Config = {"stage": stage}
    if stage:
        settings["reduce_bucket_size"] = bucket
    if stage in (1, 2):
        settings["use_multi_rank_bucket_allreduce"] = False
    if stage == 3:
        names = ("param_persistence_threshold", "max_live_parameters", "max_reuse_distance")
        settings |= {f"stage3_{name}": 0 for name in (*names, "prefetch_bucket_size")}
    return settings


# ---------------------------------------------------------------- the world


@contextlib.contextmanager
def deepspeed_world(comm: MPI.Intracomm, backend: str = "mpi4py") -> Iterator[ModuleType]:
    """`with deepspeed_world(comm) as deepspeed:` all ranks of `comm` are DeepSpeed's world meanwhile."""
    neighbours = comm.Split_type(MPI.COMM_TYPE_SHARED)  # the ranks on this machine
    # It compares the local rank with Open MPI's, which counts the job's ranks. The address is never used.
    local_rank = os.environ.get("OMPI_COMM_WORLD_LOCAL_RANK", str(neighbours.rank))
    numbers = {"RANK": comm.rank, "WORLD_SIZE": comm.size, "LOCAL_SIZE": neighbours.size, "MASTER_PORT": 0}
    neighbours.Free()
    names = {"LOCAL_RANK": local_rank, "MASTER_ADDR": comm.bcast(socket.gethostname())}
    with patch.dict(os.environ, names | {name: str(value) for name, value in numbers.items()}):
        deepspeed = load_deepspeed()
        ddp.start_group(comm, backend)
        deepspeed.init_distributed(backend, auto_mpi_discovery=False, verbose=False)
        try:
            yield deepspeed
        finally:
            for engine in list(ENGINES):
                end_engine(engine)
            gc.collect()  # what holds the group has to go before Gloo's threads do
            ddp.end_group()
            deepspeed.comm.comm.cdb = None  # its own idea of the world
            deepspeed.utils.groups._WORLD_GROUP = None


def load_deepspeed() -> ModuleType:
    """The module `deepspeed`, on CPUs. Compiles nothing, and its log shows errors only."""
    os.environ["DS_ACCELERATOR"] = "cpu"
    warnings.filterwarnings("ignore", category=FutureWarning)  # DeepSpeed's calls, not yours
    import deepspeed

    deepspeed.utils.logger.setLevel("ERROR")
    deepspeed.ops.__compatible_ops__ = {}  # else it compiles to find out, and at every start
    return deepspeed


# ---------------------------------------------------------------- the engine


def start_engine(model: nn.Module, config: Config) -> Any:
    """DeepSpeed's engine for `model`, whose weights it takes from rank 0; the optimizer is in `config`."""
    import deepspeed

    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    ENGINES.add(engine)  # so that the end of the world can end it
    return engine


def end_engine(engine: Any) -> None:
    """Let go of what `engine` keeps; it is of no use any more, nor is its model in stage 3."""
    ENGINES.discard(engine)
    engine.destroy()
    if engine.zero_optimization_stage() == 3:
        for tensor in tensors_in(kept(engine)):  # its hooks hold it where Python's collector cannot see
            tensor.untyped_storage().resize_(0)
        restore_linear()


def restore_linear() -> None:
    """Put `functional.linear` back: in stage 3, DeepSpeed replaces it by its own."""
    from deepspeed.runtime.zero.partition_parameters import InsertPostInitMethodToModuleSubClasses as Patches

    nn.functional.linear = getattr(Patches, "linear_bk", nn.functional.linear)


def deepspeed_step(engine: Any, loss_fn: SummedLoss) -> Step:
    """A step of `engine` on this rank's part of a global batch, as large as the config says.

    Returns this rank's part of the loss. Divides the loss by the global batch, and undoes DeepSpeed's mean
    over ranks and micro-batches.
    """
    mine = engine.train_micro_batch_size_per_gpu() * engine.gradient_accumulation_steps()
    parts = engine.dp_world_size * engine.gradient_accumulation_steps()

    def step(batch: Batch) -> float:
        if len(batch.targets) != mine:
            raise ValueError(f"a rank got {len(batch.targets)} samples, and the config says {mine}")
        total = 0.0
        for part in microbatches(batch, engine.train_micro_batch_size_per_gpu()):
            loss = loss_fn(engine(part.inputs), part.targets) / part.global_size
            engine.backward(loss * parts)
            engine.step()  # updates the weights when the last micro-batch is in
            total += loss.item()
        return total

    return step


def gathered_weights(engine: Any) -> torch.Tensor:
    """All weights of `engine`, in a row, on every rank; all ranks call it together."""
    import deepspeed

    parameters = list(engine.module.parameters())
    sharded = engine.zero_optimization_stage() == 3
    with deepspeed.zero.GatheredParameters(parameters) if sharded else contextlib.nullcontext():
        return flatten([parameter.detach() for parameter in parameters]).clone()


# ---------------------------------------------------------------- what an engine keeps


def kept(engine: Any) -> dict[str, Any]:
    """Where an engine keeps its tensors; one that is in several places belongs to the first."""
    outer = engine.optimizer
    inner = getattr(outer, "optimizer", outer)  # torch's, inside DeepSpeed's
    weights = list(engine.module.parameters())
    names = ("averaged_gradients", "all_grad_tensors", "grad_partitions_flat_buffer")
    copies = [group["params"] for group in inner.param_groups]
    return {
        "weights": [weights, [getattr(weight, "ds_tensor", None) for weight in weights]],
        "gradients": [[weight.grad for weight in weights], [getattr(outer, name, None) for name in names]],
        "optimizer": [copies, getattr(outer, "fp32_partitioned_groups_flat", None), dict(inner.state)],
    }


def tensors_in(thing: Any) -> Iterator[torch.Tensor]:
    """All tensors in lists, tuples and dictionaries of them."""
    if isinstance(thing, torch.Tensor):
        yield thing
    elif isinstance(thing, Mapping):
        for part in thing.values():
            yield from tensors_in(part)
    elif isinstance(thing, list | tuple):
        for part in thing:
            yield from tensors_in(part)
