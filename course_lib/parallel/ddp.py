"""Data parallelism by torch: `DistributedDataParallel` (DDP), and what it leaves to you.

    init         process_group(comm, "gloo" or "mpi4py")     which ranks, and who moves the bytes
    broadcast    DDP does it when it wraps the model
    shard        a DistributedSampler                       DDP never divides a batch
    sum          DDP does it during backward, in buckets     it averages; summing_ddp adds up instead
    the rest     the step of one process, unchanged

Torch averages the gradients of the ranks: right when every rank has the mean of equally many samples. Our
losses are divided by the global batch once, so their gradients have to be added, and shards may be uneven.

Li and others, "PyTorch Distributed: Experiences on Accelerating Data Parallel Training" (2020).
"""

import atexit
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from mpi4py import MPI
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import torch_mpi4py
from course_lib.network import loopback
from torch_mpi4py.start import common_store

TIMEOUT = timedelta(seconds=120)  # that a rank waits for the others before it raises
ended: list[dist.ProcessGroup | None] = []  # the last group, kept until the next one ends: see `end_group`
Future = torch.futures.Future[torch.Tensor]

# ---------------------------------------------------------------- init


def start_group(comm: MPI.Intracomm, backend: str, *, timeout: timedelta = TIMEOUT) -> None:
    """Make all ranks of `comm` the group of torch.distributed; `backend` is "gloo", "mpi4py" or "nccl".

    A group that somebody left behind is ended first. A rank that waits longer than `timeout` raises.
    """
    end_group()
    comm = MPI.Intracomm(comm)  # torch calls MPI on any thread: a lesson's ranks do not note it
    if backend == torch_mpi4py.NAME:
        torch_mpi4py.init_process_group(comm, timeout=timeout)
        return
    store = common_store(comm, timeout)  # where the ranks write how they can be reached
    if isinstance(store, dist.FileStore):  # all on one machine: its own network will do
        os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback())
    dist.init_process_group(backend, store=store, rank=comm.rank, world_size=comm.size, timeout=timeout)
    comm.Barrier()  # who left at once would cut off those that are still connecting


def end_group() -> None:
    """End the group of torch.distributed, if there is one; nobody's models may use it any more.

    A DDP model holds its group too, and whoever frees the last of the two waits for Gloo's threads. If that
    is the model, right after a step, the threads may still want Python's lock, which the waiting thread has:
    a deadlock. So the group stays until the next one ends, or the program: its threads are idle then.
    """
    if dist.is_initialized():
        ended[:] = [dist.group.WORLD]
        dist.destroy_process_group()


atexit.register(ended.clear)


@contextmanager
def process_group(comm: MPI.Intracomm, backend: str, *, timeout: timedelta = TIMEOUT) -> Iterator[None]:
    """`with process_group(comm, "gloo"):` the group of `start_group`, for as long as the body runs."""
    start_group(comm, backend, timeout=timeout)
    try:
        yield
    finally:
        end_group()


# ---------------------------------------------------------------- sum


def sum_bucket(state: object, bucket: dist.GradBucket) -> Future:
    """A communication hook: the sum of a bucket of gradients, where DDP would average."""
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    return work.get_future().then(lambda done: done.value()[0])


def summing_ddp(model: nn.Module, **options: Any) -> DistributedDataParallel:
    """`model` on all ranks, with the weights of rank 0, and gradients that are added up; use in `make_step`.

    `options` go to DistributedDataParallel.
    """
    replica = DistributedDataParallel(model, **options)
    replica.register_comm_hook(None, sum_bucket)
    return replica
