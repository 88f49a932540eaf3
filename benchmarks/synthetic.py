"""The synthetic benchmark by Horovod's protocol: our data parallelism beside DDP over Gloo, weak scaling.

Every rank trains the small ResNet on its own batch of 32 random images. Images per second are summed over
ranks. The last rows set n ranks beside n times one rank, which is the ideal: a ratio of 1.
"""

from __future__ import annotations

from typing import Any

from benchmarks.harness import Row, Timing, main, on_ranks, row
from mpi_classroom.launch import available_cores

RANKS = (1, 2)


def measure(quick: bool) -> list[Row]:
    """Ours beside DDP on each number of ranks, then ours beside the ideal."""
    iterations, batches = (4, 3) if quick else (10, 10)
    ranks = [n for n in RANKS if n <= available_cores()]
    both = {n: on_ranks(n, rates, iterations=iterations, batches=batches) for n in ranks}
    rows = [
        row(f"total on {n}", n, Timing(*ours), Timing(*peer), "DDP over Gloo", unit="images/s")
        for n, (ours, peer) in both.items()
    ]
    alone = Timing(*both[1][0])
    for n in ranks[1:]:
        ideal = alone.times(n)
        rows.append(row(f"weak scaling to {n}", n, Timing(*both[n][0]), ideal, "the ideal", unit="images/s"))
    return rows


def rates(comm: Any, *, iterations: int, batches: int) -> list[tuple[float, float]]:
    """Mean and width (twice 1.96 deviations) of the total images per second, of ours and of DDP over Gloo."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    from benchmarks.synthetic_ranks import build_resnet, own_step, synthetic_benchmark
    from course.tools.study.engines import Groups
    from course_lib.training.loop import make_step, summed_cross_entropy

    torch.set_num_threads(1)  # on any number of ranks: weak scaling compares equal ranks
    size: dict[str, Any] = {"iterations": iterations, "batches": batches}
    ours = synthetic_benchmark(comm, own_step(comm, build_resnet(seed=0)), **size)
    groups, model = Groups(comm), build_resnet(seed=0)
    replica = DistributedDataParallel(model, process_group=groups.group("gloo"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    peer = synthetic_benchmark(comm, make_step(replica, summed_cross_entropy, optimizer), **size)
    groups.close()
    return [(one.mean, 2 * one.within) for one in (ours, peer)]


if __name__ == "__main__":
    main("Synthetic benchmark: images per second of all ranks, ± 1.96 deviations", measure)
