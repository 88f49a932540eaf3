"""A pipeline on one screen: each rank runs its stage, in the order of a schedule.

    rank 0   F0 F1 ·  B0 …      ("F", 0), ("F", 1), ("B", 0), …       F1 ── activations ─→ F1 of rank 1
    rank 1   ·  F0 B0 F1 …      ("F", 0), ("B", 0), ("F", 1), …       B0 ── gradient ────→ B0 of rank 0

Lesson 08 shows it, and its program to take home is this text. `parallel/pipeline.py` runs any model and any
schedule, also with several stages per rank, and checks what it is given.
"""

from typing import Any

import torch
from mpi4py import MPI


def run_stage(comm: MPI.Intracomm, stage: Any, schedule: Any, parts: Any, loss_fn: Any) -> float:
    """Run a rank's schedule, such as [("F", 0), ("B", 0)]; gradients add up in .grad. Returns its loss."""
    first, last = comm.rank == 0, comm.rank == comm.size - 1
    held, sends, loss = {}, [], 0.0  # held: forward, but not yet backward
    for kind, i in schedule:
        sends = [sent for sent in sends if not sent.test()[0]]  # forget what has arrived
        if kind == "F":
            x = parts[i][0] if first else torch.from_numpy(comm.recv(None, comm.rank - 1, i))
            x.requires_grad_(not first)  # the rank before waits for its gradient
            y = loss_fn(stage(x), parts[i][1]) if last else stage(x)
            held[i], loss = (x, y), loss + (y.item() if last else 0.0)
            if not last:
                sends.append(comm.isend(y.detach().numpy(), comm.rank + 1, i))
        else:
            x, y = held.pop(i)
            y.backward(None if last else torch.from_numpy(comm.recv(None, comm.rank + 1, i)))
            if not first:
                sends.append(comm.isend(x.grad.numpy(), comm.rank - 1, i))
    MPI.Request.waitall(sends)
    return loss
