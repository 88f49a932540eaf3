"""Pipeline parallelism: each rank runs some of a model's layers, and sends activations and gradients on.

1F1B on 3 ranks, one stage each:

    rank 0   F0 F1 F2 ·  ·  B0 …         F1 of stage 0 ── activations ─→ F1 of stage 1
    rank 1   ·  F0 F1 ·  B0 F2 …         B1 of stage 0 ←── gradients ─── B1 of stage 1
    rank 2   ·  ·  F0 B0 F1 B1 …         F1: forward of micro-batch 1; · is idle

The layers are cut into stages and the batch into micro-batches. For each micro-batch a stage receives the
output of the previous stage, computes, and sends its own output to the next stage (`stage_forward`). Later it
receives the gradient of what it sent, goes backward, and sends the gradient of what it received
(`stage_backward`). A schedule, a list of actions per rank from `theory/schedules.py`, says in which order.
`run_schedule` executes any of them: GPipe, 1F1B, interleaved, GEMS.

No rank waits forever. A send does not wait for its receiver: MPI goes on with it, at the latest while the
sender is in its next receive or the final wait. `check_finishes`, called before the first action, shows that
what each receive waits for is sent, and that each message has a receiver.

The gradients of the micro-batches add up in the parameters. Every micro-batch's loss is a sum over its
samples, divided by the size of the global batch, so the total is the gradient of the whole batch. Batch norm
sees one micro-batch at a time, as in one process that accumulates the same micro-batches. Dropout draws from
the random-number state of its rank, so it drops other numbers than one process would;
`with_repeatable_dropout` (`training/layers.py`) makes them the same.

Huang et al. (2019), "GPipe: Efficient Training of Giant Neural Networks using Pipeline Parallelism";
Narayanan et al. (2021), "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM".
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from mpi4py import MPI
from torch import nn
from torch.func import functional_call
from torch.optim import Optimizer
from torch.utils.flop_counter import FlopCounterMode

from course_lib.theory.partition import balanced_ranges
from course_lib.theory.schedules import Action, Actions, Schedule, check_finishes, microbatch_count, owners
from course_lib.training.flat import as_bytes
from course_lib.training.loop import Batch, Step, SummedLoss

Modules = Mapping[tuple[int, int], nn.Module]  # by (replica, stage)
VIEWS = (nn.Identity, nn.Flatten, nn.Unflatten)  # their outputs have the memory of their inputs

# ---------------------------------------------------------------- cutting a model and a batch


def split_layers(
    layers: nn.Sequential, stages: int, costs: Sequence[float] | None = None
) -> list[nn.Sequential]:
    """Cut `layers` into consecutive stages so that the most expensive stage is as cheap as possible.

    The stages hold the layers themselves, no copies. `costs` has one number per layer, in any unit;
    `layer_flops` counts good ones. Without it a layer costs 1 plus the number of its parameters. Raises
    ValueError if there are fewer layers than stages, if layers of two stages have a parameter in common (each
    of their ranks would update it with its own part of the gradient), or if a stage begins with a layer that
    works in place. Autograd would fail in the middle of a step: it lets no layer overwrite what a stage
    received, and takes a write to one micro-batch for a write to all, as they are views of one batch.
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
        leaves = (module for module in part.modules() if not list(module.children()))
        first = next((leaf for leaf in leaves if not isinstance(leaf, VIEWS)), None)
        if getattr(first, "inplace", False):  # it touches the input, however deeply nested
            raise ValueError(
                f"stage {stage} would begin with {first}, which overwrites its input; use inplace=False"
            )
    return parts


def layer_flops(layers: nn.Sequential, inputs: torch.Tensor) -> list[int]:
    """1 plus the floating-point operations of each layer's forward for `inputs` (B, …).

    Only matrix products and convolutions count, so the numbers are the same on every rank and machine; the 1
    keeps the other layers from being free. The layers' buffers, `inputs` and the random-number state stay as
    they are.
    """
    inputs = inputs.clone()  # the first layer may work in place
    costs = []
    state = {name: buffer.clone() for name, buffer in layers.named_buffers()}  # to be put back
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        for layer in layers:
            with FlopCounterMode(display=False) as counter:
                inputs = layer(inputs)
            costs.append(1 + counter.get_total_flops())
        for name, buffer in layers.named_buffers():
            buffer.copy_(state[name])
    return costs


