"""GEMS and its baseline with stages that sleep for as long as they would compute, and real messages.

python -m mpi_classroom.launch 4 -m course.lessons.l10_spatial_and_hybrid.gems_runs
"""

import torch
from mpi4py import MPI

from course_lib.comm.grid import make_grid
from course_lib.parallel.pipeline import Modules, run_schedule, split_batch
from course_lib.theory.schedules import (
    Schedule,
    gems_basic,
    gems_mast,
    gems_master,
    makespan,
    microbatch_count,
    simulate,
)
from course_lib.training.layers import Sleep
from course_lib.training.loop import Batch

FORWARD, BACKWARD, BATCHES = 0.02, 0.04, 8  # seconds per stage of four; batches per update

# name: the schedule of each pipeline, the data ranks, and how many of the four stages a rank has
VARIANTS: dict[str, tuple[Schedule, int, int]] = {
    "GEMS-Basic": (gems_basic(4, BATCHES), 1, 1),
    "GEMS-MAST": (gems_mast(4), 1, 1),
    "GEMS-MASTER": (gems_master(4, BATCHES), 1, 1),
    "GEMS-Hybrid": (gems_master(2, BATCHES // 2), 2, 2),
}


def predicted_seconds(name: str) -> float:
    """Seconds per batch that the schedule says, on four ranks with free messages."""
    schedule, data, stages = VARIANTS[name]
    end = makespan(simulate(schedule, stages * FORWARD, stages * BACKWARD))
    return end / (data * microbatch_count(schedule))


def emulated_seconds(comm: MPI.Intracomm, name: str) -> float:
    """Seconds per batch of the slowest of four ranks; they sleep instead of computing. All ranks call it."""
    schedule, data, stages = VARIANTS[name]
    team = make_grid(comm, data=data, model=comm.size // data)["model"]
    count = microbatch_count(schedule)
    parts = split_batch(Batch(torch.ones(count, 1), torch.zeros(count), count), count)
    mine = {(action.replica, action.stage) for action in schedule[team.rank]}
    slow: Modules = {key: Sleep(stages * FORWARD, stages * BACKWARD) for key in mine}
    comm.Barrier()
    start = MPI.Wtime()
    run_schedule(team, schedule, slow, lambda outputs, _: outputs.sum(), parts)
    return comm.allreduce(MPI.Wtime() - start, MPI.MAX) / (data * count)


def main() -> None:
    """Rank 0 prints predicted and emulated seconds per batch of all variants."""
    for name in VARIANTS:
        seconds = min(emulated_seconds(MPI.COMM_WORLD, name) for _ in range(2))
        if MPI.COMM_WORLD.rank == 0:
            print(f"{name:12} predicted {predicted_seconds(name):.3f} s, emulated {seconds:.3f} s")


if __name__ == "__main__":
    main()
