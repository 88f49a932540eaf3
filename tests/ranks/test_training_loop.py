"""PyTorch's own loop over every way to train on many ranks: `zero_grad(); backward(); synchronize(); step()`.

The oracle is the same loop in one process on whole batches. `optimizer.zero_grad()` is called as everybody
calls it, and so removes the gradients. Global batches of 11, 3 and 1 samples leave some ranks without any.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import chain
from typing import Any

import pytest
import torch
from mpi4py import MPI
from torch import nn

from course_lib.fast import zero as fast
from course_lib.parallel.compression import PowerSGD, TopK
from course_lib.parallel.data_parallel import GradientBucket, broadcast_weights, sum_gradients
from course_lib.parallel.gradient_buckets import GradientBuckets
from course_lib.parallel.zero import Zero0, Zero1, Zero2
from course_lib.parallel.zero3 import Zero3
from course_lib.theory.partition import even_range

SIZES = (11, 3, 1)
WIDTH, WORDS = 6, 7
FEW_BYTES = 300  # several buckets
FULL = 10**6


class Net(nn.Module):
    """Tied weights, a frozen layer, a layer used twice, and two sides of which `forward` uses some."""

    def __init__(self, *, sparse: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH, sparse=sparse)
        self.frozen = nn.Linear(WIDTH, WIDTH)
        self.again = nn.Linear(WIDTH, WIDTH)
        self.left, self.right = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        if not sparse:
            self.head.weight = self.embed.weight
        self.frozen.requires_grad_(requires_grad=False)

    def forward(self, words: torch.Tensor, sides: str) -> torch.Tensor:
        x = torch.tanh(self.again(self.again(self.frozen(self.embed(words)))))
        for side in sides.split():
            x = x + torch.tanh(getattr(self, side)(x))
        return self.head(x)


@dataclass(frozen=True)
class Way:
    """What stands in the loop, which is else that of one process. `look()` has the weights."""

    zero_grad: Callable[[], object]
    synchronize: Callable[[], object]
    step: Callable[[], object]
    look: Callable[[], AbstractContextManager[object]] = nullcontext


def net(seed: int = 0, **settings: Any) -> Net:
    torch.manual_seed(seed)
    return Net(**settings).double()


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.1)


def summed(synchronizer: Callable[[MPI.Intracomm, nn.Module], Callable[[], object]]) -> Callable[..., Way]:
    """Data parallelism: torch's optimizer after `synchronize`."""

    def make(comm: MPI.Intracomm, model: nn.Module) -> Way:
        broadcast_weights(comm, model)
        optimizer = sgd(model.parameters())
        return Way(optimizer.zero_grad, synchronizer(comm, model), optimizer.step)

    return make


def sharded(kind: Callable[..., Any], **settings: Any) -> Callable[..., Way]:
    """A stage of ZeRO is the optimizer."""

    def make(comm: MPI.Intracomm, model: nn.Module) -> Way:
        zero = kind(comm, model, sgd, **settings)
        look = zero.full_weights if isinstance(zero, Zero3) else nullcontext
        return Way(zero.zero_grad, lambda: None, zero.step, look)

    return make


def one_by_one(comm: MPI.Intracomm, model: nn.Module) -> Callable[[], object]:
    return lambda: sum_gradients(comm, model)


def one_bucket(comm: MPI.Intracomm, model: nn.Module) -> Callable[[], object]:
    bucket = GradientBucket(model)
    return lambda: bucket.sum(comm)


def buckets(**settings: Any) -> Callable[[MPI.Intracomm, nn.Module], Callable[[], object]]:
    return lambda comm, model: GradientBuckets(comm, model, bucket_bytes=FEW_BYTES, **settings).wait


SUMS: dict[str, Callable[[MPI.Intracomm, nn.Module], Callable[[], object]]] = {
    "one by one": one_by_one,
    "one bucket": one_bucket,
    "fused buckets": buckets(overlap=False),
    "overlapped buckets": buckets(),
    "top-k of all": lambda comm, model: TopK(comm, model, fraction=1).sum,
    "PowerSGD of full rank": lambda comm, model: PowerSGD(comm, model, matrix_rank=FULL).sum,
}
STAGES: dict[str, Callable[..., Way]] = {
    "stage 0": sharded(Zero0, bucket_bytes=FEW_BYTES),
    "stage 1": sharded(Zero1, bucket_bytes=FEW_BYTES),
    "stage 2": sharded(Zero2, bucket_bytes=FEW_BYTES),
    "stage 3": sharded(Zero3),
    "fast stage 3": sharded(fast.Zero3, prefetch=True),
}
WAYS = {name: summed(way) for name, way in SUMS.items()} | STAGES
BUCKETED = [name for name in SUMS if name != "one by one"]

