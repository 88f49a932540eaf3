"""Data, replica, pipeline, tile and tensor in all pairs that fit this session, held to one process.

Known-wrong variants are kept and have to be told from it. The shapes of 8 ranks run as a job of their own.
"""

import pytest
import torch
from mpi4py import MPI
from torch import nn

from course_lib.parallel import hybrid as hybrid_module
from course_lib.parallel.hybrid import Hybrid
from course_lib.theory.hybrid import HybridShape, StageShape
from course_lib.training.loop import Batch, summed_cross_entropy
from tests.ranks.hybrids import ONE, ROWS, SHAPES, equals_one_process


@pytest.mark.parametrize("name", SHAPES)
def test_a_hybrid_equals_one_process(comm: MPI.Intracomm, name: str) -> None:
    if SHAPES[name].ranks == comm.size:
        assert equals_one_process(comm, SHAPES[name])


@pytest.mark.parametrize("name", ["replica × pipeline", "replica × tile", "Hy-Fi without data"])
def test_replicas_that_are_not_summed_are_found_out(
    comm: MPI.Intracomm, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hybrid_module, "sum_replicas", lambda *_: None)
    if SHAPES[name].ranks == comm.size:
        assert not equals_one_process(comm, SHAPES[name])


def test_shapes_that_do_not_fit_are_refused_on_every_rank(comm: MPI.Intracomm) -> None:
    stages = [nn.Identity()]
    with pytest.raises(ValueError, match=f"and there are {comm.size}"):
        Hybrid(comm, HybridShape((ONE,), data=comm.size + 1), stages)
    with pytest.raises(ValueError, match="1 or 2 replicas"):
        Hybrid(comm, HybridShape((ONE,), data=comm.size, replicas=3), stages)
    with pytest.raises(ValueError, match="2 stages were given for a shape of 1"):
        Hybrid(comm, HybridShape((ONE,), data=comm.size), [*stages, *stages])
    with pytest.raises(ValueError, match="cannot be followed by"):
        HybridShape((ROWS, StageShape(columns=2))).check(4)
    hybrid = Hybrid(comm, HybridShape((ONE,), data=comm.size), [nn.Linear(1, 2)])
    batch = Batch(torch.zeros(comm.size, 1), torch.zeros(comm.size, dtype=torch.long), comm.size)
    with pytest.raises(ValueError, match="cannot make 2 micro-batches"):
        hybrid.step(batch, summed_cross_entropy, microbatches=2)
