"""Random calls over the "mpi4py" backend against Gloo, and against torch on contiguous copies.

A case is a few calls after each other on one group, each with a dtype, a reduction, sizes and a memory layout
per rank. Rank 0 lets hypothesis draw and shrink the cases and sends each one to the others, so that all ranks
run the same; their verdicts are combined before anyone raises. Values are small integers: sums are exact.

    COURSE_DIFFERENTIAL_CASES=1000     how many cases the tests draw (100 when it is not set)

    python -m mpi_classroom.launch 3 packages/torch_mpi4py/tests/ranks/test_differential.py --seconds 3600

draws with fresh seeds until the time is up; a failure prints the seed and the shrunk case.
"""

import argparse
import faulthandler
import itertools
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from mpi4py import MPI

import torch_mpi4py
from packages.torch_mpi4py.tests.ranks.calls import (
    COLLECTIVES,
    DTYPES,
    KINDS,
    LAYOUTS,
    MESSAGES,
    REDUCING,
    TAILS,
    WITH_TENSORS,
    Call,
    Side,
    Started,
    Tensors,
    agree_on,
    call_of,
    exact,
    is_right,
    ops_of,
    still_works,
    wait_for,
)
from torch_mpi4py import collectives, tensors

CASES = int(os.environ.get("COURSE_DIFFERENTIAL_CASES", "100"))
# A busy machine takes half a minute for a large case: these are far beyond that.
SECONDS = 60.0  # a rank that waits so long for another one has been left alone
HUNG_SECONDS = 150.0  # a case that is not done by then has hung
LOOK_SECONDS = 5.0  # between two looks at what hangs


@dataclass(frozen=True)
class Case:
    members: tuple[int, ...]
    calls: tuple[Call, ...]


# ------------------------------------------------------------------------------ running one case

# What Gloo can do; it refuses other dtypes, and has other rules for sizes that differ.
GLOO_DTYPES = {"float32", "float64", "int8", "uint8", "int32", "int64"}
GLOO_OPS = {"SUM", "PRODUCT", "MIN", "MAX"}
NOT_GLOO = {"all_gather_coalesced", "reduce_scatter_coalesced", "recv_from_any"}


def gloo_can(call: Call) -> bool:
    known = call.dtype in GLOO_DTYPES and (call.op in GLOO_OPS or call.kind not in REDUCING)
    return known and len(set(call.lengths)) == 1 and call.lengths[0] > 0 and call.kind not in NOT_GLOO


class Runner:
    """Runs cases on the ranks of `comm`, which is nobody else's; a case that hangs is printed to `stderr`."""

    def __init__(self, comm: MPI.Intracomm, stderr: TextIO) -> None:
        self.comm, self.stderr = comm, stderr
        self.gloo: dict[tuple[int, ...], Any] = {}
        self.wrong: list[str] = []  # of the case under way, on this rank

    def __call__(self, case: Case) -> None:
        """Run `case` on a new group; AssertionError on all ranks if it went wrong on one."""
        watch = threading.Timer(HUNG_SECONDS, self.end_job, [case])
        watch.daemon = True
        watch.start()
        try:
            self.run(case)
        finally:
            watch.cancel()
            watch.join()  # it holds the groups of Gloo, which cannot end in a thread while Python ends

    def end_job(self, case: Case) -> None:
        """Print the case and twice where this rank stands; a blocking call of MPI cannot be given up.

        One look cannot tell a rank that hangs from one that gets no core. Two can: a thread that hangs is
        at the same line, asleep without any more seconds, or running with more seconds.
        """
        rank, size = self.comm.rank, self.comm.size
        if rank == 0:
            print(f"\nthis case hangs: {case}", file=self.stderr, flush=True)
        for look in ("at first", f"{LOOK_SECONDS:g} s later"):
            time.sleep(0.2 * (rank + 1))  # one after the other
            print(f"rank {rank}, {look}, so far {self.wrong}; threads: {thread_states()}", file=self.stderr)
            self.stderr.flush()
            faulthandler.dump_traceback(self.stderr)
            time.sleep(LOOK_SECONDS - 0.2 * (rank + 1))
        if rank == 0:
            time.sleep(0.2 * size)
            MPI.COMM_WORLD.Abort(1)

    def run(self, case: Case) -> None:
        timeout = timedelta(seconds=SECONDS)
        group = dist.new_group(list(case.members), timeout=timeout, backend="mpi4py")
        if case.members not in self.gloo:
            self.gloo[case.members] = dist.new_group(list(case.members), backend="gloo")
        member = self.comm.rank in case.members
        self.wrong = wrong = []
        if member:
            run_here(case, self.comm.rank, group, plain=False, wrong=wrong)
        if not self.anyone(wrong) and member:  # else the ranks would ask Gloo for different things
            calls = tuple(call for call in case.calls if gloo_can(call))
            gloo = self.gloo[case.members]
            run_here(replace(case, calls=calls), self.comm.rank, gloo, plain=True, wrong=wrong)
        bad = self.anyone(wrong)
        if member:
            dist.destroy_process_group(group)
        if bad:
            agree_on(self.comm, wrong)

    def anyone(self, wrong: list[str]) -> bool:
        """Has any rank found something wrong?"""
        count = np.array([len(wrong)])
        self.comm.Allreduce(MPI.IN_PLACE, count, MPI.SUM)
        return bool(count[0])


