"""ZeRO with models that are partly frozen, of several dtypes, or not reached by backward."""

import copy
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from mpi4py import MPI
from torch import nn
from torch.optim import SGD, Adam
from torch.utils.checkpoint import checkpoint

from course_lib.fast import zero as fast
from course_lib.parallel.zero import Zero0, Zero1, Zero2, offload_state
from course_lib.parallel.zero3 import TiledLinear, Zero3
from tests.ranks.test_zero import full_weights as weights_of

STAGES: list[Any] = [Zero0, Zero1, Zero2, Zero3]
WIDTH = 5


def sgd(parameters: Any) -> SGD:
    return SGD(parameters, lr=0.1)


def alone(model: nn.Module, losses: Callable[[nn.Module], list[torch.Tensor]], steps: int = 2) -> nn.Module:
    """A copy of `model` after `steps` steps in one process; a step is one backward pass per loss."""
    model = copy.deepcopy(model)
    optimizer = sgd([p for p in model.parameters() if p.requires_grad])
    for _ in range(steps):
        for loss in losses(model):
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


def train(zero: Any, loss: Callable[[], torch.Tensor], *, freed: bool = False) -> None:
    """Take two steps; with `freed`, no weights may be gathered after a backward."""
    for _ in range(2):
        (loss() / zero.comm.size).backward()
        if freed:
            assert not any(bucket.gathered for bucket in zero.buckets)
        zero.step()
        zero.zero_grad()


def check_weights(zero: Any, model: nn.Module, expected: nn.Module, atol: float = 1e-12) -> None:
    """The weights of `model`, gathered, are those of `expected` within `atol`."""
    for name, value in weights_of(zero, model).items():
        torch.testing.assert_close(value, expected.get_parameter(name), rtol=0, atol=atol, msg=name)


def check_training(
    comm: MPI.Intracomm,
    kind: Any,
    layers: Any,
    losses: Callable[[Any], list[torch.Tensor]],
    *,
    freed: bool = False,
) -> None:
    """Two steps of stage 3 on all ranks are those of one process."""
    expected = alone(layers, losses)
    zero = kind(comm, layers, sgd, layers=layers)
    train(zero, lambda: losses(layers)[0], freed=freed)
    check_weights(zero, layers, expected)


# ------------------------------------------------------------------ partly frozen layers


class Adapted(nn.Module):
    """A frozen layer, and a trained branch around it whose gradients backward finishes first (as LoRA)."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(WIDTH, WIDTH).requires_grad_(requires_grad=False)
        self.trained = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.trained(torch.tanh(self.frozen(x).sin()))


@pytest.mark.parametrize("kind", [Zero3, fast.Zero3])
def test_partly_frozen_layers(comm: MPI.Intracomm, kind: Any) -> None:
    torch.manual_seed(0)
    layers = nn.ModuleList(Adapted() for _ in range(3)).double()
    x = torch.randn(2, WIDTH, dtype=torch.float64)

    def losses(layers: Any) -> list[torch.Tensor]:
        y = x.clone()
        for layer in (*layers, layers[0]):  # one is used twice
            y = layer(y)
        return [y.square().sum()]

    check_training(comm, kind, layers, losses, freed=kind is Zero3)


@pytest.mark.parametrize("reentrant", [False, True])
def test_partly_frozen_layers_with_activation_checkpointing(comm: MPI.Intracomm, *, reentrant: bool) -> None:
    torch.manual_seed(0)
    layers = nn.ModuleList(Adapted() for _ in range(3)).double()
    x = torch.randn(2, WIDTH, dtype=torch.float64)

    def losses(layers: Any) -> list[torch.Tensor]:
        y = layers[0](x)
        for layer in layers[1:]:
            y = checkpoint(layer, y, use_reentrant=reentrant)
        return [y.square().sum()]

    check_training(comm, Zero3, layers, losses)


# ------------------------------------------------------------------ what backward does not reach


class Unreached(nn.Module):
    """Three layers in two buckets; backward never reaches the middle one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.unused, self.last = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(self.first(x)))


