"""Every engine of the study trains like one process: outputs, gradients, and weights after three steps."""

import pytest
import torch
from mpi4py import MPI

from course.lessons.l07_ddp_on_mnist.study_results import DDP_GLOO, DDP_MPI4PY, OWN_MPI, SEQUENTIAL
from course.tools.study.engines import Groups, engine
from course.tools.study.rank import phases
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
    trained = engine(name, COMM, model, sums=[], groups=groups)
    assert worst(COMM, train(trained, model), one_process("cnn", torch.float64, sgd)) < 1e-10


@pytest.mark.parametrize("name", [OWN_MPI, DDP_GLOO, DDP_MPI4PY])
def test_the_sum_of_each_step_is_timed(name, groups):
    model, sums = build("mlp", seed=0).double(), []
    train(engine(name, COMM, model, sums=sums, groups=groups), model)
    assert len(sums) == len(STEPS) and all(0 < seconds < 60 for seconds in sums)


def test_who_comes_last_only_transfers_and_the_others_wait():
    """Ranks take 3 s per epoch; in the k-th sum rank r waits k · r seconds, and the transfer takes 0.5 s."""
    seconds = phases(COMM, 10.0, [0.5 + k * COMM.rank for k in (1, 2)])
    wait = 3 * (COMM.size - 1) / 2
    expected = {"compute": 9 - wait, "wait": wait, "transfer": 1.0}
    assert seconds == pytest.approx(expected)
    assert phases(COMM, 10.0, [])["compute"] == 10.0


def test_one_process_needs_no_engine_and_unknown_ones_are_refused(groups):
    model = build("mlp", seed=0)
    name = SEQUENTIAL if COMM.size > 1 else "horovod"
    with pytest.raises(ValueError, match=f"there is no engine '{name}' for {COMM.size} ranks"):
        engine(name, COMM, model, sums=[], groups=groups)
