"""A parameter server: rank 0 holds the weights and the optimizer, everybody computes gradients for it.

    worker   weights ──→ forward, backward ──→ gradient ─┐                 ┌─→ new weights …
    server                                               └─→ add, update ──┘

*Synchronous*: the server waits for one gradient from every rank, and updates once: the numbers of data
parallelism. *Asynchronous*: it updates as soon as any gradient is there. Nobody waits for a slow worker, but
a gradient may be *stale*: other updates came between the weights it was computed with and its own update.

Rank 0 is a worker, too, when it gets batches of its own; without, it serves only. The server receives and
sends all gradients and weights, 2 w M bytes per round for w workers elsewhere and a model of M bytes; each
rank of a ring sends less than 2 M, however many there are.

Li and others, "Scaling distributed machine learning with the parameter server" (2014); asynchronous: Dean and
others, "Large scale distributed deep networks" (2012).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from mpi4py import MPI
from numpy.typing import NDArray
from torch import nn
from torch.optim import Optimizer

from course_lib.comm.polling import wait_for, wait_until
from course_lib.training.flat import FlatGradients, check_unfrozen, copy_back, flatten
from course_lib.training.loop import Batch, Step, SummedLoss

GRADIENT_TAG, WEIGHTS_TAG, DONE_TAG = 30_101, 30_102, 30_103
TIMEOUT_SECONDS = 60.0
SERVER = 0


@dataclass(frozen=True, slots=True)
class Service:
    """What an asynchronous server did: who caused each update, in order."""

    order: tuple[int, ...]

    @property
    def staleness(self) -> tuple[int, ...]:
        """For each update, how many others its gradient knew nothing of.

        A worker has the weights of its own last update, or the first ones: what came since is unknown to it.
        The server has the newest.
        """
        last = dict.fromkeys(self.order, -1)
        found = []
        for update, rank in enumerate(self.order):
            found.append(0 if rank == SERVER else update - 1 - last[rank])
            last[rank] = update
        return tuple(found)


class Replica:
    """A model, and one flat tensor each for its weights and its gradients on their way."""

    def __init__(self, comm: MPI.Intracomm, model: nn.Module, loss_fn: SummedLoss, timeout: float) -> None:
        self.comm, self.model, self.loss_fn, self.timeout = comm, model, loss_fn, timeout
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.weights = flatten(self.parameters)
        self.gradients = FlatGradients(self.parameters)
        self.gradient = self.gradients.flat

    def compute(self, batch: Batch) -> float:
        """Leave the gradient of `batch` in `gradient`; return its loss."""
        check_unfrozen(self.model, self.parameters)
        self.gradients.clear()
        loss = self.loss_fn(self.model(batch.inputs), batch.targets) / batch.global_size
        loss.backward()
        return loss.item()

    def update(self, optimizer: Optimizer) -> None:
        """Take a step along `gradient`."""
        self.gradients.attach()
        optimizer.step()

    def exchange(self) -> None:
        """Send the gradient to the server and take the weights that come back."""
        send(self.comm, self.gradient.numpy(), SERVER, GRADIENT_TAG, self.timeout)
        receive(self.comm, self.weights.numpy(), SERVER, WEIGHTS_TAG, self.timeout)
        copy_back(self.weights, self.parameters)

    def answer(self, worker: int) -> None:
        """Send the weights as they are now to `worker`, which waits for them."""
        self.weights.copy_(flatten(self.parameters))
        send(self.comm, self.weights.numpy(), worker, WEIGHTS_TAG, self.timeout)


def send(comm: MPI.Intracomm, data: NDArray, dest: int, tag: int, timeout: float) -> None:
    """Send `data`; raises TimeoutError when MPI cannot deliver it within `timeout` seconds."""
    wait_for(comm.Isend(data, dest, tag), timeout, f"rank {dest}, which has to take a message,")


def receive(comm: MPI.Intracomm, into: NDArray, source: int, tag: int, timeout: float) -> MPI.Status:
    """Receive a message that comes within `timeout` seconds; raises TimeoutError when none does."""
    status = MPI.Status()
    if not wait_until(lambda: comm.Iprobe(source, tag, status), timeout):
        who = "any rank" if source == MPI.ANY_SOURCE else f"rank {source}"
        raise TimeoutError(f"no message from {who} in {timeout:g} s; has it died?")
    comm.Recv(into, status.source, status.tag, status)
    return status


# ---------------------------------------------------------------- synchronous


def make_server_step(
    comm: MPI.Intracomm,
    model: nn.Module,
    loss_fn: SummedLoss,
    optimizer: Optimizer,
    *,
    timeout: float = TIMEOUT_SECONDS,
) -> Step:
    """A step on this rank's shard: rank 0 adds up all gradients, updates, and sends the weights back.

    Only rank 0's optimizer is used. Gradients are added as they arrive, so the last bits of their sum may
    differ from run to run; the weights are the same on all ranks.
    """
    replica = Replica(comm, model, loss_fn, timeout)
    arriving = torch.empty_like(replica.gradient)

    def step(batch: Batch) -> float:
        loss = replica.compute(batch)
        if comm.rank != SERVER:
            replica.exchange()
            return loss
        for _ in range(comm.size - 1):
            receive(comm, arriving.numpy(), MPI.ANY_SOURCE, GRADIENT_TAG, timeout)
            replica.gradient += arriving
        replica.update(optimizer)
        for worker in range(1, comm.size):
            replica.answer(worker)
        return loss

    return step


# ---------------------------------------------------------------- asynchronous


def train_asynchronously(
    comm: MPI.Intracomm,
    model: nn.Module,
    loss_fn: SummedLoss,
    optimizer: Optimizer,
    batches: Iterable[Batch],
    *,
    timeout: float = TIMEOUT_SECONDS,
) -> tuple[list[float], Service | None]:
    """Train on this rank's `batches`, as many as it likes: its losses, and on rank 0 what the server did.

    Start with equal weights (`broadcast_weights`); all ranks end with those of the server. Each batch is the
    global batch of one update. Rank 0 trains on its own batches while nobody asks for anything.
    """
    replica = Replica(comm, model, loss_fn, timeout)
    service = None
    if comm.rank == SERVER:
        losses, service = serve(comm, replica, optimizer, batches)
    else:
        losses = work(comm, replica, batches)
    weights = flatten(replica.parameters)
    wait_for(comm.Ibcast(weights.numpy(), root=SERVER), timeout, "the last weights")
    copy_back(weights, replica.parameters)
    return losses, service


def work(comm: MPI.Intracomm, replica: Replica, batches: Iterable[Batch]) -> list[float]:
    """A worker: a gradient for every batch, computed with the weights that its last one brought back."""
    losses = []
    for batch in batches:
        losses.append(replica.compute(batch))
        replica.exchange()
    send(comm, np.empty(0), SERVER, DONE_TAG, replica.timeout)
    return losses


def serve(
    comm: MPI.Intracomm, replica: Replica, optimizer: Optimizer, batches: Iterable[Batch]
) -> tuple[list[float], Service]:
    """The server, until all workers are done and its own batches are used up."""
    losses: list[float] = []
    order: list[int] = []
    own = iter(batches)
    working = set(range(comm.size)) - {SERVER}
    next_own = next(own, None)
    while working or next_own is not None:
        if next_own is not None and not comm.Iprobe(MPI.ANY_SOURCE, MPI.ANY_TAG):
            losses.append(replica.compute(next_own))
            replica.update(optimizer)
            order.append(SERVER)
            next_own = next(own, None)
            continue
        status = receive(comm, replica.gradient.numpy(), MPI.ANY_SOURCE, MPI.ANY_TAG, replica.timeout)
        if status.tag == DONE_TAG:
            working.discard(status.source)
            continue
        replica.update(optimizer)
        order.append(status.source)
        replica.answer(status.source)
    return losses, Service(tuple(order))
