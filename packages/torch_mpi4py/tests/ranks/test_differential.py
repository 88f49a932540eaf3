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
import functools
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

CASES = int(os.environ.get("COURSE_DIFFERENTIAL_CASES", "100"))
# A busy machine takes half a minute for a large case: these are far beyond that.
SECONDS = 60.0  # a rank that waits so long for another one has been left alone
HUNG_SECONDS = 150.0  # a case that is not done by then has hung
LOOK_SECONDS = 5.0  # between two looks at what hangs
Tensors = list[torch.Tensor]

# ------------------------------------------------------------------------------------------ layouts


def strided(values: torch.Tensor) -> torch.Tensor:
    """Every second element of the last dimension."""
    base = torch.full((*values.shape[:-1], 2 * values.shape[-1]), 77).to(values.dtype)
    return base[..., ::2].copy_(values)


def transposed(values: torch.Tensor) -> torch.Tensor:
    order = list(reversed(range(values.dim())))
    return torch.empty([values.shape[d] for d in order], dtype=values.dtype).permute(order).copy_(values)


def offset(values: torch.Tensor) -> torch.Tensor:
    """Contiguous, three elements behind the start of its storage and two before the end."""
    base = torch.full((values.numel() + 5,), 77).to(values.dtype)
    return base[3 : 3 + values.numel()].view(values.shape).copy_(values)


def channels_last(values: torch.Tensor) -> torch.Tensor:
    if values.dim() != 4:
        return transposed(values)
    return torch.empty_like(values, memory_format=torch.channels_last).copy_(values)


def negated(values: torch.Tensor) -> torch.Tensor:
    """Negated when it is read: the memory holds other numbers. (torch refuses what is conjugated so.)"""
    return torch._neg_view(-values) if values.dtype in (torch.float32, torch.float64) else values.clone()


def expanded(values: torch.Tensor) -> torch.Tensor:
    """One row in the place of all: memory that several elements share, so it can only be read."""
    return values[:1].clone().expand(values.shape)


LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "contiguous": torch.Tensor.clone,
    "strided": strided,
    "transposed": transposed,
    "offset": offset,
    "channels last": channels_last,
    "negated": negated,
}
TAILS = {"row": (), "matrix": (3,), "images": (2, 2, 2)}  # the shape behind the first dimension

# ------------------------------------------------------------------------------- one call, as data


@dataclass(frozen=True)
class Call:
    """One call of a case, the same for all ranks of the group. Lists have one entry per rank."""

    kind: str
    dtype: str
    op: str
    tail: str
    lengths: tuple[int, ...]  # of the first dimension
    reads: tuple[str, ...]  # layouts of the tensors that are only read
    writes: tuple[str, ...]  # layouts of the tensors that are written
    root: int
    later: bool  # async_op
    number: int  # its place in the case: seeds the values, is the tag of messages


@dataclass(frozen=True)
class Case:
    members: tuple[int, ...]
    calls: tuple[Call, ...]


@dataclass
class Started:
    """A call at one rank: what it reads and writes, how it begins, what is expected in what it writes."""

    reads: Tensors
    writes: Tensors
    begin: Callable[[], object]
    expected: list[Any]
    objects: Callable[[], list[Any]] | None = None  # what an object collective has brought


