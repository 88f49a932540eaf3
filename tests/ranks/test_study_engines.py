"""Every engine of the study trains like one process: outputs, gradients, and weights after three steps."""

import pytest
import torch
from mpi4py import MPI

from course.lessons.l07_ddp_on_mnist.study_results import DDP_GLOO, DDP_MPI4PY, OWN_MPI, SEQUENTIAL
from course.tools.study.engines import Groups, engine
from course_lib.comm.trace import Recorder
from course_lib.parallel.data_parallel import shard_batches
from course_lib.training.flat import flatten
from course_lib.training.loop import make_step, summed_cross_entropy
from course_lib.training.models import build
from tests.ranks.test_data_parallel import IMAGES, LABELS, STEPS, convert, finish, one_process, sgd, worst

COMM = MPI.COMM_WORLD


@pytest.fixture(scope="module")
def groups():
    made = Groups(COMM)
    yield made
    made.close()


def train(trained, model):
    """Three steps on all ranks: their gradients, then the weights and the outputs."""
    gradients = []

    def loss(outputs, labels):
        return trained.loss_factor * summed_cross_entropy(outputs, labels)

    def synchronize_and_look():
        trained.synchronize()
        gradients.append(flatten([parameter.grad for parameter in model.parameters()]))

    step = make_step(trained.module, loss, sgd(model), synchronize_and_look)
    for batch in shard_batches(COMM, IMAGES, LABELS, STEPS):
        step(convert(batch))
    return finish(model, gradients, torch.float64)


@pytest.mark.parametrize("name", [OWN_MPI, DDP_GLOO, DDP_MPI4PY])
def test_an_engine_trains_like_one_process(name, groups):
    model = build("cnn", seed=COMM.rank).double()  # every rank starts with other weights
    trained = engine(name, COMM, model, recorder=Recorder(COMM), groups=groups)
    assert worst(COMM, train(trained, model), one_process("cnn", torch.float64, sgd)) < 1e-10


@pytest.mark.parametrize("name", [OWN_MPI, DDP_GLOO, DDP_MPI4PY])
def test_each_step_is_one_collective_split_into_waiting_and_transfer(name, groups):
    model, recorder = build("mlp", seed=0).double(), Recorder(COMM)
    trained = engine(name, COMM, model, recorder=recorder, groups=groups)
    with recorder.span("epoch"):
        train(trained, model)
    spans = recorder.gather()
    transfers = [] if spans is None else [span for span in spans if span.kind == "transfer"]
    found = COMM.bcast([(span.rank, span.seconds >= 0) for span in transfers])
    assert sorted(found) == sorted((rank, True) for rank in range(COMM.size) for _ in STEPS)


def test_one_process_needs_no_engine_and_unknown_ones_are_refused(groups):
    model = build("mlp", seed=0)
    name = SEQUENTIAL if COMM.size > 1 else "horovod"
    with pytest.raises(ValueError, match=f"there is no engine '{name}' for {COMM.size} ranks"):
        engine(name, COMM, model, recorder=Recorder(COMM), groups=groups)
