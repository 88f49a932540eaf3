"""Top-k and PowerSGD: nothing is lost but rounding, and what breaks them.

Oracles: for top-k, all ranks simulated in NumPy; for PowerSGD, PowerSGD in one process, as its sums are
linear. Where everything is sent, test_training_loop.py holds both to one process. Known-wrong variants are
kept and have to be told from the right ones.
"""

from collections.abc import Callable
from math import ceil

import numpy as np
import pytest
import torch
from mpi4py import MPI
from torch import nn

from course_lib.parallel.compression import PowerSGD, TopK
from course_lib.parallel.data_parallel import replicas_agree, shard_batches
from course_lib.training.loop import make_step, summed_cross_entropy
from course_lib.training.models import build, parameter_count
from tests.ranks.test_data_parallel import (
    IMAGES,
    LABELS,
    STEPS,
    sgd,
    together,
    worst,
)

Compression = TopK | PowerSGD
LOSSY: dict[str, Callable[[MPI.Intracomm, nn.Module], Compression]] = {
    "top-k": lambda comm, model: TopK(comm, model, fraction=0.05),
    "PowerSGD": lambda comm, model: PowerSGD(comm, model, matrix_rank=2),
}


class Handed(MPI.Intracomm):
    """A communicator that counts the calls of two collectives, and the bytes this rank hands to them."""

    calls = nbytes = 0

    def Allreduce(self, sendbuf, recvbuf, op=MPI.SUM):
        self.calls, self.nbytes = self.calls + 1, self.nbytes + memoryview(recvbuf).nbytes
        return super().Allreduce(sendbuf, recvbuf, op)

    def Allgather(self, sendbuf, recvbuf):
        self.calls, self.nbytes = self.calls + 1, self.nbytes + memoryview(sendbuf).nbytes
        return super().Allgather(sendbuf, recvbuf)