class Side:
    """The view of one rank of a group on one call; `plain`: all its tensors are contiguous."""

    def __init__(self, call: Call, members: Sequence[int], me: int, group: Any, plain: bool) -> None:
        self.call, self.members, self.me, self.n = call, members, me, len(members)
        self.plain = plain
        self.dtype: torch.dtype = getattr(torch, call.dtype)
        self.how = {"group": group, "async_op": call.later}
        self.group = group
        self.op = {"op": getattr(dist.ReduceOp, call.op)}
        self.root = call.root % self.n
        self.length = call.lengths[0]  # where all ranks must have the same

    def values(self, rank: int, part: int = 0, length: int | None = None) -> torch.Tensor:
        """The tensor number `part` that `rank` brings along, contiguous; every rank can make it."""
        shape = (self.length if length is None else length, *TAILS[self.call.tail])
        random = np.random.default_rng([self.call.number, rank, part])
        numbers = torch.from_numpy(random.integers(1, 4, shape, dtype=np.int8))
        if self.call.reads[rank] == "expanded":
            numbers = numbers[:1].expand(shape).contiguous()
        if self.dtype == torch.bool:
            return numbers > 1
        if self.dtype.is_complex:
            return torch.complex(numbers.double(), (4 - numbers).double()).to(self.dtype)
        return numbers.to(self.dtype)

    def read(self, part: int = 0, length: int | None = None) -> torch.Tensor:
        values, layout = self.values(self.me, part, length), self.call.reads[self.me]
        if self.plain or (layout == "expanded" and not len(values)):
            return values
        return expanded(values) if layout == "expanded" else LAYOUTS[layout](values)

    def written(self, values: torch.Tensor) -> torch.Tensor:
        """`values` in memory that the call will write to."""
        return values if self.plain else LAYOUTS[self.call.writes[self.me]](values)

    def write(self, length: int) -> torch.Tensor:
        return self.written(torch.full((length, *TAILS[self.call.tail]), 55).to(self.dtype))

    def reduced(self, tensors: Tensors) -> torch.Tensor:
        """The oracle of all sums: torch, in a type that is exact here."""
        op, wide = self.call.op, [exact(tensor) for tensor in tensors]
        if self.dtype == torch.bool:
            either = op in ("SUM", "MAX", "BOR")
            return functools.reduce(torch.maximum if either else torch.minimum, wide).to(torch.bool)
        combine = {
            "SUM": torch.add, "AVG": torch.add, "PRODUCT": torch.mul,
            "MIN": torch.minimum, "MAX": torch.maximum, "BAND": torch.bitwise_and,
            "BOR": torch.bitwise_or, "BXOR": torch.bitwise_xor,
        }[op]  # fmt: skip
        total = functools.reduce(combine, wide)
        if op == "AVG":
            trunc = None if total.is_floating_point() or total.is_complex() else "trunc"
            total = torch.div(total, self.n, rounding_mode=trunc)
        return total.to(self.dtype)

    @property
    def everyone(self) -> range:
        return range(self.n)

    def when_root(self, tensors: Tensors) -> Tensors | None:
        return tensors if self.me == self.root else None


