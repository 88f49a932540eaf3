"""CIFAR-10 with DeepSpeed on two ranks, ZeRO-2, beside one process: the accuracy on images held out.

Both train the small net on the same global batches, from the same weights, with AdamW and a learning rate
that climbs and falls again. With the real images (COURSE_DATA), they train on the first four batches, and
data_batch_5 is held out. A seed stands for weights and order; the mean over seeds has a row of its own.

    python -m benchmarks.deepspeed_cifar [--quick] [--seed 0] [--json FILE]

It takes minutes a seed. With --seed, the other seeds' rows that are in FILE stay there.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.harness import Row, Timing, about_this_run, as_json, on_ranks, row, save, show
from course_lib.parallel.deepspeed_config import Config, stage_config

if TYPE_CHECKING:
    from mpi4py import MPI

    from course_lib.data.dataset import Dataset

RANKS, STAGE, BATCH = 2, 2, 64
SEEDS = (0, 1, 2)
EPOCHS, FIFTH = 6, 10_000  # images in a batch of CIFAR-10
RATE, WARMUP = 2e-3, 100
TITLE = "CIFAR-10: DeepSpeed on two ranks beside one process"
MEAN = "mean over the seeds"


def measure(quick: bool, seeds: Sequence[int]) -> list[Row]:
    """One row per seed: percent of the held-out images that are right."""
    sizes: dict[str, Any] = {"epochs": EPOCHS, "train": None, "test": None}
    if quick:
        sizes = {"epochs": 2, "train": 4_000, "test": 1_000}
    rows = []
    for seed in seeds:
        ours = on_ranks(RANKS, with_deepspeed, timeout=1200, seed=seed, **sizes)
        peer = on_ranks(1, in_one_process, timeout=1200, seed=seed, **sizes)
        case = f"{ours['data']}, {sizes['epochs']} epochs, seed {seed}"
        rows.append(a_row(case, ours["percent"], peer["percent"]))
    return rows


def a_row(case: str, ours: float, peer: float) -> Row:
    return row(case, RANKS, Timing(ours, 0.0), Timing(peer, 0.0), "one process", unit="% right")


def with_mean(rows: Sequence[Row]) -> list[Row]:
    """The rows of the seeds in order, and their mean, if there are several."""
    seeds = sorted((each for each in rows if each.case != MEAN), key=lambda each: each.case)
    ours, peer = [each.ours for each in seeds], [each.peer for each in seeds]
    if len(seeds) < 2:
        return seeds
    mine, other = (Timing(statistics.mean(values), max(values) - min(values)) for values in (ours, peer))
    return [*seeds, row(MEAN, RANKS, mine, other, "one process", unit="% right")]


# ---------------------------------------------------------------- on the ranks


def with_deepspeed(comm: MPI.Intracomm, seed: int, epochs: int, **images: int | None) -> dict[str, Any]:
    """Train with DeepSpeed on all ranks of `comm`."""
    from course.lessons.l12_deepspeed_on_cifar.runs import train_and_test
    from course_lib.parallel.deepspeed_engine import deepspeed_world

    data = held_out(**images)
    with deepspeed_world(comm):
        config = settings(comm.size, updates(data) * epochs)
        accuracy = train_and_test(comm, "cifar", config, data, epochs=epochs, seed=seed)
    return {"data": name_of(data), "percent": 100 * accuracy}


def in_one_process(comm: MPI.Intracomm, seed: int, epochs: int, **images: int | None) -> dict[str, Any]:
    """The same training without DeepSpeed and without ranks."""
    import numpy as np
    import torch

    from course.lessons.l12_deepspeed_on_cifar.runs import rank_batches
    from course_lib.training.loop import evaluate, image_batches, make_step, summed_cross_entropy
    from course_lib.training.models import build

    data, net = held_out(**images), build("cifar", seed=seed)
    optimizer = torch.optim.AdamW(net.parameters(), lr=RATE)
    total = updates(data) * epochs
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda update: rate_factor(update, total))
    step = make_step(net, summed_cross_entropy, optimizer)
    for epoch in range(epochs):
        for batch in rank_batches(data, BATCH, rank=0, size=1, seed=seed, epoch=epoch):
            step(batch)
            schedule.step()
    order = np.array_split(np.arange(len(data.test_labels)), 40)
    score = evaluate(net, summed_cross_entropy, image_batches(data.test_images, data.test_labels, order))
    return {"data": name_of(data), "percent": 100 * score.accuracy}


def rate_factor(update: int, total: int) -> float:
    """What DeepSpeed's WarmupDecayLR makes of the learning rate: its first two updates have none."""
    done = max(0, update - 1)
    return done / WARMUP if done < WARMUP else max(0.0, (total - done) / (total - WARMUP))


def settings(ranks: int, total: int) -> Config:
    """The configuration: the global batch is BATCH on any number of ranks."""
    return stage_config(
        STAGE,
        ranks,
        micro_batch=BATCH // ranks,
        learning_rate=RATE,
        warmup_steps=WARMUP,
        total_steps=total,
    )


def held_out(train: int | None, test: int | None) -> Dataset:
    """Images to train on, and data_batch_5 to test with, also where the real test images are there."""
    from course_lib.data.cifar10 import load_cifar10

    data = load_cifar10(train=train, test=test)
    if len(data.train_labels) <= 4 * FIFTH:
        return data
    pixels, labels, cut = data.train_images, data.train_labels, 4 * FIFTH
    return replace(
        data,
        train_images=pixels[:cut],
        train_labels=labels[:cut],
        test_images=pixels[cut:],
        test_labels=labels[cut:],
    )


def updates(data: Dataset) -> int:
    """Full batches in an epoch."""
    return len(data.train_labels) // BATCH


def name_of(data: Dataset) -> str:
    """What was trained on and tested with."""
    return f"{data.name}, {len(data.train_labels)} images, {len(data.test_labels)} held out"


# ---------------------------------------------------------------- the command line


def main() -> None:
    """Measure the seeds that were asked for, print all rows and save them."""
    parser = argparse.ArgumentParser(description=TITLE)
    parser.add_argument("--quick", action="store_true", help="few images and epochs, one seed")
    parser.add_argument("--seed", type=int, action="append", help="this one only; may be given several times")
    parser.add_argument("--json", metavar="FILE", help="write the rows there; - for standard output")
    options = parser.parse_args()
    seeds = options.seed or (SEEDS[:1] if options.quick else SEEDS)
    before = rows_in(Path(options.json)) if options.seed and options.json not in (None, "-") else []
    new = measure(options.quick, seeds)
    cases = {each.case for each in new}
    rows = with_mean([*new, *(each for each in before if each.case not in cases)])
    show(TITLE, rows, about_this_run())
    if options.json == "-":
        print(as_json([asdict(each) for each in rows]))
    elif options.json:
        save(Path(options.json), rows, about_this_run())


def rows_in(path: Path) -> list[Row]:
    """The rows that were measured before; none where there is no file."""
    return [Row(**each) for each in json.loads(path.read_text())] if path.exists() else []


if __name__ == "__main__":
    main()
