"""The four ways to train that are compared: the model to call, and what a step does to agree.

    sequential     one process                                     nothing
    mpi            GradientBucket: all gradients in one Allreduce   after backward
    ddp-gloo       DDP, the bytes moved by Gloo                     during backward, bucket by bucket
    ddp-mpi4py     DDP, the bytes moved by MPI                      during backward, bucket by bucket

What is timed is the same for all: from when this rank has computed its last gradient until the sums are
there. What DDP does before that is hidden behind backward, and costs no time.

DDP averages the gradients of the ranks, and has code of its own for that: faster, and safer at the end of a
group, than a communication hook in Python. So the loss is multiplied by the ranks before, and what comes out
are sums.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from ipaddress import IPv4Address, IPv4Network
from socket import AF_INET

import psutil
import torch
import torch.distributed as dist
from mpi4py import MPI
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import torch_mpi4py
from course.lessons.l07_ddp_on_mnist.study_results import DDP_GLOO, DDP_MPI4PY, OWN_MPI, SEQUENTIAL
from course_lib.network import loopback
from course_lib.parallel.data_parallel import GradientBucket, broadcast_weights
from course_lib.training.loop import do_nothing

TIMEOUT = timedelta(minutes=2)  # that a rank waits for the others before it raises
NETWORK = "OMPI_MCA_btl_tcp_if_include"  # such as 10.0.0.0/24, on several hosts
BACKENDS = {DDP_GLOO: "gloo", DDP_MPI4PY: "mpi4py"}


@dataclass(frozen=True, slots=True)
class Engine:
    """`module` is called with a batch; its loss times `loss_factor`; `synchronize` follows backward."""

    module: nn.Module
    synchronize: Callable[[], object] = do_nothing
    loss_factor: int = 1


class Groups:
    """torch's groups of all ranks of `comm`, one for each backend that somebody asks for, until `close`.

    They outlive the models: the end of a Gloo group waits for its threads, and these for Python's lock,
    which whoever ends it holds. Right after a step that is a deadlock, now and then; when all are idle it is
    none.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        self.comm = comm
        self.made: dict[str, dist.ProcessGroup] = {}

    def group(self, backend: str) -> dist.ProcessGroup:
        """The group that moves its bytes by `backend`; all ranks call this."""
        if not dist.is_initialized():
            os.environ.setdefault("GLOO_SOCKET_IFNAME", network_device())
            torch_mpi4py.init_process_group(self.comm, timeout=TIMEOUT)
        if backend not in self.made:
            self.made[backend] = dist.new_group(backend=backend, timeout=TIMEOUT)
        return self.made[backend]

    def close(self) -> None:
        """End all groups."""
        self.made.clear()
        if dist.is_initialized():
            dist.destroy_process_group()


def network_device() -> str:
    """The device by which this rank reaches the others, for Gloo; on several hosts that of MPI's network."""
    network = os.environ.get(NETWORK, "")
    if "/" not in network:
        return loopback()  # all ranks are on this machine
    for name, addresses in psutil.net_if_addrs().items():
        if any(
            each.family == AF_INET and IPv4Address(each.address) in IPv4Network(network) for each in addresses
        ):
            return name
    raise ValueError(f"this host has no address in {network}; name another network of the hosts")


def engine(name: str, comm: MPI.Intracomm, model: nn.Module, *, sums: list[float], groups: Groups) -> Engine:
    """The engine `name` for `model` on the ranks of `comm`; `sums` gets the seconds of each step's sum."""
    if name == SEQUENTIAL and comm.size == 1:
        return Engine(model)
    if name == OWN_MPI:
        broadcast_weights(comm, model)
        bucket = GradientBucket(model)
        return Engine(model, lambda: timed_sum(comm, bucket, sums))
    if name in BACKENDS:
        exposed = Exposed(sums, model)
        group = groups.group(BACKENDS[name])
        replica = DistributedDataParallel(model, process_group=group, gradient_as_bucket_view=True)
        return Engine(replica, exposed.end, comm.size)
    raise ValueError(f"there is no engine {name!r} for {comm.size} ranks")


def timed_sum(comm: MPI.Intracomm, bucket: GradientBucket, sums: list[float]) -> None:
    """Sum the gradients, and note how long it took."""
    bucket.collect()  # is no communication
    start = MPI.Wtime()
    bucket.sum(comm)
    sums.append(MPI.Wtime() - start)


class Exposed:
    """The part of DDP's communication that nothing hides: from the last gradient to the end of backward."""

    def __init__(self, sums: list[float], model: nn.Module) -> None:
        self.sums, self.start = sums, 0.0
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(self.begin)

    def begin(self, parameter: torch.Tensor) -> None:
        """One more gradient is there: maybe the last one."""
        self.start = MPI.Wtime()

    def end(self) -> None:
        """Backward has returned: all sums are in their gradients."""
        self.sums.append(MPI.Wtime() - self.start)