def exact(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dtype.is_complex:
        return tensor.to(torch.complex128)
    return tensor.to(torch.float64) if tensor.dtype.is_floating_point else tensor.to(torch.int64)


# --------------------------------------------------------------------- what each kind of call does


def all_reduce(s: Side) -> Started:
    tensor = s.written(s.values(s.me))
    expected = s.reduced([s.values(r) for r in s.everyone])
    return Started([], [tensor], lambda: dist.all_reduce(tensor, **s.op, **s.how), [expected])


def reduce(s: Side) -> Started:
    at_root = s.me == s.root
    tensor = s.written(s.values(s.me)) if at_root else s.read()
    expected = [s.reduced([s.values(r) for r in s.everyone])] if at_root else []

    def begin() -> object:
        return dist.reduce(tensor, s.members[s.root], **s.op, **s.how)

    return Started([] if at_root else [tensor], [tensor] if at_root else [], begin, expected)


def broadcast(s: Side) -> Started:
    tensor = s.written(s.values(s.me)) if s.me == s.root else s.write(s.length)
    expected = [s.values(s.root)]
    return Started([], [tensor], lambda: dist.broadcast(tensor, s.members[s.root], **s.how), expected)


def all_gather(s: Side) -> Started:
    tensor = s.read(length=s.call.lengths[s.me])
    outputs = [s.write(length) for length in s.call.lengths]
    expected = [s.values(r, length=s.call.lengths[r]) for r in s.everyone]
    return Started([tensor], outputs, lambda: dist.all_gather(outputs, tensor, **s.how), expected)


def all_gather_into_tensor(s: Side) -> Started:
    tensor, output = s.read(), s.write(s.n * s.length)
    expected = [torch.cat([s.values(r) for r in s.everyone])]
    return Started([tensor], [output], lambda: dist.all_gather_single(output, tensor, **s.how), expected)


def gather(s: Side) -> Started:
    tensor = s.read(length=s.call.lengths[s.me])
    outputs = s.when_root([s.write(length) for length in s.call.lengths])
    expected = [s.values(r, length=s.call.lengths[r]) for r in s.everyone] if outputs else []

    def begin() -> object:
        return dist.gather(tensor, outputs, s.members[s.root], **s.how)

    return Started([tensor], outputs or [], begin, expected)


def scatter(s: Side) -> Started:
    inputs = s.when_root([s.read(r, s.call.lengths[r]) for r in s.everyone])
    output = s.write(s.call.lengths[s.me])
    expected = [s.values(s.root, s.me, s.call.lengths[s.me])]

    def begin() -> object:
        return dist.scatter(output, inputs, s.members[s.root], **s.how)

    return Started(inputs or [], [output], begin, expected)


def reduce_scatter(s: Side) -> Started:
    inputs = [s.read(r, s.call.lengths[r]) for r in s.everyone]
    output = s.write(s.call.lengths[s.me])
    expected = [s.reduced([s.values(r, s.me, s.call.lengths[s.me]) for r in s.everyone])]
    return Started(inputs, [output], lambda: dist.reduce_scatter(output, inputs, **s.op, **s.how), expected)


def reduce_scatter_tensor(s: Side) -> Started:
    tensor, output = s.read(length=s.n * s.length), s.write(s.length)
    total = s.reduced([s.values(r, length=s.n * s.length) for r in s.everyone])
    expected = [total[s.me * s.length : (s.me + 1) * s.length]]
    return Started(
        [tensor], [output], lambda: dist.reduce_scatter_single(output, tensor, **s.op, **s.how), expected
    )


def part_length(s: Side, giver: int, taker: int) -> int:
    """How long the part is that one rank sends another: each pair has its own."""
    return s.call.lengths[(giver + 2 * taker) % s.n]


def all_to_all(s: Side) -> Started:
    inputs = [s.read(r, part_length(s, s.me, r)) for r in s.everyone]
    outputs = [s.write(part_length(s, r, s.me)) for r in s.everyone]
    expected = [s.values(r, s.me, part_length(s, r, s.me)) for r in s.everyone]
    return Started(inputs, outputs, lambda: dist.all_to_all(outputs, inputs, **s.how), expected)


def all_to_all_single(s: Side) -> Started:
    tensor, output = s.read(length=s.n * s.length), s.write(s.n * s.length)
    mine = slice(s.me * s.length, (s.me + 1) * s.length)
    expected = [torch.cat([s.values(r, length=s.n * s.length)[mine] for r in s.everyone])]
    return Started([tensor], [output], lambda: dist.all_to_all_single(output, tensor, **s.how), expected)


def all_to_all_single_uneven(s: Side) -> Started:
    sends = [[part_length(s, r, to) for to in s.everyone] for r in s.everyone]
    receives = [sends[r][s.me] for r in s.everyone]
    tensor, output = s.read(length=sum(sends[s.me])), s.write(sum(receives))
    expected = [torch.cat([s.values(r, length=sum(sends[r])).split(sends[r])[s.me] for r in s.everyone])]

    def begin() -> object:
        return dist.all_to_all_single(output, tensor, receives, sends[s.me], **s.how)

    return Started([tensor], [output], begin, expected)


def barrier(s: Side) -> Started:
    return Started([], [], lambda: dist.barrier(**s.how), [])


def neighbours(s: Side) -> tuple[int, int, torch.Tensor, torch.Tensor, Tensors]:
    """The ring: to whom, from whom, what, into what, and what is expected there."""
    left = (s.me - 1) % s.n
    tensor, output = s.read(length=s.call.lengths[s.me]), s.write(s.call.lengths[left])
    expected = [s.values(left, length=s.call.lengths[left])]
    return s.members[(s.me + 1) % s.n], s.members[left], tensor, output, expected


def send_and_recv(s: Side) -> Started:
    to, source, tensor, output, expected = neighbours(s)

    def begin() -> None:
        if s.me == 0:
            dist.send(tensor, to, s.group, tag=s.call.number)
        assert dist.recv(output, source, s.group, tag=s.call.number) == source
        if s.me:
            dist.send(tensor, to, s.group, tag=s.call.number)

    return Started([tensor], [output], begin, expected)


def recv_from_any(s: Side) -> Started:
    to, source, tensor, output, expected = neighbours(s)

    def begin() -> object:
        work = dist.isend(tensor, to, s.group, tag=s.call.number)
        assert dist.recv(output, None, s.group, tag=s.call.number) == source
        return work

    return Started([tensor], [output], begin, expected)


def isend_and_irecv(s: Side) -> Started:
    to, source, tensor, output, expected = neighbours(s)

    def begin() -> object:
        receive = dist.irecv(output, source, s.group, tag=s.call.number)
        return [dist.isend(tensor, to, s.group, tag=s.call.number), receive]

    return Started([tensor], [output], begin, expected)


def batch_isend_irecv(s: Side) -> Started:
    to, source, tensor, output, expected = neighbours(s)

    def begin() -> object:
        return dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, tensor, to, s.group, tag=s.call.number),
                dist.P2POp(dist.irecv, output, source, s.group, tag=s.call.number),
            ]
        )

    return Started([tensor], [output], begin, expected)


