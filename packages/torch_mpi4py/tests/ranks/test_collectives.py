"""Collectives and groups of the "mpi4py" backend that calls.py does not draw, against plain torch."""

import pytest
import torch
import torch.distributed as dist

pytestmark = pytest.mark.usefixtures("world")


@pytest.mark.skipif(not hasattr(dist, "gather_single"), reason="torch has gather_single from 2.14 on")
def test_gather_single_fills_one_tensor_of_the_root() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    whole = torch.zeros(size, 2, 3) if rank == size - 1 else None
    dist.gather_single(torch.full((2, 3), float(rank)), whole, dst=size - 1)
    expected = torch.arange(float(size)).view(-1, 1, 1).expand(size, 2, 3)
    assert whole is None or torch.equal(whole, expected)


def test_a_gather_from_its_own_place() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    gathered = torch.zeros(5 * size, 3)
    own = gathered[5 * rank : 5 * rank + 5].fill_(rank + 1)
    dist.all_gather_into_tensor(gathered, own)
    assert gathered[:, 0].tolist() == [r + 1 for r in range(size) for _ in range(5)]


def test_premultiplied_sum() -> None:
    size = dist.get_world_size()
    for dtype in (torch.float32, torch.bfloat16):
        summed = torch.full((3,), 4.0, dtype=dtype)
        dist.all_reduce(summed, op=dist._make_nccl_premul_sum(0.5))
        assert summed.tolist() == [2.0 * size] * 3
        share = torch.empty(2, dtype=dtype)
        dist.reduce_scatter_tensor(
            share, torch.ones(2 * size, dtype=dtype), op=dist._make_nccl_premul_sum(0.25)
        )
        assert share.tolist() == [0.25 * size] * 2


def test_a_sum_of_short_floats_is_rounded_once() -> None:
    """1 + 3 * 2^-8 in bfloat16: adding one by one loses every 2^-8."""
    summed = torch.tensor([1.0 if dist.get_rank() == 0 else 2.0**-8] * 40000, dtype=torch.bfloat16)
    dist.all_reduce(summed)
    exactly = torch.tensor(1.0 + (dist.get_world_size() - 1) * 2.0**-8).to(torch.bfloat16)
    assert torch.equal(summed, exactly.expand(40000))


def test_broadcasts_and_lists_may_be_coalesced() -> None:
    rank, size, root = dist.get_rank(), dist.get_world_size(), dist.get_world_size() - 1
    tensors = [torch.full((length,), float(rank)) for length in (1, 3)]
    with dist._coalescing_manager(device=torch.device("cpu"), async_ops=True) as works:
        for tensor in tensors:
            dist.broadcast(tensor, root)
    works.wait()
    assert torch.cat(tensors).tolist() == [float(root)] * 4
    lists = [[torch.empty(2), torch.empty(1)] for _ in range(size)]
    dist.all_gather_coalesced(lists, [torch.full((2,), float(rank)), torch.zeros(1)])
    assert [[t.tolist() for t in row] for row in lists] == [[[r, r], [0.0]] for r in range(size)]


def test_a_single_row_of_a_transposed_tensor_is_reduced_where_it_lies() -> None:
    """It is contiguous, with strides that a view of it does not have."""
    tensors = [torch.ones(3, 1).t(), torch.ones(2, dtype=torch.int32)]  # two dtypes: not packed
    with dist._coalescing_manager():
        for tensor in tensors:
            dist.all_reduce(tensor)
    size = dist.get_world_size()
    assert [tensor.tolist() for tensor in tensors] == [[[size] * 3], [size] * 2]


def test_sparse_tensors_are_summed() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    entries = [
        torch.sparse_coo_tensor([list(range(r + 1))], torch.ones(r + 1, 2), (size, 2)) for r in range(size)
    ]
    tensor = entries[rank].clone()
    dist.all_reduce(tensor)
    assert torch.equal(tensor.to_dense(), sum(entry.to_dense() for entry in entries))


def test_a_group_may_be_made_by_its_members_only() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    evens = [r for r in range(size) if r % 2 == 0]
    if rank in evens:  # the others do not call at all
        group = dist.new_group(evens, use_local_synchronization=True)
        tensor = torch.ones(1)
        dist.all_reduce(tensor, group=group)
        assert tensor.item() == len(evens)
        dist.destroy_process_group(group)
    dist.barrier()


def test_a_group_keeps_its_messages_from_those_of_the_world() -> None:
    """The known-wrong variant, a sub-group on the world's communicator, mixes them up."""
    size, rank = dist.get_world_size(), dist.get_rank()
    if size < 3:
        return
    group = dist.new_group([0, 1])

    def both() -> list[float]:
        in_group, in_world = torch.tensor([1.0]), torch.tensor([10.0])
        work = dist.all_reduce(in_group, group=group, async_op=True) if rank < 2 else None
        dist.all_reduce(in_world)
        if work:
            work.wait()
        return [in_group.item(), in_world.item()]

    assert both() == ([2.0, 10.0 * size] if rank < 2 else [1.0, 10.0 * size])