# ---------------------------------------------------------------- three steps, and the oracle


@dataclass
class Trace:
    """What training leaves: the gradients of each step, then the weights and the outputs."""

    gradients: list[list[torch.Tensor | None]]
    weights: list[torch.Tensor]
    outputs: torch.Tensor


def batch(size: int) -> torch.Tensor:
    return torch.arange(size) * 3 % WORDS


def both(rank: int, sample: int) -> str:
    return "left right"


def train(
    comm: MPI.Intracomm,
    model: Net,
    way: Way,
    sides: Callable[[int, int], str] = both,
    change: Callable[[Net, int], None] = lambda model, step: None,
) -> Trace:
    """Three steps on this rank's shards of the global batches; `change` comes before each step."""
    gradients = []
    for step, size in enumerate(SIZES):
        change(model, step)
        mine = even_range(size, comm.size, comm.rank)
        words = batch(size)[mine.start : mine.stop]
        way.zero_grad()
        loss = model(words, sides(comm.rank, step)).square().sum() / size
        loss.backward()
        way.synchronize()
        gradients.append([None if p.grad is None else p.grad.clone() for p in model.parameters()])
        way.step()
    with way.look(), torch.no_grad():
        return Trace(gradients, [p.clone() for p in model.parameters()], model(batch(5), "left right"))


def one_process(
    size: int,
    sides: Callable[[int, int], str] = both,
    change: Callable[[Net, int], None] = lambda model, step: None,
    **settings: Any,
) -> Trace:
    """The oracle: all shards in one process; a weight that needs a gradient and gets none has zeros."""
    model, gradients = net(**settings), []
    optimizer = sgd(model.parameters())
    for step, total in enumerate(SIZES):
        change(model, step)
        optimizer.zero_grad()
        for rank in range(size):
            mine = even_range(total, size, rank)
            words = batch(total)[mine.start : mine.stop]
            (model(words, sides(rank, step)).square().sum() / total).backward()
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad = parameter.grad.to_dense()
            elif parameter.requires_grad:
                parameter.grad = torch.zeros_like(parameter)
        gradients.append([None if p.grad is None else p.grad.clone() for p in model.parameters()])
        optimizer.step()
    with torch.no_grad():
        return Trace(gradients, [p.clone() for p in model.parameters()], model(batch(5), "left right"))


def apart(comm: MPI.Intracomm, ours: Trace, theirs: Trace) -> float:
    """The largest difference on any rank; infinite where one has a gradient and the other has not."""
    pairs = [(ours.outputs, theirs.outputs), *zip(ours.weights, theirs.weights, strict=True)]
    worst = max(float((mine - expected).detach().abs().max()) for mine, expected in pairs)
    for mine, expected in zip(chain(*ours.gradients), chain(*theirs.gradients), strict=True):
        if mine is not None and expected is not None:
            worst = max(worst, float((mine - expected).abs().max()))
        elif mine is not expected:
            worst = float("inf")
    return comm.allreduce(worst, MPI.MAX)


def equal(comm: MPI.Intracomm, name: str, ours: Trace, theirs: Trace) -> bool:
    """Whether all is equal up to rounding; a stage of ZeRO keeps no gradients of the global batch."""
    if name in STAGES:
        ours.gradients = theirs.gradients
    return apart(comm, ours, theirs) < 1e-10


@pytest.mark.parametrize("name", WAYS)
def test_the_loop_of_one_process_trains_alike_on_many_ranks(comm: MPI.Intracomm, name: str) -> None:
    model = net(seed=comm.rank)  # different on every rank, until rank 0's are broadcast
    ours = train(comm, model, WAYS[name](comm, model))
    assert equal(comm, name, ours, one_process(comm.size))


def one_side(rank: int, step: int) -> str:
    return ("left", "right")[(rank + step) % 2]


def left_alone(rank: int, step: int) -> str:
    return "left"


@pytest.mark.parametrize("sides", [one_side, left_alone])
@pytest.mark.parametrize("name", WAYS)
def test_weights_that_some_ranks_or_all_do_not_use_have_a_gradient_of_zeros(
    comm: MPI.Intracomm, name: str, sides: Callable[[int, int], str]
) -> None:
    """Weight decay and momentum act on them, as after `zero_grad(set_to_none=False)`."""
    model = net()
    ours = train(comm, model, WAYS[name](comm, model), sides)
    assert equal(comm, name, ours, one_process(comm.size, sides))


