"""Images per second of one process on 1, 2, … threads: the baseline that ranks have to beat.

Threads split the work inside one operation, such as a matrix product or a convolution, and wait for each
other at its end. A small operation has little to split. Whole training steps are timed, without loading.
"""

import time
from collections.abc import Iterable, Sequence
from statistics import median

import torch
from torch.optim import SGD

from course.lessons.l05_training_one_process.trials import Baseline
from course_lib.training.loop import Batch, make_step, summed_cross_entropy
from course_lib.training.models import build


def thread_baselines(
    names: Sequence[str], threads: Iterable[int], *, batch_size: int = 128, repetitions: int = 10
) -> list[Baseline]:
    """One baseline per number of threads and model, from the median of `repetitions` steps on random images.

    Two steps warm up. Afterwards torch has as many threads as before.
    """
    before, baselines = torch.get_num_threads(), []
    try:
        for count in threads:
            torch.set_num_threads(count)
            for name in names:
                seconds = seconds_per_step(name, batch_size, repetitions)
                baselines.append(Baseline(name, count, batch_size / seconds))
    finally:
        torch.set_num_threads(before)
    return baselines


def seconds_per_step(name: str, batch_size: int, repetitions: int) -> float:
    """Seconds of a training step of the model `name`, the median."""
    model = build(name, seed=0)
    step = make_step(model, summed_cross_entropy, SGD(model.parameters(), lr=0.0))
    batch = Batch(torch.rand(batch_size, 1, 28, 28), torch.arange(batch_size) % 10, batch_size)
    seconds = []
    for _ in range(2 + repetitions):
        start = time.perf_counter()
        step(batch)
        seconds.append(time.perf_counter() - start)
    return median(seconds[2:])
