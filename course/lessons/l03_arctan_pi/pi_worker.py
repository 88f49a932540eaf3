"""One worker of `spawn.py`: it is told how many intervals, adds up its share, and hands it in.

This is `cpi.py` of the article by Davis (2022), out of the demos of mpi4py. What is different: the number of
intervals has 64 bits, and worker and parent disconnect. The other end is `spawn_pi`; to see both at work:

    python -m course.lessons.l03_arctan_pi.spawn 4 1000000
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import numpy as np

from course_lib.pi import midpoint_loop

if TYPE_CHECKING:
    from mpi4py import MPI


def work(parent: MPI.Intercomm) -> None:
    """Serve `parent` once: `rank` and `size` are this worker's among the workers, rank 0 is the parent."""
    intervals = np.zeros((), dtype=np.int64)
    parent.Bcast(intervals, root=0)
    part = np.array(midpoint_loop(int(intervals), parent.rank, parent.size))
    parent.Reduce(part, None, root=0)
    parent.Disconnect()


def main() -> None:
    """Find the process that spawned this one, and work for it."""
    from mpi4py import MPI

    parent = MPI.Comm.Get_parent()
    if parent == MPI.COMM_NULL:
        sys.exit(
            "this worker was not spawned; start parent and workers with: "
            "python -m course.lessons.l03_arctan_pi.spawn 4 1000000"
        )
    work(parent)


if __name__ == "__main__":
    main()
