"""What the "mpi4py" backend leaves behind when a call does not end as it began.

Receives that nobody keeps, KeyboardInterrupt at random instants, forks, and ranks that come after the
others have given up. Afterwards a group gives right numbers or says that it does not; nobody hangs. What may
hang runs in a thread that is given up, so that a failure is a sentence and not the end of the job.
"""

import gc
import os
import random
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from mpi4py import MPI

import torch_mpi4py
from mpi_classroom.launch import run_ranks
from packages.torch_mpi4py.tests.ranks.calls import (
    KINDS,
    Side,
    agree_on,
    call_of,
    is_right,
    still_works,
    wait_for,
)
from torch_mpi4py import messages
from torch_mpi4py.channel import Call
from torch_mpi4py.gate import record
from torch_mpi4py.interrupts import Deferred
from torch_mpi4py.tensors import free_all

SLACK = 5.0  # seconds by which a busy machine may be late
CHILD_SECONDS = 20.0  # in which a forked child has tried everything
CLEAR = (torch_mpi4py.BrokenGroupError, torch_mpi4py.CollectiveTimeoutError)


pytestmark = pytest.mark.usefixtures("world")


def group_of(seconds: float) -> Any:
    return dist.new_group(timeout=timedelta(seconds=seconds), backend="mpi4py")


def outcome_of(act: Callable[[], object], seconds: float) -> object:
    """What `act` returns or raises, run in a thread; the word "hangs" after `seconds`."""
    outcome: list[object] = ["hangs"]

    def body() -> None:
        try:
            outcome[0] = act()
        except BaseException as error:
            outcome[0] = error

    thread = threading.Thread(target=body, daemon=True)
    thread.start()
    thread.join(seconds)
    return outcome[0]


# ------------------------------------------------------------------- receives that nobody keeps


def churn(count: int) -> list[torch.Tensor]:
    """New tensors, some of them where the memory of dropped ones was."""
    gc.collect()
    return [torch.full((count,), 7.0) for _ in range(200)]


@pytest.mark.parametrize("count", [10, 1000, 15_000], ids=["labelled", "4 kB", "60 kB"])
def test_a_message_to_a_dropped_receive_writes_into_nobody_elses_memory(
    comm: MPI.Intracomm, count: int
) -> None:
    rank, size = comm.rank, comm.size
    if size == 1:
        return
    wrong: list[str] = []
    if rank == 1:
        for _ in range(20):
            dist.irecv(torch.zeros(count), 0, tag=1)  # neither the work nor the tensor is kept
    ours = churn(count) if rank == 1 else []
    comm.Barrier()
    if rank == 0:
        for _ in range(20):
            dist.send(torch.full((count,), 1.0), 1, tag=1)
        dist.send(torch.full((count,), 2.0), 1, tag=1)
    elif rank == 1:
        got = torch.zeros(count)
        dist.recv(got, 0, tag=1)
        written = sum(not bool((tensor == 7.0).all()) for tensor in ours)
        wrong += [f"{written} tensors of others were written to"] if written else []
        wrong += [] if bool((got == 2.0).all()) else [f"the message after them is {got[0].item()}, not 2.0"]
    agree_on(comm, wrong)
    still_works()


@pytest.mark.parametrize("count", [10, 1000, 15_000], ids=["labelled", "4 kB", "60 kB"])
def test_a_message_to_a_receive_that_timed_out_writes_into_nobody_elses_memory(
    comm: MPI.Intracomm, count: int
) -> None:
    rank, size = comm.rank, comm.size
    if size == 1:
        return
    group = group_of(0.1)
    wrong: list[str] = []
    ours: list[torch.Tensor] = []
    if rank == 1:
        for _ in range(5):
            with pytest.raises(CLEAR):
                dist.recv(torch.zeros(count), 0, group=group, tag=1)
        ours = churn(count)
    comm.Barrier()
    if rank == 0:
        for _ in range(5):
            outcome_of(lambda: dist.send(torch.full((count,), 1.0), 1, group=group, tag=1), SLACK)
        dist.send(torch.full((count,), 2.0), 1)  # on the world
    elif rank == 1:
        got = torch.zeros(count)
        dist.recv(got, 0)
        later = torch.zeros(count)
        error = outcome_of(lambda: dist.recv(later, 0, group=group, tag=2), SLACK)  # none is sent
        wrong += [] if isinstance(error, CLEAR) else [f"a receive of nothing: {error!r}"]
        written = sum(not bool((tensor == 7.0).all()) for tensor in ours)
        wrong += [f"{written} tensors of others were written to"] if written else []
        wrong += [] if bool((got == 2.0).all()) else [f"the world's message is {got[0].item()}, not 2.0"]
    agree_on(comm, wrong)
    still_works()


