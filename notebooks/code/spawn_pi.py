"""π by workers that this program starts: mpiexec -n 1 python code/spawn_pi.py WORKERS STRIPS."""

import sys
from pathlib import Path

import numpy as np
from cpi import part
from mpi4py import MPI

workers, strips = int(sys.argv[1]), int(sys.argv[2])
began = MPI.Wtime()
part(strips, 0, 1)
alone = MPI.Wtime() - began

began = MPI.Wtime()
worker = ["-m", "mpi4py", str(Path(__file__).with_name("cpi.py"))]  # -m mpi4py: one error ends all
team = MPI.COMM_SELF.Spawn(sys.executable, args=worker, maxprocs=workers)
team.Bcast(np.array(strips, dtype=np.int64), root=MPI.ROOT)
total = np.zeros(())
team.Reduce(None, total, root=MPI.ROOT)
team.Disconnect()
shared = MPI.Wtime() - began
print(f"π ≈ {total:.9f}; {workers} workers: {1e3 * shared:,.1f} ms; one process: {1e3 * alone:,.1f} ms")
