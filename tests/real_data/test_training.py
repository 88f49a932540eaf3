"""The CNN on real MNIST: an epoch is worth as much on two and on four ranks as published, and as alone.

Needs COURSE_DATA, a folder that holds the four original MNIST files.
"""

import json
import os

import pytest

from mpi_classroom.launch import run_ranks

pytestmark = pytest.mark.skipif(
    not os.environ.get("COURSE_DATA"), reason="COURSE_DATA names no folder with real data"
)

EPOCH = """
import json
import torch
from mpi4py import MPI
from course_lib.parallel.data_parallel import replicas_agree, train_epoch
from course_lib.data.mnist import load_mnist
from course_lib.training.models import build

comm, data = MPI.COMM_WORLD, load_mnist()
model = build("cnn", seed=comm.rank)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
report = train_epoch(comm, model, optimizer, data, batch_size=128, seed=0)
agree = replicas_agree(comm, model)
if report:
    score = report.score
    print(json.dumps([data.real, comm.size, report.samples, score.samples, score.accuracy, agree]))
"""

FIRST_STEPS = """
import dataclasses
import json
import torch
from mpi4py import MPI
from course_lib.parallel.data_parallel import train_epoch
from course_lib.data.mnist import load_mnist
from course_lib.training.flat import flatten
from course_lib.training.models import build

comm, data = MPI.COMM_WORLD, load_mnist()
few = dataclasses.replace(
    data,
    train_images=data.train_images[:650],
    train_labels=data.train_labels[:650],
    test_images=data.test_images[:10],
    test_labels=data.test_labels[:10],
)

def weights_of(team):
    model = build("cnn", seed=team.rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    train_epoch(team, model, optimizer, few, batch_size=128, seed=0)
    return flatten(list(model.parameters()))

alone = weights_of(MPI.COMM_SELF)
apart = []
for size in range(1, comm.size + 1):
    team = comm.Split(0 if comm.rank < size else MPI.UNDEFINED)
    if team:
        apart.append(float((weights_of(team) - alone).norm() / alone.norm()))
if comm.rank == 0:
    print(json.dumps([data.real, apart]))
"""


@pytest.mark.timeout(400)
@pytest.mark.release
@pytest.mark.parametrize("ranks", (2, 4))
def test_one_epoch_of_the_cnn_classifies_at_least_975_of_1000_digits(ranks: int) -> None:
    done = run_ranks(ranks, ["-c", EPOCH], timeout=380)
    assert done.returncode == 0, done.stderr
    real, size, trained, tested, accuracy, agree = json.loads(done.stdout)
    assert real, "COURSE_DATA holds no MNIST"
    assert (size, trained, tested) == (ranks, 60_000, 10_000)
    assert accuracy >= 0.975
    assert agree


@pytest.mark.slow
def test_the_first_steps_on_1_to_4_ranks_end_with_the_weights_of_one_process() -> None:
    done = run_ranks(4, ["-c", FIRST_STEPS], timeout=240)
    assert done.returncode == 0, done.stderr
    real, apart = json.loads(done.stdout)
    assert real, "COURSE_DATA holds no MNIST"
    assert len(apart) == 4 and max(apart) < 1e-5