LARGE_DROPPED = """
import gc, torch, torch.distributed as dist
import torch_mpi4py
torch_mpi4py.init_process_group()
rank = dist.get_rank()
for count in (10**5, 10**6):
    if rank:
        for _ in range(5):
            dist.irecv(torch.zeros(count), 0, tag=1)
        gc.collect()
        ours = [torch.full((count // 2,), 7.0) for _ in range(20)]
    dist.barrier()
    if rank:
        got = torch.zeros(count)
        dist.recv(got, 0, tag=2)
        assert (got == 2).all() and all((tensor == 7).all() for tensor in ours)
    else:
        works = [dist.isend(torch.ones(count), 1, tag=1) for _ in range(5)]
        dist.send(torch.full((count,), 2.0), 1, tag=2)
        for work in works:
            work.wait()
    dist.barrier()
dist.destroy_process_group()
"""
EXIT_WITH_RECEIVES = """
import torch, torch.distributed as dist
import torch_mpi4py
torch_mpi4py.init_process_group()
rank = dist.get_rank()
kept = [dist.irecv(torch.zeros(count), 1 - rank, tag=1) for count in (3, 10**4, 10**6)]
dist.irecv(torch.zeros(10**5), 1 - rank, tag=2)
dist.barrier()
"""
EXIT_DESTROYED = EXIT_WITH_RECEIVES + "dist.destroy_process_group()\n"
EXIT_MESSAGE_UNDER_WAY = EXIT_WITH_RECEIVES + (
    "rank or dist.isend(torch.ones(10**5), 1, tag=2)  # and nobody waits for it\n"
)
EXIT_FINALIZED = EXIT_WITH_RECEIVES + (
    "from mpi4py import MPI\nMPI.Finalize()\ndist.destroy_process_group()\n"
)
PROGRAMS = {
    "large dropped receives": LARGE_DROPPED,
    "exit with receives, destroyed": EXIT_DESTROYED,
    "exit with a message under way": EXIT_MESSAGE_UNDER_WAY,
    "exit with receives, MPI finalized before": EXIT_FINALIZED,
}


@pytest.mark.parametrize("program", list(PROGRAMS.values()), ids=list(PROGRAMS))
def test_a_job_of_its_own_ends_well_and_says_nothing(comm: MPI.Intracomm, program: str) -> None:
    """What might crash a rank, or is about its end: a job of two ranks, started by a session of one."""
    wrong: list[str] = []
    if comm.size == 1:
        try:
            job = run_ranks(2, ["-W", "ignore", "-m", "mpi4py", "-c", program], timeout=30)
            if job.returncode or job.stdout or job.stderr:
                wrong = [f"exit code {job.returncode}\n{job.stdout[-500:]}{job.stderr[:1500]}"]
        except subprocess.TimeoutExpired as late:
            wrong = ["the job hangs", *late.__notes__]
    comm.Barrier()
    agree_on(comm, wrong)


def test_what_mpi_may_write_after_ranks_disagreed_and_one_gave_up_belongs_to_nobody_else(
    comm: MPI.Intracomm,
) -> None:
    """The last rank leaves at the gate, rank 0 waits for the words of the others, rank 1 says them late."""
    rank, size = comm.rank, comm.size
    if size < 3:
        return
    channel = group_of(20).channel

    def words() -> str:
        if rank == 1 and not said:
            said.append(comm.recv(source=0))  # rank 0 has given up
        return f"rank {rank}"

    said: list[object] = []
    call = Call(record("barrier", None, root_or_op=rank), words, lambda: None, [])
    if rank < size - 1:
        comm.Barrier()
    with pytest.raises(torch_mpi4py.CollectiveTimeoutError):
        channel.run(call, 0.3, later=False)
    gc.collect()
    ours = [np.full(size, 7) for _ in range(200)]  # as large as what rank 0 wanted to receive
    if rank == size - 1:
        comm.Barrier()
    if rank == 0:
        comm.send(None, 1)
    comm.Barrier()
    written = sum(not bool((array == 7).all()) for array in ours)
    agree_on(comm, [f"{written} arrays of others were written to"] if written else [])
    still_works()


# ---------------------------------------------------------------------------- KeyboardInterrupt