def split_batch(batch: Batch, count: int) -> list[Batch]:
    """Cut `batch` into `count` micro-batches: views of its samples, each with the global size of `batch`.

    If the samples cannot be divided evenly, the first micro-batches have one sample more. Raises ValueError
    if there are fewer samples than micro-batches.
    """
    samples = len(batch.targets)
    if not 1 <= count <= samples:
        raise ValueError(f"{samples} samples cannot make {count} micro-batches; use 1 to {samples} of them")
    pairs = zip(batch.inputs.tensor_split(count), batch.targets.tensor_split(count), strict=True)
    return [Batch(inputs, targets, batch.global_size) for inputs, targets in pairs]


# ---------------------------------------------------------------- messages between stages


class Neighbours:
    """Sends to, and receives from, the previous and next stages of this rank's stages.

    A tensor goes as two messages: its shape and dtype, then its bytes. So a receiver need not know them.
    """

    def __init__(self, comm: MPI.Intracomm, rank_of: Mapping[tuple[int, int], int]) -> None:
        self.comm, self.rank_of = comm, rank_of
        replicas, stages = zip(*rank_of, strict=True)  # rank_of has keys (replica, stage)
        self.replicas, self.last_stage = 1 + max(replicas), max(stages)
        self.requests: list[MPI.Request] = []  # sends under way; each holds a reference to its buffer

    def send(self, action: Action, other_stage: int, tensor: torch.Tensor, rank: int | None = None) -> None:
        """Start to send the result of `action` to `other_stage`; nobody may write to `tensor` before `wait`.

        It goes to the rank that runs `other_stage`. Where several ranks run it (`TileNeighbours` of
        `parallel/hybrid.py`), the caller says to which `rank`.
        """
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(
                f"stage {action.stage} made a {type(tensor).__name__}; a stage sends one tensor: cut the "
                "model elsewhere, or let its layer return a tensor"
            )
        rank = self.rank_of[action.replica, other_stage] if rank is None else rank
        tensor, tag = tensor.detach().resolve_conj().contiguous(), self.tag(action, other_stage)
        # drop finished requests, and with them their buffers
        self.requests = [one for one in self.requests if not one.Test()]
        self.requests.append(self.comm.isend((tensor.shape, tensor.dtype), rank, tag))
        self.requests.append(self.comm.Isend(as_bytes(tensor), rank, tag))

    def receive(self, action: Action, other_stage: int, rank: int | None = None) -> torch.Tensor:
        """Receive what `action` needs from the rank that runs `other_stage`; `rank` as in `send`."""
        rank = self.rank_of[action.replica, other_stage] if rank is None else rank
        tag = self.tag(action, other_stage)
        shape, dtype = self.comm.recv(source=rank, tag=tag)
        tensor = torch.empty(shape, dtype=dtype)
        self.comm.Recv(as_bytes(tensor), rank, tag)  # as_bytes is a view of its memory
        return tensor

    def wait(self) -> None:
        """Wait until everything is sent."""
        MPI.Request.Waitall(self.requests)

    def tag(self, action: Action, other_stage: int) -> int:
        """The tag of a tensor, the same at its sender and its receiver.

        Header and bytes share it, and so do later steps; MPI delivers equal tags from one rank in order.
        Within a step no other tensor has it.
        """
        boundary = max(action.stage, other_stage)  # between stages boundary-1 and boundary
        number = action.microbatch * (self.last_stage + 1) + boundary
        return (number * self.replicas + action.replica) * 2 + (action.kind == "B")


# ---------------------------------------------------------------- one micro-batch through one stage


def stage_forward(
    neighbours: Neighbours, action: Action, module: nn.Module, batch: Batch, loss_fn: SummedLoss
) -> tuple[torch.Tensor, torch.Tensor]:
    """Take one micro-batch forward through a stage; return its inputs and its result, for `stage_backward`.

    The result is the stage's outputs. At the last stage it is this micro-batch's part of the loss. Only the
    first stage reads the inputs of `batch`, the micro-batch, and only the last stage its targets.
    """
    inputs = batch.inputs
    if action.stage > 0:
        inputs = neighbours.receive(action, action.stage - 1)
        inputs.requires_grad_(gradient_returns(inputs))
    result = module(inputs)
    if action.stage < neighbours.last_stage:
        neighbours.send(action, action.stage + 1, result)
    else:
        result = loss_fn(result, batch.targets) / batch.global_size
    return inputs, result