def thread_states() -> str:
    """Each thread of this process: its name, R (running) or S (asleep), seconds of CPU time so far."""
    states = []
    for thread in threading.enumerate():
        stat = Path(f"/proc/self/task/{thread.native_id}/stat")
        if stat.exists():
            fields = stat.read_text().rpartition(")")[2].split()
            seconds = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
            states.append(f"{thread.name} {fields[0]} {seconds:.2f} s")
    return "; ".join(states)


def run_here(case: Case, rank: int, group: Any, plain: bool, wrong: list[str]) -> None:
    """Run the calls of `case` on this rank, with Gloo if `plain`; append what was wrong, in words."""
    me = case.members.index(rank)
    under_way: list[tuple[Call, Started, Tensors, Tensors, object]] = []
    backend = "Gloo, " if plain else ""

    def attempt(call: Call, act: Callable[[], object]) -> object:
        try:
            return act()
        except Exception as error:
            wrong.append(f"{backend}{call.number} {call.kind}: {type(error).__name__}: {str(error)[:400]}")
            return None

    for call in case.calls:
        if len(case.members) == 1 and KINDS[call.kind] in MESSAGES:
            continue  # torch refuses messages to oneself
        started = KINDS[call.kind](Side(call, case.members, me, group, plain))
        memory = [whole_storage(tensor).clone() for tensor in started.writes]
        before = [tensor.clone() for tensor in started.reads]
        work = attempt(call, started.begin)
        under_way.append((call, started, memory, before, work))
    for call, _, _, _, work in under_way:
        for each in work if isinstance(work, list) else [work]:
            if hasattr(each, "wait"):
                attempt(call, each.wait)
    if not wrong:
        for call, started, memory, before, _ in under_way:
            texts = compare(
                call, started, memory, [] if plain else before
            )  # Gloo's reduce changes its inputs
            wrong += [f"{backend}{call.number} {call.kind}: {text}" for text in texts]


def compare(call: Call, started: Started, memory: Tensors, before: Tensors) -> Iterator[str]:
    """What differs from what is expected: results, inputs, and memory beside the results."""
    if started.objects and started.objects() != started.expected:
        yield f"got {started.objects()!r:.200}, not {started.expected!r:.200}"
        return
    for index, (tensor, was) in enumerate(zip(started.reads, before, strict=False)):
        if not torch.equal(exact(tensor), exact(was)):
            yield f"input {index} was changed"
    results = zip(started.writes, started.expected, memory, strict=True) if not started.objects else []
    for index, (tensor, expected, was) in enumerate(results):
        got, right = exact(tensor.detach()), exact(expected)
        close = call.op == "AVG" and (tensor.is_floating_point() or tensor.is_complex())
        same = torch.allclose(got, right, rtol=1e-2 if tensor.itemsize < 4 else 1e-6) if close else None
        if not (torch.equal(got, right) if same is None else same):
            where = (got != right).flatten().nonzero().flatten()
            first = int(where[0]) if len(where) else 0
            values = f"{got.flatten()[first].item()}, not {right.flatten()[first].item()}"
            yield f"result {index}: {len(where)} of {got.numel()} differ, at {first}: {values}"
        elif not same_beside(tensor, was):
            yield f"result {index}: memory beside it was written"


def whole_storage(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())


def same_beside(tensor: torch.Tensor, was: torch.Tensor) -> bool:
    """Is the storage of `tensor` as it `was`, but for the elements of `tensor`?"""
    now, then = (
        torch.empty(0, dtype=tensor.dtype).set_(
            bytes_.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride()
        )
        for bytes_ in (whole_storage(tensor).clone(), was.clone())
    )
    then.copy_(now)
    return torch.equal(whole_storage(now), whole_storage(then))


# ----------------------------------------------------------------------------- drawing the cases

BYTES = [2**16, 2**19, 2**20, 3 * 2**20]  # where the backend changes its way, and beyond


@st.composite
def lengths_of(draw: st.DrawFn, dtype: str, tail: str) -> int:
    """The length of a first dimension: mostly short, now and then around a size where something changes."""
    if draw(st.integers(0, 3)) < 3:
        return draw(st.integers(0, 9))
    itemsize = getattr(torch, dtype).itemsize * int(np.prod(TAILS[tail]))
    return draw(st.sampled_from(BYTES)) // itemsize + draw(st.integers(-1, 1))


