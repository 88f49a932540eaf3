"""Own ZeRO, FSDP2 and DeepSpeed over "mpi4py" train alike, and hold as many bytes as theory says.

Own ZeRO and FSDP2 in float64 beside AdamW on the whole model: with clipping, accumulation and tied weights.
DeepSpeed trains in float32: SGD, whose updates do not amplify rounding, and the norm of the difference.
"""

import gc
import warnings
from collections.abc import Callable, Iterator
from datetime import timedelta
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.distributed as dist
from mpi4py import MPI
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn import functional as F
from torch.optim import SGD, AdamW

import torch_mpi4py
from course.lessons.l11_zero_from_scratch.runs import held_bytes
from course_lib.parallel.zero import Zero1, Zero2
from course_lib.parallel.zero3 import Zero3
from course_lib.theory.memory import ADAM_FP32, StateBytes, bytes_per_parameter
from course_lib.training.transformer import Transformer, build_transformer
from tests.ranks import with_deepspeed
from tests.ranks.with_deepspeed import gathered_weights, settings

deepspeed = with_deepspeed.deepspeed  # the fixture
STEPS, SEQUENCES, LENGTH, VOCABULARY = 20, 24, 6, 16
MAX_NORM, PASSES = 0.5, 2
Tensors = dict[str, torch.Tensor]


def tied() -> Transformer:
    """A Transformer whose head is its embedding."""
    sizes = {"vocabulary": VOCABULARY, "length": LENGTH, "width": 24, "heads": 4, "layers": 2}
    net = build_transformer(**sizes, seed=0).double()
    net.head.weight = net.embedding.token.weight
    return net


def tokens_of(steps: int = STEPS) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, VOCABULARY, (steps, SEQUENCES, LENGTH + 1), generator=generator)


def part_of(tokens: torch.Tensor, size: int, rank: int) -> list[torch.Tensor]:
    """A rank's sequences, in the passes of a step."""
    mine = tokens[rank::size]
    return [mine[index::PASSES] for index in range(PASSES)]


