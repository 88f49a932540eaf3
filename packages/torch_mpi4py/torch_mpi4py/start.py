"""Making groups: the world from a communicator, the others from the world.

    init_process_group(comm)                              no environment variable, no port to choose
    torch.distributed.init_process_group("mpi4py", …)     torch's own way, under mpiexec

The world's group has a copy of the communicator, so nothing of torch's meets messages of yours. A group
of some ranks is made by those ranks alone (`Create_group`), because torch does not ask the others.
"""

import atexit
import os
import socket
import tempfile
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from mpi4py import MPI
from torch.distributed import distributed_c10d as c10d

from . import internals
from .announce import wait_for_ranks
from .channel import forget_in_fork, keep_forever
from .errors import CollectiveTimeoutError
from .group import MPIGroup
from .shared import all_agree

NAME = "mpi4py"
TIMEOUT = timedelta(minutes=30)  # torch's own default for CPU groups
EXIT_SECONDS = 5.0  # for what is still under way at exit

_parent: MPI.Intracomm | None = None  # what the next world is made from
_groups: list[MPIGroup] = []
_forked = False


def init_process_group(comm: MPI.Intracomm | None = None, *, timeout: timedelta = TIMEOUT) -> None:
    """Make `comm` (default: all ranks of the job) torch.distributed's default group; all its ranks call this.

    Afterwards torch.distributed works as ever; `destroy_process_group` ends it, and you can begin again.
    """
    global _parent
    refuse_fork()
    comm = bare(MPI.COMM_WORLD if comm is None else comm)
    if not wait_for_ranks(comm.Ibarrier().Test, timeout.total_seconds()):
        raise CollectiveTimeoutError(
            f"init_process_group: not all {comm.size} ranks of the communicator came "
            f"within {timeout.total_seconds():g} s"
        )
    store = common_store(comm, timeout)
    _parent = comm
    try:
        dist.init_process_group(NAME, store=store, rank=comm.rank, world_size=comm.size, timeout=timeout)
    finally:
        _parent = None


def bare(comm: MPI.Intracomm) -> MPI.Intracomm:
    """Return the communicator as mpi4py's own class: a recorder must not see calls of our threads."""
    return MPI.Intracomm(comm)


def common_store(comm: MPI.Intracomm, timeout: timedelta) -> dist.Store:
    """Return a store of all ranks: a file on one machine; on several, rank 0 hosts it on a free port.

    A file, because torch's TCPStore asks for names of hosts, which takes seconds where no network answers.
    """
    neighbours = comm.Split_type(MPI.COMM_TYPE_SHARED)
    one_node = all_agree(comm, neighbours.size == comm.size)
    neighbours.Free()
    return file_store(comm, timeout) if one_node else tcp_store(comm, timeout)


def file_store(comm: MPI.Intracomm, timeout: timedelta) -> dist.Store:
    """Return a store in a temporary file. The last rank to leave deletes the file, or else mpiexec does."""
    path = None
    if comm.rank == 0:
        job = os.path.dirname(
            os.environ.get("OMPI_FILE_LOCATION", "")
        )  # Open MPI's; removed however the job ends
        handle, path = tempfile.mkstemp(prefix="torch-mpi-store-", dir=job if os.path.isdir(job) else None)
        os.close(handle)
    store = dist.FileStore(comm.bcast(path), comm.size)
    store.set_timeout(timeout)
    return store


def tcp_store(comm: MPI.Intracomm, timeout: timedelta) -> dist.Store:
    """Return a store that rank 0 hosts on a free port."""
    host, size = comm.bcast(socket.getfqdn()), comm.size
    store = None
    if comm.rank == 0:
        store = dist.TCPStore(host, 0, size, is_master=True, timeout=timeout, wait_for_workers=False)
    port = comm.bcast(store.port if store else None)
    return store or dist.TCPStore(host, port, size, is_master=False, timeout=timeout, wait_for_workers=False)


def create_group(options: Any, _backend_options: Any = None) -> MPIGroup:
    """Make a group for torch: the world, or the ranks of `global_ranks_in_group`."""
    ranks = list(options.global_ranks_in_group)
    seconds = options.timeout.total_seconds()
    comm = sub_communicator(ranks, seconds) if ranks else world_communicator(options)
    group = MPIGroup(comm, options.store, seconds, options.group_id)
    _groups[:] = [other for other in _groups if not other.channel.closed] + [group]
    return group


def world_communicator(options: Any) -> MPI.Intracomm:
    """Return a copy of the parent with its ranks in torch's order."""
    refuse_fork()
    parent = _parent or bare(MPI.COMM_WORLD)
    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        raise RuntimeError(
            "MPI was started without MPI_THREAD_MULTIPLE; let mpi4py start it with its default"
        )
    if parent.size != options.group_size:
        raise ValueError(
            f"torch was told of {options.group_size} ranks, MPI started {parent.size}; "
            f"start with mpiexec -n {options.group_size}, or call torch_mpi4py.init_process_group()"
        )
    comm: MPI.Intracomm = parent.Split(0, options.group_rank)  # type: ignore[assignment]
    return comm


def sub_communicator(ranks: list[int], seconds: float) -> MPI.Intracomm:
    """Return a communicator of these ranks of the default group; only they take part.

    Raises CollectiveTimeoutError on the ranks that came if one does not come within `seconds`.
    """
    world = c10d._get_default_group()
    if not isinstance(world, MPIGroup):
        raise RuntimeError(f"the default group is {world.name()}; a group of mpi4py needs an mpi4py world")
    return world.create_part(ranks, seconds)


def close_all() -> None:
    """End what is under way in groups that were not destroyed, before MPI is finalised.

    What cannot be ended keeps its memory, because MPI may write to it while it is finalised.
    """
    if _forked:
        return
    for group in _groups:
        if not group.channel.closed:
            group.post.cancel_receives()
            group.channel.lane.close(EXIT_SECONDS)
            group.channel.closed = True
            group.post.stop_watching(EXIT_SECONDS)
        keep_forever(group.channel, group.post)


def refuse_fork() -> None:
    """Raise RuntimeError in a process forked off a rank."""
    if _forked:
        raise RuntimeError(
            "this process is a fork of a rank, and MPI works in the rank alone; start it by spawn"
        )


def note_fork() -> None:
    """Note, in a process forked off a rank, that every call on its groups is an error from now on."""
    global _forked
    _forked = True
    forget_in_fork()


def register() -> None:
    """Register the backend with torch, once."""
    if not hasattr(dist.Backend, NAME.upper()):
        dist.Backend.register_backend(NAME, create_group, extended_api=True, devices=["cpu"])
        internals.refuse_flight_recorder(NAME)
        atexit.register(close_all)
        # A call of MPI.Finalize deletes this first: the standard's way to hear of it while MPI still works.
        heard = MPI.Comm.Create_keyval(delete_fn=lambda *_: close_all())
        MPI.COMM_SELF.Set_attr(heard, True)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=note_fork)