@pytest.mark.parametrize("stage", STAGES)
def test_several_passes_that_do_not_reach_a_parameter(comm: MPI.Intracomm, stage: Any) -> None:
    torch.manual_seed(0)
    model = Unreached().double()
    inputs = torch.randn(3, 2, WIDTH, dtype=torch.float64)

    def losses(model: nn.Module) -> list[torch.Tensor]:
        return [model(x).square().sum() for x in inputs]

    expected = alone(model, losses)
    zero = stage(comm, model, sgd, **({} if stage is Zero3 else {"bucket_bytes": 250}))
    for _ in range(2):
        for loss in losses(model):
            (loss / comm.size).backward()
        zero.step()
        zero.zero_grad()
    check_weights(zero, model, expected)


@pytest.mark.deadline(20)
def test_a_rank_that_reached_nothing_joins_in_when_the_step_is_skipped(comm: MPI.Intracomm) -> None:
    torch.manual_seed(0)
    model = Unreached().double()
    x = torch.randn(2, WIDTH, dtype=torch.float64)
    expected = alone(model, lambda model: [model(x).square().sum()], steps=1)
    zero = Zero2(comm, model, sgd, bucket_bytes=250)
    if comm.rank == 0:
        model(x).sin().sum().backward()
    zero.zero_grad()  # the step is skipped
    (model(x).square().sum() / comm.size).backward()
    zero.step()
    check_weights(zero, model, expected)


@pytest.mark.deadline(20)
@pytest.mark.parametrize("stage", STAGES[:3])
def test_a_rank_whose_backward_reaches_nothing(comm: MPI.Intracomm, stage: Any) -> None:
    torch.manual_seed(0)
    model = Unreached().double()
    x = torch.randn(2, WIDTH, dtype=torch.float64)
    expected = alone(model, lambda model: [model(x).square().sum()], steps=1)
    zero = stage(comm, model, sgd, bucket_bytes=250)
    if comm.rank == 0:  # the others have no part of this batch
        model(x).square().sum().backward()
    zero.step()
    check_weights(zero, model, expected)


class Branches(nn.Module):
    """A layer whose second part runs only if both are asked for; backward then reaches it first."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, *, both: bool) -> torch.Tensor:
        y = torch.tanh(self.first(x))
        return torch.tanh(self.second(y)) if both else y


@pytest.mark.parametrize("stage", [*STAGES, fast.Zero3])
@pytest.mark.parametrize("forwards_first", [False, True])
@pytest.mark.parametrize("passes", [(False, True), (True, False)])
def test_passes_of_a_step_that_reach_different_parameters(
    comm: MPI.Intracomm, stage: Any, passes: tuple[bool, ...], *, forwards_first: bool
) -> None:
    torch.manual_seed(0)
    model = nn.ModuleList(Branches() for _ in range(3)).double()
    x = torch.randn(2, WIDTH, dtype=torch.float64)

    def loss(model: Any, *, both: bool) -> torch.Tensor:
        y = x
        for layer in model:
            y = layer(y, both=both)
        return y.square().sum()

    expected = alone(model, lambda model: [loss(model, both=both) for both in passes])
    in_layers = stage in (Zero3, fast.Zero3)
    zero = stage(comm, model, sgd, **({"layers": model} if in_layers else {"bucket_bytes": 250}))
    for _ in range(2):
        if forwards_first:
            for each in [loss(model, both=both) for both in passes]:
                (each / comm.size).backward()
        else:
            for both in passes:
                (loss(model, both=both) / comm.size).backward()
        zero.step()
        zero.zero_grad()
    check_weights(zero, model, expected)


@pytest.mark.parametrize("stage", STAGES)
def test_a_backward_between_step_and_zero_grad_leaves_nothing(comm: MPI.Intracomm, stage: Any) -> None:
    torch.manual_seed(0)
    model = Unreached().double()
    x = torch.randn(2, WIDTH, dtype=torch.float64)
    expected = alone(model, lambda model: [model(x).square().sum()], steps=1)
    zero = stage(comm, model, sgd)  # one bucket, which no backward fills
    zero.step()
    model(x).sum().backward()
    zero.zero_grad()
    (model(x).square().sum() / comm.size).backward()
    zero.step()
    check_weights(zero, model, expected)


class Passing(nn.Module):
    """A layer that also returns its input as it was; that gets its gradient after the layer's weights."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, total: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x, total + torch.tanh(self.linear(x))