@pytest.mark.parametrize("name", [*BUCKETED, *STAGES])
def test_sparse_gradients_are_summed_as_dense_ones(comm: MPI.Intracomm, name: str) -> None:
    model = net(sparse=True)
    ours = train(comm, model, WAYS[name](comm, model))
    assert equal(comm, name, ours, one_process(comm.size, sparse=True))


# ---------------------------------------------------------------- known-wrong variants


def forgets_new_gradients(comm: MPI.Intracomm, model: nn.Module) -> Callable[[], object]:
    """Attaches the bucket again, and so drops what backward made after `zero_grad()`."""
    bucket = GradientBucket(model)

    def synchronize() -> None:
        bucket.attach()
        comm.Allreduce(MPI.IN_PLACE, bucket.flat.numpy())

    return synchronize


def sums_the_old_memory(comm: MPI.Intracomm, model: nn.Module) -> Callable[[], object]:
    """Sums the bucket, and not the gradients, which are elsewhere after `zero_grad()`."""
    bucket = GradientBucket(model)
    return lambda: comm.Allreduce(MPI.IN_PLACE, bucket.flat.numpy())


def keeps_what_was_there(comm: MPI.Intracomm, model: nn.Module) -> Callable[[], object]:
    """Where a gradient is None, leaves last step's numbers in the bucket."""
    bucket = GradientBucket(model)

    def synchronize() -> None:
        for parameter, view in zip(bucket.parameters, bucket.views, strict=True):
            parameter.grad = view if parameter.grad is None else view.copy_(parameter.grad)
        comm.Allreduce(MPI.IN_PLACE, bucket.flat.numpy())

    return synchronize


@pytest.mark.parametrize("wrong", [forgets_new_gradients, sums_the_old_memory, keeps_what_was_there])
def test_gradients_that_are_lost_or_left_over_are_told_from_the_truth(
    comm: MPI.Intracomm, wrong: Callable[..., Any]
) -> None:
    model = net()
    ours = train(comm, model, summed(wrong)(comm, model), one_side)
    assert not equal(comm, "wrong", ours, one_process(comm.size, one_side))


# ---------------------------------------------------------------- frozen, unfrozen, converted


def freeze_for_a_step(model: Net, step: int) -> None:
    model.again.requires_grad_(step != 1)


@pytest.mark.parametrize("name", SUMS)
def test_weights_may_be_frozen_for_a_while(comm: MPI.Intracomm, name: str) -> None:
    model = net()
    ours = train(comm, model, WAYS[name](comm, model), change=freeze_for_a_step)
    assert equal(comm, name, ours, one_process(comm.size, change=freeze_for_a_step))


@pytest.mark.parametrize("name", STAGES)
def test_zero_is_made_anew_for_other_trainable_parameters(comm: MPI.Intracomm, name: str) -> None:
    model = net()
    with pytest.raises(ValueError, match="make it anew after you freeze, unfreeze or add parameters"):
        train(comm, model, WAYS[name](comm, model), change=freeze_for_a_step)


def unfreeze(model: Net, step: int) -> None:
    model.frozen.requires_grad_(step > 0)


@pytest.mark.parametrize("name", [*BUCKETED, *STAGES])
def test_a_weight_that_was_unfrozen_after_its_buckets_were_made_is_refused(
    comm: MPI.Intracomm, name: str
) -> None:
    model = net()
    with pytest.raises(ValueError, match=r"frozen\.weight requires a gradient, and did not|make it anew"):
        train(comm, model, WAYS[name](comm, model), change=unfreeze)


def test_one_by_one_sums_what_is_unfrozen_later(comm: MPI.Intracomm) -> None:
    model = net()
    ours = train(comm, model, WAYS["one by one"](comm, model), change=unfreeze)
    assert equal(comm, "one by one", ours, one_process(comm.size, change=unfreeze))


@pytest.mark.parametrize("name", [*BUCKETED, "stage 0", "stage 1", "stage 2"])
def test_a_model_that_was_converted_after_its_buckets_were_made_is_refused(
    comm: MPI.Intracomm, name: str
) -> None:
    model = net()
    way = WAYS[name](comm, model)
    with pytest.raises(ValueError, match=r"torch\.float32 now, and its flat buffer torch\.float64; convert"):
        train(comm, model, way, change=lambda model, step: model.float())


