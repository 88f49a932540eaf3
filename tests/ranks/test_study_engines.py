"""Every engine of the study trains like one process: outputs, gradients, and weights after three steps."""

import pytest
import torch
from mpi4py import MPI

from course.lessons.l07_ddp_on_mnist.study_results import DDP_GLOO, DDP_MPI4PY, OWN_MPI, SEQUENTIAL
from course.tools.study.engines import Engine, Groups, engine
from course_lib.comm.trace import Recorder
from course_lib.parallel.data_parallel import shard
from course_lib.training.flat import flatten
from course_lib.training.loop import Batch, make_step, summed_cross_entropy
from course_lib.training.models import build

COMM = MPI.COMM_WORLD
SIZES = (8, 7, 5)  # of global batches: uneven on 2, 3 and 4 ranks


@pytest.fixture(scope="module")
def groups():
    made = Groups(COMM)
    yield made
    made.close()


def batches():
    """Three global batches in float64, the same on all ranks."""
    generator = torch.Generator().manual_seed(0)
    for size in SIZES:
        images = torch.randn(size, 1, 28, 28, generator=generator, dtype=torch.float64)
        yield images, torch.randint(10, (size,), generator=generator)


def train(trained, model, comm):
    """Losses, the gradients of every step and the weights at the end."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def loss(outputs, labels):
        return trained.loss_factor * summed_cross_entropy(outputs, labels)

    step = make_step(trained.module, loss, optimizer, trained.synchronize)
    losses, found = [], []
    for images, labels in batches():
        mine = shard(comm, torch.arange(len(labels)).numpy())
        part = step(Batch(images[mine], labels[mine], len(labels))) / trained.loss_factor
        losses.append(comm.allreduce(part))
        found.append(flatten([parameter.grad for parameter in model.parameters()]))
    return torch.tensor(losses), torch.stack(found), flatten(list(model.parameters()))


def alone(name):
    model = build(name, seed=0).double()
    return train(Engine(model), model, MPI.COMM_SELF)


def agree(left, right):
    """Whether all of it is equal to 1e-10, on all ranks."""
    near = all(torch.allclose(a, b, rtol=0, atol=1e-10) for a, b in zip(left, right, strict=True))
    return COMM.allreduce(near, op=MPI.LAND)


@pytest.mark.parametrize("name", [OWN_MPI, DDP_GLOO, DDP_MPI4PY])
def test_an_engine_trains_like_one_process(name, groups):
    model = build("cnn", seed=COMM.rank).double()  # every rank starts with other weights
    trained = engine(name, COMM, model, recorder=Recorder(COMM), groups=groups)
    assert agree(train(trained, model, COMM), alone("cnn"))


@pytest.mark.skipif(COMM.size == 1, reason="one rank has nothing to average")
@pytest.mark.parametrize("name", [DDP_GLOO, DDP_MPI4PY])
def test_without_the_factor_the_average_of_ddp_is_not_the_gradient(name, groups):
    model = build("mlp", seed=0).double()
    trained = engine(name, COMM, model, recorder=Recorder(COMM), groups=groups)
    wrong = Engine(trained.module, trained.synchronize)
    assert not agree(train(wrong, model, COMM), alone("mlp"))


@pytest.mark.parametrize("name", [OWN_MPI, DDP_GLOO, DDP_MPI4PY])
def test_each_step_is_one_collective_split_into_waiting_and_transfer(name, groups):
    model, recorder = build("mlp", seed=0).double(), Recorder(COMM)
    trained = engine(name, COMM, model, recorder=recorder, groups=groups)
    with recorder.span("epoch"):
        train(trained, model, COMM)
    spans = recorder.gather()
    transfers = [] if spans is None else [span for span in spans if span.kind == "transfer"]
    found = COMM.bcast([(span.rank, span.seconds >= 0) for span in transfers])
    assert sorted(found) == sorted((rank, True) for rank in range(COMM.size) for _ in SIZES)


def test_one_process_needs_no_engine_and_unknown_ones_are_refused(groups):
    model = build("mlp", seed=0)
    name = SEQUENTIAL if COMM.size > 1 else "horovod"
    with pytest.raises(ValueError, match=f"there is no engine '{name}' for {COMM.size} ranks"):
        engine(name, COMM, model, recorder=Recorder(COMM), groups=groups)