def loss_of(net: nn.Module, tokens: torch.Tensor, divisor: float) -> torch.Tensor:
    logits = net(tokens[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="sum") / divisor / LENGTH


def adamw(parameters: Any) -> AdamW:
    return AdamW(parameters, lr=0.01, weight_decay=0.1)


def sgd(parameters: Any) -> SGD:
    return SGD(parameters, lr=0.2)


def alone(
    make: Callable[[Any], Any] = adamw, dtype: torch.dtype = torch.float64, max_norm: float | None = MAX_NORM
) -> Tensors:
    net = tied().to(dtype)
    optimizer = make(net.parameters())
    for tokens in tokens_of():
        optimizer.zero_grad()
        loss_of(net, tokens, SEQUENCES).backward()
        if max_norm:
            nn.utils.clip_grad_norm_(net.parameters(), max_norm)
        optimizer.step()
    return {name: value.detach().clone() for name, value in net.named_parameters()}


def close(got: Tensors, expected: Tensors, tolerance: float) -> bool:
    return all(float((got[name] - value).abs().max()) < tolerance for name, value in expected.items())


# ------------------------------------------------------------------------------------ own ZeRO


def own(comm: MPI.Intracomm, net: Transformer, stage: int, **options: Any) -> Any:
    if stage == 3:
        return Zero3(comm, net, adamw, layers=net.blocks, **options)
    return (Zero1, Zero2)[stage - 1](comm, net, adamw, bucket_bytes=20_000, **options)


def train_own(comm: MPI.Intracomm, stage: int, max_norm: float | None = MAX_NORM) -> Tensors:
    net = tied()
    zero = own(comm, net, stage, max_norm=max_norm)
    for tokens in tokens_of():
        for part in part_of(tokens, comm.size, comm.rank):
            loss_of(net, part, SEQUENCES).backward()
        zero.step()
        zero.zero_grad()
    if stage < 3:
        return dict(net.named_parameters())
    with zero.full_weights():
        return {name: value.detach().clone() for name, value in net.named_parameters()}


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_own_zero_equals_adamw(comm: MPI.Intracomm, stage: int) -> None:
    assert close(train_own(comm, stage), alone(), 1e-10)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_without_clipping_it_does_not(comm: MPI.Intracomm, stage: int) -> None:
    """Known-wrong; and it shows that the norm is large enough to be clipped."""
    assert not close(train_own(comm, stage, max_norm=None), alone(), 1e-4)


# ------------------------------------------------------------------------------------ FSDP2


@pytest.fixture
def world(comm: MPI.Intracomm) -> Iterator[None]:
    torch_mpi4py.init_process_group(comm, timeout=timedelta(seconds=50))
    yield
    dist.destroy_process_group()


def fsdp() -> Any:
    """The tied weights belong to the root, as with `Zero3`."""
    net, mesh = tied(), init_device_mesh("cpu", (dist.get_world_size(),))
    for block in net.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(net, mesh=mesh)


def train_fsdp(net: Any, *, synchronize_first: bool = False) -> Any:
    """Its gradients are means over ranks, so the loss of a rank is divided by its own sequences."""
    size, rank = dist.get_world_size(), dist.get_rank()
    optimizer = adamw(net.parameters())
    for tokens in tokens_of():
        for index, part in enumerate(part_of(tokens, size, rank)):
            net.set_requires_gradient_sync(synchronize_first or index == PASSES - 1)
            loss_of(net, part, SEQUENCES / size).backward()
        nn.utils.clip_grad_norm_(net.parameters(), MAX_NORM)
        optimizer.step()
        optimizer.zero_grad()
    return optimizer


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize("synchronize_first", [False, True])
def test_fully_shard_equals_adamw(synchronize_first: bool) -> None:
    net = fsdp()
    train_fsdp(net, synchronize_first=synchronize_first)
    assert close({name: value.full_tensor() for name, value in net.named_parameters()}, alone(), 1e-10)


# ------------------------------------------------------------------------------------ bytes


SIZES = {"vocabulary": 256, "length": 16, "width": 64, "heads": 4, "layers": 4}  # large beside what is padded


def larger() -> Transformer:
    net = build_transformer(**SIZES, seed=0)
    net.head.weight = net.embedding.token.weight
    return net


def formula(stage: int, size: int) -> float:
    """Bytes of AdamW's state, weights and gradients, all in float32, that a rank holds."""
    return bytes_per_parameter(stage, size, ADAM_FP32) * sum(p.numel() for p in larger().parameters())


def state_bytes(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """What is kept for each element: not the numbers of steps."""
    found = [value for state in optimizer.state.values() for value in state.values()]
    return [local(value) for value in found if torch.is_tensor(value) and value.dim()]


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of a tensor that `fully_shard` has sharded."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def test_fully_shard_holds_the_bytes_of_the_formula(comm: MPI.Intracomm, world: None) -> None:
    net, mesh = larger(), init_device_mesh("cpu", (comm.size,))
    for block in net.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(net, mesh=mesh)
    optimizer = AdamW(net.parameters())
    tokens = torch.zeros(1, SIZES["length"] + 1, dtype=torch.long)
    F.cross_entropy(net(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()).backward()
    optimizer.step()
    held = [local(p) for p in net.parameters()] + [
        local(p.grad) for p in net.parameters() if p.grad is not None
    ]
    assert held_bytes(held + state_bytes(optimizer)) == pytest.approx(formula(3, comm.size), rel=0.05)


# ------------------------------------------------------------------------------------ DeepSpeed
# Last, as its process group stays until the end of the module.


def distance(got: Tensors, expected: Tensors) -> float:
    """The norm of all differences, relative to the norm of all weights."""
    squares = sum(float((got[name] - value).double().square().sum()) for name, value in expected.items())
    return (squares / sum(float(value.double().square().sum()) for value in expected.values())) ** 0.5


def zero_settings(stage: int, bucket_elements: int) -> dict[str, Any]:
    zero = {
        "stage": stage,
        "stage3_param_persistence_threshold": 0,
        "reduce_bucket_size": bucket_elements,
        "allgather_bucket_size": bucket_elements,
        "stage3_prefetch_bucket_size": 0,
    }
    return settings(stage) | {
        "train_batch_size": SEQUENCES // dist.get_world_size() * dist.get_world_size(),
        "train_micro_batch_size_per_gpu": SEQUENCES // dist.get_world_size() // PASSES,
        "gradient_accumulation_steps": PASSES,
        "zero_optimization": zero,
    }


def train_deepspeed(module: ModuleType, stage: int, make: Callable[[Any], Any] = sgd) -> Any:
    """Its gradients are means over ranks and passes."""
    net = tied().float()
    engine, *_ = module.initialize(
        model=net, optimizer=make(net.parameters()), config=zero_settings(stage, 5_000)
    )
    size, rank = dist.get_world_size(), dist.get_rank()
    for tokens in tokens_of():
        for part in part_of(tokens, size, rank):
            engine.backward(loss_of(engine, part, SEQUENCES / size / PASSES))
            engine.step()
    return engine


@pytest.mark.deadline(120)
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_deepspeed_equals_sgd(deepspeed: ModuleType, stage: int) -> None:
    engine = train_deepspeed(deepspeed, stage)
    got = gathered_weights(deepspeed, engine, stage)
    engine.destroy()
    expected = alone(sgd, torch.float32, max_norm=None)
    assert distance(got, expected) < 1e-6
    assert distance(got, alone(sgd, torch.float32)) > 1e-3  # it would notice if it clipped


def live_bytes() -> int:
    """Of the memory behind all tensors that Python knows, and their gradients."""
    gc.collect()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # looking at some objects warns
        found = [each for each in gc.get_objects() if issubclass(type(each), torch.Tensor)]
    tensors = [each for each in found if each.device.type == "cpu"]  # "meta" ones have no memory
    gradients = [each.grad for each in tensors if each.is_leaf]
    return held_bytes([*tensors, *gradients])


DEEPSPEED = StateBytes(4, 4, 12)  # of float32 weights, too, it keeps a master copy of this rank's slice


@pytest.mark.deadline(120)
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_deepspeed_holds_the_bytes_of_the_formula(
    comm: MPI.Intracomm,
    deepspeed: ModuleType,
    stage: int,
) -> None:
    """Between two passes of a step, when stage 1 has all gradients and the others their slices."""
    before = live_bytes()
    net = larger()
    config = zero_settings(stage, 2_000) | {
        "train_batch_size": PASSES * comm.size,
        "train_micro_batch_size_per_gpu": 1,
    }
    engine, *_ = deepspeed.initialize(model=net, optimizer=adamw(net.parameters()), config=config)
    tokens = torch.zeros(1, SIZES["length"] + 1, dtype=torch.long)
    for _ in range(PASSES + 1):
        engine.backward(F.cross_entropy(engine(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()))
        held = live_bytes() - before
        engine.step()
    engine.destroy()
    parameters = sum(p.numel() for p in larger().parameters())
    expected = bytes_per_parameter(stage, comm.size, DEEPSPEED) * parameters
    assert held == pytest.approx(expected, rel=0.05)