def stage_backward(
    neighbours: Neighbours, action: Action, inputs: torch.Tensor, result: torch.Tensor
) -> None:
    """Take one micro-batch backward through a stage: add to the weights' .grad, send the inputs' gradient."""
    gradient = None  # the last stage starts from the loss
    if action.stage < neighbours.last_stage and gradient_returns(result):
        gradient = neighbours.receive(action, action.stage + 1)
    if result.requires_grad:  # a first stage without parameters has nothing to compute
        result.backward(gradient)
    if action.stage > 0 and gradient_returns(inputs):
        # .grad is None if the outputs do not depend on the inputs; the receiver waits anyway. A copy, because
        # autograd may give a weight's .grad the same memory, and the next backward would add to it meanwhile.
        found = torch.zeros_like(inputs) if inputs.grad is None else inputs.grad.clone()
        neighbours.send(action, action.stage - 1, found)


def gradient_returns(tensor: torch.Tensor) -> bool:
    """Whether the stage that receives `tensor` sends a gradient back; none exists for integers.

    Both ranks ask this, so they agree. `requires_grad` would not do: only the sender of `tensor` knows it.
    """
    return tensor.is_floating_point() or tensor.is_complex()


# ---------------------------------------------------------------- a schedule of one rank


@dataclass(frozen=True, slots=True)
class StepResult:
    """The result of a rank's schedule: its part of the loss, which is 0 unless it runs a last stage, and the
    largest number of pairs (stage, micro-batch) that it held at once, forward but not yet backward."""

    loss: float
    peak_activations: int


def run_schedule(
    comm: MPI.Intracomm,
    schedule: Schedule,
    modules: Modules,
    loss_fn: SummedLoss,
    microbatches: list[Batch],
) -> StepResult:
    """Execute this rank's schedule on its `modules`; their parameters' .grad grows by the batch's gradients.

    All ranks of `comm` call it with the same `schedule` and `microbatches`, each with its own modules by
    (replica, stage). The loss is `loss_fn(outputs, targets)`, a sum over samples, divided by the size of the
    global batch. With two replicas (GEMS) each has the gradients of its own micro-batches: before the update,
    sum them with `sum_replicas` (`parallel/gems.py`).

    Pass a communicator of its own (`comm.Dup()`) if other messages are under way on `comm`: they could have
    the same tags.

    Raises ValueError on all ranks if the schedule does not fit the ranks, the modules or the micro-batches,
    lacks an action, or can never finish. An error inside a module is raised on its rank alone; the others
    wait for its message.
    """
    check_schedule(comm, schedule, modules, len(microbatches))
    check_finishes(schedule)
    neighbours = Neighbours(comm, owners(schedule))
    return run_actions(neighbours, schedule[comm.rank], modules, loss_fn, microbatches)


def run_actions(
    neighbours: Neighbours, actions: Actions, modules: Modules, loss_fn: SummedLoss, batches: list[Batch]
) -> StepResult:
    """Execute `actions`, the checked schedule of one rank, on `batches`, the micro-batches."""
    held: dict[tuple[int, int, int], tuple[torch.Tensor, torch.Tensor]] = {}  # forward, not yet backward
    loss, peak = 0.0, 0
    for action in actions:
        module, batch = modules[action.replica, action.stage], batches[action.microbatch]
        key = action.replica, action.stage, action.microbatch
        if action.kind == "F":
            inputs, result = stage_forward(neighbours, action, module, batch, loss_fn)
            held[key] = inputs, result
            if action.stage == neighbours.last_stage:
                loss += result.item()
            peak = max(peak, len(held))
        else:
            stage_backward(neighbours, action, *held.pop(key))
    neighbours.wait()
    return StepResult(loss, peak)


