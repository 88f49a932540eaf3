"""What helps on a slow link: each remedy beside PyTorch's DDP, to equal accuracy and after equal epochs.

Two nodes of a lab train a network of a million weights, joined by links of 100 Mbit/s: a step sends 4 MB of
gradients per rank, which takes far longer than its arithmetic.

    exact        one message per parameter, one bucket, overlapped buckets      as many bytes as DDP
    rounded      bfloat16 gradients                                             half of them
    fewer sums   gradient accumulation, local SGD                               a message every few batches
    compressed   top-k, PowerSGD                                                a small part, the rest later

All start from the same weights and see the same images in the same order, with the same learning rate. Only
accumulation has a larger one, as its batches are larger. `peer` is DDP over mpi4py with its defaults. Rows:

    to equal accuracy     seconds to the accuracy of DDP after one epoch, rounded down to half a percent
    after equal epochs    accuracy after one epoch
    per batch             seconds for 512 images, and bytes that node 1 sent over its link meanwhile

DDP trains for one epoch; the others go on for up to four, until they have its accuracy. A remedy that does
not reach it with every seed has no row for that. A row has the median over the seeds. The clock is stopped
while the test images are scored. Bytes are those that the network device counts, with all headers.

    python -m benchmarks.slow_link_training [--quick] [--json FILE]

It needs what a lab needs (docs/several-machines/lab.md). With COURSE_DATA set to a folder that has it, it
trains on the real MNIST, else on drawn digits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import floor
from typing import TYPE_CHECKING, Any

from benchmarks.harness import CannotMeasure, Row, Timing, main, on_lab, row
from benchmarks.parts.limited_link import device_nbytes
from course_lib.data.mnist import load_mnist
from mpi_classroom.network import network
from mpi_classroom.network_commands import NetworkError

if TYPE_CHECKING:
    from mpi4py import MPI
    from torch import nn
    from torch.optim import Optimizer

    from course_lib.training.loop import Step

NODES = 2  # with a rank each
RATE = "100mbit"
SEEDS = (0, 1, 2)
EPOCHS, MOST_EPOCHS = 1, 4  # of all, and of those that have not reached DDP's accuracy by then
IMAGES = 512  # per global batch
LEARNING_RATE, MOMENTUM = 0.1, 0.9
BETWEEN_SCORES = 16  # batches in a part of an epoch
ACCUMULATED, PERIOD, FRACTION, MATRIX_RANK = 4, 8, 0.01, 4
PLAIN = "PyTorch's DDP"

Run = dict[str, Any]  # "seconds" and "accuracy" after each part, how many "parts" DDP trained; see `train`


def measure(quick: bool) -> list[Row]:
    """All rows."""
    data = load_mnist().name  # here, and not only on the nodes: they could not download it
    seeds, batches = (SEEDS[:1], 16) if quick else (SEEDS, None)
    try:
        with network(NODES, rate=RATE) as lab:
            runs = [on_lab(lab, race, timeout=3600, seed=seed, batches=batches) for seed in seeds]
    except NetworkError as reason:
        raise CannotMeasure(f"it needs a lab of several nodes; {reason}") from None
    return rows_of(f"{NODES} nodes × 1 rank, {data}", NODES, runs)


def rows_of(title: str, ranks: int, runs: Sequence[Mapping[str, Run]]) -> list[Row]:
    """Each remedy beside DDP; `runs` has what each seed gave, by contender."""
    rows = []
    for name in runs[0]:
        if name == PLAIN:
            continue
        both = [[run[who] for run in runs] for who in (name, PLAIN)]
        reached = [[seconds_to(goal_of(run[PLAIN]), run[who]) for run in runs] for who in (name, PLAIN)]
        if None not in reached[0]:
            rows.append(compare(f"{title}: to equal accuracy, {name}", ranks, reached, "s"))
        measured = {
            "after equal epochs": (
                "% right",
                [[100 * r["accuracy"][r["parts"] - 1] for r in each] for each in both],
            ),
            "per batch": ("s", [[run["seconds"][-1] / run["batches"] for run in each] for each in both]),
            "over the link per batch": (
                "bytes",
                [[r["bytes"] / r["batches"] for r in each] for each in both],
            ),
        }
        rows += [
            compare(f"{title}: {what}, {name}", ranks, values, unit)
            for what, (unit, values) in measured.items()
        ]
    return rows


def goal_of(plain: Run) -> float:
    """The accuracy that DDP ended with, rounded down to half a percent."""
    return floor(200 * plain["accuracy"][-1]) / 200


def compare(case: str, ranks: int, values: Sequence[Sequence[Any]], unit: str) -> Row:
    ours, peer = map(Timing.of, values)
    return row(case, ranks, ours, peer, PLAIN, unit=unit)


def seconds_to(accuracy: float, run: Run) -> float | None:
    """Seconds of training until the first score of at least `accuracy`; None where there is none."""
    scored = zip(run["seconds"], run["accuracy"], strict=True)
    return next((seconds for seconds, reached in scored if reached >= accuracy), None)


# ---------------------------------------------------------------- on the ranks


@dataclass(frozen=True, slots=True)
class Contender:
    """A way to train: `make` returns a step, and what ends a part of the training.

    A step sees `batches` global batches as one, and its learning rate is `faster` times the others'.
    """

    make: Callable[[MPI.Intracomm, nn.Module, Optimizer], tuple[Step, Callable[[], object]]]
    batches: int = 1
    faster: float = 1.0


def race(comm: MPI.Intracomm, seed: int, batches: int | None = None, device: str = "eth0") -> dict[str, Run]:
    """What each contender did, by name; DDP comes first, as the others train until they have its accuracy.

    `batches`: take only so many of each epoch. `device` is the network device whose bytes are counted.
    """
    import torch

    from course_lib.parallel.ddp import process_group
    from course_lib.training.loop import shuffled_batches

    torch.set_num_threads(1)
    data, found = load_mnist(), {}
    epochs = [
        shuffled_batches(len(data.train_labels), IMAGES, seed=seed, epoch=epoch)[:batches]
        for epoch in range(MOST_EPOCHS)
    ]
    with process_group(comm, "mpi4py"):
        found[PLAIN] = train(comm, CONTENDERS[PLAIN], data, epochs, seed, device, goal=0.0)
        goal = goal_of(found[PLAIN])
        for name, contender in CONTENDERS.items():
            if name != PLAIN:
                found[name] = train(comm, contender, data, epochs, seed, device, goal)
    return found


def train(
    comm: MPI.Intracomm,
    contender: Contender,
    data: Any,
    epochs: Sequence[Sequence[Any]],
    seed: int,
    device: str,
    goal: float,
) -> Run:
    """Train for EPOCHS of `epochs`, then until the accuracy is `goal` or there are no more.

    The test images are scored after each part of an epoch, with the clock stopped. Returns "seconds" so far
    and "accuracy" after each part, how many "parts" EPOCHS have, and how many "batches" and "bytes" it took.
    """
    from mpi4py import MPI
    from torch.optim import SGD

    from course_lib.parallel.data_parallel import broadcast_weights, evaluate_shard, shard_batches
    from course_lib.training.loop import fit
    from course_lib.training.models import seeded

    model = seeded(wide_mlp, seed=seed, name="wide mlp")
    broadcast_weights(comm, model)
    optimizer = SGD(model.parameters(), lr=LEARNING_RATE * contender.faster, momentum=MOMENTUM)
    step, finish = contender.make(comm, model, optimizer)
    parts = [pieces(epoch, BETWEEN_SCORES) for epoch in epochs]
    enough = sum(map(len, parts[:EPOCHS]))
    seconds: list[float] = []
    accuracy: list[float] = []
    elapsed, batches, nbytes = 0.0, 0, 0
    for part in (each for epoch in parts for each in epoch):
        if len(seconds) >= enough and max(accuracy) >= goal:
            break
        comm.Barrier()
        sent, start = device_nbytes(device), MPI.Wtime()
        fit(step, shard_batches(comm, data.train_images, data.train_labels, merged(part, contender.batches)))
        finish()
        comm.Barrier()  # the slowest rank counts
        elapsed += MPI.Wtime() - start
        nbytes += device_nbytes(device) - sent
        batches += len(part)
        score = evaluate_shard(comm, model, data.test_images, data.test_labels)
        seconds.append(comm.bcast(elapsed))
        accuracy.append(comm.allreduce(score.correct) / len(data.test_labels))
    return {"seconds": seconds, "accuracy": accuracy, "parts": enough, "batches": batches, "bytes": nbytes}


def pieces(items: Sequence[Any], length: int) -> list[Sequence[Any]]:
    """`items` cut into pieces of `length`; the last may be shorter."""
    return [items[start : start + length] for start in range(0, len(items), length)]


def merged(batches: Sequence[Any], count: int) -> list[Any]:
    """Each `count` of the `batches` as one."""
    import numpy as np

    return [np.concatenate(several) for several in pieces(batches, count)]


def wide_mlp() -> nn.Module:
    """784-1024-192-10, 1 002 570 weights: much to send for little arithmetic."""
    from torch import nn

    return nn.Sequential(
        nn.Flatten(),
        *(nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 192), nn.ReLU(), nn.Linear(192, 10)),
    )


# ---------------------------------------------------------------- the contenders


def ddp(comm: MPI.Intracomm, model: nn.Module, optimizer: Optimizer) -> Any:
    """PyTorch's DDP with its defaults: buckets that leave during backward."""
    from course_lib.parallel.ddp import summing_ddp
    from course_lib.training.loop import do_nothing, make_step, summed_cross_entropy

    return make_step(summing_ddp(model), summed_cross_entropy, optimizer), do_nothing


