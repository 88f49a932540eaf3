"""Pipeline parallelism: each rank has some layers, and passes activations down and gradients back up.

    rank 0   F0 F1 F2 ·  ·  B0 …         F1 of stage 0 ── activations ─→ F1 of stage 1
    rank 1      F0 F1 B0 …               B1 of stage 0 ←── gradients ─── B1 of stage 1

What a rank does is a list of actions (`theory/schedules.py`), and `run_schedule` executes that list and
nothing else. It receives before an action and sends after it. A send does not wait for its receiver, so what
`simulate` can finish does not deadlock here. All ranks give the same schedule and micro-batches, and each its
own modules, by (replica, stage); a recorder notes every action and every wait for a message.

A backward sends the gradient of its inputs before it computes those of its large weights, which no other rank
waits for: the first half of what zero-bubble schedules do (Qi et al. 2024), at no price in memory.

Gradients of the micro-batches add up in the parameters; a loss is divided once, by the global batch, so they
are those of the whole batch. Batch-norm sees one micro-batch at a time, in their order: as in one process
that accumulates the same micro-batches.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from mpi4py import MPI
from torch import nn
from torch.optim import Optimizer
from torch.utils.flop_counter import FlopCounterMode

from course_lib.comm.spans import WEIGHTS
from course_lib.comm.trace import Recorder
from course_lib.theory.partition import balanced_ranges
from course_lib.theory.schedules import Action, Schedule
from course_lib.training import loop
from course_lib.training.accumulate import accumulate_in_place
from course_lib.training.loop import Batch, SummedLoss

Place = tuple[int, int]  # replica, stage
Modules = Mapping[Place, nn.Module]
Sent = tuple[MPI.Request, torch.Tensor | np.ndarray]  # the memory is kept until the request is complete

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.bool)
MAX_DIMS = 8  # of an activation

# ---------------------------------------------------------------- cutting a model and a batch


def split_layers(
    layers: nn.Sequential, stages: int, costs: Sequence[float] | None = None
) -> list[nn.Sequential]:
    """`layers` cut into consecutive stages, the dearest as cheap as can be; the layers themselves, no copies.

    `costs` are in any unit, one a layer: `layer_flops` counts good ones. Without them a layer costs its
    parameters, and one more. A parameter that two stages would share is refused: each would train its own.
    """
    found = list(layers)
    if not 1 <= stages <= len(found):
        raise ValueError(f"{len(found)} layers cannot make {stages} stages; use 1 to {len(found)} stages")
    if costs is not None and len(costs) != len(found):
        raise ValueError(f"{len(costs)} costs do not fit {len(found)} layers; give one for each layer")
    if costs is None:
        costs = [1 + sum(parameter.numel() for parameter in layer.parameters()) for layer in found]
    parts = [nn.Sequential(*found[part.start : part.stop]) for part in balanced_ranges(costs, stages)]
    owner: dict[nn.Parameter, int] = {}
    for stage, part in enumerate(parts):
        for name, parameter in part.named_parameters():
            if owner.setdefault(parameter, stage) != stage:
                raise ValueError(
                    f"stages {owner[parameter]} and {stage} would share the parameter {name} of stage "
                    f"{stage}; give each layer its own, or use fewer than {stages} stages"
                )
    return parts


def layer_flops(layers: nn.Sequential, inputs: torch.Tensor) -> list[int]:
    """Floating-point operations of each layer's forward for `inputs` (B, …), and one more.

    Matrix products and convolutions count, nothing else: the same on every rank and every machine. The
    layers' buffers stay as they are.
    """
    costs, state = [], {name: buffer.clone() for name, buffer in layers.named_buffers()}
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        for layer in layers:
            with FlopCounterMode(display=False) as counter:
                inputs = layer(inputs)
            costs.append(1 + counter.get_total_flops())
        for name, buffer in layers.named_buffers():
            buffer.copy_(state[name])
    return costs


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
    """Execute this rank's row of `schedule` on its `modules`; gradients add up in their parameters."""
    check_schedule(comm, schedule, modules, len(microbatches))
    row = Row(comm, schedule, modules, loss_fn, recorder)
    for action in schedule[comm.rank]:
        batch = microbatches[action.microbatch]
        row.forward(action, batch) if action.kind == "F" else row.backward(action)
    MPI.Request.Waitall([request for request, _ in row.sent])
    return Step(row.loss, row.peak)


