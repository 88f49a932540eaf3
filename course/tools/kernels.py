"""The surroundings of every kernel that runs a lesson unattended, and what is left when it is over.

The same environment when a lesson is built and when it is checked, or outputs would differ. A kernel that
is killed cannot stop its cluster, so all it ever started carries a mark of its own and is ended by that.
"""

import contextlib
import os
import uuid
from collections.abc import Iterator

from mpi_classroom import leftovers, processes
from mpi_classroom.folders import JOB, scratch_folder

MARK = "COURSE_UNATTENDED"


@contextlib.contextmanager
def unattended() -> Iterator[dict[str, str]]:
    """The environment variables for one kernel; on leaving, every process that inherited them is ended.

    The kernel itself must have been shut down by then, or it is ended with them.
    """
    mark = uuid.uuid4().hex
    own = scratch_folder()
    try:
        yield ({JOB: os.path.join(own, "kernel")} if own else {}) | {  # ended by the watchdog of this process
            MARK: mark,
            leftovers.RUN: leftovers.run_mark(),  # for `course clean`, should this process be killed
            "IPP_NONINTERACTIVE": "1",  # %%px prints by rank when all are done, not as it comes
            "PYTHONHASHSEED": "0",  # sets print in the same order every time
            "COLUMNS": "100",
        }
    finally:
        processes.stop_orphans()
        processes.end_marked(MARK, mark)