def summing(engine: Callable[[MPI.Intracomm, nn.Module], Callable[[], object]]) -> Any:
    """A contender that differs from one process by what it calls between backward and update."""

    def make(comm: MPI.Intracomm, model: nn.Module, optimizer: Optimizer) -> Any:
        from course_lib.training.loop import do_nothing, make_step, summed_cross_entropy

        return make_step(model, summed_cross_entropy, optimizer, engine(comm, model)), do_nothing

    return make


def engine(name: str) -> Callable[[MPI.Intracomm, nn.Module], Callable[[], object]]:
    """An engine of lesson 06."""

    def make(comm: MPI.Intracomm, model: nn.Module) -> Callable[[], object]:
        from course.lessons.l06_data_parallel_by_hand.engines import ENGINES

        return ENGINES[name](comm, model)

    return make


def bfloat16(comm: MPI.Intracomm, model: nn.Module) -> Callable[[], object]:
    """All gradients in one message of 16-bit numbers."""
    import torch

    from course_lib.parallel.gradient_buckets import GradientBuckets

    nbytes = sum(parameter.nbytes for parameter in model.parameters())
    wire = torch.bfloat16
    return GradientBuckets(comm, model, bucket_bytes=nbytes, overlap=False, wire_dtype=wire).wait


def top_k(comm: MPI.Intracomm, model: nn.Module) -> Callable[[], object]:
    """The largest entries, with error feedback."""
    from course_lib.parallel.compression import TopK

    return TopK(comm, model, fraction=FRACTION).sum


