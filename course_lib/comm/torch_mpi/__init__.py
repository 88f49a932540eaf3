"""torch.distributed over MPI, with the stock wheels: backend "mpi4py".

    from course_lib.comm import torch_mpi

    torch_mpi.init_process_group()                  # under mpiexec -n 4 python train.py
    model = DistributedDataParallel(model)          # and everything else of torch.distributed

Importing registers the backend. CPU tensors only.

    torch calls            group.py         the names and forms of torch 2.13
                           operations.py    what each collective checks and does
    one collective         checks.py        the gate: has everyone come, and do all want the same?
                           movement.py      bytes from rank to rank
                           reducing.py      sums and their kin
    underneath             buffers.py       a tensor as MPI sees it
                           work.py          asynchronous works and their order
                           channel.py       communicators and failures
"""

from .errors import BrokenGroupError, ClosedGroupError, CollectiveTimeoutError, MismatchError
from .group import MPIGroup
from .start import NAME, init_process_group, register

register()

__all__ = [
    "NAME",
    "BrokenGroupError",
    "ClosedGroupError",
    "CollectiveTimeoutError",
    "MPIGroup",
    "MismatchError",
    "init_process_group",
]
