"""Every collective of the "mpi4py" backend against plain torch on the inputs of all ranks."""

import functools
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from mpi4py import MPI

import torch_mpi4py
from torch_mpi4py import collectives, reductions, tensors

FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
INTEGERS = [
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint16,
    torch.uint32,
    torch.uint64,
]
COMPLEXES = [torch.complex64, torch.complex128]
DTYPES = [*FLOATS, *INTEGERS, *COMPLEXES, torch.bool, torch.float8_e4m3fn]
ARITHMETIC = ["SUM", "AVG", "PRODUCT", "MIN", "MAX"]
LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "plain": lambda t: t,
    "strided": lambda t: torch.stack([t, t], dim=-1)[..., 0],
    "transposed": lambda t: t.t().contiguous().t() if t.dim() == 2 else t,
    "zero-size": lambda t: t[:0],
    "scalar": lambda t: t.reshape(-1)[0].clone(),
    "lazily negated": lambda t: torch.complex(t, -t).conj().imag if t.dtype == torch.float32 else t,
}


@pytest.fixture(autouse=True)
def world(comm: MPI.Intracomm) -> Iterator[None]:
    torch_mpi4py.init_process_group(comm, timeout=timedelta(seconds=20))
    yield
    dist.destroy_process_group()


def tensor_of(
    rank: int, dtype: torch.dtype, layout: str = "plain", shape: tuple[int, ...] = (5, 3)
) -> torch.Tensor:
    """The tensor that `rank` brings along, small numbers that every dtype knows."""
    numbers = torch.randint(0, 3, shape, generator=torch.Generator().manual_seed(100 + rank)) + 1
    return LAYOUTS[layout](numbers.bool() if dtype == torch.bool else (numbers.to(dtype)))


def exact(tensor: torch.Tensor) -> torch.Tensor:
    """In a type that torch computes everything in."""
    if tensor.dtype.is_complex:
        return tensor.to(torch.complex128)
    return tensor.to(torch.float64) if tensor.dtype.is_floating_point else tensor.to(torch.int64)


def reduced(tensors: list[torch.Tensor], op: str) -> torch.Tensor:
    """The oracle: `tensors` reduced by torch alone."""
    values, dtype = [exact(t) for t in tensors], tensors[0].dtype
    combine = {
        "SUM": torch.add, "AVG": torch.add, "PRODUCT": torch.mul, "MIN": torch.minimum, "MAX": torch.maximum,
        "BAND": torch.bitwise_and, "BOR": torch.bitwise_or, "BXOR": torch.bitwise_xor,
    }[op]  # fmt: skip
    total = functools.reduce(combine, values)
    if dtype == torch.bool:
        total = total % 2 if op == "BXOR" else total
    if op == "AVG":
        mode = None if dtype.is_floating_point or dtype.is_complex else "trunc"
        total = torch.div(total, len(tensors), rounding_mode=mode)
    return total.to(dtype)


