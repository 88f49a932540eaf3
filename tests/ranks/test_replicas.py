"""A flipped bit is found: which tensor, on which rank. On any number of ranks."""

import pytest
import torch
from mpi4py import MPI
from torch import nn

from course_lib.parallel.data_parallel import GradientBucket, replicas_agree
from course_lib.parallel.replicas import Difference, compare_replicas, flip_bit, hash_tensors

COMM = MPI.COMM_WORLD


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 1))


def expected(name: str, guilty: int) -> list[Difference]:
    """One rank alone differs from none; of two, nobody can say which."""
    if COMM.size == 1:
        return []
    majority = COMM.size > 2
    return [Difference(name, (guilty,) if majority else (0, 1), majority)]


@pytest.mark.parametrize("bit", [0, 22, 30, 31])
def test_any_bit_of_any_tensor_is_found(bit: int) -> None:
    guilty = COMM.size - 1
    for name in ("0.weight", "1.running_var", "2.bias"):
        model = network()
        assert compare_replicas(COMM, model) == []
        if COMM.rank == guilty:
            flip_bit(model.state_dict()[name], 0, bit)
        assert compare_replicas(COMM, model) == expected(name, guilty)


def test_every_difference_is_listed() -> None:
    model = network()
    if COMM.rank == 0:
        flip_bit(model.state_dict()["0.bias"], 1, 3)
        flip_bit(model.state_dict()["2.weight"], 2, 3)
    assert [each.tensor for each in compare_replicas(COMM, model)] == ["0.bias", "2.weight"] * (COMM.size > 1)


def sums(model: nn.Module) -> dict[str, float]:
    """Known-wrong: sums of the elements, instead of hashes. A small one is rounded away."""
    return {name: float(tensor.float().sum()) for name, tensor in model.state_dict().items()}


def test_a_sum_misses_what_a_hash_finds() -> None:
    model = nn.Linear(4, 1)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1e8, 1.0, 1.0, 1.0]]))
    before, hashes = sums(model), hash_tensors(model)
    flip_bit(model.weight, 1, 0)
    assert sums(model) == before
    assert hash_tensors(model) != hashes


def test_a_flipped_weight_stays_on_its_rank_while_training_goes_on() -> None:
    """The sum of the gradients brings the same to all ranks, so what differs differs for good."""
    model, guilty = network(), COMM.size - 1
    optimizer, bucket = torch.optim.SGD(model.parameters(), lr=0.01), GradientBucket(model)
    found = []
    for step in range(4):
        if step == 2 and COMM.rank == guilty:
            flip_bit(model.state_dict()["0.weight"], 3, 20)
        optimizer.zero_grad()
        model.eval()(torch.ones(2, 6)).sum().backward()
        bucket.sum(COMM)
        optimizer.step()
        found.append(compare_replicas(COMM, model))
    assert found == [[], [], expected("0.weight", guilty), expected("0.weight", guilty)]
    assert replicas_agree(COMM, model) == (COMM.size == 1)


def test_flipping_twice_restores_and_numbers_have_their_bits() -> None:
    for dtype, last in ((torch.float16, 15), (torch.float32, 31), (torch.float64, 63)):
        tensor = torch.tensor([1.5, -2.0], dtype=dtype)
        flip_bit(tensor, 0, last)
        assert tensor.tolist() == [-1.5, -2.0]
        flip_bit(tensor, 0, last)
        flip_bit(tensor, 1, 0)
        assert tensor[0] == 1.5 and tensor[1] != -2.0
        with pytest.raises(ValueError, match=f"use 0 to {last}"):
            flip_bit(tensor, 0, last + 1)