def coalesced(
    s: Side, call: Callable[..., object], pairs: list[tuple[torch.Tensor, ...]], **more: Any
) -> object:
    with dist._coalescing_manager(s.group, async_ops=s.call.later) as works:
        for tensors in pairs:
            call(*tensors, group=s.group, **more)
    return works if s.call.later else None


def all_reduce_coalesced(s: Side) -> Started:
    tensors = [s.written(s.values(s.me, part, length)) for part, length in enumerate(s.call.lengths)]
    expected = [
        s.reduced([s.values(r, part, length) for r in s.everyone])
        for part, length in enumerate(s.call.lengths)
    ]
    pairs = [(tensor,) for tensor in tensors]
    return Started([], tensors, lambda: coalesced(s, dist.all_reduce, pairs, **s.op), expected)


def all_gather_coalesced(s: Side) -> Started:
    tensors = [s.read(part, length) for part, length in enumerate(s.call.lengths)]
    outputs = [s.write(s.n * length) for length in s.call.lengths]
    expected = [
        torch.cat([s.values(r, part, length) for r in s.everyone])
        for part, length in enumerate(s.call.lengths)
    ]
    pairs = list(zip(outputs, tensors, strict=True))
    return Started(tensors, outputs, lambda: coalesced(s, dist.all_gather_single, pairs), expected)


def reduce_scatter_coalesced(s: Side) -> Started:
    tensors = [s.read(part, s.n * length) for part, length in enumerate(s.call.lengths)]
    outputs = [s.write(length) for length in s.call.lengths]
    expected = [
        s.reduced([s.values(r, part, s.n * length) for r in s.everyone])[s.me * length : (s.me + 1) * length]
        for part, length in enumerate(s.call.lengths)
    ]
    pairs = list(zip(outputs, tensors, strict=True))
    return Started(
        tensors, outputs, lambda: coalesced(s, dist.reduce_scatter_single, pairs, **s.op), expected
    )


def thing(s: Side, rank: int, part: int = 0) -> object:
    """An object of `rank`, of a size of its own."""
    return {"rank": rank, "call": s.call.number, "text": "x" * min(s.call.lengths[rank], 10**4), "part": part}


def all_gather_object(s: Side) -> Started:
    got: list[Any] = [None] * s.n
    mine = thing(s, s.me)
    expected = [thing(s, r) for r in s.everyone]
    return Started([], [], lambda: dist.all_gather_object(got, mine, s.group), expected, lambda: got)