@pytest.mark.parametrize("kind", [Zero3, fast.Zero3])
def test_a_layer_that_returns_its_input_is_freed_in_backward(comm: MPI.Intracomm, kind: Any) -> None:
    torch.manual_seed(0)
    model = nn.ModuleList(Passing() for _ in range(3)).double()
    values = torch.randn(2, WIDTH, dtype=torch.float64)

    def losses(model: Any) -> list[torch.Tensor]:
        x = total = values.clone().requires_grad_()
        for layer in (*model, model[0]):  # one is used twice
            x, total = layer(x, total)
        return [(x * total).square().sum()]

    check_training(comm, kind, model, losses, freed=True)


# ------------------------------------------------------------------ what a model consists of


class Counted(nn.Module):
    """A layer with a parameter of integers, which cannot be trained."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.numbers = nn.Parameter(torch.arange(WIDTH + 2), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.linear(x + self.numbers[:WIDTH]))


@pytest.mark.parametrize("stage", STAGES)
def test_integers_that_are_parameters(comm: MPI.Intracomm, stage: Any) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(Counted(), Counted())
    x = torch.randn(2, WIDTH)
    expected = alone(model, lambda model: [model(x).square().sum()], steps=1)
    zero = stage(comm, model, sgd, **({"layers": model} if stage is Zero3 else {}))
    (model(x).square().sum() / comm.size).backward()
    zero.step()
    check_weights(zero, model, expected, atol=1e-6)


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("before", [Zero0, Zero1, Zero2])
def test_a_stage_that_is_made_anew_takes_the_model_over(comm: MPI.Intracomm, before: Any, stage: Any) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)).double()
    model[0].requires_grad_(requires_grad=False)
    x = torch.randn(2, WIDTH, dtype=torch.float64)
    old = before(comm, model, sgd)  # alive, as the traceback of an error keeps it
    (model(x).sum() / comm.size).backward()
    old.step()
    old.zero_grad()
    model.requires_grad_(requires_grad=True)
    expected = alone(model, lambda model: [model(x).square().sum()], steps=1)
    zero = stage(comm, model, sgd)
    (model(x).square().sum() / comm.size).backward()
    zero.step()
    check_weights(zero, model, expected)


@pytest.mark.parametrize("stage", [Zero0, Zero1, Zero2])
def test_a_step_that_was_refused_has_summed_nothing(comm: MPI.Intracomm, stage: Any) -> None:
    torch.manual_seed(0)
    model = pair()
    x = torch.randn(2, WIDTH, dtype=torch.float64)
    expected = alone(model, lambda model: [model(x).square().sum()], steps=1)
    zero = stage(comm, model, sgd)
    if comm.rank == 0:  # in stage 2, `step` sums what rank 0's backward has begun
        model(x).square().sum().backward()
    model[1].bias.requires_grad = False
    with pytest.raises(ValueError, match="trains others now"):
        zero.step()
    model[1].bias.requires_grad = True
    zero.step()
    check_weights(zero, model, expected)


def pair() -> Any:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)).double()


@pytest.mark.parametrize("kind", [Zero3, fast.Zero3])
@pytest.mark.parametrize("gathered", [False, True])
def test_a_second_stage_3_for_one_model_is_refused(comm: MPI.Intracomm, kind: Any, *, gathered: bool) -> None:
    model = pair()
    zero = kind(comm, model, sgd, layers=model)
    before = weights_of(zero, model)
    refused = pytest.raises(ValueError, match=r"sharded already; build a new model .*load_state_dict\(")
    with zero.full_weights() if gathered else nullcontext(), refused:
        kind(comm, model, sgd, layers=model)
    after = weights_of(zero, model)
    assert all(torch.equal(before[name], after[name]) for name in before)


class UsedOutside(nn.Module):
    """A module of the only layer is the model's head, too."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = pair()
        self.head = self.layer[0]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layer(x))


