"""One step of 08_pipeline.py with a memory limit: limited.py SCHEDULE MICRO-BATCHES [recompute]."""

import runpy
import sys

from mpi4py import MPI

from course_lib.effects import memory_limit

ours, comm = runpy.run_path("code/08_pipeline.py"), MPI.COMM_WORLD
name, m = sys.argv[1], int(sys.argv[2])
stage = ours["cut"](comm)
if "recompute" in sys.argv:
    stage = ours["recomputed"](stage)
ours["step"](comm, stage, ours["gpipe"], 2)  # what torch allocates once
try:
    with memory_limit(64 * 2**20):
        ours["step"](comm, stage, ours[name], m)
    print(f"{name}, {m} micro-batches: rank {comm.rank} is done\n", end="", flush=True)
except RuntimeError as error:
    print(f"{name}, {m} micro-batches: rank {comm.rank}: {error}\n", end="", flush=True)
    comm.Abort()