def broadcast_object_list(s: Side) -> Started:
    words = [thing(s, s.root) if s.me == s.root else None, None]

    def begin() -> None:
        dist.broadcast_object_list(words, s.members[s.root], s.group)

    return Started([], [], begin, [thing(s, s.root), None], lambda: words)


def scatter_object_list(s: Side) -> Started:
    got: list[Any] = [None]
    given = [thing(s, s.root, r) for r in s.everyone] if s.me == s.root else None

    def begin() -> None:
        dist.scatter_object_list(got, given, s.members[s.root], s.group)

    return Started([], [], begin, [thing(s, s.root, s.me)], lambda: got)


def gather_object(s: Side) -> Started:
    got: list[Any] | None = [None] * s.n if s.me == s.root else None

    def begin() -> None:
        dist.gather_object(thing(s, s.me), got, s.members[s.root], s.group)

    expected = [thing(s, r) for r in s.everyone] if s.me == s.root else []
    return Started([], [], begin, expected, lambda: got or [])


REDUCTIONS = [all_reduce, reduce, reduce_scatter, reduce_scatter_tensor]
REDUCTIONS += [all_reduce_coalesced, reduce_scatter_coalesced]
MOVEMENTS = [broadcast, all_gather, all_gather_into_tensor, gather, scatter, all_to_all, all_to_all_single]
MOVEMENTS += [all_to_all_single_uneven, all_gather_coalesced]
MESSAGES = [send_and_recv, recv_from_any, isend_and_irecv, batch_isend_irecv]
OBJECTS = [all_gather_object, broadcast_object_list, scatter_object_list, gather_object]
KINDS = {make.__name__: make for make in [*REDUCTIONS, *MOVEMENTS, *MESSAGES, *OBJECTS, barrier]}
REDUCING = {make.__name__ for make in REDUCTIONS}
WITH_TENSORS = [make.__name__ for make in [*REDUCTIONS, *MOVEMENTS, *MESSAGES]]

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
            everyone = self.comm.allgather(wrong)
            lines = [f"rank {rank}: {text}" for rank, texts in enumerate(everyone) for text in texts]
            raise AssertionError("\n".join(lines))

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

FLOATS = ["float32", "float64", "float16", "bfloat16"]
INTEGERS = ["int64", "int32", "int16", "int8", "uint8", "uint16", "uint32", "uint64"]
COMPLEXES = ["complex64", "complex128"]
BYTES = [2**16, 2**19, 2**20, 3 * 2**20]  # where the backend changes its way, and beyond


def ops_of(dtype: str) -> list[str]:
    if dtype == "bool":
        return ["SUM", "PRODUCT", "MIN", "MAX", "BAND", "BOR"]
    if dtype in COMPLEXES:
        return ["SUM", "AVG"]  # torch refuses the others
    arithmetic = ["SUM", "AVG", "PRODUCT", "MIN", "MAX"]
    return arithmetic if dtype in FLOATS else [*arithmetic, "BAND", "BOR", "BXOR"]


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
    dtypes = [*FLOATS, *INTEGERS, *COMPLEXES, "bool"]
    dtype = draw(st.sampled_from(dtypes if kind in REDUCING else [*dtypes, "float8_e4m3fn"]))
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


@pytest.mark.deadline(900)
@pytest.mark.timeout(900)
def test_random_calls_equal_gloo_and_torch(run: Runner) -> None:
    explore(run, 0, CASES)


@pytest.mark.slow
@pytest.mark.deadline(1800)
@pytest.mark.timeout(1800)
def test_a_thousand_random_calls_equal_gloo_and_torch(run: Runner) -> None:
    if run.comm.size == 1:
        return  # one rank has hardly anything to mistake: a hundred are enough
    explore(run, 1, max(CASES, 1000))


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
            call = Call(
                kind,
                "float32",
                "SUM",
                tail,
                (length,) * size,
                (*others, layout),
                (*others, writes),
                0,
                later,
                0,
            )
            run(Case(tuple(range(size)), (call, replace(call, number=1))))


