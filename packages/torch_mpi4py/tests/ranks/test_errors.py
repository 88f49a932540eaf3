"""What the "mpi4py" backend says when ranks disagree, stay away, or ask for what cannot be."""

from collections.abc import Callable
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from mpi4py import MPI

import torch_mpi4py
from packages.torch_mpi4py.tests.ranks.calls import still_works
from torch_mpi4py import gate

pytestmark = pytest.mark.usefixtures("world")


def rank_and_size() -> tuple[int, int]:
    return dist.get_rank(), dist.get_world_size()


def disagreements() -> dict[str, Callable[[], object]]:
    """Calls in which the last rank asks for something else."""
    rank, size = rank_and_size()
    odd = rank == size - 1
    n = 4 if odd else 3
    some = [torch.ones(n) for _ in range(size)]
    threes, places = [torch.ones(3) for _ in range(size)], [torch.empty(3) for _ in range(size)]
    last_differs = [*places[1:], torch.empty(n)]
    op = dist.ReduceOp.MAX if odd else dist.ReduceOp.SUM
    return {
        "shape": lambda: dist.all_reduce(torch.ones(3, 1) if odd else torch.ones(1, 3)),
        "dtype": lambda: dist.all_reduce(torch.ones(3, dtype=torch.int32 if odd else torch.float32)),
        "reduction": lambda: dist.all_reduce(torch.ones(3), op=op),
        "collective": lambda: dist.barrier() if odd else dist.all_reduce(torch.ones(3)),
        "root": lambda: dist.broadcast(torch.ones(3), src=rank if odd else 0),
        "large": lambda: dist.all_reduce(torch.ones(10**6 + n)),
        "all_gather": lambda: dist.all_gather(last_differs, torch.ones(n)),
        "reduce_scatter": lambda: dist.reduce_scatter(torch.empty(n), some),
        "reduce_scatter_tensor": lambda: dist.reduce_scatter_tensor(torch.empty(n), torch.ones(n * size)),
        "gather": lambda: dist.gather(torch.ones(n), None if rank else places, dst=0),
        "scatter": lambda: dist.scatter(torch.empty(n), None if rank else threes, src=0),
        "all_to_all": lambda: dist.all_to_all([torch.empty(n)] * (size - 1) + places[:1], threes),
        "all_to_all_single": lambda: dist.all_to_all_single(torch.empty(size * n), torch.ones(size * n)),
        "sparse": lambda: dist.all_reduce(torch.ones(2).to_sparse() if odd else torch.ones(2)),
    }  # fmt: skip


def test_disagreement_is_an_error_on_every_rank_and_the_group_goes_on() -> None:
    rank, size = rank_and_size()
    if size == 1:
        return
    for name, call in disagreements().items():
        with pytest.raises(torch_mpi4py.MismatchError, match="rank"):
            call()
            pytest.fail(f"{name}: not noticed on rank {rank}")
        still_works()
    work = dist.all_reduce(torch.ones(1 + rank, 2), async_op=True)
    with pytest.raises(torch_mpi4py.MismatchError) as error:
        work.wait()
    assert all(f"rank {r}: all_reduce of float32 ({r + 1}, 2), SUM" in str(error.value) for r in range(size))
    assert (
        isinstance(work.exception(), torch_mpi4py.MismatchError)
        and work.is_completed()
        and not work.is_success()
    )
    still_works()


