"""A training with stage 3 that saves checkpoints and goes on from the last one, on any number of ranks.

    python -m mpi4py -m course.lessons.l11_zero_from_scratch.resumable FOLDER STEPS [KILL_AFTER]

Rank 0 prints the loss of each step. With KILL_AFTER, the last rank sends itself SIGKILL after so many steps.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

from mpi4py import MPI
from torch.optim import AdamW

from course.lessons.l11_zero_from_scratch.resume_jobs import MARK
from course.lessons.l11_zero_from_scratch.runs import text_batches, text_loss
from course_lib.parallel.checkpoint import load_training, save_training
from course_lib.parallel.zero import Zero3
from course_lib.training.transformer import build_transformer


def train_resumable(comm: MPI.Intracomm, folder: Path, steps: int) -> Iterator[tuple[int, float]]:
    """Train from the last checkpoint in `folder`, if there is one; yield each step and its loss."""
    model = build_transformer(length=32, width=32, layers=2, seed=0).double()
    zero = Zero3(comm, model, lambda shards: AdamW(shards, lr=3e-3), layers=model.blocks)
    found = load_training(comm, folder, model, zero)
    batches = list(text_batches(comm, steps))
    for step in range(found.step if found else 0, steps):
        loss = text_loss(comm, model, batches[step])
        loss.backward()
        zero.step()
        zero.zero_grad()
        yield step, comm.allreduce(loss.item())
        if (step + 1) % 4 == 0:
            save_training(comm, folder, model, zero, step=step + 1)


def main(folder: str, steps: str, kill_after: str = "0") -> None:
    """A rank of the job."""
    comm = MPI.COMM_WORLD
    for step, loss in train_resumable(comm, Path(folder), int(steps)):
        if comm.rank == 0:
            print(MARK + json.dumps([step, loss]), flush=True)
        comm.Barrier()  # rank 0 has printed
        if step + 1 == int(kill_after) and comm.rank == comm.size - 1:
            os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(*sys.argv[1:])