def expanded_outputs(
    rank: int, size: int, group: Any, same: bool
) -> dict[str, Callable[[bool], tuple[Any, list[torch.Tensor], torch.Tensor]]]:
    """Calls that write to a tensor whose rows share memory, on the last rank alone.

    The rows of the result are the `same`, or not. Each call returns a work, what was written
    to, and what should be there.
    """
    odd, root = rank == size - 1, size - 1

    def place(rows: int = 4, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.ones(1, 3, dtype=dtype).expand(rows, 3) if odd else values(rows, dtype)

    def values(rows: int = 4, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        column = torch.ones(rows, 1) if same else torch.arange(float(rows)).reshape(rows, 1)
        return column.repeat(1, 3).to(dtype)

    def total(rows: int = 4) -> torch.Tensor:  # the expanded rank's rows are ones
        return (size - 1) * values(rows) + 1

    mine, parts, outputs = values(), [values()] * size, [place() for _ in range(size)]

    def of(
        written: list[torch.Tensor],
        expected: torch.Tensor,
        call: Callable[..., Any],
        *arguments: Any,
        **named: Any,
    ) -> Any:
        return lambda later: (call(*arguments, **named, group=group, async_op=later), written, expected)

    one, long, short = place(), place(4 * size), place(4, torch.bfloat16)
    repeated = values().repeat(size, 1)
    everywhere = rank == root or None
    return {
        "all_reduce": of([one], total(), dist.all_reduce, one),
        "reduce": of([one] if everywhere else [], total(), dist.reduce, one, root),
        "broadcast": of([one], values(), dist.broadcast, one, 0),
        "all_gather": of(outputs, values(), dist.all_gather, outputs, mine),
        "all_gather_into_tensor": of([long], repeated, dist.all_gather_single, long, mine),
        "gather": of(outputs if odd else [], values(), dist.gather, mine, outputs if odd else None, root),
        "scatter": of([one], values(), dist.scatter, one, None if rank else parts, 0),
        "reduce_scatter": of([one], size * values(), dist.reduce_scatter, one, parts),
        "reduce_scatter_tensor": of(
            [one], size * values(), dist.reduce_scatter_single, one, torch.cat(parts)
        ),
        "all_to_all": of(outputs, values(), dist.all_to_all, outputs, parts),
        "all_to_all_single": of([long], repeated, dist.all_to_all_single, long, torch.cat(parts)),
        "all_reduce of bfloat16": of([short], total(), dist.all_reduce, short),
        "all_reduce, AVG": of([one], total() / size, dist.all_reduce, one, op=dist.ReduceOp.AVG),
    }


@pytest.mark.parametrize("later", [False, True], ids=["blocking", "async_op"])
@pytest.mark.parametrize("same", [True, False], ids=["it fits", "it does not fit"])
def test_an_output_whose_elements_share_memory_holds_the_result_or_raises(
    run: Runner, same: bool, later: bool
) -> None:
    rank, size = run.comm.rank, run.comm.size
    if size == 1:
        return
    group = dist.new_group(timeout=timedelta(seconds=SECONDS), backend="mpi4py")
    for name in expanded_outputs(rank, size, group, same):
        raised, right = False, True
        try:
            work, written, expected = expanded_outputs(rank, size, group, same)[name](later)
            if later:
                work.wait()
            right = all(torch.allclose(tensor.float(), expected) for tensor in written)
        except torch_mpi4py.LayoutError as error:
            raised = "expanded there" in str(error)
        assert run.comm.allgather(right) == [True] * size, name
        assert run.comm.allgather(raised) == [False] * (size - 1) + [not same], name
        tensor = torch.ones(1)
        dist.all_reduce(tensor, group=group)
        assert tensor.item() == size  # the group goes on
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
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    assert tensor.item() == size


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
