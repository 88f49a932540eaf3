"""What is easily forgotten: the buffers."""

import torch
from mpi4py import MPI
from torch import nn
from torch.optim import SGD

from course.lessons.l06_data_parallel_by_hand.engines import ENGINES
from course_lib.data.dataset import Dataset
from course_lib.parallel.data_parallel import (
    broadcast_buffers,
    broadcast_weights,
    replicas_agree,
    shard_batches,
    train_epoch,
    weight_hash,
)
from course_lib.training.flat import flatten
from course_lib.training.loop import make_step, summed_cross_entropy
from course_lib.training.models import derived_seed
from tests.ranks.test_data_parallel import (
    FEW,
    IMAGES,
    LABELS,
    STEPS,
    sgd,
)


class Normed(nn.Module):
    """A small network with batch-norm, whose running statistics are buffers."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(derived_seed(seed, "normed"))
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(784, 8), nn.BatchNorm1d(8), nn.Linear(8, 10))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.layers(images)


def test_buffers_part_until_they_are_broadcast(comm: MPI.Intracomm) -> None:
    model = Normed(seed=comm.rank)
    broadcast_weights(comm, model)
    step = make_step(
        model, summed_cross_entropy, SGD(model.parameters(), lr=0.1), ENGINES["one bucket"](comm, model)
    )
    for batch in shard_batches(comm, IMAGES, LABELS, STEPS[:1]):
        step(batch)
    weights = comm.allgather(flatten(list(model.parameters())).numpy().tobytes())
    assert len(set(weights)) == 1
    assert replicas_agree(comm, model) == (comm.size == 1)  # known wrong: unsynchronised buffers
    expected = comm.bcast(weight_hash(model))
    broadcast_buffers(comm, model)
    assert weight_hash(model) == expected
    assert model.layers[2].num_batches_tracked.dtype == torch.int64


def test_an_epoch_ends_with_the_same_buffers_everywhere(comm: MPI.Intracomm) -> None:
    model = Normed(seed=comm.rank)
    few = Dataset("noise", False, IMAGES[:16], LABELS[:16], FEW.test_images, FEW.test_labels)
    train_epoch(comm, model, sgd(model), few, batch_size=8, seed=0)
    assert replicas_agree(comm, model)
