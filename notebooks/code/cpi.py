"""A worker of spawn_pi.py: it receives the number of strips and sends back its area."""

import numpy as np
from mpi4py import MPI


def part(strips, rank, size):
    """The area of one rank's strips, one by one."""
    h = 1 / strips
    return h * sum(4 / (1 + (h * (i + 0.5)) ** 2) for i in range(rank, strips, size))


if __name__ == "__main__":
    parent = MPI.Comm.Get_parent()
    strips = np.zeros((), dtype=np.int64)
    parent.Bcast(strips, root=0)
    parent.Reduce(np.array(part(int(strips), parent.rank, parent.size)), None, root=0)
    parent.Disconnect()
