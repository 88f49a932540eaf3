"""CIFAR-10 with DeepSpeed on two ranks, ZeRO-2, beside one process: accuracy and CPU seconds.

Both train the same net on the same global batches, from the same weights, with AdamW, shifted and mirrored
images, and a learning rate that climbs for a quarter of the updates and then falls to 0. A seed stands for
weights, order and shifts.

With the real images (COURSE_DATA), both train on the first four batches. data_batch_5 is the validation set:
it chose every setting. The test images are scored once per seed, at the end: those of CIFAR-10 if they
are there, else those in the file that --test names, in the binary version of CIFAR-10.

    python -m benchmarks.deepspeed_cifar [--quick] [--test FILE] [--json FILE]

It takes minutes per seed.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.harness import Row, Timing, about_this_run, as_json, on_ranks, row, save, show

if TYPE_CHECKING:
    import numpy as np
    from mpi4py import MPI
    from numpy.typing import NDArray
    from torch import nn

    from course_lib.data.dataset import Dataset
    from course_lib.training.loop import Batch

RANKS, STAGE, BATCH = 2, 2, 128
SEEDS = (0, 1, 2)
EPOCHS, FIFTH = 3, 10_000  # images in a batch of CIFAR-10
MODEL, RATE = "convnet", 5e-3  # the net, and its highest learning rate
CLIMB = 0.25  # of the updates
SHIFT = 2  # pixels by which an image moves at most, each way
TITLE = "CIFAR-10: DeepSpeed on two ranks beside one process"
MEAN = "mean over the seeds"
TIMEOUT = 3600.0  # seconds for a training


@dataclass(frozen=True, slots=True)
class Images:
    """Images to train on and to validate with, and those to test with once, if there are any."""

    data: Dataset
    test: Dataset | None

    @property
    def name(self) -> str:
        """What is trained on and validated with."""
        return f"{self.data.name}, {len(self.data.train_labels)} images"


# ---------------------------------------------------------------- the rows


def measure(quick: bool, seeds: Sequence[int], test: str | None) -> list[Row]:
    """The rows of each seed."""
    sizes: dict[str, Any] = {"epochs": EPOCHS, "train": None, "test": None, "file": test}
    if quick:
        sizes |= {"epochs": 2, "train": 4_000, "test": 1_000}
    rows = []
    for seed in seeds:
        ours = on_ranks(RANKS, with_deepspeed, timeout=TIMEOUT, seed=seed, **sizes)
        peer = on_ranks(1, in_one_process, timeout=TIMEOUT, seed=seed, **sizes)
        rows += seed_rows(ours, peer)
    return rows


def seed_rows(ours: dict[str, Any], peer: dict[str, Any]) -> list[Row]:
    """Percent of the validation images and of the test images that are right, and CPU seconds per rank."""
    case = f"{ours['data']}, {ours['epochs']} epochs, seed {ours['seed']}"
    rows = [a_row(f"{case}, validation", ours["validation"], peer["validation"])]
    if ours["test"] is not None:
        rows.append(a_row(f"{case}, test", ours["test"], peer["test"]))
    return [*rows, a_row(f"{case}, CPU time per rank", ours["cpu_seconds"], peer["cpu_seconds"], "s")]


def a_row(case: str, ours: float, peer: float, unit: str = "% right") -> Row:
    """A row of what was measured once."""
    return row(case, RANKS, Timing(ours, 0.0), Timing(peer, 0.0), "one process", unit=unit)


def with_means(rows: Sequence[Row]) -> list[Row]:
    """The rows of the seeds, sorted by case, and a mean of each kind of which there are several."""
    seeds = sorted(rows, key=lambda each: each.case)
    kinds = {kind_of(each): [one for one in seeds if kind_of(one) == kind_of(each)] for each in seeds}
    return [*seeds, *(mean_row(kind, alike) for kind, alike in kinds.items() if len(alike) > 1)]


def kind_of(a_row: Row) -> str:
    """What a row says of its seed: "validation", "test" or "CPU time per rank"."""
    return a_row.case.rpartition(", ")[2]


def mean_row(kind: str, rows: Sequence[Row]) -> Row:
    """The mean of `rows`; the spread is that of the seeds."""
    ours, peer = [each.ours for each in rows], [each.peer for each in rows]
    mine, other = (Timing(statistics.mean(values), max(values) - min(values)) for values in (ours, peer))
    return row(f"{MEAN}, {kind}", RANKS, mine, other, "one process", unit=rows[0].unit)


# ---------------------------------------------------------------- on the ranks


def with_deepspeed(comm: MPI.Intracomm, seed: int, epochs: int, **images: Any) -> dict[str, Any]:
    """Train with DeepSpeed on all ranks of `comm`: what came out."""
    from benchmarks.parts.deepspeed_engine import deepspeed_step, deepspeed_world, start_engine
    from course_lib.training.loop import summed_cross_entropy
    from course_lib.training.models import build

    chosen = the_images(**images)
    with deepspeed_world(comm):
        total = updates(chosen.data) * epochs
        engine = start_engine(build(MODEL, seed=seed), settings(comm.size, total))
        step = deepspeed_step(engine, summed_cross_entropy)
        return followed(comm, seed, epochs, chosen, step, lambda: whole_model(comm, engine, MODEL))


def whole_model(comm: MPI.Intracomm, engine: Any, model: str) -> nn.Module:
    """`model` with the weights of `engine`, and the mean over the ranks of batch-norm's statistics."""
    from mpi4py import MPI

    from benchmarks.parts.deepspeed_engine import gathered_weights
    from course_lib.training.flat import copy_back
    from course_lib.training.models import build

    net = build(model, seed=0)
    copy_back(gathered_weights(engine), list(net.parameters()))
    for mine, theirs in zip(net.buffers(), engine.module.buffers(), strict=True):
        mine.copy_(theirs)
        if mine.is_floating_point():  # each rank has seen its own images only
            comm.Allreduce(MPI.IN_PLACE, mine.numpy())
            mine /= comm.size
    return net


