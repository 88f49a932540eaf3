"""One worker of `spawn.py`: it receives the number of intervals, adds up its strips, and returns the sum.

This is `cpi.py` of the article by Davis (2022), from the demos of mpi4py, with two changes: the number of
intervals has 64 bits, and worker and parent disconnect. The parent is `spawn_pi`; to see both at work:

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
    """Receive the number of intervals from `parent`, and return this worker's part of the area to it.

    `parent.rank` and `parent.size` are those of the workers; as a root, 0 means the parent.
    """
    intervals = np.zeros((), dtype=np.int64)
    parent.Bcast(intervals, root=0)
    part = np.array(midpoint_loop(int(intervals), parent.rank, parent.size))
    parent.Reduce(part, None, root=0)
    parent.Disconnect()


def main() -> None:
    """Find the process that spawned this one, and do its work."""
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
