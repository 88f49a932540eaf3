"""Runs of lesson 15 on the ranks of the notebook: a straggler, a flipped bit; and a restart on one rank."""

from __future__ import annotations

import io
import time
from collections.abc import Collection
from typing import Any

import numpy as np
import torch
from mpi4py import MPI
from torch import nn
from torch.nn import functional as F

from course_lib.comm.spans import Span
from course_lib.comm.trace import Recorder
from course_lib.parallel.data_parallel import GradientBucket, broadcast_weights
from course_lib.parallel.replicas import Difference, compare_replicas, flip_bit

PARTS = {"load": 0.5, "forward": 1.0, "backward": 2.0}  # of a step's computation, relative to forward
SLOW_IN, TIMES = "load", 4.0  # the slow rank takes so many times as long in this part
STEPS, RESTART = 20, 10
Saved = Collection[str] | None


def traced_steps(
    comm: MPI.Intracomm, *, slow: int = 2, milliseconds: float = 30.0, steps: int = 6
) -> list[Span] | None:
    """The spans, on rank 0, of data-parallel steps in which rank `slow` is slow in one part; None elsewhere.

    Computing is a sleep, `milliseconds` for a forward pass, so that more ranks than cores do not disturb each
    other; the all-reduces are real.
    """
    recorder, gradient, total = Recorder(comm), np.ones(10_000), np.empty(10_000)
    comm.Barrier()
    for _ in range(steps):
        for part, share in PARTS.items():
            longer = TIMES if part == SLOW_IN and comm.rank == slow % comm.size else 1.0
            with recorder.span(part):
                time.sleep(1e-3 * milliseconds * share * longer)
        with recorder.span("all-reduce", kind="collective"):
            comm.Allreduce(gradient, total)
    return recorder.gather()


def train_with_a_flip(
    comm: MPI.Intracomm, *, steps: int = 6, flip_at: int = 3, rank: int = 1
) -> list[tuple[int, list[Difference]]]:
    """Each step with what `compare_replicas` finds after it; a bit of a weight flips after step `flip_at`.

    The bit is of one weight on `rank`, one of the last bits of its mantissa: the loss shows nothing.
    """
    torch.manual_seed(comm.rank)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    broadcast_weights(comm, model)
    optimizer, bucket = torch.optim.SGD(model.parameters(), lr=0.05), GradientBucket(model)
    found = []
    for step in range(steps):
        inputs = torch.randn(16, 8)  # a batch of its own on every rank
        optimizer.zero_grad()
        (F.mse_loss(model(inputs), inputs[:, :1]) / comm.size).backward()
        bucket.sum(comm)
        optimizer.step()
        if step == flip_at and comm.rank == rank % comm.size:
            flip_bit(next(model.parameters()), 5, 3)
        found.append((step, compare_replicas(comm, model)))
    return found


# ------------------------------------------------------------------ what a restart has to restore


def resumed_losses(saved: Saved) -> list[float]:
    """The losses of 20 steps on one rank; after ten of them the training restarts from a checkpoint.

    Restored is what `saved` names of "weights", "optimizer" and "random"; with None nothing restarts. The
    model has dropout, the optimizer momentum. ValueError for any other name.
    """
    if saved is not None and (unknown := set(saved) - {"weights", "optimizer", "random"}):
        raise ValueError(f"there is no state called {min(unknown)!r}; use weights, optimizer and random")
    with torch.random.fork_rng(devices=[]):
        model, optimizer = new_training(seed=0)
        losses = [train_step(model, optimizer, step) for step in range(RESTART)]
        if saved is not None:
            content = checkpoint(model, optimizer)
            model, optimizer = new_training(seed=1)  # a new process knows nothing of the old one
            restore(torch.load(io.BytesIO(content), weights_only=True), saved, model, optimizer)
        return losses + [train_step(model, optimizer, step) for step in range(RESTART, STEPS)]


def new_training(seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A model and an optimizer as a program builds them when it starts."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 1)).double()
    return model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> float:
    """The loss of a step; its batch depends on the step alone."""
    batch = torch.Generator().manual_seed(step)
    inputs = torch.randn(128, 8, generator=batch, dtype=torch.float64)
    loss = F.mse_loss(model(inputs), inputs[:, :1] - inputs[:, 1:2])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def checkpoint(model: nn.Module, optimizer: torch.optim.Optimizer) -> bytes:
    """All that the training consists of, as bytes."""
    content = io.BytesIO()
    state = {
        "weights": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "random": torch.get_rng_state(),
    }
    torch.save(state, content)
    return content.getvalue()


def restore(
    state: dict[str, Any], saved: Collection[str], model: nn.Module, optimizer: torch.optim.Optimizer
) -> None:
    """Restore what `saved` names; the rest stays as the new process built it."""
    if "weights" in saved:
        model.load_state_dict(state["weights"])
    if "optimizer" in saved:
        optimizer.load_state_dict(state["optimizer"])
    if "random" in saved:
        torch.set_rng_state(state["random"])
