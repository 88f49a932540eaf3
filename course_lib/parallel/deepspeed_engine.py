"""DeepSpeed over MPI, on CPUs or GPUs: its world and its engine.

    start_deepspeed(comm)                      the ranks of `comm`; "mpi4py" moves the bytes, or "gloo"
    engine = start_engine(model, config)       deepspeed.initialize: model, optimizer, JSON in one object
    step = deepspeed_step(engine, loss_fn)     a step for `fit`: forward, engine.backward, engine.step
    stop_deepspeed()                           at the end of a program; a new start does it, too

DeepSpeed keeps its world in module globals and environment variables; both are put back. It would compile C++
when it starts, so every compiled operator is reported to it as unavailable. Nothing here may be used by some
ranks only: like every collective, all of them start, step, gather and save together.

Rasley and others, "DeepSpeed: System Optimizations Enable Training Deep Learning Models with Over 100 Billion
Parameters", KDD 2020.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import socket
import sys
import warnings
import weakref
from collections.abc import Iterator, Mapping
from datetime import timedelta
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn

from course_lib.parallel.deepspeed_config import Config, stage_of
from course_lib.training.flat import flatten
from course_lib.training.loop import Batch, Step, SummedLoss, microbatches

if TYPE_CHECKING:  # DeepSpeed's own launcher starts no MPI
    from mpi4py import MPI

TIMEOUT = timedelta(seconds=120)  # that a rank waits for the others before it raises
ENGINES: weakref.WeakSet[Any] = weakref.WeakSet()  # those that nobody has ended yet
BEFORE: dict[str, str | None] = {}  # the environment as it was
OLD_NAMES = r"`torch\.distributed\.(all_gather_into_tensor|reduce_scatter_tensor)` is deprecated"

# ---------------------------------------------------------------- the world


def start_deepspeed(comm: MPI.Intracomm, backend: str = "mpi4py") -> ModuleType:
    """Make all ranks of `comm` DeepSpeed's world, and return the module `deepspeed`; on all ranks together.

    `backend` is "mpi4py" or "gloo" on CPUs. It is "nccl" on GPUs; there, each rank calls `use_device` first.
    A world that is there already is ended first, with its engines.
    """
    from mpi4py.MPI import COMM_TYPE_SHARED

    from course_lib.parallel import ddp

    stop_deepspeed()
    neighbours = comm.Split_type(COMM_TYPE_SHARED)  # the ranks on this machine
    # It compares the local rank with Open MPI's, which counts the job's ranks. The address is never used.
    local_rank = os.environ.get("OMPI_COMM_WORLD_LOCAL_RANK", str(neighbours.rank))
    variables = {
        "RANK": comm.rank,
        "WORLD_SIZE": comm.size,
        "LOCAL_RANK": local_rank,
        "LOCAL_SIZE": neighbours.size,
    }
    neighbours.Free()
    variables |= {"MASTER_ADDR": comm.bcast(socket.gethostname()), "MASTER_PORT": 0}
    BEFORE.update({name: os.environ.get(name) for name in variables})
    os.environ |= {name: str(value) for name, value in variables.items()}
    deepspeed = load_deepspeed(backend)
    number_from_zero()
    ddp.start_group(comm, backend, timeout=TIMEOUT)
    deepspeed.init_distributed(backend, auto_mpi_discovery=False, verbose=False)
    return deepspeed


def start_launched(backend: str = "gloo") -> ModuleType:
    """The same in a process that DeepSpeed's launcher or `torchrun` has started: without MPI."""
    if not {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys():
        raise RuntimeError("this process was given no rank; start it with run_ds.sh or with mpiexec")
    deepspeed = load_deepspeed(backend)
    dist.init_process_group(backend, timeout=TIMEOUT)
    deepspeed.init_distributed(backend, auto_mpi_discovery=False, verbose=False)
    return deepspeed


def load_deepspeed(backend: str = "mpi4py") -> ModuleType:
    """The module `deepspeed`, for GPUs with "nccl". Compiles nothing, warns of what you can change."""
    os.environ["DS_ACCELERATOR"] = "cuda" if backend == "nccl" else "cpu"
    warnings.filterwarnings("ignore", OLD_NAMES, FutureWarning)  # DeepSpeed's calls, not yours
    import deepspeed

    deepspeed.utils.logger.addFilter(worth_saying)
    deepspeed.ops.__compatible_ops__ = {}  # else it compiles to find out, and at every start
    return deepspeed


def number_from_zero() -> None:
    """Let DeepSpeed number modules and parameters anew: it goes on counting from engine to engine.

    In stage 3 all ranks have to have the same numbers, also when some have been in a smaller world before.
    """
    from deepspeed.runtime.zero import parameter_offload, partition_parameters

    (counter,) = parameter_offload.DeepSpeedZeRoOffload._register_deepspeed_module.__defaults__
    counter[0] = partition_parameters.Init.param_id = 0
    parameter_offload.FWD_MODULE_STACK.clear()


def worth_saying(record: logging.LogRecord) -> bool:
    """Whether a line of DeepSpeed's log is news: not what always happens, nor what the config asked for."""
    known = ("learning rate from scheduler before it has started", "ZeRO with an untested optimizer")
    return not any(words in record.getMessage() for words in known)


def stop_deepspeed() -> None:
    """End all engines and the world, if there is one; on all ranks together."""
    for engine in list(ENGINES):
        end_engine(engine)
    gc.collect()  # what holds the group has to go before Gloo's threads do
    if dist.is_initialized():
        end_group()
        if deepspeed := sys.modules.get("deepspeed"):  # its own idea of the world
            deepspeed.comm.comm.cdb = None
            deepspeed.utils.groups._WORLD_GROUP = None
    for name, value in BEFORE.items():
        os.environ.pop(name, None)
        os.environ |= {name: value} if value is not None else {}
    BEFORE.clear()


def end_group() -> None:
    """End torch's group; one that MPI has started is ended where it was."""
    if "MASTER_PORT" in BEFORE:
        from course_lib.parallel import ddp

        ddp.end_group()
    else:
        dist.destroy_process_group()


@contextlib.contextmanager
def deepspeed_world(comm: MPI.Intracomm, backend: str = "mpi4py") -> Iterator[ModuleType]:
    """`with deepspeed_world(comm) as deepspeed:` the world of `start_deepspeed` while the body runs."""
    try:
        yield start_deepspeed(comm, backend)
    finally:
        stop_deepspeed()


# ---------------------------------------------------------------- the engine


def start_engine(model: nn.Module, config: Config) -> Any:
    """DeepSpeed's engine for `model`, whose weights it takes from rank 0; the optimizer is in `config`."""
    import deepspeed

    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    ENGINES.add(engine)  # so that the next start_deepspeed can end it
    return engine


def end_engine(engine: Any) -> None:
    """Let go of what `engine` keeps; it is of no use any more, nor is its model in stage 3."""
    ENGINES.discard(engine)
    engine.destroy()
    if stage_of(engine.config) == 3:  # its hooks hold it by way of autograd, where Python cannot find them
        for tensor in tensors_in(kept(engine)):
            tensor.untyped_storage().resize_(0)
    if not any(stage_of(other.config) == 3 for other in ENGINES):
        restore_linear()


def restore_linear() -> None:
    """Put `functional.linear` back: stage 3 replaced it by one whose gradients arrive in a different order.

    Ranks that have been in stage 3 would fill their buckets otherwise than those that have not: wrong sums.
    """
    from deepspeed.runtime.zero.partition_parameters import InsertPostInitMethodToModuleSubClasses as Patches

    nn.functional.linear = getattr(Patches, "linear_bk", nn.functional.linear)


def deepspeed_step(engine: Any, loss_fn: SummedLoss) -> Step:
    """A step of `engine` on this rank's part of a global batch; returns its part of the loss.

    Divides the loss by the global batch, and undoes DeepSpeed's mean over ranks and micro-batches.
    """
    size, accumulation = engine.train_micro_batch_size_per_gpu(), engine.gradient_accumulation_steps()
    parts = engine.dp_world_size * accumulation

    def step(batch: Batch) -> float:
        check_part(len(batch.targets), size, accumulation)
        total = 0.0
        for part in microbatches(batch, size):
            outputs = engine(as_precise(engine, part.inputs.to(engine.device)))
            loss = loss_fn(outputs.float(), part.targets.to(engine.device)) / part.global_size
            engine.backward(loss * parts)
            engine.step()  # updates the weights when the last micro-batch is in
            total += loss.item()
        return total

    return step


def as_precise(engine: Any, inputs: torch.Tensor) -> torch.Tensor:
    """`inputs` in the precision that the config gives the weights; tokens and labels as they are."""
    return inputs.to(next(engine.module.parameters()).dtype) if inputs.is_floating_point() else inputs


def check_part(samples: int, size: int, accumulation: int) -> None:
    """ValueError unless a rank's part of a global batch is as many samples as the config says."""
    if samples != size * accumulation:
        raise ValueError(
            f"a rank got {samples} samples, and the config says {accumulation} × {size}; "
            "drop the last, short batch, or change the config"
        )


def gathered_weights(engine: Any) -> torch.Tensor:
    """All weights of `engine`, in a row, on every rank; all ranks call it together."""
    import deepspeed

    parameters = list(engine.module.parameters())
    sharded = stage_of(engine.config) == 3
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