def make_pipeline_step(
    comm: MPI.Intracomm, schedule: Schedule, modules: Modules, loss_fn: SummedLoss, optimizer: Optimizer
) -> loop.Step:
    """A function that trains on one batch, which all ranks give it, and returns its loss on all of them."""
    count = 1 + max(action.microbatch for row in schedule for action in row)

    def step(batch: Batch) -> float:
        optimizer.zero_grad()
        found = run_schedule(comm, schedule, modules, loss_fn, split_batch(batch, count))
        optimizer.step()
        return comm.allreduce(found.loss)

    return step


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
        self.put_off: list[Callable[[], None]] = []  # gradients of weights, until others have their input
        self.in_place = accumulate_in_place(*modules.values(), put_off=self.put_off)
        self.alive: dict[Action, tuple[torch.Tensor, torch.Tensor]] = {}  # what came in, what went out
        self.sent: list[Sent] = []
        self.loss, self.peak = 0.0, 0

    def forward(self, action: Action, batch: Batch) -> None:
        """Receive, compute, send on; the last stage turns its result into its part of the loss."""
        replica, stage = action.replica, action.stage
        entered = batch.inputs if stage == 0 else self.receive(action)
        if stage > 0 and entered.is_floating_point():
            entered.requires_grad_()
        with self.span(repr(action)), self.in_place:
            left = self.modules[replica, stage](_Entered.apply(entered))
            if stage == self.stages - 1:
                left = self.loss_fn(left, batch.targets) / batch.global_size
                self.loss += left.item()
        self.alive[action] = entered, left
        self.peak = max(self.peak, len(self.alive))
        if stage < self.stages - 1:
            self.send(action, self.owner[replica, stage + 1], left)

    def backward(self, action: Action) -> None:
        """Receive the gradient of what went out, and send that of what came in; numbers in int have none."""
        entered, left = self.alive.pop(Action("F", action.stage, action.microbatch, action.replica))
        last = action.stage == self.stages - 1
        gradient = self.receive(action) if not last and left.is_floating_point() else None
        with self.span(repr(action)):
            if left.requires_grad:  # not so in a first stage without parameters
                torch.autograd.backward(left, gradient)
            if action.stage > 0 and entered.is_floating_point():
                found = torch.zeros_like(entered) if entered.grad is None else entered.grad
                self.send(action, self.owner[action.replica, action.stage - 1], found)
            if self.put_off:
                with self.span(f"{WEIGHTS} {action!r}"):
                    while self.put_off:
                        self.put_off.pop()()

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
        """Start to send the result of `action`; the tensor is kept, unchanged, until it has left."""
        if not isinstance(tensor, torch.Tensor) or tensor.dtype not in DTYPES or tensor.dim() > MAX_DIMS:
            raise TypeError(
                f"stage {action.stage} made {describe(tensor)}; from stage to stage goes one tensor of up to "
                f"{MAX_DIMS} dimensions: cut the model elsewhere, or let its layer return such a tensor"
            )
        tensor = tensor.detach().contiguous()
        header = np.zeros(2 + MAX_DIMS, np.int64)
        header[: 2 + tensor.dim()] = [DTYPES.index(tensor.dtype), tensor.dim(), *tensor.shape]
        tag = self.tag(action, action.stage + (1 if action.kind == "F" else -1))
        self.sent = [one for one in self.sent if not one[0].Test()]  # what has left needs no memory
        self.sent.append((self.comm.Isend(header, to, tag), header))
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


def describe(made: object) -> str:
    """What a layer made, in a few words."""
    if not isinstance(made, torch.Tensor):
        return f"a {type(made).__name__}"
    return f"a tensor of {made.dtype} with {made.dim()} dimensions"


class _Entered(torch.autograd.Function):
    """The same memory as a new tensor, so that a stage may begin with a layer that works in place."""

    @staticmethod
    def forward(ctx: Any, entered: torch.Tensor) -> torch.Tensor:
        return entered.detach()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient
