"""What the ranks in the lab run: one task per job; rank 0 prints its result as one line of JSON.

    python -m mpi4py -m course.lessons.l14_scaling_out.runs TASK OPTIONS       (OPTIONS is JSON)

The tasks: the seconds of an exchange over the link, all-reduces, a data-parallel step, a short training.
torch is imported only by the tasks that need it.
"""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import median
from typing import Any, cast

import numpy as np
from mpi4py import MPI

from course.lessons.l14_scaling_out.packed import loaded
from course_lib.comm import collectives
from course_lib.comm.counting import device_nbytes
from course_lib.comm.timing import seconds_of_each

Result = dict[str, Any]
ACCUMULATED, PERIOD = 4, 8  # micro-batches per update, steps from one mean of the weights to the next
MATRIX_RANK, FRACTION = 4, 0.01  # what PowerSGD and top-k send of a gradient
LONG_ENOUGH, FEWEST, MOST = 0.1, 3, 200  # seconds of a series of exchanges, and how many those are


# ------------------------------------------------------------------ the link


def exchange(comm: MPI.Intracomm, *, sizes: Sequence[int], rounds: int) -> Result:
    """Seconds in which ranks 0 and 1 exchange arrays of each of `sizes` bytes, in each of the rounds.

    The exchanges of a series follow each other at once, as in a ring: a pause would refill the link's bucket.
    """
    seconds = [[_exchange_seconds(comm, nbytes) for nbytes in sizes] for _ in range(rounds)]
    return {"nbytes": list(sizes), "seconds": seconds}


def _exchange_seconds(comm: MPI.Intracomm, nbytes: int) -> float:
    out, into, other = np.ones(nbytes, np.uint8), np.empty(nbytes, np.uint8), 1 - comm.rank

    def series(times: int) -> None:
        for _ in range(times):
            comm.Sendrecv(out, other, recvbuf=into, source=other)

    first = seconds_of_each(comm, partial(series, 1), 2)[1]
    times = max(FEWEST, min(MOST, round(LONG_ENOUGH / first)))
    return seconds_of_each(comm, partial(series, times), 1)[0] / times


# ------------------------------------------------------------------ all-reduces


def allreduces(
    comm: MPI.Intracomm, *, nbytes: int, names: Sequence[str], times: int = 3, own: str = ""
) -> Result:
    """By name: the seconds of an all-reduce of `nbytes`, what crossed the link, and whether the sum is right.

    `own` is a hierarchical all-reduce from the notebook (see `packed`), else it is the course's.
    """
    inside = cast(MPI.Intracomm, comm.Split_type(MPI.COMM_TYPE_SHARED))
    between = cast(MPI.Intracomm, comm.Split(0 if inside.rank == 0 else MPI.UNDEFINED, comm.rank))
    in_turn = cast(MPI.Intracomm, comm.Split(0, inside.rank * comm.size + comm.rank))  # 0, 2, 1, 3
    hierarchical = loaded(own, {"np": np, "MPI": MPI}) if own else collectives.hierarchical_allreduce
    algorithms: Mapping[str, Callable[[Any], object]] = {
        "ring": lambda array: collectives.ring_allreduce(comm, array),
        "ring, ranks in turn": lambda array: collectives.ring_allreduce(in_turn, array),
        "hierarchical": lambda array: hierarchical(inside, between, array),
        "MPI's own": lambda array: comm.Allreduce(MPI.IN_PLACE, array),
        "MPI's own, ranks in turn": lambda array: in_turn.Allreduce(MPI.IN_PLACE, array),
    }
    return {name: _measured(comm, inside, algorithms[name], nbytes, times) for name in names}


def _measured(
    comm: MPI.Intracomm,
    inside: MPI.Intracomm,
    allreduce: Callable[[Any], object],
    nbytes: int,
    times: int,
) -> Result:
    array = np.ones(nbytes // 4, np.float32)
    allreduce(array)  # warm-up: the connections are made now
    right = bool(np.all(array == comm.size))
    array[:] = 0
    before = device_nbytes()
    seconds = seconds_of_each(comm, lambda: allreduce(array), times)
    comm.Barrier()
    sent = (device_nbytes() - before) / times if inside.rank == 0 else 0.0
    return {
        "seconds": median(seconds),
        "link_nbytes": comm.allreduce(sent),
        "right": comm.allreduce(right, op=MPI.LAND),
    }


# ------------------------------------------------------------------ training


def step(comm: MPI.Intracomm, *, batch: int, steps: int) -> Result:
    """Median seconds of a data-parallel step of lesson 06's CNN: computing, and the sum of the gradients.

    `batch` images per rank. A barrier before the sum counts as computing: it waits for the slowest rank.
    """
    import torch

    from course_lib.parallel.data_parallel import GradientBucket
    from course_lib.training.loop import summed_cross_entropy
    from course_lib.training.models import build

    model = build("cnn", seed=0)
    bucket, optimizer = GradientBucket(model), torch.optim.SGD(model.parameters(), lr=0.01)
    images, labels = torch.randn(batch, 1, 28, 28), torch.randint(10, (batch,))
    found = []
    for _ in range(steps + 2):  # the first two warm up
        comm.Barrier()
        begin = MPI.Wtime()
        optimizer.zero_grad(set_to_none=False)
        (summed_cross_entropy(model(images), labels) / (batch * comm.size)).backward()
        comm.Barrier()
        ready = MPI.Wtime()
        bucket.sum(comm)
        summed = MPI.Wtime()
        optimizer.step()
        found.append((MPI.Wtime() - begin - (summed - ready), summed - ready))
    slowest = np.max(comm.allgather(found[2:]), axis=0)  # (steps, 2)
    computing, allreduce = np.median(slowest, axis=0).tolist()
    return {
        "computing": computing,
        "allreduce": allreduce,
        "nbytes": bucket.flat.nbytes,
        "images": batch * comm.size,
    }


def train(comm: MPI.Intracomm, *, choice: str, images: int, batch: int = 128) -> Result:
    """Train the CNN on the first `images` digits with a global batch of `batch`, as `choice` says.

    `accumulate` keeps the learning rate of the others: with twice as large a one it learned less, and with
    four times, by the linear scaling rule, it diverged. Seconds of all steps together, the loss of each step,
    the accuracy on 2 000 test digits, and the bytes that crossed the link.
    """
    import torch

    from course_lib.data.mnist import load_mnist
    from course_lib.parallel.data_parallel import evaluate_shard, shard_batches
    from course_lib.training.loop import shuffled_batches
    from course_lib.training.metrics import Score
    from course_lib.training.models import build

    data, model = load_mnist(), build("cnn", seed=0)
    larger = ACCUMULATED if choice == "accumulate" else 1
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    one_step, finish = _remedy(comm, choice, model, optimizer, per_rank=batch // comm.size)
    order = shuffled_batches(len(data.train_labels), batch * larger, seed=0)[: images // (batch * larger)]
    batches = list(shard_batches(comm, data.train_images, data.train_labels, order))
    comm.Barrier()
    before, begin = device_nbytes(), MPI.Wtime()
    losses = [one_step(each) for each in batches]
    finish()
    comm.Barrier()
    seconds, sent = MPI.Wtime() - begin, device_nbytes() - before
    score = evaluate_shard(comm, model, data.test_images[:2000], data.test_labels[:2000])
    inside = comm.Split_type(MPI.COMM_TYPE_SHARED)
    return {
        "seconds": comm.allreduce(seconds, op=MPI.MAX),
        "losses": comm.allreduce(np.array(losses)).tolist(),
        "accuracy": sum(comm.allgather(score), Score()).accuracy,
        "link_nbytes": comm.allreduce(sent if inside.rank == 0 else 0),
        "data": data.name,
    }


def _remedy(
    comm: MPI.Intracomm, choice: str, model: Any, optimizer: Any, *, per_rank: int
) -> tuple[Callable[[Any], float], Callable[[], object]]:
    """The training step of a choice, and what ends the training."""
    import torch

    from course_lib.parallel.compression import PowerSGD, TopK
    from course_lib.parallel.gradient_buckets import BUCKET_BYTES, GradientBuckets
    from course_lib.parallel.local_sgd import LocalSGD
    from course_lib.training.loop import do_nothing, make_accumulating_step, make_step, summed_cross_entropy

    if choice == "local SGD":
        local = LocalSGD(comm, model, summed_cross_entropy, optimizer, period=PERIOD)
        return local.step, local.average
    if choice == "PowerSGD":
        power = PowerSGD(comm, model, matrix_rank=MATRIX_RANK)
        return make_step(model, summed_cross_entropy, optimizer, power.sum), do_nothing
    if choice == "top-k":
        largest = TopK(comm, model, fraction=FRACTION)
        return make_step(model, summed_cross_entropy, optimizer, largest.sum), do_nothing
    half = torch.bfloat16 if choice == "bfloat16" else None
    together = sum(parameter.nbytes for parameter in model.parameters())
    room = together if choice == "bigger buckets" else BUCKET_BYTES
    overlap = choice == "overlap"
    buckets = GradientBuckets(comm, model, bucket_bytes=room, overlap=overlap, wire_dtype=half)
    if choice == "accumulate":
        step = make_accumulating_step(model, summed_cross_entropy, optimizer, per_rank, buckets.wait)
        return step, buckets.close
    return make_step(model, summed_cross_entropy, optimizer, buckets.wait), buckets.close


TASKS: Mapping[str, Callable[..., Result]] = {
    "exchange": exchange,
    "allreduces": allreduces,
    "step": step,
    "train": train,
}


def main(arguments: Sequence[str]) -> None:
    """Run the task that the first argument names, with the options of the second one."""
    task, options = arguments
    result = TASKS[task](MPI.COMM_WORLD, **json.loads(options))
    if MPI.COMM_WORLD.rank == 0:
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
