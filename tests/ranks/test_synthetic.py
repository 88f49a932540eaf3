"""The synthetic benchmark counts the images of all ranks."""

import statistics

import pytest
from mpi4py import MPI

from benchmarks.synthetic_ranks import (
    build_resnet,
    own_step,
    random_images,
    summed,
    synthetic_benchmark,
)
from course_lib.parallel.data_parallel import replicas_agree

COMM = MPI.COMM_WORLD


def test_the_total_is_the_sum_over_ranks_of_each_reading():
    mine = [10.0 * (COMM.rank + 1), 30.0]  # what ranks read differs, and so does the sum from n times one
    found = summed(COMM, mine)
    totals = [10.0 * sum(range(1, COMM.size + 1)), 30.0 * COMM.size]
    assert found.mean == pytest.approx(statistics.fmean(totals))
    assert found.within == pytest.approx(1.96 * statistics.pstdev(totals))
    assert len(set(COMM.allgather(found))) == 1


def test_the_benchmark_runs_warm_up_and_all_batches_and_all_ranks_get_the_result():
    calls = []
    step = own_step(COMM, build_resnet(seed=COMM.rank))

    def counted(batch):
        calls.append(len(batch.targets))
        return step(batch)

    found = synthetic_benchmark(COMM, counted, batch_size=2, warm_up=1, iterations=2, batches=2)
    assert calls == [2] * 5
    assert found.mean > 0
    assert len(set(COMM.allgather(found))) == 1


def test_ranks_train_on_other_images_and_stay_equal():
    batch = random_images(COMM, 2)
    assert batch.global_size == 2 * COMM.size
    assert len(set(COMM.allgather(float(batch.inputs.sum())))) == COMM.size
    model = build_resnet(seed=COMM.rank).eval()  # batch-norm would see other images on every rank
    own_step(COMM, model)(batch)
    assert COMM.allreduce(replicas_agree_on_parameters(model), op=MPI.LAND)


def replicas_agree_on_parameters(model):
    for norm in (module for module in model.modules() if hasattr(module, "running_mean")):
        norm.reset_running_stats()
    return replicas_agree(COMM, model)