@st.composite
def calls_of(draw: st.DrawFn, size: int, number: int, kinds: Sequence[str]) -> Call:
    kind = draw(st.sampled_from(kinds))
    dtype = draw(st.sampled_from(DTYPES if kind in REDUCING else [*DTYPES, "float8_e4m3fn"]))
    tail = draw(st.sampled_from(list(TAILS)))
    length = draw(lengths_of(dtype, tail))
    lengths = (length,) * size
    if draw(st.booleans()):
        lengths = tuple(draw(lengths_of(dtype, tail)) for _ in range(size))
    layouts = st.sampled_from(list(LAYOUTS))
    readable = st.sampled_from([*LAYOUTS, "expanded"])
    return Call(
        kind=kind,
        dtype=dtype,
        op=draw(st.sampled_from(ops_of(dtype))) if kind in REDUCING else "SUM",
        tail=tail,
        lengths=lengths,
        reads=tuple(draw(readable) for _ in range(size)),
        writes=tuple(draw(layouts) for _ in range(size)),
        root=draw(st.integers(0, size - 1)),
        later=draw(st.booleans()),
        number=number,
    )


@st.composite
def cases(draw: st.DrawFn, size: int, kinds: Sequence[str]) -> Case:
    members = tuple(range(size))
    if draw(st.integers(0, 3)) == 3:
        members = tuple(sorted(draw(st.sets(st.integers(0, size - 1), min_size=1))))
    count = draw(st.integers(1, 4))
    return Case(members, tuple(draw(calls_of(len(members), number, kinds)) for number in range(count)))


def explore(run: Runner, number: int, count: int, kinds: Sequence[str] = tuple(KINDS)) -> None:
    """Draw `count` cases from the seed `number` on rank 0, and run each on all ranks."""
    if run.comm.rank:
        last = None
        while (case := run.comm.bcast(None)) is not None:
            try:
                run(case)
                last = None
            except AssertionError as error:
                last = error
        if run.comm.bcast(None):
            raise last or AssertionError("see rank 0")
        return

    @seed(number)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    @given(cases(run.comm.size, kinds))
    def check(case: Case) -> None:
        run.comm.bcast(case)
        run(case)

    failed = True
    try:
        check()
        failed = False
    finally:
        run.comm.bcast(None)
        run.comm.bcast(failed)


# ------------------------------------------------------------------------------------- the tests


@pytest.fixture
def run(comm: MPI.Intracomm, capfd: pytest.CaptureFixture[str]) -> Iterator[Runner]:
    torch_mpi4py.init_process_group(comm, timeout=timedelta(seconds=50))
    verdicts = comm.Dup()
    with capfd.disabled():
        stderr = os.fdopen(os.dup(2), "w")
    with stderr:
        yield Runner(verdicts, stderr)
    verdicts.Barrier()
    dist.destroy_process_group()
    verdicts.Free()


@pytest.mark.deadline(1800)
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("count", [CASES, pytest.param(1000, marks=pytest.mark.slow)])
def test_random_calls_equal_gloo_and_torch(run: Runner, count: int) -> None:
    explore(run, count, min(count, CASES) if run.comm.size == 1 else count)


def run_every_call(run: Runner, dtype: str) -> None:
    """Each kind of call with each reduction, of lengths that differ, and of none."""
    size = run.comm.size
    for kind in WITH_TENSORS:
        if kind in REDUCING and dtype not in DTYPES:
            continue
        ops = ops_of(dtype) if kind in REDUCING else ["SUM"]
        drawn = itertools.product(ops, [(5, 4, 3, 2), (0, 3, 1, 0)])
        calls = []
        for number, (op, lengths) in enumerate(drawn):
            later, root = number % 4 in (1, 2), size - 1
            call = call_of(
                kind, size, 0, later=later, number=number, dtype=dtype, layout="strided", root=root
            )
            calls.append(replace(call, op=op, tail="matrix", lengths=lengths[:size]))
        run(Case(tuple(range(size)), tuple(calls)))


@pytest.mark.parametrize("dtype", [*DTYPES, "float8_e4m3fn"])
def test_every_call_with_every_dtype_and_reduction(run: Runner, dtype: str) -> None:
    run_every_call(run, dtype)


def test_what_mpi_cannot_count_goes_in_pieces(run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensors, "MAX_COUNT", 7)
    run_every_call(run, "float32")
    run_every_call(run, "bfloat16")


