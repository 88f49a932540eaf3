"""The parameter server, held to one process.

Synchronous, it trains as one process does. Asynchronous, one process replays its updates in their order.
"""

from collections.abc import Iterator

import pytest
import torch
from mpi4py import MPI
from torch import nn
from torch.nn import functional as F

from course_lib.parallel import parameter_server
from course_lib.parallel.data_parallel import broadcast_weights, replicas_agree, shard_batches
from course_lib.parallel.parameter_server import (
    GRADIENT_TAG,
    Replica,
    Service,
    make_server_step,
    train_asynchronously,
)
from course_lib.training.flat import flatten
from course_lib.training.loop import Batch, image_batch, summed_cross_entropy
from course_lib.training.models import build
from tests.ranks.test_data_parallel import IMAGES, LABELS, STEPS, adam, convert, one_process, sgd

BATCHES = 3  # of 5 images, for each rank


def weights_of(model: nn.Module) -> torch.Tensor:
    return flatten(list(model.parameters()))


def fresh(comm: MPI.Intracomm, name: str = "mlp") -> nn.Module:
    """A model in float64 with the weights of rank 0."""
    model = build(name, seed=comm.rank).double()
    broadcast_weights(comm, model)
    return model


# ---------------------------------------------------------------- synchronous


@pytest.mark.parametrize(("name", "optimizers"), [("cnn", sgd), ("mlp", adam)])
def test_a_synchronous_server_trains_as_one_process_does(comm: MPI.Intracomm, name: str, optimizers) -> None:
    model = fresh(comm, name)
    step = make_server_step(comm, model, summed_cross_entropy, optimizers(model))
    for batch in shard_batches(comm, IMAGES, LABELS, STEPS):
        step(convert(batch, torch.float64))
    theirs = one_process(name, torch.float64, optimizers).weights
    assert (weights_of(model) - theirs).abs().max() < 1e-10
    assert replicas_agree(comm, model)


def test_the_server_gives_up_on_a_worker_that_sends_nothing(comm: MPI.Intracomm) -> None:
    if comm.size == 1:
        pytest.skip("there is no worker")
    model = fresh(comm)
    if comm.rank == 0:
        step = make_server_step(comm, model, summed_cross_entropy, sgd(model), timeout=0.2)
        with pytest.raises(TimeoutError, match=r"no message from any rank in 0\.2 s"):
            step(convert(image_batch(IMAGES, LABELS, STEPS[0], 11), torch.float64))
    comm.Barrier()


def test_a_server_that_does_not_wait_for_all_gradients_is_told_from_the_truth(comm: MPI.Intracomm) -> None:
    """Every gradient gets an update of its own: with momentum that is another training."""
    if comm.size == 1:
        pytest.skip("there is one gradient")
    model = fresh(comm)
    batches = [convert(batch, torch.float64) for batch in shard_batches(comm, IMAGES, LABELS, STEPS)]
    train_asynchronously(comm, model, summed_cross_entropy, sgd(model), batches)
    theirs = one_process("mlp", torch.float64, sgd).weights
    assert (weights_of(model) - theirs).abs().max() > 1e-4


def test_a_worker_gives_up_on_a_server_that_does_not_answer(comm: MPI.Intracomm) -> None:
    if comm.size == 1:
        pytest.skip("there is no worker")
    model = fresh(comm)
    if comm.rank > 0:
        replica = Replica(comm, model, summed_cross_entropy, timeout=0.2)
        with pytest.raises(TimeoutError, match="rank 0"):
            replica.exchange()
    comm.Barrier()
    if comm.rank == 0:  # take what is on its way, so that nobody's memory is written to later
        gradient = torch.empty_like(weights_of(model)).numpy()
        for source in range(1, comm.size):
            comm.Recv(gradient, source, GRADIENT_TAG)
    comm.Barrier()


# ---------------------------------------------------------------- asynchronous


def batches_of(rank: int) -> Iterator[Batch]:
    """What `rank` trains on: other images than the others."""
    for index in range(BATCHES):
        start = 5 * (rank + index) % 35
        indices = STEPS[0][:5] * 0 + range(start, start + 5)
        yield convert(image_batch(IMAGES, LABELS, indices, 5), torch.float64)


def replay(order: tuple[int, ...]) -> torch.Tensor:
    """One process does what the server did: each worker's gradient is from the weights that it had then."""
    server = build("mlp", seed=0).double()
    optimizer = sgd(server)
    batches = {rank: batches_of(rank) for rank in order}
    had = {rank: {name: p.clone() for name, p in server.state_dict().items()} for rank in order}
    worker = build("mlp", seed=0).double()
    for rank in order:
        batch = next(batches[rank])
        worker.load_state_dict(server.state_dict() if rank == 0 else had[rank])
        worker.zero_grad()
        F.cross_entropy(worker(batch.inputs), batch.targets).backward()
        for mine, theirs in zip(server.parameters(), worker.parameters(), strict=True):
            mine.grad = theirs.grad.clone()
        optimizer.step()
        had[rank] = {name: p.clone() for name, p in server.state_dict().items()}
    return weights_of(server)


@pytest.mark.parametrize("server_works", [True, False])
def test_an_asynchronous_server_did_what_its_order_of_updates_says(
    comm: MPI.Intracomm, server_works: bool
) -> None:
    model = fresh(comm)
    mine = [] if comm.rank == 0 and not server_works else list(batches_of(comm.rank))
    losses, service = train_asynchronously(comm, model, summed_cross_entropy, sgd(model), mine)
    assert len(losses) == len(mine)
    assert replicas_agree(comm, model)
    assert (service is None) == (comm.rank != 0)
    if service:
        workers = range(0 if server_works else 1, comm.size)
        assert sorted(service.order) == sorted(list(workers) * BATCHES)
        assert (weights_of(model) - replay(service.order)).abs().max() < 1e-10


def test_workers_that_keep_their_own_weights_are_told_from_the_truth(
    comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer of the server is received and thrown away."""
    monkeypatch.setattr(parameter_server, "copy_back", lambda *_: None)
    model, last = fresh(comm), comm.size - 1
    mine = list(batches_of(0)) if comm.rank == last else []
    train_asynchronously(comm, model, summed_cross_entropy, sgd(model), mine)
    right = bool((weights_of(model) - replay((0,) * BATCHES)).abs().max() < 1e-10)
    assert comm.allreduce(right, op=MPI.LAND) == (comm.size == 1)


def test_staleness_is_counted_from_the_order_of_updates(comm: MPI.Intracomm) -> None:
    """Ranks 1 and 2 alternate, rank 3 is three times as slow."""
    service = Service((1, 2, 1, 2, 1, 3, 2, 3))
    assert service.staleness == (0, 1, 1, 1, 1, 5, 2, 1)
    assert Service((0, 1, 0, 1)).staleness == (0, 1, 0, 1)  # the server has the newest weights