@pytest.mark.parametrize("kind", [Zero3, fast.Zero3])
def test_a_module_inside_and_outside_a_layer(comm: MPI.Intracomm, kind: Any) -> None:
    torch.manual_seed(0)
    model = UsedOutside()
    x = torch.randn(2, WIDTH, dtype=torch.float64)
    expected = alone(model, lambda model: [model(x).square().sum()], steps=1)
    zero = kind(comm, model, sgd, layers=[model.layer])
    (model(x).square().sum() / comm.size).backward()
    zero.step()
    check_weights(zero, model, expected)


class Mixed(nn.Module):
    """A layer in bfloat16, and one in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.short, self.long = nn.Linear(WIDTH, WIDTH).bfloat16(), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.long(self.short(x.bfloat16()).float())


@pytest.mark.parametrize("stage", STAGES)
def test_a_model_of_two_dtypes_keeps_them(comm: MPI.Intracomm, stage: Any) -> None:
    model = Mixed()
    zero = stage(comm, model, sgd)
    model(torch.randn(2, WIDTH)).square().sum().backward()
    zero.step()
    dtypes = {name: value.dtype for name, value in weights_of(zero, model).items()}
    assert {dtypes["short.weight"], dtypes["short.bias"]} == {torch.bfloat16}
    assert {dtypes["long.weight"], dtypes["long.bias"]} == {torch.float32}


@pytest.mark.parametrize("stage", STAGES)
def test_all_replicas_start_equal(comm: MPI.Intracomm, stage: Any) -> None:
    """Frozen parameters and buffers, too, are those of rank 0."""
    torch.manual_seed(comm.rank)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH))
    model[0].weight.requires_grad = False
    model.register_buffer("table", torch.randn(2, 3).T)
    zero = stage(comm, model, sgd)
    tensors = [*weights_of(zero, model).values(), *model.buffers()]
    for tensor in tensors:
        found = comm.allgather(tensor.tolist())
        assert found == found[:1] * comm.size


@pytest.mark.parametrize("frozen", [False, True])
def test_tiles_are_frozen_as_the_layer_is(comm: MPI.Intracomm, *, frozen: bool) -> None:
    del comm
    linear = nn.Linear(4, 6)
    linear.weight.requires_grad_(not frozen)
    for tile in TiledLinear(linear, 2).tiles:
        assert tile.weight.requires_grad is not frozen
        assert tile.bias.requires_grad


# ------------------------------------------------------------------ all weights of stage 3, for a while


def test_reading_all_weights_does_not_round_the_masters(comm: MPI.Intracomm) -> None:
    model: Any = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)).bfloat16()
    zero = Zero3(comm, model, sgd, layers=model)
    x = torch.randn(2, WIDTH, generator=torch.manual_seed(0)).bfloat16()
    model(x).float().square().sum().backward()
    zero.step()
    before = [master.clone() for master in zero.masters]
    assert comm.allreduce(any(not torch.equal(m, m.bfloat16().float()) for m in before), MPI.LOR)
    with zero.full_weights(), torch.no_grad():
        model[1].bias.fill_(0.25)
    after = zero.masters
    assert torch.equal(before[0], after[0])
    written = torch.cat(comm.allgather(after[1].detach()))
    original = torch.cat(comm.allgather(before[1]))
    assert torch.equal(written[: WIDTH * WIDTH], original[: WIDTH * WIDTH])
    assert set(written[WIDTH * WIDTH :].tolist()) == {0.25}


@pytest.mark.parametrize("kind", [Zero3, fast.Zero3])
def test_the_model_runs_inside_full_weights(comm: MPI.Intracomm, kind: Any) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH))
    x = torch.randn(2, WIDTH)
    expected = model(x).detach()
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    zero = kind(comm, model, sgd, layers=model)
    with pytest.raises(KeyError), zero.full_weights():
        torch.testing.assert_close(model(x).detach(), expected)
        assert model[0].weight.shape == (WIDTH, WIDTH)
        raise KeyError
    assert not any(bucket.gathered for bucket in zero.buckets)
    for name, value in weights_of(zero, model).items():
        assert torch.equal(value, before[name])


@pytest.mark.parametrize("kind", [Zero3, fast.Zero3])
def test_a_step_inside_full_weights_is_refused(comm: MPI.Intracomm, kind: Any) -> None:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH))
    zero = kind(comm, model, sgd, layers=model)
    model(torch.ones(2, WIDTH)).sum().backward()
    before = [master.clone() for master in zero.masters]
    with pytest.raises(ValueError, match="call step"), zero.full_weights():
        zero.step()
    zero.step()
    changed = any(not torch.equal(old, new) for old, new in zip(before, zero.masters, strict=True))
    assert comm.allreduce(changed, MPI.LOR)


@pytest.mark.parametrize("kind", [Zero3, fast.Zero3])
def test_full_weights_inside_full_weights_is_refused(comm: MPI.Intracomm, kind: Any) -> None:
    model = pair()
    zero = kind(comm, model, sgd, layers=model)
    before = weights_of(zero, model)
    with zero.full_weights():
        with pytest.raises(ValueError, match=r"full_weights\(\) is open already"), zero.full_weights():
            pass
        assert model[0].weight.shape == (WIDTH, WIDTH)
    after = weights_of(zero, model)
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("kind", [Zero3, fast.Zero3])
def test_a_weight_that_is_replaced_inside_full_weights_is_noticed(comm: MPI.Intracomm, kind: Any) -> None:
    model = pair()
    zero = kind(comm, model, sgd, layers=model)
    with pytest.raises(ValueError, match="left its flat buffer"), zero.full_weights():
        model[0].weight.data = torch.zeros(WIDTH, WIDTH, dtype=torch.float64)
    assert not any(bucket.gathered or bucket.pinned for bucket in zero.buckets)
    with zero.full_weights():
        nn.init.zeros_(model[0].weight)  # in place
    assert not weights_of(zero, model)["0.weight"].any()


# ------------------------------------------------------------------ clipping, files


@pytest.mark.parametrize("stage", STAGES)
def test_a_largest_norm_of_zero_is_one(comm: MPI.Intracomm, stage: Any) -> None:
    model = nn.Linear(WIDTH, WIDTH)
    zero = stage(comm, model, sgd, max_norm=0.0)
    before = weights_of(zero, model)
    model(torch.ones(1, WIDTH)).square().sum().backward()
    assert zero.step() > 0
    after = weights_of(zero, model)
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_amsgrad_is_refused_and_an_empty_shard_is_not(comm: MPI.Intracomm, tmp_path: Path) -> None:
    one = nn.Linear(1, 1, bias=False)  # ranks after the first own nothing
    zero = Zero1(comm, one, Adam)
    assert offload_state(zero.optimizer, tmp_path / str(comm.rank), comm.rank) == (8 if comm.rank == 0 else 0)
    one(torch.ones(1, 1)).sum().backward()
    zero.step()
    kept = Zero1(comm, nn.Linear(1, 1), lambda shards: Adam(shards, amsgrad=True))
    with pytest.raises(TypeError, match="amsgrad"):
        offload_state(kept.optimizer, tmp_path, comm.rank)