def test_what_a_signal_handler_raises_while_a_message_begins_reaches_the_caller(
    comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stop(Exception):
        pass

    def stop(*_: object) -> None:
        raise Stop

    def interrupted(made: Any) -> None:
        free_all(made)
        os.kill(os.getpid(), signal.SIGINT)

    if comm.size == 1:
        return
    got = torch.zeros(3)
    if comm.rank == 0:
        monkeypatch.setattr(messages, "free_all", interrupted)
        before = signal.signal(signal.SIGINT, stop)
        try:
            with pytest.raises(Stop):
                dist.isend(torch.ones(3), 1)
        finally:
            signal.signal(signal.SIGINT, before)
            monkeypatch.undo()
    elif comm.rank == 1:
        dist.recv(got, 0)
        assert got.tolist() == [1.0, 1.0, 1.0]  # it was begun
    still_works()


Act = Callable[[], bool]  # makes one call; are its numbers right?


NAMES = [
    *("all_reduce", "all_reduce of bfloat16", "reduce", "broadcast", "all_gather", "all_gather_into_tensor"),
    *("gather", "scatter", "reduce_scatter", "all_to_all", "barrier", "isend_and_irecv"),
]


def call_on(group: Any, name: str, count: int, later: bool) -> Act:
    """One call, always with the same values, so that a rank that is one call behind gets them too."""
    (kind, _, dtype), rank, size = name.partition(" of "), dist.get_rank(), dist.get_world_size()
    root = size - 1 if kind == "broadcast" else 0
    call = call_of(kind, size, count, later=later, dtype=dtype or "float32", root=root)
    started = KINDS[kind](Side(call, range(size), rank, group, plain=True))

    def act() -> bool:
        wait_for(started.begin())
        return is_right(started)

    return act


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def run_interrupted(act: Act, delay: float, number: signal.Signals) -> object:
    """What `act` returns or raises in this thread, which gets the signal `number` after `delay` seconds."""
    before = signal.signal(number, interrupt)
    stop = threading.Timer(delay, os.kill, [os.getpid(), number])
    try:
        try:
            if number == signal.SIGALRM:
                signal.setitimer(signal.ITIMER_REAL, delay)
            else:
                stop.start()
            return act()
        finally:
            signal.signal(number, signal.SIG_IGN)
            signal.setitimer(signal.ITIMER_REAL, 0)
            stop.cancel()
    except (KeyboardInterrupt, *CLEAR) as error:
        return error
    finally:
        if stop.is_alive():
            stop.join()
        signal.signal(number, before)


def interrupt_until_it_lands(
    comm: MPI.Intracomm, name: str, later: bool, seconds: float, seed: int, number: signal.Signals
) -> list[str]:
    """Make one call again and again until the last rank is interrupted in it; then what its group says."""
    generator = random.Random(seed)
    count = generator.choice([3, 2000, 150_000])
    group = group_of(seconds)
    last = comm.rank == comm.size - 1
    wrong: list[str] = []
    for _ in range(30):
        delay, lateness = generator.uniform(1e-5, 3e-3), generator.choice([0.0, 0.002, 0.005])
        act = call_on(group, name, count, later)
        if last:
            outcome = run_interrupted(act, delay, number)
        else:
            time.sleep(lateness)
            outcome = outcome_of(act, seconds + SLACK)
        if outcome is not True and not isinstance(outcome, (*CLEAR, KeyboardInterrupt)):
            wrong.append(f"{name} of {count}: {outcome!r:.200}")
        landed = np.array([isinstance(outcome, BaseException) or bool(wrong)])
        comm.Allreduce(MPI.IN_PLACE, landed, MPI.LOR)
        if landed[0]:
            break
    else:
        dist.destroy_process_group(group)
        return wrong
    for _ in range(2):  # from another thread: no lock is held
        outcome = outcome_of(call_on(group, name, count, later), 2 * seconds + SLACK)
        if outcome is not True and not isinstance(outcome, CLEAR):
            wrong.append(f"{name} of {count} afterwards: {outcome!r:.200}")
    return wrong


def check_interrupts(
    comm: MPI.Intracomm, name: str, later: bool, seconds: float, seed: int, number: signal.Signals
) -> None:
    agree_on(comm, interrupt_until_it_lands(comm, name, later, seconds, seed, number))
    still_works()  # the other groups go on


@pytest.mark.parametrize("later", [False, True], ids=["blocking", "async_op"])
@pytest.mark.parametrize("name", NAMES)
def test_after_an_interrupt_a_group_gives_right_numbers_or_a_clear_error(
    comm: MPI.Intracomm, name: str, later: bool
) -> None:
    if comm.size > 1:
        number = signal.SIGINT if later else signal.SIGALRM
        check_interrupts(comm, name, later, 0.3, NAMES.index(name) + 100 * later, number)


def test_ctrl_c_is_the_main_threads_also_where_another_thread_moves_data() -> None:
    deferred, elsewhere = Deferred(), []

    def move() -> None:
        try:
            with deferred:
                pass
        except KeyboardInterrupt as interrupt:
            elsewhere.append(interrupt)

    with pytest.raises(KeyboardInterrupt), deferred:
        signal.raise_signal(signal.SIGINT)
        owner = threading.Thread(target=move)
        owner.start()
        owner.join()
    assert elsewhere == []


def test_a_rank_that_leaves_while_shared_memory_is_made_leaves_nobody_behind(comm: MPI.Intracomm) -> None:
    """The others are a little late, so the last rank waits for them when it is interrupted."""
    if comm.size == 1:
        return
    seconds = 1.0
    group = group_of(seconds)
    channel = group.channel
    last, find_rows = comm.rank == comm.size - 1, channel.find_rows

    def be_late() -> object:
        time.sleep(0.3)
        return find_rows()

    if last:
        channel.wait = interrupt
    else:
        channel.find_rows = be_late
    outcome = outcome_of(lambda: dist.all_reduce(torch.ones(10), group=group), 2 * seconds + SLACK)
    right = isinstance(outcome, KeyboardInterrupt if last else CLEAR)
    agree_on(comm, [] if right else [f"{outcome!r:.200}"])
    still_works()


# ---------------------------------------------------------------------------------------- forks


def calls_of_a_child() -> dict[str, Callable[[], object]]:
    """What a forked worker might try; each must raise at once."""
    other = (dist.get_rank() + 1) % dist.get_world_size()
    ones = torch.ones(3)
    return {
        "all_reduce": lambda: dist.all_reduce(ones),
        "async all_reduce": lambda: dist.all_reduce(ones, async_op=True).wait(),
        "all_gather_object": lambda: dist.all_gather_object([None] * dist.get_world_size(), 1),
        "barrier": dist.barrier,
        "isend": lambda: dist.isend(ones, other).wait(),
        "irecv": lambda: dist.irecv(ones, other).wait(),
    }


def words_of_a_child() -> str:
    """What is wrong in a child: calls that do not raise a clear error at once."""
    wrong = []
    for name, call in calls_of_a_child().items():
        start = time.monotonic()
        outcome = outcome_of(call, 2.0)
        if not isinstance(outcome, RuntimeError):
            wrong.append(f"{name}: {outcome!r:.100}")
        elif "fork" not in str(outcome) or time.monotonic() - start > 1:
            wrong.append(f"{name}: after {time.monotonic() - start:.1f} s, {outcome!s:.100}")
    return "; ".join(wrong)


def fork_and_ask() -> str:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(write, words_of_a_child().encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        answered = select.select([pipe], [], [], CHILD_SECONDS)[0]  # also when the child has ended
        if not answered:
            os.kill(child, signal.SIGKILL)
        words = pipe.read().decode()
    status = os.waitpid(child, 0)[1]
    if not answered:
        return "the child hangs"
    return words or (f"the child ended with {status}" if status else "")


def test_a_forked_child_is_refused_at_once_and_its_parent_goes_on(comm: MPI.Intracomm) -> None:
    if comm.size == 1:
        return
    still_works()
    work = dist.all_reduce(torch.ones(3), async_op=True)  # the owner thread is there, which no child has
    work.wait()
    words = fork_and_ask() if comm.rank == 0 else ""
    comm.Barrier()
    agree_on(comm, [words] if words else [])
    for _ in range(20):
        still_works()
    tensor = torch.full((10**5,), 1.0)
    dist.all_reduce(tensor, async_op=True).wait()
    assert (tensor == comm.size).all()


# --------------------------------------------------------------------- who comes after a timeout


@pytest.mark.parametrize("later", [False, True], ids=["blocking", "async_op"])
@pytest.mark.parametrize("count", [3, 2**17, 2**20], ids=["12 B", "512 KiB", "4 MiB"])
@pytest.mark.parametrize(
    "name", ["all_reduce", "reduce_scatter", "all_gather_into_tensor", "broadcast", "all_to_all", "barrier"]
)
def test_a_rank_that_comes_after_a_timeout_gets_an_error_in_time(
    comm: MPI.Intracomm, name: str, count: int, later: bool
) -> None:
    """Never a hang, never a wrong number: an error, unless the late rank needs nothing of those that left.

    All have been at the barrier, and a root's broadcast is done when it has sent. The next call raises.
    """
    if comm.size == 1:
        return
    seconds = 0.1
    group = group_of(seconds)
    act = call_on(group, name, count, later)
    late = comm.rank == comm.size - 1
    if late:
        comm.Barrier()  # all others have given up
    start = time.monotonic()
    outcome = outcome_of(act, seconds + SLACK)
    took = time.monotonic() - start
    if not late:
        comm.Barrier()
    right = outcome is True and late and name in ("barrier", "broadcast")
    wrong = [] if right or isinstance(outcome, CLEAR) else [f"{outcome!r:.200} after {took:.1f} s"]
    again = outcome_of(call_on(group, name, count, later), seconds + SLACK)
    wrong += [] if isinstance(again, CLEAR) else [f"the next call: {again!r:.200}"]
    agree_on(comm, wrong)
    still_works()
