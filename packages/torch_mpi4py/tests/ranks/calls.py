"""Calls of torch.distributed as data: what each rank reads and writes, and the result by torch alone.

Values are small integers, which every rank can make for all others: sums are exact. Read by the tests of
random calls, of two threads, of thousands of light calls, and of interrupts.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from mpi4py import MPI

Tensors = list[torch.Tensor]
FLOATS = ["float32", "float64", "float16", "bfloat16"]
INTEGERS = ["int64", "int32", "int16", "int8", "uint8", "uint16", "uint32", "uint64"]
COMPLEXES = ["complex64", "complex128"]
DTYPES = [*FLOATS, *INTEGERS, *COMPLEXES, "bool"]


def ops_of(dtype: str) -> list[str]:
    """The reductions that torch defines for `dtype`."""
    if dtype == "bool":
        return ["SUM", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR"]
    if dtype in COMPLEXES:
        return ["SUM", "AVG"]
    arithmetic = ["SUM", "AVG", "PRODUCT", "MIN", "MAX"]
    return arithmetic if dtype in FLOATS else [*arithmetic, "BAND", "BOR", "BXOR"]


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
    """One row in the place of all: memory that several elements share."""
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
        return self.laid_out(self.values(self.me, part, length), self.call.reads[self.me])

    def written(self, values: torch.Tensor) -> torch.Tensor:
        """`values` in memory that the call will write to."""
        return self.laid_out(values, self.call.writes[self.me])

    def laid_out(self, values: torch.Tensor, layout: str) -> torch.Tensor:
        if self.plain or (layout == "expanded" and not len(values)):
            return values
        return expanded(values) if layout == "expanded" else LAYOUTS[layout](values)

    def write(self, length: int) -> torch.Tensor:
        return self.written(torch.full((length, *TAILS[self.call.tail]), 55).to(self.dtype))

    def reduced(self, tensors: Tensors) -> torch.Tensor:
        """The oracle of all sums: torch, in a type that is exact here."""
        op, wide = self.call.op, [exact(tensor) for tensor in tensors]
        if self.dtype == torch.bool:
            op = {"SUM": "MAX", "PRODUCT": "MIN"}.get(op, op)
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
COLLECTIVES = [make.__name__ for make in [*REDUCTIONS, *MOVEMENTS]]
WITH_TENSORS = [*COLLECTIVES, *(make.__name__ for make in MESSAGES)]


def call_of(
    kind: str,
    size: int,
    length: int,
    *,
    later: bool,
    number: int = 0,
    dtype: str = "float32",
    layout: str = "contiguous",
    root: int = 0,
) -> Call:
    """A call in which all ranks have the same length and layout, and which adds up where it reduces."""
    layouts = (layout,) * size
    return Call(kind, dtype, "SUM", "row", (length,) * size, layouts, layouts, root, later, number)


def wait_for(work: object) -> None:
    for each in work if isinstance(work, list) else [work]:
        if hasattr(each, "wait"):
            each.wait()


def is_right(started: Started) -> bool:
    return all(map(torch.equal, started.writes, started.expected))


def still_works(group: Any = None) -> None:
    """A sum over all ranks of the group is right."""
    tensor = torch.ones(1)
    dist.all_reduce(tensor, group=group)
    assert tensor.item() == dist.get_world_size(group)


def agree_on(comm: MPI.Intracomm, wrong: list[str]) -> None:
    """Raise on all ranks what was wrong on any."""
    everyone = comm.allgather(wrong)
    lines = [f"rank {rank}: {text}" for rank, texts in enumerate(everyone) for text in texts]
    assert not lines, "\n".join(lines)
