"""DDP over Gloo and over mpi4py, on as many ranks as this session has, held to one process.

The oracle is the loop of the tutorials (mean loss, whole batches, no communication), computed by every rank
for itself. What is often done wrong is kept, and has to be told from it.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import chain

import numpy as np
import pytest
import torch
import torch.distributed as dist
from mpi4py import MPI
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler

from course_lib.parallel.data_parallel import replicas_agree, weight_hash
from course_lib.parallel.ddp import process_group, start_group, summing_ddp
from course_lib.training.flat import flatten
from course_lib.training.loop import Batch, image_batch, make_step, summed_cross_entropy
from course_lib.training.models import MNIST_MODELS, build
from tests.ranks.steps_of_images import STEPS, Trace, adam, convert, sgd, worst

BACKENDS = ("gloo", "mpi4py")
IMAGES = np.random.default_rng(0).integers(0, 256, (48, 28, 28)).astype(np.uint8)
LABELS = np.random.default_rng(1).integers(0, 10, 48).astype(np.uint8)
PROBE = torch.from_numpy(IMAGES[20:25]).unsqueeze(1).double() / 255

Optimizers = Callable[[nn.Module], torch.optim.Optimizer]
Wrapper = Callable[[nn.Module], nn.Module]


def batch_shards(
    order: np.ndarray, batch_size: int, *, rank: int, size: int
) -> Iterator[tuple[np.ndarray, int]]:
    """This rank's part of every global batch, round-robin, nothing repeated; and how large the batch is."""
    for start in range(0, len(order), batch_size):
        batch = order[start : start + batch_size]
        yield batch[rank::size], len(batch)


def dealt(comm: MPI.Intracomm, dtype: torch.dtype = torch.float64) -> list[Batch]:
    """This rank's part of each of the STEPS."""
    parts = [next(batch_shards(step, len(step), rank=comm.rank, size=comm.size)) for step in STEPS]
    return [convert(image_batch(IMAGES, LABELS, *part), dtype) for part in parts]


def finish(model: nn.Module, gradients: list[torch.Tensor]) -> Trace:
    with torch.no_grad():
        outputs = model(PROBE.to(next(model.parameters()).dtype))
    return Trace(gradients, flatten(list(model.parameters())), outputs)


def alone(
    steps: Sequence[np.ndarray], name: str = "mlp", dtype: torch.dtype = torch.float64, make: Optimizers = sgd
) -> Trace:
    """One process on whole batches, with the mean loss."""
    model = build(name, seed=0).to(dtype)
    optimizer, gradients = make(model), []
    for indices in steps:
        batch = convert(image_batch(IMAGES, LABELS, indices, len(indices)), dtype)
        optimizer.zero_grad()
        F.cross_entropy(model(batch.inputs), batch.targets, reduction="mean").backward()
        gradients.append(flatten([parameter.grad for parameter in model.parameters()]))
        optimizer.step()
    return finish(model, gradients)


@cache
def one_process(name: str, dtype: torch.dtype, make: Optimizers) -> Trace:
    return alone(STEPS, name, dtype, make)


def through_ddp(
    batches: Sequence[Batch],
    *,
    name: str = "mlp",
    dtype: torch.dtype = torch.float64,
    make: Optimizers = sgd,
    wrap: Wrapper = summing_ddp,
    loss_fn: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = summed_cross_entropy,
) -> Trace:
    """The same in the group of this moment; what a wrong variant does differently is an argument."""
    model = build(name, seed=dist.get_rank()).to(dtype)  # different on every rank, until DDP wraps it
    replica = wrap(model)
    gradients: list[torch.Tensor] = []
    look = lambda: gradients.append(flatten([p.grad for p in model.parameters()]))  # noqa: E731
    step = make_step(replica, loss_fn, make(model), look)
    for batch in batches:
        step(batch)
    return finish(model, gradients)


# ---------------------------------------------------------------- equality with one process


