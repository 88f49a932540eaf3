"""DDP over Gloo and over mpi4py, on as many ranks as this session has, held to one process.

The oracle is that of test_data_parallel.py. What is often done wrong is kept, and has to be told from it.
"""

from collections.abc import Callable, Sequence

import pytest
import torch
import torch.distributed as dist
from mpi4py import MPI
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

from course_lib.parallel.data_parallel import replicas_agree, shard_batches, weight_hash
from course_lib.parallel.ddp import process_group, start_group, summing_ddp
from course_lib.training.flat import flatten
from course_lib.training.loop import Batch, make_step, summed_cross_entropy
from course_lib.training.models import MNIST_MODELS, build
from tests.ranks.test_data_parallel import (
    IMAGES,
    LABELS,
    STEPS,
    Optimizers,
    Trace,
    adam,
    convert,
    finish,
    one_process,
    sgd,
    worst,
)

BACKENDS = ("gloo", "mpi4py")
Wrapper = Callable[[nn.Module], nn.Module]


def dealt(comm: MPI.Intracomm, dtype: torch.dtype = torch.float64) -> list[Batch]:
    """This rank's shard of each of the STEPS."""
    return [convert(batch, dtype) for batch in shard_batches(comm, IMAGES, LABELS, STEPS)]


def through_ddp(
    batches: Sequence[Batch], *, name: str = "mlp", make: Optimizers = sgd, wrap: Wrapper = summing_ddp
) -> Trace:
    """The same in the group of this moment; what a wrong variant does differently is an argument."""
    model = build(name, seed=dist.get_rank()).double()  # different on every rank, until DDP wraps it
    replica = wrap(model)
    gradients: list[torch.Tensor] = []
    look = lambda: gradients.append(flatten([p.grad for p in model.parameters()]))  # noqa: E731
    step = make_step(replica, summed_cross_entropy, make(model), look)
    for batch in batches:
        step(batch)
    return finish(model, gradients, torch.float64)


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
