"""A pipeline on one screen: each rank runs its stage, in the order of a schedule.

    rank 0   F0 F1 ·  B0 …      ("F", 0), ("F", 1), ("B", 0), …       F1 ── activations ─→ F1 of rank 1
    rank 1   ·  F0 B0 F1 …      ("F", 0), ("B", 0), ("F", 1), …       B0 ── gradient ────→ B0 of rank 0

Lesson 08 shows it, and its program to take home is this text. `parallel/pipeline.py` runs any model and any
schedule, also with several stages per rank, and checks what it is given.
"""

from typing import Any

import torch
from mpi4py import MPI


def received(comm: MPI.Comm, source: int, tag: int, *shape: int) -> torch.Tensor:
    """Receive a tensor of this shape."""
    tensor = torch.empty(shape)
    comm.Recv(tensor.numpy(), source, tag)
    return tensor


def run_stage(comm: MPI.Comm, stage: Any, schedule: Any, parts: Any, loss_fn: Any, width: int) -> float:
    """Run a schedule, [("F", 0), …]; add up gradients in .grad; return the loss (0 before the last rank).

    `parts` are micro-batches (inputs, targets); `width` numbers per sample travel between stages.
    """
    first, last = comm.rank == 0, comm.rank == comm.size - 1
    held, sends, loss = {}, list[MPI.Request](), 0.0  # held: forward, but not yet backward
    for kind, i in schedule:
        inputs, targets = parts[i]
        if kind == "F":
            x = inputs if first else received(comm, comm.rank - 1, i, len(targets), width).requires_grad_()
            y = loss_fn(stage(x), targets) if last else stage(x)
            held[i] = x, y
            loss += y.item() if last else 0.0
            result, other = y.detach(), comm.rank + 1
        else:
            x, y = held.pop(i)
            y.backward(None if last else received(comm, comm.rank + 1, i, len(targets), width))
            result, other = x.grad, comm.rank - 1
        if 0 <= other < comm.size:  # keep each request, and what it sends, until the message has left
            message = result.numpy().copy()  # a copy, since autograd may still write to this gradient
            sends = [sent for sent in sends if not sent.Test()] + [comm.Isend(message, other, i)]
    MPI.Request.Waitall(sends)
    return loss