class Net(nn.Module):
    """A wide matrix, a tall one, a convolution's four dimensions, and vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.tall, self.conv = nn.Linear(7, 5), nn.Linear(3, 11), nn.Conv2d(2, 3, 3)
        self.double()


def draw(rank: int, step: int, count: int) -> np.ndarray:
    """The gradient of a rank in a step, which every rank can compute."""
    return np.random.default_rng([rank, step]).standard_normal(count)


def fill(compression: Compression, numbers: np.ndarray) -> None:
    compression.gradients.flat.copy_(torch.from_numpy(numbers))


def residual_of(compression: Compression) -> torch.Tensor:
    """What this rank has not sent, as the gradients would hold it."""
    if isinstance(compression, TopK):
        return compression.residual.clone()
    aside = compression.gradients.flat.clone()
    compression.gradients.flat.zero_()
    for view, residual in zip(compression.matrices, compression.residuals, strict=True):
        view.copy_((residual if len(residual) == len(view) else residual.T).reshape(view.shape))
    found = compression.gradients.flat.clone()
    compression.gradients.flat.copy_(aside)
    return found


def forget(compression: Compression) -> None:
    """No error feedback: what was not sent is gone."""
    for residual in [compression.residual] if isinstance(compression, TopK) else compression.residuals:
        residual.zero_()


# ---------------------------------------------------------------- the right part is sent


@pytest.mark.parametrize("part", LOSSY)
def test_replicas_stay_equal_to_the_last_bit(comm: MPI.Intracomm, part: str) -> None:
    model = build("mlp", seed=0)
    compression = LOSSY[part](comm, model)
    step = make_step(model, summed_cross_entropy, sgd(model), compression.sum)
    for batch in shard_batches(comm, IMAGES, LABELS, STEPS):
        step(batch)
        assert replicas_agree(comm, model)


@pytest.mark.parametrize("fraction", [1e-9, 0.1, 0.5])
def test_top_k_is_the_simulation_of_all_ranks_in_numpy(comm: MPI.Intracomm, fraction: float) -> None:
    model = Net()
    top_k, count = TopK(comm, model, fraction=fraction), parameter_count(model)
    largest = max(1, ceil(fraction * count))
    residual = np.zeros((comm.size, count))
    for step in range(6):
        fill(top_k, draw(comm.rank, step, count))
        top_k.sum()
        expected = np.zeros(count)
        for rank in range(comm.size):
            residual[rank] += draw(rank, step, count)
            indices = np.argsort(-np.abs(residual[rank]))[:largest]
            expected[indices] += residual[rank, indices]
            residual[rank, indices] = 0
        assert np.abs(top_k.gradients.flat.numpy() - expected).max() < 1e-12
        assert np.abs(top_k.residual.numpy() - residual[comm.rank]).max() < 1e-12


def power_sgd(seed_of: Callable[[MPI.Intracomm], int]) -> Callable[[MPI.Intracomm, nn.Module], object]:
    """Rank-2 PowerSGD whose seed may differ between the ranks: the check of equal settings is passed by."""

    def synchronizer(comm: MPI.Intracomm, model: nn.Module) -> Callable[[], None]:
        power, start = PowerSGD(comm, model, matrix_rank=2), torch.Generator()
        start.manual_seed(seed_of(comm))
        power.rights = [
            torch.randn(right.shape, generator=start, dtype=right.dtype) for right in power.rights
        ]
        return power.sum

    return synchronizer


def test_power_sgd_on_all_ranks_is_power_sgd_in_one_process(comm: MPI.Intracomm) -> None:
    same = power_sgd(lambda comm: 5)
    ours, alone = together(comm, synchronizers=same), together(MPI.COMM_SELF, synchronizers=same)
    assert worst(comm, ours, alone) < 1e-8  # QR doubles the digits that rounding takes


def test_a_random_start_of_its_own_on_each_rank_is_told_from_the_truth(comm: MPI.Intracomm) -> None:
    if comm.size == 1:
        pytest.skip("one rank has one start")
    own, same = power_sgd(lambda comm: comm.rank), power_sgd(lambda comm: 0)
    ours, alone = together(comm, synchronizers=own), together(MPI.COMM_SELF, synchronizers=same)
    assert worst(comm, ours, alone) > 1e-2


# ---------------------------------------------------------------- error feedback


def lost(comm: MPI.Intracomm, compression: Compression, after: Callable[[Compression], object]) -> float:
    """How far what was sent and the residuals are from all gradients, after each of some steps."""
    count = len(compression.gradients.flat)
    given, sent, worst_gap = np.zeros(count), np.zeros(count), 0.0
    for step in range(5):
        fill(compression, draw(comm.rank, step, count))
        compression.sum()
        sent += compression.gradients.flat.numpy()
        after(compression)
        given += sum(draw(rank, step, count) for rank in range(comm.size))
        residual = residual_of(compression).numpy()
        comm.Allreduce(MPI.IN_PLACE, residual)
        worst_gap = max(worst_gap, float(np.abs(sent + residual - given).max()))
    return worst_gap


@pytest.mark.parametrize("part", LOSSY)
def test_what_was_sent_and_the_residuals_are_all_gradients(comm: MPI.Intracomm, part: str) -> None:
    assert lost(comm, LOSSY[part](comm, Net()), lambda _: None) < 1e-12


@pytest.mark.parametrize("part", LOSSY)
def test_without_error_feedback_gradients_are_lost(comm: MPI.Intracomm, part: str) -> None:
    assert lost(comm, LOSSY[part](comm, Net()), forget) > 0.1


@pytest.mark.parametrize("restart", [True, False])
def test_only_a_new_random_start_sends_what_follows_a_gradient_of_zero(
    comm: MPI.Intracomm, restart: bool
) -> None:
    """A zero gradient leaves a zero start; from there, the power method finds no row but the first."""
    power = PowerSGD(comm, nn.Linear(2, 2, bias=False).double(), matrix_rank=1)
    if not restart:
        power.starts = [torch.zeros_like(start) for start in power.starts]
    fill(power, np.zeros(4))
    power.sum()
    gradient = np.array([0.0, 0, 1, 1])
    for _ in range(3):
        fill(power, gradient)
        power.sum()
        sent = power.gradients.flat.numpy()
        assert np.abs(sent).max() > 0.1 if restart else not sent.any()


# ---------------------------------------------------------------- bytes


def test_the_bytes_are_those_of_the_papers(comm: MPI.Intracomm) -> None:
    mlp, few, low = build("mlp", seed=0), Handed(comm), Handed(comm)
    TopK(few, mlp, fraction=0.01).sum()
    assert (few.calls, few.nbytes) == (1, 8 * 2352)  # of 235 146 entries; an index and a value each
    PowerSGD(low, mlp, matrix_rank=2).sum()
    sides, vectors = (256 + 784) + (128 + 256) + (10 + 128), 256 + 128 + 10
    assert (low.calls, low.nbytes) == (2, 4 * (2 * sides + vectors))


# ---------------------------------------------------------------- refusals


def test_settings_that_make_no_sense_or_differ_are_refused_on_all_ranks(comm: MPI.Intracomm) -> None:
    for fraction in (0, -1, 1.5):
        with pytest.raises(ValueError, match="above 0 and at most 1"):
            TopK(comm, nn.Linear(2, 1), fraction=fraction)
    with pytest.raises(ValueError, match="at least 1"):
        PowerSGD(comm, nn.Linear(2, 1), matrix_rank=0)
    with pytest.raises(ValueError, match="use float32 or float64"):
        TopK(comm, nn.Linear(2, 1).bfloat16(), fraction=0.5)
    with pytest.raises(ValueError, match="no trainable parameters"):
        TopK(comm, nn.ReLU(), fraction=0.5)
    if comm.size > 1:
        with pytest.raises(ValueError, match=r"or fraction; .* the same settings"):
            TopK(comm, nn.Linear(2, 1), fraction=0.5 + comm.rank / 10)
        with pytest.raises(ValueError, match="the same model"):
            PowerSGD(comm, nn.Linear(2 + comm.rank, 1), matrix_rank=1)
        with pytest.raises(ValueError, match="the same settings"):
            PowerSGD(comm, nn.Linear(2, 1), matrix_rank=1 + comm.rank)


def stored_otherwise(rank: int) -> nn.Module:
    """A convolution whose weight odd ranks store channels-last: index 1 is another entry there."""
    layout = torch.channels_last if rank % 2 else torch.contiguous_format
    return nn.Conv2d(2, 1, 2).to(memory_format=layout)


def test_weights_that_are_stored_in_another_order_are_refused_on_all_ranks(comm: MPI.Intracomm) -> None:
    TopK(comm, stored_otherwise(1), fraction=0.5)
    if comm.size > 1:
        with pytest.raises(ValueError, match="the same model"):
            TopK(comm, stored_otherwise(comm.rank), fraction=0.5)


def test_a_model_of_vectors_alone_is_summed_exactly(comm: MPI.Intracomm) -> None:
    model = nn.LayerNorm(4)
    power = PowerSGD(comm, model, matrix_rank=1)
    fill(power, np.full(8, comm.rank + 1.0))
    power.sum()
    assert (power.gradients.flat == sum(range(1, comm.size + 1))).all()
