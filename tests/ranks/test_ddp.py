"""DDP over Gloo and over mpi4py, on as many ranks as this session has, held to one process.

The oracle is that of test_data_parallel.py: the loop of the tutorials, computed by every rank for itself.
What is often done wrong is kept, and has to be told from it. That torch's own DDP, its options, `no_sync` and
`Join` work over mpi4py is held in packages/torch_mpi4py/tests/ranks/test_stack.py.
"""

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from mpi4py import MPI
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from course_lib.parallel.ddp import process_group, start_group, summing_ddp
from course_lib.training.models import MNIST_MODELS
from tests.ranks.test_data_parallel import (
    Optimizers,
    Trace,
    adam,
    keeps_to_itself,
    one_process,
    sgd,
    together,
    worst,
)

BACKENDS = ("gloo", "mpi4py")
Wrapper = Callable[[nn.Module], nn.Module]


def through_ddp(
    comm: MPI.Intracomm, backend: str, wrap: Wrapper = summing_ddp, name: str = "mlp", make: Optimizers = sgd
) -> Trace:
    """Training in a group of `backend`: DDP broadcasts the weights and sums the gradients."""
    with process_group(comm, backend):
        return together(
            comm,
            name,
            optimizers=make,
            synchronizers=keeps_to_itself,
            broadcast=lambda comm, model: None,
            wrap=wrap,
        )


# ---------------------------------------------------------------- equality with one process


@pytest.mark.parametrize("make", [sgd, adam])
@pytest.mark.parametrize("name", MNIST_MODELS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_ddp_trains_as_one_process_does(
    comm: MPI.Intracomm, backend: str, name: str, make: Optimizers
) -> None:
    ours = through_ddp(comm, backend, name=name, make=make)
    assert worst(comm, ours, one_process(name, torch.float64, make)) < 1e-10


@pytest.mark.parametrize("backend", BACKENDS)
def test_known_wrong_averaging_what_has_to_be_summed(comm: MPI.Intracomm, backend: str) -> None:
    """The loss was divided by the global batch, and DDP divides by the ranks once more."""
    ours = through_ddp(comm, backend, wrap=DistributedDataParallel)
    difference = worst(comm, ours, one_process("mlp", torch.float64, sgd))
    assert difference < 1e-10 if comm.size == 1 else difference > 1e-6


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