def check_schedule(comm: MPI.Intracomm, schedule: Schedule, modules: Modules, count: int) -> None:
    """Raise ValueError on every rank unless the schedule fits the ranks, modules and `count` micro-batches.

    `check_finishes` is apart because it refuses a stage on several ranks, as in `parallel/hybrid.py`.
    """
    if len(schedule) != comm.size:
        raise ValueError(
            f"a schedule of {len(schedule)} ranks cannot run on {comm.size}; make it for {comm.size} ranks"
        )
    asked = microbatch_count(schedule)
    if asked != count:
        raise ValueError(
            f"the schedule has {asked} micro-batches and got {count}; split the batch into {asked}"
        )
    replicas = 1 + max(action.replica for actions in schedule for action in actions)
    stages = 1 + max(action.stage for actions in schedule for action in actions)
    tags = 2 * replicas * stages * asked  # `Neighbours.tag` is 0 or more, and less than this
    largest = comm.Get_attr(MPI.TAG_UB) or 32_767  # this much MPI guarantees
    if tags > largest + 1:
        raise ValueError(f"the schedule needs {tags} tags, MPI has {largest + 1}; use fewer micro-batches")
    needed = {(action.replica, action.stage) for action in schedule[comm.rank]}
    for rank, missing in enumerate(comm.allgather(sorted(needed - set(modules)))):
        if missing:
            raise ValueError(
                f"rank {rank} has no module for (replica, stage) {missing[0]}; its schedule needs one"
            )


def make_pipeline_step(
    comm: MPI.Intracomm, schedule: Schedule, modules: Modules, loss_fn: SummedLoss, optimizer: Optimizer
) -> Step:
    """A function that trains on one batch, the same on all ranks, and returns its loss on all of them.

    `optimizer` holds the parameters of this rank's modules; torch's optimizers refuse a rank that has none.
    The schedule is checked once, here. Raises ValueError on all ranks as `run_schedule` does, and for a
    schedule of two replicas, whose gradients have to be summed before the update.
    """
    count = microbatch_count(schedule)
    replicas = {action.replica for actions in schedule for action in actions}
    if len(replicas) > 1:
        raise ValueError(
            f"a schedule of {len(replicas)} replicas needs the sum of their gradients before the update; "
            "call run_schedule, gems.sum_replicas and optimizer.step yourself"
        )
    check_schedule(comm, schedule, modules, count)
    check_finishes(schedule)
    actions, rank_of = schedule[comm.rank], owners(schedule)

    def step(batch: Batch) -> float:
        optimizer.zero_grad()
        result = run_actions(Neighbours(comm, rank_of), actions, modules, loss_fn, split_batch(batch, count))
        optimizer.step()
        return comm.allreduce(result.loss)  # 0 on all ranks but those of a last stage

    return step


# ---------------------------------------------------------------- activation checkpointing


class Recomputed(nn.Module):
    """`layers` that keep only their inputs for backward, and go forward again when the gradient arrives.

        stored       forward keeps every layer's input                 backward uses them
        recomputed   forward keeps the input of the first layer        backward goes forward again, then back

    A third more computing (a backward costs about two forwards, so 4 instead of 3) for a fraction of the
    memory. Wrap a stage in it before giving it to `run_schedule`. The second forward computes the same as the
    first: it starts from copies of the buffers (such as batch norm's running mean) and of the random-number
    state (for dropout) as they were before the first forward, and leaves the module's own untouched. Raises
    ValueError if `layers` overwrite their inputs, from which the second forward starts. Chen et al. (2016),
    "Training deep nets with sublinear memory cost".
    """

    def __init__(self, layers: nn.Module) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """The output of the layers."""
        if not torch.is_grad_enabled():
            return self.layers(inputs)  # no backward follows
        writes = inputs._version  # autograd counts them
        outputs = _Recomputed.apply(self.layers, inputs, *self.layers.parameters())
        if inputs._version != writes:
            raise ValueError("the layers overwrite their inputs; use inplace=False in the first of them")
        return outputs


class _Recomputed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, layers: nn.Module, inputs: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        ctx.layers, ctx.random_state = layers, torch.get_rng_state()
        ctx.buffers = {name: buffer.clone() for name, buffer in layers.named_buffers()}
        ctx.save_for_backward(inputs)
        return layers(inputs)  # autograd records nothing here

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (saved,) = ctx.saved_tensors
        inputs = saved.detach().requires_grad_(ctx.needs_input_grad[1])
        with torch.enable_grad(), torch.random.fork_rng(devices=[]):
            torch.set_rng_state(ctx.random_state)
            outputs = functional_call(ctx.layers, ctx.buffers, (inputs,))
        tensors = [inputs, *ctx.layers.parameters()]
        wanted = [tensor for tensor in tensors if tensor.requires_grad]
        gradients = torch.autograd.grad(outputs, wanted, gradient, allow_unused=True)
        gradient_of = dict(zip(wanted, gradients, strict=True))
        return None, *map(gradient_of.get, tensors)  # one per argument of forward; layers has none
