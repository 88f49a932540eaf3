"""torch.distributed over MPI, with the stock wheels: backend "mpi4py".

    import torch_mpi4py

    torch_mpi4py.init_process_group()               # under mpiexec -n 4 python train.py
    model = DistributedDataParallel(model)          # and everything else of torch.distributed

Importing registers the backend. CPU tensors only. One call goes through three files:

    group.py         the names and forms by which torch calls
    collectives.py   what each collective demands, shows and moves       (messages.py: send and recv)
    channel.py       order, deadline and failure of one call

Underneath: gate.py (have all ranks come, and do they agree?), shared.py (memory that all ranks of a machine
see), tensors.py and reductions.py (what MPI knows of tensors), work.py (asynchronous works and their order),
waiting.py, announce.py (tells a tool that watches the job who waits), interrupts.py. Beside it: start.py
(making groups), barriers.py (monitored_barrier), internals.py (what of torch's insides this stands on).
"""

from .errors import BrokenGroupError, ClosedGroupError, CollectiveTimeoutError, LayoutError, MismatchError
from .group import MPIGroup
from .start import NAME, init_process_group, register

register()

__all__ = [
    "NAME",
    "BrokenGroupError",
    "ClosedGroupError",
    "CollectiveTimeoutError",
    "LayoutError",
    "MPIGroup",
    "MismatchError",
    "init_process_group",
]
