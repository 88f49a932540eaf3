"""Fused, overlapped and compressed buckets: what may differ between ranks and steps, and what must not.

That they train as one process does is held, for every engine, in test_data_parallel.py.
"""

import pytest
import torch
from mpi4py import MPI
from torch import nn
from torch.nn import functional as F

from course_lib.parallel.data_parallel import GradientBucket, replicas_agree, weight_hash
from course_lib.parallel.gradient_buckets import HALVES, GradientBuckets, sum_when_ready
from course_lib.training.flat import flatten
from course_lib.training.models import build
from tests.ranks.test_data_parallel import (
    IMAGES,
    one_process,
    sgd,
    together,
    worst,
)

FEW_BYTES = 2**17  # several buckets for each of the three models


def gradients_of(model: nn.Module) -> torch.Tensor:
    return flatten([parameter.grad for parameter in model.parameters()])


# ---------------------------------------------------------------- fusion


def test_a_larger_threshold_fuses_more_tensors_into_fewer_messages(comm: MPI.Intracomm) -> None:
    def names(limit: int) -> list[list[str]]:
        model = build("mlp", seed=0)
        of = {parameter: name for name, parameter in model.named_parameters()}
        buckets = GradientBuckets(comm, model, bucket_bytes=limit)
        buckets.close()
        return [[of[parameter] for parameter in bucket.parameters] for bucket in buckets.buckets]

    fc1, fc2, fc3 = (["fc1.bias", "fc1.weight"], ["fc2.bias", "fc2.weight"], ["fc3.bias", "fc3.weight"])
    assert names(1) == [[name] for name in (*fc3, *fc2, *fc1)]  # backward's order
    assert names(2**18) == [[*fc3, *fc2, "fc1.bias"], ["fc1.weight"]]
    assert names(2**20) == [[*fc3, *fc2, *fc1]]


# ---------------------------------------------------------------- order, and what is missing


class Fork(nn.Module):
    """Two layers side by side; which is called first, and so whose gradient comes last, is up to the rank."""

    def __init__(self, first: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.left, self.right, self.first = nn.Linear(3, 4), nn.Linear(3, 4), first

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if self.first == "left":
            left = self.left(inputs)
            return left * self.right(inputs)
        right = self.right(inputs)
        return right * self.left(inputs)


def test_hooks_may_fire_in_another_order_on_every_rank(comm: MPI.Intracomm) -> None:
    model, alone = Fork(("left", "right")[comm.rank % 2]), Fork("left")
    inputs = torch.arange(12.0).reshape(4, 3)
    fired: list[str] = []
    for name, parameter in model.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda _, name=name: fired.append(name))
    buckets = GradientBuckets(comm, model, bucket_bytes=1)
    model(inputs).sum().backward()
    comm.Allreduce(MPI.IN_PLACE, torch.ones(3).numpy())  # somebody else's collective comes in between
    buckets.wait()
    alone(inputs).sum().backward()
    orders = comm.allgather(fired)
    assert len({tuple(order) for order in orders}) == min(comm.size, 2)
    assert torch.allclose(gradients_of(model), comm.size * gradients_of(alone), rtol=1e-6)


@pytest.mark.parametrize("name", ["mlp", "cnn"])  # the layout of the CNN is channels-last
def test_the_smallest_overlap_trains_as_one_process_does(comm: MPI.Intracomm, name: str) -> None:
    ours = together(comm, name, synchronizers=sum_when_ready)
    assert worst(comm, ours, one_process(name, torch.float64, sgd)) < 1e-10


# ---------------------------------------------------------------- several backward passes per step


def test_a_second_backward_pass_that_was_not_announced_is_refused(comm: MPI.Intracomm) -> None:
    model = build("mlp", seed=0)
    buckets = GradientBuckets(comm, model)
    images = torch.zeros(2, 1, 28, 28)
    model(images).sum().backward()
    with pytest.raises(ValueError, match="set `overlap` to False"):
        model(images).sum().backward()
    buckets.wait()


# ---------------------------------------------------------------- compression


@pytest.mark.parametrize("dtype", HALVES)
def test_compressed_buckets_send_half_the_bytes_and_round(comm: MPI.Intracomm, dtype: torch.dtype) -> None:
    model, exact = build("cnn", seed=0), build("cnn", seed=0)
    buckets, plain = GradientBuckets(comm, model, wire_dtype=dtype), GradientBucket(exact)
    inputs = torch.from_numpy(IMAGES[comm.rank : comm.rank + 3]).unsqueeze(1).float() / 255
    for replica in (model, exact):
        F.cross_entropy(replica(inputs), torch.arange(3)).backward()
    buckets.wait()
    plain.sum(comm)
    assert 2 * sum(bucket.message.nbytes for bucket in buckets.buckets) == plain.flat.nbytes
    ours, theirs = gradients_of(model), gradients_of(exact)
    error = float((ours - theirs).norm() / theirs.norm())
    assert 1e-6 < error < 3 * torch.finfo(dtype).eps
    assert len({*comm.allgather(ours.numpy().tobytes())}) == 1  # wrong alike on all ranks


# ---------------------------------------------------------------- refusals and deadlines


def test_a_rank_that_does_not_come_is_not_waited_for_for_ever(comm: MPI.Intracomm) -> None:
    if comm.size == 1:
        pytest.skip("one rank waits for nobody")
    buckets = GradientBuckets(comm, build("mlp", seed=0), timeout=0.2)
    if comm.rank == 0:
        with pytest.raises(TimeoutError, match=r"bucket 0 of 2 is not there after 0\.2 s"):
            buckets.wait()
    comm.Barrier()
    if comm.rank > 0:
        buckets.timeout = 30
        buckets.wait()
    comm.Barrier()


def test_other_parameters_or_settings_are_refused_on_all_ranks(comm: MPI.Intracomm) -> None:
    if comm.size > 1:
        with pytest.raises(ValueError, match="the same model with the same settings on all ranks"):
            GradientBuckets(comm, nn.Linear(2 + comm.rank, 1))
        with pytest.raises(ValueError, match="the same model with the same settings on all ranks"):
            GradientBuckets(comm, nn.Linear(2, 1), bucket_bytes=1 + comm.rank)
        with pytest.raises(ValueError, match="the same model with the same settings on all ranks"):
            frozen = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
            frozen[comm.rank > 0].requires_grad_(False)  # equal shapes, and yet another layer
            GradientBuckets(comm, frozen)
    with pytest.raises(ValueError, match="bfloat16"):
        GradientBuckets(comm, nn.Linear(2, 1).bfloat16())
    with pytest.raises(ValueError, match="wire_dtype"):
        GradientBuckets(comm, nn.Linear(2, 1), wire_dtype=torch.float64)
    with pytest.raises(ValueError, match="no trainable parameter"):
        GradientBuckets(comm, nn.ReLU())


def test_closed_buckets_leave_the_model_alone(comm: MPI.Intracomm) -> None:
    model = build("mlp", seed=0)
    GradientBuckets(comm, model).close()
    before = weight_hash(model)
    model.zero_grad()
    model(torch.zeros(2, 1, 28, 28)).sum().backward()
    assert weight_hash(model) == before
    assert replicas_agree(comm, model)
