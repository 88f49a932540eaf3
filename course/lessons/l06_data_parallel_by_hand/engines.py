"""The ways to sum gradients, by name: each fills `synchronize` of `make_step`.

    synchronize = ENGINES["overlapped buckets"](comm, model)
    step = make_step(model, loss_fn, optimizer, synchronize)

All leave the sum over `comm` in every `parameter.grad`, so all train alike; they differ in their messages,
and in when these leave. Make one engine for a model, on all ranks, before its first backward pass. For
`make_accumulating_step`, which has several backward passes per step, take any but the last: its buckets leave
after the first pass, and it raises ValueError in the second.
"""

from collections.abc import Callable, Mapping
from functools import partial

from mpi4py import MPI
from torch import nn

from course_lib.parallel.data_parallel import GradientBucket, sum_gradients
from course_lib.parallel.gradient_buckets import GradientBuckets

Engine = Callable[[MPI.Intracomm, nn.Module], Callable[[], None]]


def one_by_one(comm: MPI.Intracomm, model: nn.Module) -> Callable[[], None]:
    """One Allreduce per parameter, after backward."""
    return partial(sum_gradients, comm, model)


def one_bucket(comm: MPI.Intracomm, model: nn.Module) -> Callable[[], None]:
    """One Allreduce of one flat bucket, after backward."""
    return partial(GradientBucket(model).sum, comm)


def fused_buckets(comm: MPI.Intracomm, model: nn.Module) -> Callable[[], None]:
    """One Iallreduce per bucket of fused neighbours, after backward."""
    return GradientBuckets(comm, model, overlap=False).wait


def overlapped_buckets(comm: MPI.Intracomm, model: nn.Module) -> Callable[[], None]:
    """One Iallreduce per bucket, as soon as its gradients are there, during backward."""
    return GradientBuckets(comm, model).wait


ENGINES: Mapping[str, Engine] = {
    "one by one": one_by_one,
    "one bucket": one_bucket,
    "fused buckets": fused_buckets,
    "overlapped buckets": overlapped_buckets,
}