def test_a_gate_that_lets_everyone_in_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Known-wrong: without the comparison, ranks with different roots would wait or mix tensors."""
    rank, size = rank_and_size()
    if size == 1:
        return
    mine, enter = gate.record("barrier", None, root_or_op=rank), dist.group.WORLD.channel.gate.enter
    monkeypatch.setattr(gate, "agree", lambda records: True)
    with pytest.raises(pytest.fail.Exception), pytest.raises(torch_mpi4py.MismatchError):
        enter(mine, lambda: "barrier", 5.0)
    monkeypatch.undo()
    with pytest.raises(torch_mpi4py.MismatchError):
        enter(mine, lambda: "barrier", 5.0)


def test_what_one_rank_cannot_do_is_refused_on_all() -> None:
    rank, size = rank_and_size()
    cases = {
        "not on the CPU": lambda odd: dist.all_reduce(torch.empty(3, device="meta" if odd else "cpu")),
        "bits of floats": lambda odd: dist.all_reduce(
            torch.ones(3), op=dist.ReduceOp.BAND if odd else dist.ReduceOp.SUM
        ),
        "rows": lambda odd: dist.all_to_all_single(
            torch.empty(size + odd), torch.ones(size + odd), None, [1] * size
        ),
        "list too short": lambda odd: dist.all_gather([torch.empty(1)] * (size - odd), torch.ones(1)),
    }
    for name, call in cases.items():
        odd = rank == size - 1
        with pytest.raises((TypeError, ValueError, RuntimeError)):
            call(odd)
            pytest.fail(f"{name}: not refused on rank {rank}")
        still_works()
    with pytest.raises(TypeError, match=r"meta.*\.cpu\(\)"):
        dist.all_reduce(torch.empty(3, device="meta"))
    with pytest.raises(TypeError, match=r"BXOR is not defined for float32"):
        dist.all_reduce(torch.ones(3), op=dist.ReduceOp.BXOR)


@pytest.mark.parametrize(("length", "level"), [(4, "OFF"), (4000, "DETAIL")])
def test_a_message_of_another_dtype_is_an_error_of_the_receiver(length: int, level: str) -> None:
    """Of a large one only with the level of detail that compares them."""
    rank, size = rank_and_size()
    if size == 1:
        return
    before = dist.get_debug_level()
    dist.set_debug_level(getattr(dist.DebugLevel, level))
    try:
        group = dist.new_group()
    finally:
        dist.set_debug_level(before)
    if rank == 0:
        dist.send(torch.ones(length, dtype=torch.int32), 1, group=group)
    elif rank == 1:
        with pytest.raises(
            torch_mpi4py.MismatchError, match=rf"recv of float32 \({length},\).*rank 0 sent int32"
        ):
            dist.recv(torch.empty(length), 0, group=group)
    dist.destroy_process_group(group)
    still_works()


def test_a_member_that_does_not_come_to_a_new_group_is_named(comm: MPI.Intracomm) -> None:
    rank, size = rank_and_size()
    if size == 1:
        return
    late, ranks = size - 1, list(range(size))

    def make(timeout: timedelta) -> dist.ProcessGroup:
        return dist.new_group(ranks, timeout, use_local_synchronization=True)

    if rank == late:
        comm.Barrier()  # until the others have given up
    with pytest.raises(torch_mpi4py.CollectiveTimeoutError, match=rf"new_group .*rank {late} did not come"):
        make(timedelta(seconds=0.3))
    if rank != late:
        comm.Barrier()
    group = make(timedelta(seconds=20))  # the next one is another call
    still_works(group)


def test_a_rank_that_stays_away_is_noticed_in_time_and_the_group_is_done_for(comm: MPI.Intracomm) -> None:
    rank, size = rank_and_size()
    if size == 1:
        return
    group = dist.new_group(timeout=timedelta(seconds=0.3))
    if rank:
        tensor = torch.ones(2)
        with pytest.raises(torch_mpi4py.CollectiveTimeoutError, match=rf"not all {size} ranks"):
            dist.all_reduce(tensor, group=group)
        assert tensor.tolist() == [1.0, 1.0]
        with pytest.raises(torch_mpi4py.BrokenGroupError, match="cannot be used any more"):
            dist.all_reduce(tensor, group=group)
        with pytest.raises(torch_mpi4py.BrokenGroupError):
            dist.all_reduce(tensor, group=group, async_op=True).wait()
    comm.Barrier()
    still_works()  # the other groups live


def test_waits_end_at_their_own_deadline(comm: MPI.Intracomm) -> None:
    rank, size = rank_and_size()
    if size == 1:
        return
    if rank == 1:
        received = dist.irecv(torch.empty(1), 0)
        with pytest.raises(torch_mpi4py.CollectiveTimeoutError):
            received.wait(timedelta(seconds=0.2))
        with pytest.raises(torch_mpi4py.CollectiveTimeoutError):
            dist.all_reduce(torch.ones(1), async_op=True).wait(timedelta(seconds=0.2))
    comm.Barrier()
    if rank != 1:
        if rank == 0:
            dist.send(torch.ones(1), 1)
        dist.all_reduce(torch.ones(1))
    still_works()  # both went on and were done


def test_monitored_barrier_names_the_missing() -> None:
    rank, size = rank_and_size()
    group = dist.group.WORLD
    group.monitored_barrier(timedelta(seconds=20))
    if size < 3:
        return
    if rank == 0:
        with pytest.raises(
            torch_mpi4py.CollectiveTimeoutError, match="Ranks 1, 2 failed" if size == 3 else "Ranks 1, 2"
        ):
            group.monitored_barrier(timedelta(seconds=0.3), wait_all_ranks=True)
    elif rank > 2:
        with pytest.raises(torch_mpi4py.CollectiveTimeoutError, match="rank 1, 2 did not come"):
            group.monitored_barrier(timedelta(seconds=5))
    dist.barrier()
    group.monitored_barrier(timedelta(seconds=20))


def test_use_after_destroy() -> None:
    group = dist.new_group()
    dist.destroy_process_group(group)
    with pytest.raises(torch_mpi4py.ClosedGroupError, match="destroyed"):
        group.allreduce([torch.ones(1)]).wait()
    with pytest.raises(torch_mpi4py.ClosedGroupError):
        group.send([torch.ones(1)], 0, 0)
    dist.destroy_process_group()
    with pytest.raises(ValueError):
        dist.all_reduce(torch.ones(1))


def test_splitting_and_merging_groups_is_refused_and_nothing_crashes() -> None:
    group = dist.distributed_c10d._get_default_group()
    for split in (group.splitGroup, group.split_group):
        with pytest.raises(NotImplementedError, match="new_group"):
            split([0], group_name="part")
    for merge in (group.mergeRemoteGroup, group.merge_remote_group):
        with pytest.raises(NotImplementedError, match="start one larger job"):
            merge(None, 2)


def test_a_world_of_the_wrong_size_is_refused(comm: MPI.Intracomm) -> None:
    dist.destroy_process_group()
    store = torch_mpi4py.start.common_store(comm, timedelta(seconds=20))
    with pytest.raises(ValueError, match=rf"MPI started {MPI.COMM_WORLD.size}"):
        dist.init_process_group("mpi4py", store=store, rank=comm.rank, world_size=comm.size + 1)
    comm.Barrier()
