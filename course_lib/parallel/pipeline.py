"""Pipeline parallelism: each rank has some layers, and passes activations down and gradients back up.

    rank 0   F0 F1 F2 ·  ·  B0 …         F1 of stage 0 ── activations ─→ F1 of stage 1
    rank 1      F0 F1 B0 …               B1 of stage 0 ←── gradients ─── B1 of stage 1

What a rank does is a list of actions (`theory/schedules.py`), and `run_schedule` executes that list and
nothing else. It receives before an action and sends after it. A send does not wait for its receiver, so what
`simulate` can finish does not deadlock here. Gradients of the micro-batches add up in the parameters; a loss
is divided once, by the global batch, so they are those of the whole batch.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from mpi4py import MPI
from torch import nn

from course_lib.comm.trace import Recorder
from course_lib.theory.partition import balanced_ranges
from course_lib.theory.schedules import Action, Schedule
from course_lib.training.loop import Batch, SummedLoss

Place = tuple[int, int]  # replica, stage
Modules = Mapping[Place, nn.Module]
Sent = tuple[MPI.Request, torch.Tensor]  # the tensor is kept until the request is waited for

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
MAX_DIMS = 8  # of an activation

# ---------------------------------------------------------------- cutting a model and a batch


def split_layers(
    layers: nn.Sequential, stages: int, costs: Sequence[float] | None = None
) -> list[nn.Sequential]:
    """`layers` cut into consecutive stages, the dearest as cheap as can be; the layers themselves, no copies.

    `costs` are in any unit, one a layer. Without them a layer costs its parameters, and one more.
    """
    found = list(layers)
    if len(found) < stages:
        raise ValueError(f"{len(found)} layers cannot make {stages} stages; use at most {len(found)} stages")
    costs = costs or [1 + sum(parameter.numel() for parameter in layer.parameters()) for layer in found]
    return [nn.Sequential(*found[part.start : part.stop]) for part in balanced_ranges(costs, stages)]


def split_batch(batch: Batch, microbatches: int) -> list[Batch]:
    """`batch` as micro-batches, which keep its global size; the first ones may be longer by one sample."""
    samples = len(batch.targets)
    if not 1 <= microbatches <= samples:
        raise ValueError(
            f"{samples} samples cannot make {microbatches} micro-batches; use 1 to {samples} of them"
        )
    pairs = zip(
        batch.inputs.tensor_split(microbatches), batch.targets.tensor_split(microbatches), strict=True
    )
    return [Batch(inputs, targets, batch.global_size) for inputs, targets in pairs]


# ---------------------------------------------------------------- one step of one rank


@dataclass(frozen=True, slots=True)
class Step:
    """What a rank learned from a step: its part of the loss (last stages have one), and the most
    micro-batches that were forward and not yet backward at one time."""

    loss: float
    peak_activations: int


def run_schedule(
    comm: MPI.Intracomm,
    schedule: Schedule,
    modules: Modules,
    loss_fn: SummedLoss,
    microbatches: Sequence[Batch],
    recorder: Recorder | None = None,
) -> Step:
    """Execute this rank's row of `schedule`, on the stages it owns; gradients are added to the parameters.

    `modules` by (replica, stage). All ranks give the same `schedule` and `microbatches`: first stages take
    their inputs, last ones their targets. A `recorder` notes every action and every wait for a message.
    """
    check_schedule(comm, schedule, modules, len(microbatches))
    row = Row(comm, schedule, modules, loss_fn, recorder)
    for action in schedule[comm.rank]:
        batch = microbatches[action.microbatch]
        row.forward(action, batch) if action.kind == "F" else row.backward(action)
    MPI.Request.Waitall([request for request, _ in row.sent])
    return Step(row.loss, row.peak)


def check_schedule(comm: MPI.Intracomm, schedule: Schedule, modules: Modules, microbatches: int) -> None:
    """ValueError on every rank, before the first message, unless each has what its row needs."""
    if len(schedule) != comm.size:
        raise ValueError(f"a schedule of {len(schedule)} ranks cannot run on {comm.size}; make it for those")
    asked = 1 + max(action.microbatch for row in schedule for action in row)
    if asked != microbatches:
        raise ValueError(f"the schedule has {asked} micro-batches and got {microbatches}; split the batch so")
    needed = {(action.replica, action.stage) for action in schedule[comm.rank]}
    lacking = comm.allgather(sorted(needed - set(modules)))
    for rank, places in enumerate(lacking):
        if places:
            raise ValueError(f"rank {rank} has no module for (replica, stage) {places[0]}; its row needs one")


class Row:
    """A rank on its way through its row: activations that wait for their gradient, and sends under way."""

    def __init__(
        self,
        comm: MPI.Intracomm,
        schedule: Schedule,
        modules: Modules,
        loss_fn: SummedLoss,
        recorder: Recorder | None,
    ) -> None:
        self.comm, self.modules, self.loss_fn, self.recorder = comm, modules, loss_fn, recorder
        self.owner = {(one.replica, one.stage): rank for rank, row in enumerate(schedule) for one in row}
        self.stages = 1 + max(stage for _, stage in self.owner)
        self.alive: dict[Action, tuple[torch.Tensor, torch.Tensor]] = {}  # what came in, what went out
        self.sent: list[Sent] = []
        self.loss, self.peak = 0.0, 0

    def forward(self, action: Action, batch: Batch) -> None:
        """Receive, compute, send on; the last stage turns its result into its part of the loss."""
        replica, stage = action.replica, action.stage
        entered = batch.inputs if stage == 0 else self.receive(action).requires_grad_()
        with self.span(repr(action)):
            left = self.modules[replica, stage](entered)
            if stage == self.stages - 1:
                left = self.loss_fn(left, batch.targets) / batch.global_size
                self.loss += left.item()
        self.alive[action] = entered, left
        self.peak = max(self.peak, len(self.alive))
        if stage < self.stages - 1:
            self.send(action, self.owner[replica, stage + 1], left.detach())

    def backward(self, action: Action) -> None:
        """Receive the gradient of what went out, and send that of what came in."""
        entered, left = self.alive.pop(Action("F", action.stage, action.microbatch, action.replica))
        gradient = None if action.stage == self.stages - 1 else self.receive(action)
        with self.span(repr(action)):
            if left.requires_grad:  # not so in a first stage without parameters
                torch.autograd.backward(left, gradient)
        if action.stage > 0:
            assert entered.grad is not None
            self.send(action, self.owner[action.replica, action.stage - 1], entered.grad)

    def receive(self, action: Action) -> torch.Tensor:
        """What `action` works on, from the rank that owns the stage before it in its direction."""
        source = self.owner[action.replica, action.stage + (1 if action.kind == "B" else -1)]
        tag = self.tag(action, action.stage)
        header = np.empty(2 + MAX_DIMS, np.int64)
        with self.span(f"wait {action!r}", kind="wait"):
            self.comm.Recv(header, source, tag)
            dtype, dims = header[0], int(header[1])
            tensor = torch.empty(header[2 : 2 + dims].tolist(), dtype=DTYPES[dtype])
            self.comm.Recv(as_bytes(tensor), source, tag)
        return tensor

    def send(self, action: Action, to: int, tensor: torch.Tensor) -> None:
        """Start to send the result of `action`; the tensor is kept, unchanged, until the step has ended."""
        tensor = tensor.contiguous()
        header = np.zeros(2 + MAX_DIMS, np.int64)
        header[: 2 + tensor.dim()] = [DTYPES.index(tensor.dtype), tensor.dim(), *tensor.shape]
        tag = self.tag(action, action.stage + (1 if action.kind == "F" else -1))
        self.sent.append((self.comm.Isend(header, to, tag), torch.from_numpy(header)))
        self.sent.append((self.comm.Isend(as_bytes(tensor), to, tag), tensor))

    def tag(self, action: Action, stage: int) -> int:
        """One for each message of a step: what it is, and the stage that receives it."""
        return ((action.microbatch * self.stages + stage) * 2 + action.replica) * 2 + (action.kind == "B")

    def span(self, name: str, *, kind: str = "compute") -> AbstractContextManager[None]:
        """A span of the recorder, if there is one."""
        return self.recorder.span(name, kind=kind) if self.recorder else nullcontext()  # type: ignore[arg-type]


def as_bytes(tensor: torch.Tensor) -> np.ndarray:
    """The memory of a contiguous `tensor`, for MPI: NumPy has no bfloat16."""
    return tensor.view(-1).view(torch.uint8).numpy()