@pytest.mark.parametrize("name", SUMS)
def test_a_convolution_may_change_its_memory_layout(comm: MPI.Intracomm, name: str) -> None:
    torch.manual_seed(0)
    model = nn.Conv2d(3, 4, 2).double()
    way = WAYS[name](comm, model)
    expected = comm.size * torch.autograd.grad(model(torch.ones(1, 3, 4, 4).double()).sum(), model.weight)[0]
    model.to(memory_format=torch.channels_last)
    for _ in range(2):
        way.zero_grad()
        model(torch.ones(1, 3, 4, 4).double()).sum().backward()
        way.synchronize()
        assert torch.allclose(model.weight.grad, expected)


@pytest.mark.parametrize("name", ["stage 0", "stage 1", "stage 2"])
def test_weights_that_have_left_their_buffer_are_noticed(comm: MPI.Intracomm, name: str) -> None:
    model = net()
    way = WAYS[name](comm, model)
    model.again.weight.data = model.again.weight.data.clone()
    with pytest.raises(ValueError, match=r"a parameter of shape \(6, 6\) has left its flat buffer"):
        train(comm, model, way)


# ---------------------------------------------------------------- several passes, and the user's own code


def backward(model: Net, factor: float = 1.0) -> None:
    (model(batch(4), "left right").square().sum() * factor).backward()


def expected_gradients(size: int, factor: float) -> list[torch.Tensor]:
    model = net()
    backward(model, size * factor)
    return [p.grad for p in model.parameters() if p.requires_grad]


def has(model: Net, expected: list[torch.Tensor]) -> bool:
    found = [p.grad for p in model.parameters() if p.requires_grad]
    return all(torch.allclose(*pair) for pair in zip(found, expected, strict=True))


@pytest.mark.parametrize("name", [name for name in SUMS if name != "overlapped buckets"])
def test_gradients_accumulate_are_dropped_and_are_replaced_before_the_sum(
    comm: MPI.Intracomm, name: str
) -> None:
    model = net()
    way = WAYS[name](comm, model)
    for _ in range(2):
        way.zero_grad()
        backward(model)
        way.zero_grad()  # dropped
        backward(model)
        backward(model)
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad = parameter.grad * 2
        way.synchronize()
        assert has(model, expected_gradients(comm.size, 4))


def test_overlapped_buckets_wait_for_the_last_pass(comm: MPI.Intracomm) -> None:
    model = net()
    summing = GradientBuckets(comm, model, bucket_bytes=FEW_BYTES)
    for _ in range(2):
        model.zero_grad()
        summing.overlap = False
        backward(model)
        model.zero_grad()  # dropped
        backward(model)
        assert summing._left == 0
        summing.overlap = True
        backward(model)
        assert summing._left == len(summing.buckets)
        summing.wait()
        assert has(model, expected_gradients(comm.size, 2))


def test_a_gradient_that_changes_while_its_sum_is_on_its_way_is_noticed(comm: MPI.Intracomm) -> None:
    model = net()
    summing = GradientBuckets(comm, model, bucket_bytes=FEW_BYTES)
    backward(model)
    model.zero_grad()
    with pytest.raises(ValueError, match="cleared or replaced while its sum was on its way"):
        summing.wait()
    model.zero_grad()  # and the next step is right
    backward(model)
    summing.wait()
    assert has(model, expected_gradients(comm.size, 1))


@pytest.mark.parametrize("name", STAGES)
def test_zero_clears_what_the_model_cannot(comm: MPI.Intracomm, name: str) -> None:
    """`model.zero_grad()` reaches the full gradients of stages 0 and 1, and not the shards of the others."""
    model = net()
    way = WAYS[name](comm, model)
    theirs = Way(model.zero_grad, way.synchronize, way.step, way.look)
    if name in ("stage 0", "stage 1"):
        assert equal(comm, name, train(comm, model, theirs), one_process(comm.size))
    else:
        with pytest.raises(ValueError, match="that of the model does not reach the shards"):
            train(comm, model, theirs)


@pytest.mark.parametrize("name", STAGES)
def test_a_step_that_is_skipped_leaves_nothing(comm: MPI.Intracomm, name: str) -> None:
    model = net()
    way = WAYS[name](comm, model)
    model.zero_grad()  # so that backward makes gradients outside of the buffers
    backward(model)
    assert equal(comm, name, train(comm, model, way), one_process(comm.size))