def in_one_process(comm: MPI.Intracomm, seed: int, epochs: int, **images: Any) -> dict[str, Any]:
    """The same training without DeepSpeed and without ranks, on one core."""
    import torch

    from course_lib.training.loop import make_step, summed_cross_entropy
    from course_lib.training.models import build

    torch.set_num_threads(1)  # one core, as each rank has
    chosen, net = the_images(**images), build(MODEL, seed=seed)
    optimizer = torch.optim.AdamW(net.parameters(), lr=RATE)
    total = updates(chosen.data) * epochs
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda update: rate_factor(update, total))
    plain = make_step(net, summed_cross_entropy, optimizer)

    def step(batch: Batch) -> float:
        loss = plain(batch)
        schedule.step()
        return loss

    return followed(comm, seed, epochs, chosen, step, lambda: net)


def followed(
    comm: MPI.Intracomm,
    seed: int,
    epochs: int,
    chosen: Images,
    step: Callable[..., float],
    trained: Callable[[], nn.Module],
) -> dict[str, Any]:
    """Train with `step`, and return what came out; the test images are scored once, at the end.

    All ranks of `comm` call it. `trained` is the model as it is now. The CPU seconds are those of the rank
    that needed most, validation after each epoch included.
    """
    from mpi4py import MPI

    from course_lib.training.loop import fit

    start, validation = time.process_time(), 0.0
    for epoch in range(epochs):
        fit(step, rank_batches(comm, chosen.data, seed, epoch))
        validation = percent_right(comm, trained(), chosen.data)
    seconds = comm.allreduce(time.process_time() - start, MPI.MAX)
    return {
        "data": chosen.name,
        "seed": seed,
        "epochs": epochs,
        "validation_images": len(chosen.data.test_labels),
        "validation": validation,
        "test": percent_right(comm, trained(), chosen.test) if chosen.test else None,
        "cpu_seconds": round(seconds, 1),
    }


def percent_right(comm: MPI.Intracomm, net: nn.Module, data: Dataset) -> float:
    """How many of the test images are right; each is tested by one rank."""
    from course_lib.parallel.data_parallel import evaluate_shard
    from course_lib.training.metrics import Score

    scores = comm.allgather(evaluate_shard(comm, net, data.test_images, data.test_labels))
    return round(100 * sum(scores, Score()).accuracy, 2)


def rank_batches(comm: MPI.Intracomm, data: Dataset, seed: int, epoch: int) -> Iterator[Batch]:
    """This rank's samples of the full global batches of an epoch, round-robin.

    Every image is shifted and maybe mirrored, anew in each epoch, and alike on any number of ranks. A short
    batch at the end is left out, because DeepSpeed counts micro-batches, not samples.
    """
    import numpy as np

    from course_lib.training.loop import image_batch, shuffled_batches

    changes = draw_changes(len(data.train_labels), seed, epoch)
    for indices in shuffled_batches(len(data.train_labels), BATCH, seed=seed, epoch=epoch):
        if len(indices) == BATCH:
            mine = indices[comm.rank :: comm.size]
            images = augmented(data.train_images[mine], changes[mine])
            yield image_batch(images, data.train_labels[mine], np.arange(len(mine)), BATCH)