def power_sgd(comm: MPI.Intracomm, model: nn.Module) -> Callable[[], object]:
    """A low rank, with error feedback."""
    from course_lib.parallel.compression import PowerSGD

    return PowerSGD(comm, model, matrix_rank=MATRIX_RANK).sum


def accumulation(comm: MPI.Intracomm, model: nn.Module, optimizer: Optimizer) -> Any:
    """Several batches per update, one message for all of them."""
    from course.lessons.l06_data_parallel_by_hand.engines import one_bucket
    from course_lib.training.loop import do_nothing, make_accumulating_step, summed_cross_entropy

    size = -(-IMAGES // comm.size)
    together = one_bucket(comm, model)
    return make_accumulating_step(model, summed_cross_entropy, optimizer, size, together), do_nothing


def local_sgd(comm: MPI.Intracomm, model: nn.Module, optimizer: Optimizer) -> Any:
    """Every rank alone for some batches, then the mean of their weights and momenta."""
    from course_lib.parallel.local_sgd import LocalSGD
    from course_lib.training.loop import summed_cross_entropy

    local = LocalSGD(comm, model, summed_cross_entropy, optimizer, period=PERIOD)
    return local.step, local.average


CONTENDERS = {
    PLAIN: Contender(ddp),
    "one message per parameter": Contender(summing(engine("one by one"))),
    "one bucket": Contender(summing(engine("one bucket"))),
    "overlapped buckets": Contender(summing(engine("overlapped buckets"))),
    "bfloat16 gradients": Contender(summing(bfloat16)),
    f"accumulation over {ACCUMULATED} batches": Contender(accumulation, ACCUMULATED, 2.0),
    f"top-k, {FRACTION:.0%} of the entries": Contender(summing(top_k)),
    f"PowerSGD of rank {MATRIX_RANK}": Contender(summing(power_sgd)),
    f"local SGD, a mean every {PERIOD} batches": Contender(local_sgd),
}


if __name__ == "__main__":
    main("What helps on a slow link: remedies beside PyTorch's DDP", measure)