@pytest.mark.parametrize("make", [sgd, adam])
@pytest.mark.parametrize("name", MNIST_MODELS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_ddp_trains_as_one_process_does(
    comm: MPI.Intracomm, backend: str, name: str, make: Optimizers
) -> None:
    with process_group(comm, backend):
        ours = through_ddp(dealt(comm), name=name, make=make)
    theirs = one_process(name, torch.float64, make)
    for mine, expected in zip(ours.gradients, theirs.gradients, strict=True):
        assert (mine - expected).abs().max() < 1e-10
    assert (ours.weights - theirs.weights).abs().max() < 1e-10
    assert (ours.outputs - theirs.outputs).abs().max() < 1e-10


@pytest.mark.parametrize(
    "options",
    [{"bucket_cap_mb": 0.01}, {"gradient_as_bucket_view": True}, {"static_graph": True}],
    ids=lambda options: next(iter(options)),
)
@pytest.mark.parametrize("backend", BACKENDS)
def test_options_of_ddp_do_not_change_the_numbers(
    comm: MPI.Intracomm, backend: str, options: dict[str, object]
) -> None:
    with process_group(comm, backend):
        ours = through_ddp(dealt(comm), wrap=lambda model: summing_ddp(model, **options))
    assert worst(comm, ours, one_process("mlp", torch.float64, sgd)) < 1e-10


@pytest.mark.parametrize("backend", BACKENDS)
def test_replicas_agree_to_the_last_bit(comm: MPI.Intracomm, backend: str) -> None:
    model = build("cnn", seed=comm.rank)
    with process_group(comm, backend):
        step = make_step(summing_ddp(model), summed_cross_entropy, sgd(model))
        assert weight_hash(model) == weight_hash(build("cnn", seed=0))  # those of rank 0, at once
        for batch in dealt(comm, torch.float32):
            step(batch)
    assert replicas_agree(comm, model)


@pytest.mark.parametrize("backend", BACKENDS)
def test_ranks_that_run_out_of_samples_join(comm: MPI.Intracomm, backend: str) -> None:
    """Nobody computes with an empty part: who has none left only answers the others' sums, with zeros."""
    mine = [batch for batch in dealt(comm) if len(batch.targets)]
    model = build("mlp", seed=comm.rank).double()
    with process_group(comm, backend):
        replica = summing_ddp(model)
        step = make_step(replica, summed_cross_entropy, sgd(model))
        with Join([replica]):
            for batch in mine:
                step(batch)
    steps = comm.allgather(len(mine))
    assert steps == [3, 2, 2, 1][: comm.size] if comm.size == 4 else steps[0] == 3
    expected = one_process("mlp", torch.float64, sgd).weights
    assert comm.allreduce(float((flatten(list(model.parameters())) - expected).abs().max()), MPI.MAX) < 1e-10


# ---------------------------------------------------------------- the sampler


def test_dealing_gives_everybody_a_part_and_nothing_twice(comm: MPI.Intracomm) -> None:
    order = np.random.default_rng(3).permutation(21)
    mine = list(batch_shards(order, 8, rank=comm.rank, size=comm.size))
    everyone = comm.allgather(mine)
    assert {size for _, size in mine} == {8, 5} and len(mine) == 3
    for number, start in enumerate((0, 8, 16)):
        parts = [batches[number][0].tolist() for batches in everyone]
        assert sorted(chain(*parts)) == sorted(order[start : start + 8].tolist())
        assert max(map(len, parts)) - min(map(len, parts)) <= 1
        assert {batches[number][1] for batches in everyone} == {sum(map(len, parts))}


def test_where_ranks_divide_the_samples_it_deals_as_torch_does(comm: MPI.Intracomm) -> None:
    sampler = DistributedSampler(range(24), comm.size, comm.rank, shuffle=False)
    ours = [part.tolist() for part, _ in batch_shards(np.arange(24), 12, rank=comm.rank, size=comm.size)]
    assert list(chain(*ours)) == list(sampler)


def sampled_batches(sampler: DistributedSampler, batch_size: int) -> Iterator[Batch]:
    """The batches of one epoch of this rank's `sampler`; `batch_size` is the global one."""
    mine, size = np.array(list(sampler)), sampler.num_replicas
    for start in range(0, len(mine), batch_size // size):
        part = mine[start : start + batch_size // size]
        yield image_batch(IMAGES, LABELS, part, global_size=size * len(part))


def two_epochs(comm: MPI.Intracomm, samples: int, set_epoch: bool = True) -> list[Batch]:
    """What a DistributedSampler gives this rank, 12 samples per global batch."""
    sampler = DistributedSampler(range(samples), comm.size, comm.rank, seed=5)
    found: list[Batch] = []
    for epoch in range(2):
        if set_epoch:
            sampler.set_epoch(epoch)
        found += sampled_batches(sampler, 12)
    return [convert(batch) for batch in found]


def global_batches(samples: int) -> list[np.ndarray]:
    """What one process trains on in two epochs that are shuffled as torch does."""
    orders = [
        torch.randperm(samples, generator=torch.Generator().manual_seed(5 + epoch)).numpy()
        for epoch in range(2)
    ]
    return [order[start : start + 12] for order in orders for start in range(0, samples, 12)]


@pytest.mark.parametrize("wrap", [summing_ddp, DistributedDataParallel])
@pytest.mark.parametrize("backend", BACKENDS)
def test_two_epochs_with_the_sampler_are_those_of_one_process(
    comm: MPI.Intracomm, backend: str, wrap: Wrapper
) -> None:
    """With equal parts, torch's average of means is right too."""
    batches, sums = two_epochs(comm, 48), wrap is summing_ddp
    if not sums:
        batches = [Batch(b.inputs, b.targets, len(b.targets)) for b in batches]
    with process_group(comm, backend):
        ours = through_ddp(batches, wrap=wrap)
    assert worst(comm, ours, alone(global_batches(48))) < 1e-10


# ---------------------------------------------------------------- known-wrong variants


def told_apart(comm: MPI.Intracomm, ours: Trace, theirs: Trace) -> None:
    """One rank has nothing to get wrong."""
    difference = worst(comm, ours, theirs)
    assert difference < 1e-10 if comm.size == 1 else difference > 1e-6


@pytest.mark.parametrize("backend", BACKENDS)
def test_known_wrong_averaging_what_has_to_be_summed(comm: MPI.Intracomm, backend: str) -> None:
    """The loss was divided by the global batch, and DDP divides by the ranks once more."""
    with process_group(comm, backend):
        ours = through_ddp(dealt(comm), wrap=DistributedDataParallel)
    told_apart(comm, ours, one_process("mlp", torch.float64, sgd))


@pytest.mark.parametrize("backend", BACKENDS)
def test_known_wrong_the_mean_of_means_of_unequal_parts(comm: MPI.Intracomm, backend: str) -> None:
    batches = [Batch(b.inputs, b.targets, max(1, len(b.targets))) for b in dealt(comm)]
    with process_group(comm, backend):
        ours = through_ddp(batches, wrap=DistributedDataParallel)
    told_apart(comm, ours, one_process("mlp", torch.float64, sgd))


def test_known_wrong_a_sampler_that_repeats_samples(comm: MPI.Intracomm) -> None:
    """47 samples: every number of ranks above 1 gets one twice."""
    with process_group(comm, "mpi4py"):
        ours = through_ddp(two_epochs(comm, 47))
    told_apart(comm, ours, alone(global_batches(47)))


def test_known_wrong_no_set_epoch(comm: MPI.Intracomm) -> None:
    """Wrong on one rank too: the second epoch has the order of the first."""
    with process_group(comm, "mpi4py"):
        ours = through_ddp(two_epochs(comm, 48, set_epoch=False))
    theirs = alone(global_batches(48))
    assert float((ours.weights - theirs.weights).norm() / theirs.weights.norm()) > 1e-6
    assert len(ours.gradients) == len(theirs.gradients)
    first = [float((a - b).norm()) for a, b in zip(ours.gradients, theirs.gradients, strict=True)][:4]
    assert max(first) < 1e-9  # the first epoch was right: nothing tells you yet


def test_known_wrong_every_rank_on_the_same_part(comm: MPI.Intracomm) -> None:
    """DDP does not divide a batch: without a sampler, everybody trains on the first rank's samples."""
    first = [next(batch_shards(step, len(step), rank=0, size=comm.size)) for step in STEPS]
    batches = [convert(image_batch(IMAGES, LABELS, *part)) for part in first]
    with process_group(comm, "mpi4py"):
        ours = through_ddp(batches)
    told_apart(comm, ours, one_process("mlp", torch.float64, sgd))


# ---------------------------------------------------------------- groups come and go


def test_a_group_that_was_left_behind_is_ended(comm: MPI.Intracomm) -> None:
    for before in BACKENDS:
        for after in BACKENDS:
            start_group(comm, before)
            with process_group(comm, after):
                total = torch.tensor([10**comm.rank])
                dist.all_reduce(total)
                assert dist.get_backend() == after
                assert total.item() == int("1" * comm.size)
            assert not dist.is_initialized()


def test_an_error_in_the_body_ends_the_group(comm: MPI.Intracomm) -> None:
    with pytest.raises(KeyError), process_group(comm, "mpi4py"):
        raise KeyError
    assert not dist.is_initialized()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_group_of_some_ranks_leaves_the_others_alone(comm: MPI.Intracomm, backend: str) -> None:
    team = comm.Split(0 if comm.rank < 2 else MPI.UNDEFINED, comm.rank)
    if team == MPI.COMM_NULL:
        assert not dist.is_initialized()
        return
    with process_group(team, backend):
        assert dist.get_world_size() == min(2, comm.size)
