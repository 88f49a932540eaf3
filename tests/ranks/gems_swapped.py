"""Two ranks that sum the gradients of GEMS's replicas, one of them in the wrong order: they wait for ever."""

import sys

import torch
from mpi4py import MPI
from torch import nn

from course_lib.parallel import gems


def main() -> None:
    comm = MPI.COMM_WORLD
    modules = gems.place_replicas(comm, [nn.Linear(300, 300), nn.Linear(300, 300)])
    for module in modules.values():
        for parameter in module.parameters():
            parameter.grad = torch.ones_like(parameter)
    if "swapped" in sys.argv and comm.rank == 1:
        gems.sorted = lambda items, key: sorted(items, key=key, reverse=True)  # type: ignore[attr-defined]
    gems.sum_replicas(comm, modules)
    print("summed", flush=True)


if __name__ == "__main__":
    main()