def check(got: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(exact(got), exact(expected))


def everyone(dtype: torch.dtype, layout: str = "plain") -> list[torch.Tensor]:
    return [tensor_of(rank, dtype, layout) for rank in range(dist.get_world_size())]


def mine(dtype: torch.dtype, layout: str = "plain") -> torch.Tensor:
    return tensor_of(dist.get_rank(), dtype, layout)


def reductions_of(dtype: torch.dtype) -> list[str]:
    """What torch defines for `dtype`."""
    if dtype.is_complex:
        return ["SUM", "AVG"]
    if dtype == torch.bool:
        return ["SUM", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR"]
    return ARITHMETIC if dtype.is_floating_point else [*ARITHMETIC, "BAND", "BOR", "BXOR"]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_reductions_equal_torch_on_all_inputs(dtype: torch.dtype) -> None:
    for layout in layouts_of(dtype):
        check_reductions(dtype, layout)


def layouts_of(dtype: torch.dtype) -> list[str]:
    return [
        name for name in LAYOUTS if dtype != torch.float8_e4m3fn or name != "strided"
    ]  # torch cannot stack it


def check_reductions(dtype: torch.dtype, layout: str) -> None:
    size, root = dist.get_world_size(), dist.get_world_size() - 1
    for op in reductions_of(dtype):
        kind, expected = getattr(dist.ReduceOp, op), reduced(everyone(dtype, layout), op)
        summed = mine(dtype, layout)
        dist.all_reduce(summed, op=kind)
        check(summed, expected)
        on_root = mine(dtype, layout)
        dist.reduce(on_root, dst=root, op=kind)
        check(on_root, expected if dist.get_rank() == root else mine(dtype, layout))
        share = torch.empty_like(mine(dtype, layout))
        dist.reduce_scatter(share, [mine(dtype, layout) for _ in range(size)], op=kind)
        check(share, expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_movement_delivers_what_each_rank_gave(dtype: torch.dtype) -> None:
    for layout in layouts_of(dtype):
        check_movement(dtype, layout)


@pytest.mark.skipif(not hasattr(dist, "gather_single"), reason="torch has gather_single from 2.14 on")
def test_gather_single_fills_one_tensor_of_the_root() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    whole = torch.zeros(size, 2, 3) if rank == size - 1 else None
    dist.gather_single(torch.full((2, 3), float(rank)), whole, dst=size - 1)
    expected = torch.arange(float(size)).view(-1, 1, 1).expand(size, 2, 3)
    assert whole is None or torch.equal(whole, expected)


def check_movement(dtype: torch.dtype, layout: str) -> None:
    rank, size, inputs = dist.get_rank(), dist.get_world_size(), everyone(dtype, layout)
    root, last = 0, size - 1
    got = mine(dtype, layout)
    dist.broadcast(got, src=last)
    check(got, inputs[last])
    outputs = [torch.empty_like(t) for t in inputs]
    dist.all_gather(outputs, mine(dtype, layout))
    assert all(torch.equal(exact(o), exact(t)) for o, t in zip(outputs, inputs, strict=True))
    outputs = [torch.empty_like(t) for t in inputs]
    dist.gather(mine(dtype, layout), outputs if rank == root else None, dst=root)
    assert rank != root or all(torch.equal(exact(o), exact(t)) for o, t in zip(outputs, inputs, strict=True))
    got = torch.empty_like(mine(dtype, layout))
    dist.scatter(got, inputs if rank == last else None, src=last)
    check(got, inputs[rank])
    outputs = [torch.empty_like(t) for t in inputs]
    dist.all_to_all(outputs, [mine(dtype, layout) for _ in inputs])
    assert all(torch.equal(exact(o), exact(t)) for o, t in zip(outputs, inputs, strict=True))
    if size > 1:
        got = torch.empty_like(mine(dtype, layout))
        works = [dist.isend(mine(dtype, layout), (rank + 1) % size), dist.irecv(got, (rank - 1) % size)]
        assert all(work.wait() for work in works)
        check(got, inputs[(rank - 1) % size])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.complex64], ids=str)
def test_forms_with_one_tensor_for_all_ranks(dtype: torch.dtype) -> None:
    rank, size, inputs = dist.get_rank(), dist.get_world_size(), everyone(dtype)
    gathered = torch.empty((5 * size, 3), dtype=dtype)
    dist.all_gather_into_tensor(gathered, mine(dtype))
    check(gathered, torch.cat(inputs))
    gathered = torch.zeros((5 * size, 3), dtype=dtype)
    own = gathered[5 * rank : 5 * rank + 5]
    own.copy_(mine(dtype))
    dist.all_gather_into_tensor(gathered, own)  # from its own place
    check(gathered, torch.cat(inputs))
    share = torch.empty((5, 3), dtype=dtype)
    dist.reduce_scatter_tensor(share, torch.cat([mine(dtype)] * size))
    check(share, reduced(inputs, "SUM"))
    swapped = torch.empty((size, 3), dtype=dtype)
    rows = [tensor_of(r, dtype, shape=(size, 3)) for r in range(size)]
    dist.all_to_all_single(swapped, rows[rank])
    check(swapped, torch.stack([row[rank] for row in rows]))


def test_parts_of_different_sizes() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    ranks = range(size)
    outputs = [torch.empty(r + 1) for r in ranks]
    dist.all_gather(outputs, torch.full((rank + 1,), float(rank)))
    assert [o.tolist() for o in outputs] == [[float(r)] * (r + 1) for r in ranks]
    share = torch.empty(rank)
    dist.reduce_scatter(share, [torch.full((r,), 1.0) for r in ranks])
    assert share.tolist() == [float(size)] * rank
    # rank r sends r + 1 rows to each
    takes, gives = [r + 1 for r in ranks], [rank + 1] * size
    output, rows = torch.empty(sum(takes), 2), torch.full((sum(gives), 2), float(rank))
    dist.all_to_all_single(output, rows, takes, gives)
    assert output[:, 1].tolist() == [float(r) for r in ranks for _ in range(r + 1)]
    outputs = [torch.empty(r + 1) for r in ranks]
    dist.all_to_all(outputs, [torch.full((rank + 1,), float(rank)) for _ in ranks])
    assert [o.tolist() for o in outputs] == [[float(r)] * (r + 1) for r in ranks]


def test_premultiplied_sum() -> None:
    size = dist.get_world_size()
    for dtype in (torch.float32, torch.bfloat16):
        summed = torch.full((3,), 4.0, dtype=dtype)
        dist.all_reduce(summed, op=dist._make_nccl_premul_sum(0.5))
        check(summed, torch.full((3,), 2.0 * size, dtype=dtype))
        share = torch.empty(2, dtype=dtype)
        dist.reduce_scatter_tensor(
            share, torch.ones(2 * size, dtype=dtype), op=dist._make_nccl_premul_sum(0.25)
        )
        check(share, torch.full((2,), 0.25 * size, dtype=dtype))


def test_a_sum_of_short_floats_is_rounded_once() -> None:
    """1 + 3 * 2^-8 in bfloat16: adding one by one loses every 2^-8."""
    summed = torch.tensor([1.0 if dist.get_rank() == 0 else 2.0**-8] * 40000, dtype=torch.bfloat16)
    dist.all_reduce(summed)
    exactly = torch.tensor(1.0 + (dist.get_world_size() - 1) * 2.0**-8).to(torch.bfloat16)
    assert torch.equal(summed, exactly.expand(40000))


def test_coalesced_forms(comm: MPI.Intracomm) -> None:
    size, device = dist.get_world_size(), torch.device("cpu")
    tensors = [torch.full((n,), 1.0) for n in (1, 3)]
    with dist._coalescing_manager(async_ops=True) as works:
        for tensor in tensors:
            dist.all_reduce(tensor)
    works.wait()
    assert [t.tolist() for t in tensors] == [[float(size)], [float(size)] * 3]
    gathered = [torch.empty(n * size) for n in (1, 3)]
    with dist._coalescing_manager():
        for output, tensor in zip(gathered, tensors, strict=True):
            dist.all_gather_into_tensor(output, tensor)
    assert [t.tolist() for t in gathered] == [[float(size)] * size, [float(size)] * 3 * size]
    with dist._coalescing_manager():
        for output, tensor in zip(tensors, gathered, strict=True):
            dist.reduce_scatter_tensor(output, tensor)
    assert tensors[1].tolist() == [float(size * size)] * 3
    with dist._coalescing_manager(device=device, async_ops=True) as works:
        dist.broadcast(tensors[0], src=0)
        dist.broadcast(tensors[1], src=0)
    works.wait()
    lists = [[torch.empty(2), torch.empty(1)] for _ in range(size)]
    dist.all_gather_coalesced(lists, [torch.ones(2), torch.zeros(1)])
    assert [[t.tolist() for t in row] for row in lists] == [[[1.0, 1.0], [0.0]]] * size


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
    check(tensor.to_dense(), sum(entry.to_dense() for entry in entries))


def test_object_collectives() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    objects: list[object] = [None] * size
    dist.all_gather_object(objects, {"rank": rank})
    assert objects == [{"rank": r} for r in range(size)]
    words: list[object] = ["from 0" if rank == 0 else None]
    dist.broadcast_object_list(words, src=0)
    assert words == ["from 0"]
    own: list[object] = [None]
    dist.scatter_object_list(own, [("for", r) for r in range(size)] if rank == 0 else None, src=0)
    assert own == [("for", rank)]
    collected: list[object] | None = [None] * size if rank == 0 else None
    dist.gather_object(rank, collected, dst=0)
    assert rank or collected == list(range(size))


def test_messages_meet_by_tag_and_from_any_source() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    if rank:
        dist.isend(torch.tensor([rank, 2]), 0, tag=2).wait()
        dist.send(torch.tensor([rank, 1]), 0, tag=1)
        return
    got = torch.empty(2, dtype=torch.int64)
    sources = set()
    for _ in range(size - 1):  # tag 1 first, although it was sent second
        sources.add(dist.recv(got, tag=1))
        assert got.tolist() == [max(sources, key=lambda s: s == got[0]), 1]
    assert sources == set(range(1, size))
    for source in range(1, size):
        assert dist.recv(got, source, tag=2) == source
        assert got.tolist() == [source, 2]


def test_batched_messages_and_large_ones_owned_by_the_send() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    if size == 1:
        return
    got, right, left = torch.empty(10**5), (rank + 1) % size, (rank - 1) % size
    operations = [
        dist.P2POp(dist.isend, torch.full((10**5,), float(rank)), right),
        dist.P2POp(dist.irecv, got, left),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    assert got.unique().tolist() == [left]
    for step in range(5):  # nobody keeps the work or the tensor
        dist.isend(torch.full((10**5,), float(step)), right, tag=step)
    for step in range(5):
        dist.recv(got, left, tag=step)
        assert got.unique().tolist() == [step]


def test_groups_that_overlap_and_are_made_by_their_members_only() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    pairs = [[r, r + 1] for r in range(size - 1)]
    groups = {tuple(pair): dist.new_group(pair) for pair in pairs}
    for pair, group in groups.items():
        if rank in pair:
            tensor = torch.tensor([float(rank)])
            dist.all_reduce(tensor, group=group)
            assert tensor.item() == sum(pair)
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


def test_device_mesh_makes_rows_and_columns() -> None:
    size = dist.get_world_size()
    if size != 4:
        return
    mesh = dist.device_mesh.init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    for name in ("data", "tensor"):
        tensor = torch.tensor([float(dist.get_rank())])
        dist.all_reduce(tensor, group=mesh.get_group(name))
        assert tensor.item() == sum(mesh[name].mesh.tolist())


def test_split_group_is_a_method_of_the_group() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    ranks = list(range(size))[::-1][: max(1, size - 1)]
    part = dist.group.WORLD.split_group(ranks)
    assert (part is None) == (rank not in ranks)
    if part:
        tensor = torch.tensor([float(rank)])
        dist.broadcast(tensor, src=ranks[0], group=part)
        assert tensor.item() == ranks[0] and dist.get_rank(part) == ranks.index(rank)
        dist.destroy_process_group(part)


def test_the_group_says_who_it_is() -> None:
    group = dist.group.WORLD
    assert group.get_group_store() is not None
    assert (group.name(), group.rank(), group.size()) == ("mpi4py", dist.get_rank(), dist.get_world_size())
    assert dist.get_backend() == "mpi4py"
    assert [device.type for device in group._device_types] == ["cpu"]


def test_what_mpi_cannot_count_goes_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensors, "MAX_COUNT", 7)
    test_forms_with_one_tensor_for_all_ranks(torch.float32)
    test_forms_with_one_tensor_for_all_ranks(torch.bfloat16)
    test_parts_of_different_sizes()
    for layout in ("plain", "strided"):
        check_movement(torch.float32, layout)
        check_reductions(torch.float32, layout)


def test_average_that_forgets_to_divide_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collectives, "average", lambda tensor, size: None)
    if dist.get_world_size() > 1:
        with pytest.raises(AssertionError):
            check_average()
    monkeypatch.undo()
    check_average()


def check_average() -> None:
    tensor = mine(torch.float32)
    dist.all_reduce(tensor, op=dist.ReduceOp.AVG)
    check(tensor, reduced(everyone(torch.float32), "AVG"))


def test_every_reduction_is_native_or_made_wider() -> None:
    for dtype in DTYPES:
        for op in reductions_of(dtype):
            reductions.refuse_unknown(dtype, getattr(dist.ReduceOp, op).value)