def test_an_average_that_forgets_to_divide_is_caught(run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    """Known-wrong."""
    size = run.comm.size
    if size == 1:
        return
    call = replace(call_of("all_reduce", size, 5, later=False), op="AVG")
    monkeypatch.setattr(collectives, "average", lambda tensor, size: None)
    with pytest.raises(AssertionError, match="result 0"):
        run(Case(tuple(range(size)), (call,)))


@pytest.mark.parametrize("later", [False, True], ids=["blocking", "async_op"])
@pytest.mark.parametrize("kind", WITH_TENSORS)
def test_a_layout_of_one_rank_alone_changes_nothing(run: Runner, kind: str, later: bool) -> None:
    """Rank 0 contiguous, the last rank not; twice, so that the second call finds what the first one left."""
    size = run.comm.size
    if size == 1:
        return
    for layout, tail in [*itertools.product(LAYOUTS, ["images"]), ("offset", "row"), ("expanded", "matrix")]:
        if layout == "contiguous":
            continue
        for length in (3, 9000):
            writes = "contiguous" if layout == "expanded" else layout
            others = ("contiguous",) * (size - 1)
            call = replace(
                call_of(kind, size, length, later=later),
                tail=tail,
                reads=(*others, layout),
                writes=(*others, writes),
            )
            run(Case(tuple(range(size)), (call, replace(call, number=1))))


INTO_EXPANDED = [(kind, "float32", "SUM") for kind in COLLECTIVES if "coalesced" not in kind]
INTO_EXPANDED += [("all_reduce", "bfloat16", "SUM"), ("all_reduce", "float32", "AVG")]


@pytest.mark.parametrize("later", [False, True], ids=["blocking", "async_op"])
@pytest.mark.parametrize("rows", ["expanded", "contiguous"], ids=["all rows alike", "rows that differ"])
def test_an_output_whose_elements_share_memory_holds_the_result_or_raises(
    run: Runner, rows: str, later: bool
) -> None:
    """On the last rank alone the rows of what is written share their memory: they hold one row."""
    rank, size = run.comm.rank, run.comm.size
    if size == 1:
        return
    group = dist.new_group(timeout=timedelta(seconds=SECONDS), backend="mpi4py")
    for kind, dtype, op in INTO_EXPANDED:
        root = 0 if kind in ("broadcast", "scatter") else size - 1
        call = replace(
            call_of(kind, size, 4, later=later, dtype=dtype, root=root),
            op=op,
            tail="matrix",
            reads=(rows,) * size,
            writes=(*("contiguous",) * (size - 1), "expanded"),
        )
        started = KINDS[kind](Side(call, range(size), rank, group, plain=False))
        fits = rank < size - 1 or all(torch.equal(t, t[:1].expand_as(t)) for t in started.expected)
        gave_one_row = kind == "all_reduce" and rows == "contiguous"  # the last rank, which sums in place
        try:
            wait_for(started.begin())
            right = fits and (gave_one_row or is_right(started))
        except torch_mpi4py.LayoutError as error:
            right = not fits and "expanded there" in str(error)
        assert run.comm.allgather(right) == [True] * size, (kind, dtype, op)
        still_works(group)
    dist.destroy_process_group(group)


def test_a_receive_into_elements_that_share_memory_holds_the_message_or_raises(run: Runner) -> None:
    rank, size = run.comm.rank, run.comm.size
    if rank == size - 1 and size > 1:
        dist.send(torch.ones(4, 3), 0)
        dist.send(torch.arange(12.0).reshape(4, 3), 0)
    elif rank == 0 and size > 1:
        tensor = torch.zeros(1, 3).expand(4, 3)
        dist.recv(tensor, size - 1)
        assert tensor.tolist() == [[1.0] * 3] * 4
        with pytest.raises(torch_mpi4py.LayoutError, match="contiguous"):
            dist.recv(tensor, size - 1)
    run.comm.Barrier()
    still_works()


# ------------------------------------------------------------------------------ an hour of seeds


def main() -> None:
    """Draw with fresh seeds until the time is up; exit code 1 with the seed and the case if one fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--seed", type=int, help="one seed, once")
    parser.add_argument("--cases", type=int, default=CASES, help="cases per seed")
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS))
    chosen = parser.parse_args()
    comm = MPI.COMM_WORLD.Dup()
    torch_mpi4py.init_process_group(comm, timeout=timedelta(seconds=50))
    run = Runner(comm, sys.stderr)
    end, done = time.monotonic() + chosen.seconds, 0
    while comm.bcast(done == 0 if chosen.seed is not None else time.monotonic() < end):
        fresh = int.from_bytes(os.urandom(4), "big")
        number = comm.bcast(fresh if chosen.seed is None else chosen.seed)
        try:
            explore(run, number, chosen.cases, chosen.kinds)
        except BaseException:
            if comm.rank == 0:
                traceback.print_exc()
                print(f"seed {number} failed: repeat with --seed {number} --cases {chosen.cases}", flush=True)
            comm.Barrier()
            sys.exit(1)
        done += 1
    if comm.rank == 0:
        print(f"{done} seeds of {chosen.cases} cases on {comm.size} ranks: no difference", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
