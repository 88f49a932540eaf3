"""ZeRO from scratch against AdamW on the whole model in one process, eight steps, in float64."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from mpi4py import MPI
from torch import nn
from torch.nn import functional as F
from torch.optim import AdamW

from course_lib.fast import zero as fast
from course_lib.parallel.zero import Zero1, Zero2, offload_state
from course_lib.parallel.zero3 import TiledLinear, Zero3
from course_lib.parallel.zero_shards import clip_gradients
from course_lib.theory.partition import even_range

STEPS, BATCH, WIDTH, CLASSES = 8, 12, 11, 5  # sizes that no number of ranks divides
BUCKET = 700  # bytes: several buckets
STAGES = [1, 2, 3]


class Net(nn.Module):
    """Tied weights (first and last layer), a frozen layer, norms, and a layer used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.again = True
        self.embed = nn.Embedding(CLASSES, WIDTH)
        self.frozen = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 13), nn.GELU(), nn.Linear(13, WIDTH), nn.LayerNorm(WIDTH))
            for _ in range(3)
        )
        self.head = nn.Linear(WIDTH, CLASSES, bias=False)
        self.head.weight = self.embed.weight
        self.frozen.requires_grad_(requires_grad=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.frozen(self.embed(tokens)))
        for block in (*self.blocks, *self.blocks[: self.again]):
            x = x + block(x)
        return self.head(x)


def net() -> Net:
    torch.manual_seed(3)
    return Net().double()


def batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(4)
    shape = (STEPS, BATCH)
    tokens, targets = torch.randint(0, CLASSES, shape), torch.randint(0, CLASSES, shape)
    return list(zip(tokens, targets, strict=True))


def loss_of(model: nn.Module, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(tokens), targets, reduction="sum") / BATCH


def adamw(parameters: Any) -> AdamW:
    return AdamW(parameters, lr=0.02, weight_decay=0.1)


@functools.cache
def alone(max_norm: float | None) -> tuple[dict[str, torch.Tensor], list[float]]:
    model = net()
    optimizer = adamw([p for p in model.parameters() if p.requires_grad])
    norms = []
    for tokens, targets in batches():
        optimizer.zero_grad()
        loss_of(model, tokens, targets).backward()
        if max_norm:
            norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), max_norm)))
        optimizer.step()
    return {name: value.detach().clone() for name, value in model.named_parameters()}, norms


def make(comm: MPI.Intracomm, model: Net, stage: int, **settings: Any) -> Any:
    if stage == 3:
        kind = fast.Zero3 if "prefetch" in settings else Zero3
        return kind(comm, model, adamw, layers=[model.frozen, *model.blocks], **settings)
    return (Zero1, Zero2)[stage - 1](comm, model, adamw, bucket_bytes=BUCKET, **settings)


def full_weights(zero: Any, model: nn.Module) -> dict[str, torch.Tensor]:
    if isinstance(zero, Zero3):
        with zero.full_weights():
            return {name: value.detach().clone() for name, value in model.named_parameters()}
    return {name: value.detach().clone() for name, value in model.named_parameters()}


def train(comm: MPI.Intracomm, model: Net, zero: Any, passes: int = 1) -> list[float | None]:
    mine = even_range(BATCH, comm.size, comm.rank)
    norms = []
    for tokens, targets in batches():
        for part in range(passes):
            micro = even_range(len(mine), passes, part)
            rows = slice(mine.start + micro.start, mine.start + micro.stop)
            loss_of(model, tokens[rows], targets[rows]).backward()
        norms.append(zero.step())
        zero.zero_grad()
    return norms


CLIPPED = {"max_norm": 0.3, "passes": 3}
SETTINGS = {"plain": {}, "clipped, accumulated": CLIPPED}
CASES = [pytest.param(stage, SETTINGS[name], id=f"{name}-{stage}") for name in SETTINGS for stage in STAGES]


@pytest.mark.parametrize(
    ("stage", "settings"),
    [
        *CASES,
        *(pytest.param(3, {"prefetch": ahead, **CLIPPED}, id=f"fast-3-{ahead}") for ahead in (False, True)),
    ],
)
def test_equals_one_process(comm: MPI.Intracomm, stage: int, settings: dict[str, Any]) -> None:
    settings = dict(settings)
    passes, model = settings.pop("passes", 1), net()
    zero = make(comm, model, stage, **settings)
    norms = train(comm, model, zero, passes)
    expected, expected_norms = alone(settings.get("max_norm"))
    if expected_norms:
        torch.testing.assert_close(norms, expected_norms, rtol=1e-5, atol=0)
    for name, value in full_weights(zero, model).items():
        torch.testing.assert_close(value, expected[name], rtol=0, atol=1e-10, msg=name)


