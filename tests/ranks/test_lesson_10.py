"""What lesson 10 runs on its ranks beside its table: the large image, and the judge on tiles."""

import copy

import pytest
import torch
from mpi4py import MPI
from torch.nn import functional as F

from course.lessons.l10_spatial_and_hybrid.large_image import train
from course.lessons.l10_spatial_and_hybrid.whole_from_tiles import JudgeOnTiles
from course_lib.parallel.spatial_parallel import make_tiles, sum_over_tiles
from course_lib.training.distant_marks import SIDE, TileJudge, distant_marks


def test_strips_of_a_large_image_train_as_the_whole_and_the_loss_falls(comm: MPI.Intracomm) -> None:
    losses = train(comm, 64, 5)
    assert losses == pytest.approx(train(MPI.COMM_SELF, 64, 5), rel=1e-4)
    assert losses[-1] < 0.8 * losses[0]


def test_a_judge_on_tiles_with_halos_is_the_judge_of_whole_images(comm: MPI.Intracomm) -> None:
    torch.manual_seed(0)
    whole = TileJudge(SIDE).double()
    tiles = make_tiles(comm, comm.size, 1)
    ours = JudgeOnTiles(tiles, copy.deepcopy(whole))
    images, labels = distant_marks(6, seed=0)
    for net in (whole, ours):
        F.cross_entropy(net(images.double()), labels).backward()
    sum_over_tiles(tiles, [ours.features])
    for part in ("features", "head"):
        pairs = zip(getattr(ours, part).parameters(), getattr(whole, part).parameters(), strict=True)
        assert comm.allreduce(all(torch.allclose(p.grad, q.grad, atol=1e-10) for p, q in pairs), MPI.LAND)
