"""Data, replica, pipeline and tile in all pairs that fit this session, held to one process.

The shapes of 8 ranks run as a job of their own.
"""

import pytest
import torch
from mpi4py import MPI
from torch import nn

from course_lib.parallel.hybrid import Hybrid
from course_lib.theory.hybrid import HybridShape, StageShape
from course_lib.training.loop import Batch, summed_cross_entropy
from tests.ranks.hybrids import ONE, SHAPES, equals_one_process
from tests.ranks.tiled import close, randomised


@pytest.mark.parametrize("name", SHAPES)
def test_a_hybrid_equals_one_process(comm: MPI.Intracomm, name: str) -> None:
    if SHAPES[name].ranks == comm.size:
        assert equals_one_process(comm, SHAPES[name])


def test_shapes_that_do_not_fit_are_refused_on_every_rank(comm: MPI.Intracomm) -> None:
    stages = [nn.Identity()]
    with pytest.raises(ValueError, match=f"and there are {comm.size}"):
        Hybrid(comm, HybridShape((ONE,), data=comm.size + 1), stages)
    with pytest.raises(ValueError, match="1 or 2 replicas"):
        Hybrid(comm, HybridShape((ONE,), data=comm.size, replicas=3), stages)
    with pytest.raises(ValueError, match="2 stages were given for a shape of 1"):
        Hybrid(comm, HybridShape((ONE,), data=comm.size), [*stages, *stages])
    hybrid = Hybrid(comm, HybridShape((ONE,), data=comm.size), [nn.Linear(1, 2)])
    batch = Batch(torch.zeros(comm.size, 1), torch.zeros(comm.size, dtype=torch.long), comm.size)
    with pytest.raises(ValueError, match="cannot make 2 micro-batches"):
        hybrid.step(batch, summed_cross_entropy, microbatches=2)


def test_a_layer_that_is_used_twice_is_refused_on_every_rank(comm: MPI.Intracomm) -> None:
    twice = nn.Conv2d(2, 2, 3, padding=1)
    shape = HybridShape((StageShape(rows=comm.size),))
    with pytest.raises(ValueError, match=r"0\.weight and 2\.weight share one parameter"):
        Hybrid(comm, shape, [nn.Sequential(twice, nn.Tanh(), twice)])


def test_batch_norm_that_is_not_trained_keeps_its_statistics(comm: MPI.Intracomm) -> None:
    norm = nn.BatchNorm2d(2).eval()
    layers = randomised(nn.Sequential(norm, nn.Flatten(), nn.Linear(2 * 8 * 8, 3)))
    batch = Batch(torch.arange(512.0).double().sin().view(4, 2, 8, 8), torch.arange(4) % 3, 4)
    loss = summed_cross_entropy(layers(batch.inputs), batch.targets).item() / 4
    hybrid = Hybrid(comm, HybridShape((StageShape(rows=comm.size),)), [layers])
    assert hybrid.step(batch, summed_cross_entropy) == pytest.approx(loss)


def test_convolutions_behind_the_join_see_the_full_image(comm: MPI.Intracomm) -> None:
    tiles = StageShape(rows=2)
    if comm.size != tiles.tiles:
        return
    encoder = [nn.Conv2d(2, 2, 3, padding=1), nn.Flatten(), nn.Linear(128, 32), nn.Unflatten(1, (2, 4, 4))]
    decoder = [nn.Conv2d(2, 4, 3, padding=1), nn.Tanh(), nn.Conv2d(4, 2, 3, padding=1), nn.Flatten()]
    whole = randomised(nn.Sequential(*encoder, *decoder))
    batch = Batch(torch.arange(512.0).double().sin().view(4, 2, 8, 8), torch.arange(4), 4)
    hybrid = Hybrid(comm, HybridShape((tiles,)), [whole])
    loss = summed_cross_entropy(whole(batch.inputs), batch.targets) / 4
    assert hybrid.step(batch, summed_cross_entropy) == pytest.approx(loss.item())
    loss.backward()
    pairs = zip(hybrid.parameters(), whole.parameters(), strict=True)
    assert all(close(ours.grad, theirs.grad) for ours, theirs in pairs)