@pytest.mark.parametrize("stage", STAGES)
def test_the_norm_of_a_ranks_own_shards_is_a_wrong_norm(
    comm: MPI.Intracomm, stage: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if comm.size == 1:
        return
    model = net()
    zero = make(comm, model, stage, max_norm=0.3)

    class Alone:
        """Every rank sums for itself."""

        def allreduce(self, value: float) -> float:
            return value

    right: Callable[..., float] = clip_gradients
    monkeypatch.setattr(
        "course_lib.parallel.zero_shards.clip_gradients", lambda _comm, *rest: right(Alone(), *rest)
    )
    train(comm, model, zero)
    expected, _ = alone(0.3)
    found = full_weights(zero, model)
    assert max(float((found[name] - expected[name]).abs().max()) for name in found) > 1e-4


@pytest.mark.parametrize(("stage", "settings"), [(1, {}), (2, {}), (3, {}), (3, {"prefetch": True})])
def test_bfloat16_with_float32_masters(comm: MPI.Intracomm, stage: int, settings: dict[str, Any]) -> None:
    """All ranks end with the same bits, close to one process that trains so."""
    results = []
    for group in (comm, MPI.COMM_SELF):
        model = net().bfloat16()
        zero = make(group, model, stage, **settings)
        train(group, model, zero)
        assert {master.dtype for master in zero.masters} == {torch.float32}
        results.append(full_weights(zero, model))
    for name, value in results[0].items():
        bits = comm.allgather(value.view(torch.int16).numpy().tobytes())
        assert len(set(bits)) == 1
        torch.testing.assert_close(value, results[1][name], rtol=0.1, atol=0.08)


def test_state_in_a_file_changes_nothing(comm: MPI.Intracomm, tmp_path: Path) -> None:
    expected, _ = alone(None)
    model = net()
    zero = make(comm, model, 2)
    folder = tmp_path / str(comm.rank)
    assert offload_state(zero.optimizer, folder, comm.rank) == sum(f.stat().st_size for f in folder.iterdir())
    train(comm, model, zero)
    for name, value in full_weights(zero, model).items():
        torch.testing.assert_close(value, expected[name], rtol=0, atol=1e-10)
    with pytest.raises(ValueError, match="before the first step"):
        offload_state(zero.optimizer, folder, comm.rank)


def test_a_tiled_layer_is_the_layer(comm: MPI.Intracomm) -> None:
    torch.manual_seed(0)
    linear = nn.Linear(7, 10).double()
    x = torch.randn(3, 7, dtype=torch.float64)
    tiled = TiledLinear(linear, 3)
    zero = Zero3(comm, tiled, adamw, layers=[*tiled.tiles])
    tiled(x).square().sum().backward()
    expected = linear(x)
    expected.square().sum().backward()
    torch.testing.assert_close(tiled(x), expected)
    assert linear.weight.grad is not None
    assert linear.bias.grad is not None
    total = sum(float(bucket.gradient_shard.sum()) for bucket in zero.buckets)
    own = float(linear.weight.grad.sum() + linear.bias.grad.sum()) * comm.size  # every rank had the batch
    assert comm.allreduce(total) == pytest.approx(own)
    with pytest.raises(ValueError, match="10 outputs make 1 to 10 tiles, not 11"):
        TiledLinear(linear, 11)


def test_nothing_to_train_is_said(comm: MPI.Intracomm) -> None:
    model = nn.Linear(2, 2).requires_grad_(requires_grad=False)
    for stage in (Zero1, Zero2, Zero3):
        with pytest.raises(ValueError, match="nothing to train"):
            stage(comm, model)
        assert model.weight.shape == (2, 2)  # still there


@pytest.mark.parametrize("stage", STAGES)
def test_weights_that_are_channels_last_are_not_permuted(comm: MPI.Intracomm, stage: int) -> None:
    results = []
    for sharded in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(3, 4, 2), nn.Flatten(), nn.Linear(16, 2)).double()
        model = model.to(memory_format=torch.channels_last)
        images = torch.randn(2, 3, 3, 3, dtype=torch.float64)
        optimizer: Any = adamw(model.parameters())
        if sharded:
            optimizer = (
                Zero3(comm, model, adamw) if stage == 3 else (Zero1, Zero2)[stage - 1](comm, model, adamw)
            )
        for _ in range(3):
            (model(images).square().sum() / (comm.size if sharded else 1)).backward()
            optimizer.step()
            optimizer.zero_grad()
        results.append(full_weights(optimizer, model))
    for name, value in results[0].items():
        torch.testing.assert_close(results[1][name], value, rtol=0, atol=1e-10)