def draw_changes(samples: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """How each of `samples` images is changed, (samples, 3): pixels down, pixels right, mirrored.

    Shifts go from -SHIFT to SHIFT; mirrored is 0 or 1.
    """
    import numpy as np

    rng = np.random.default_rng([seed, epoch, 1])  # a stream apart from that of the order
    return np.column_stack([rng.integers(-SHIFT, SHIFT + 1, (samples, 2)), rng.integers(0, 2, samples)])


def augmented(images: NDArray[np.uint8], changes: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Copies of `images` (N, 3, 32, 32), shifted and mirrored as the `changes` (N, 3) say; black moves in."""
    import numpy as np

    down, right, flipped = changes.T
    edges = ((0, 0), (0, 0), (SHIFT, SHIFT), (SHIFT, SHIFT))
    crops = np.lib.stride_tricks.sliding_window_view(np.pad(images, edges), images.shape[2:], axis=(2, 3))
    moved = crops[np.arange(len(images)), :, SHIFT - down, SHIFT - right]  # (N, 3, 32, 32)
    return np.where(flipped[:, None, None, None] == 1, moved[..., ::-1], moved)


def climb_steps(total: int) -> int:
    """Updates in which the learning rate climbs."""
    return max(1, round(CLIMB * total))


def rate_factor(update: int, total: int) -> float:
    """What DeepSpeed's WarmupDecayLR makes of the learning rate: its first two updates have none."""
    done, climb = max(0, update - 1), climb_steps(total)
    return done / climb if done < climb else max(0.0, (total - done) / max(1, total - climb))


def settings(ranks: int, total: int) -> dict[str, Any]:
    """The configuration: the global batch is BATCH on any number of ranks."""
    from benchmarks.parts.deepspeed_engine import stage_config

    return stage_config(
        STAGE,
        ranks,
        micro_batch=BATCH // ranks,
        learning_rate=RATE,
        warmup_steps=climb_steps(total),
        total_steps=total,
    )


# ---------------------------------------------------------------- the images


def the_images(train: int | None, test: int | None, file: str | None) -> Images:
    """Images to train on, a fifth to validate with, and the test images: the first `train` and `test`.

    Without the test batch of CIFAR-10, `load_cifar10` holds out data_batch_5: the fifth that is wanted.
    """
    from course_lib.data.cifar10 import load_cifar10

    data = load_cifar10()
    pixels, labels = data.train_images, data.train_labels
    if data.real and len(labels) == 4 * FIFTH:
        final, fifth = None, data
    else:
        start = 4 * len(labels) // 5
        final, fifth = data, replace(data, test_images=pixels[start:], test_labels=labels[start:])
        pixels, labels = pixels[:start], labels[:start]
    fifth = replace(fifth, train_images=pixels, train_labels=labels)
    if file:
        final = read_test(Path(file), data)
    return Images(shortened(fifth, train, test), final and shortened(final, train, test))


def read_test(path: Path, data: Dataset) -> Dataset:
    """`data` with the images at `path`, in the binary version of CIFAR-10, to test with."""
    from course_lib.data.cifar10 import from_binary, split

    images, labels = split(from_binary(path.read_bytes(), str(path)))
    return replace(data, test_images=images, test_labels=labels)


def shortened(data: Dataset, train: int | None, test: int | None) -> Dataset:
    """The first `train` images to train on, and the first `test` to test with."""
    return replace(
        data,
        train_images=data.train_images[:train],
        train_labels=data.train_labels[:train],
        test_images=data.test_images[:test],
        test_labels=data.test_labels[:test],
    )


def updates(data: Dataset) -> int:
    """Full batches in an epoch."""
    return len(data.train_labels) // BATCH


# ---------------------------------------------------------------- the command line


def main() -> None:
    """Measure, print all rows and save them."""
    parser = argparse.ArgumentParser(description=TITLE)
    parser.add_argument("--quick", action="store_true", help="few images and epochs, one seed")
    parser.add_argument("--test", metavar="IMAGES", help="test images, in the binary version of CIFAR-10")
    parser.add_argument("--json", metavar="FILE", help="write the rows there; - for standard output")
    options = parser.parse_args()
    measured = measure(options.quick, SEEDS[:1] if options.quick else SEEDS, options.test)
    rows, about = with_means(measured), about_this_run()
    show(TITLE, rows, about)
    if options.json == "-":
        print(as_json([asdict(each) for each in rows]))
    elif options.json:
        save(Path(options.json), rows, about)


if __name__ == "__main__":
    main()
