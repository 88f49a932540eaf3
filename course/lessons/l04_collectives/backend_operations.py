"""What the probe of `backends.py` tries: each operation once, with a look at its result.

Rank r brings 10**r, so a result tells whose part is missing. Where one rank has a part of its own, it is the
last: rank 0 is what many take when nothing is said.
"""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

LATE_SECONDS = 0.05  # by which the last rank comes late to a barrier


class Garbage(Exception):
    """The operation returned, and its result is not what it should be."""


@dataclass(frozen=True, slots=True)
class ProbeGroup:
    """Where an operation is tried: its own process group, and a folder that all ranks see."""

    group: Any
    rank: int
    size: int
    device: torch.device
    folder: Path

    def mine(self) -> torch.Tensor:
        """Two numbers that tell whose they are: 10**rank."""
        return self.of(self.rank)

    def of(self, rank: int) -> torch.Tensor:
        """The numbers of another rank."""
        return torch.full((2,), 10.0**rank, device=self.device)

    def empty(self) -> torch.Tensor:
        """Room for the numbers of one rank."""
        return torch.full((2,), -1.0, device=self.device)

    def total(self) -> torch.Tensor:
        """The sum of all ranks' numbers."""
        return torch.stack(self.everyone()).sum(0)

    def everyone(self) -> list[torch.Tensor]:
        """The numbers of all ranks."""
        return [self.of(rank) for rank in range(self.size)]

    def for_each(self, source: int) -> list[torch.Tensor]:
        """What rank `source` has for each rank: 10**source for rank 0, 10**source + 1 for rank 1, …"""
        return [self.of(source) + dest for dest in range(self.size)]


def expect(got: Any, expected: Any) -> None:
    """Raise Garbage unless the two are equal: tensors, lists of them, or plain values."""
    if isinstance(got, torch.Tensor):
        got, expected = got.tolist(), expected.tolist()
    elif isinstance(got, list) and got and isinstance(got[0], torch.Tensor):
        got, expected = [t.tolist() for t in got], [t.tolist() for t in expected]
    if got != expected:
        raise Garbage(f"got {got} in place of {expected}")


# -------------------------------------------------------------------- one function an operation


def send_recv(p: ProbeGroup) -> None:
    """Rank 0 to rank 1, and rank 1 to rank 0."""
    if p.rank > 1:
        return
    received = p.empty()
    if p.rank == 0:
        dist.send(p.mine(), 1, p.group)
        dist.recv(received, 1, p.group)
    else:
        dist.recv(received, 0, p.group)
        dist.send(p.mine(), 0, p.group)
    expect(received, p.of(1 - p.rank))


def isend_irecv(p: ProbeGroup) -> None:
    """The same, both at once."""
    if p.rank > 1:
        return
    received, mine = p.empty(), p.mine()
    requests = [dist.irecv(received, 1 - p.rank, p.group), dist.isend(mine, 1 - p.rank, p.group)]
    for request in requests:
        request.wait()  # type: ignore[union-attr]
    expect(received, p.of(1 - p.rank))


def broadcast(p: ProbeGroup) -> None:
    """From the last rank, so that nobody's own numbers pass for it."""
    tensor = p.mine()
    dist.broadcast(tensor, p.size - 1, p.group)
    expect(tensor, p.of(p.size - 1))


def all_reduce(p: ProbeGroup) -> None:
    """The sum, on every rank."""
    tensor = p.mine()
    dist.all_reduce(tensor, group=p.group)
    expect(tensor, p.total())


def reduce(p: ProbeGroup) -> None:
    """The sum, on the last rank; what the others hold is unspecified, so nobody looks."""
    tensor = p.mine()
    dist.reduce(tensor, p.size - 1, group=p.group)
    if p.rank == p.size - 1:
        expect(tensor, p.total())


def all_gather(p: ProbeGroup) -> None:
    """Everybody's numbers in a list."""
    gathered = [p.empty() for _ in range(p.size)]
    dist.all_gather(gathered, p.mine(), p.group)
    expect(gathered, p.everyone())


def all_gather_into_tensor(p: ProbeGroup) -> None:
    """Everybody's numbers in one tensor."""
    gathered = torch.cat([p.empty() for _ in range(p.size)])
    dist.all_gather_into_tensor(gathered, p.mine(), p.group)
    expect(gathered, torch.cat(p.everyone()))


def gather(p: ProbeGroup) -> None:
    """Everybody's numbers, on the last rank."""
    last = p.rank == p.size - 1
    gathered = [p.empty() for _ in range(p.size)] if last else None
    dist.gather(p.mine(), gathered, p.size - 1, p.group)
    if gathered is not None:
        expect(gathered, p.everyone())


def scatter(p: ProbeGroup) -> None:
    """A part for each, from the last rank."""
    last, received = p.size - 1, p.empty()
    dist.scatter(received, p.for_each(last) if p.rank == last else None, last, p.group)
    expect(received, p.for_each(last)[p.rank])


def reduce_scatter(p: ProbeGroup) -> None:
    """The sum of everybody's part for this rank, parts given as a list."""
    received = p.empty()
    dist.reduce_scatter(received, p.for_each(p.rank), group=p.group)
    expect(received, p.total() + p.size * p.rank)


def reduce_scatter_tensor(p: ProbeGroup) -> None:
    """The same, parts given as one tensor."""
    received = p.empty()
    dist.reduce_scatter_tensor(received, torch.cat(p.for_each(p.rank)), group=p.group)
    expect(received, p.total() + p.size * p.rank)


def all_to_all(p: ProbeGroup) -> None:
    """Everybody's part for this rank, in lists."""
    received = [p.empty() for _ in range(p.size)]
    dist.all_to_all(received, p.for_each(p.rank), p.group)
    expect(received, [p.for_each(source)[p.rank] for source in range(p.size)])


def all_to_all_single(p: ProbeGroup) -> None:
    """The same, in one tensor."""
    received = torch.cat([p.empty() for _ in range(p.size)])
    dist.all_to_all_single(received, torch.cat(p.for_each(p.rank)), group=p.group)
    expect(received, torch.cat([p.for_each(source)[p.rank] for source in range(p.size)]))


def objects(p: ProbeGroup) -> None:
    """Python objects: gathered by all, broadcast, gathered by one, scattered."""
    mine, last = {"rank": p.rank}, p.size - 1
    everyone: list[Any] = [None] * p.size
    dist.all_gather_object(everyone, mine, p.group)
    expect(everyone, [{"rank": rank} for rank in range(p.size)])
    one = [mine]
    dist.broadcast_object_list(one, last, p.group)
    expect(one, [{"rank": last}])
    gathered: list[Any] | None = [None] * p.size if p.rank == last else None
    dist.gather_object(mine, gathered, last, p.group)
    expect(gathered, everyone if p.rank == last else None)
    received: list[Any] = [None]
    dist.scatter_object_list(received, everyone if p.rank == last else None, last, p.group)
    expect(received, [mine])


def barrier(p: ProbeGroup) -> None:
    """Nobody leaves before all have come."""
    _leave_together(p, lambda: dist.barrier(p.group))


def monitored_barrier(p: ProbeGroup) -> None:
    """A barrier that can name who is missing."""
    _leave_together(p, lambda: dist.monitored_barrier(p.group, timeout=timedelta(seconds=10)))


def _leave_together(p: ProbeGroup, wait: Callable[[], object]) -> None:
    if p.rank == p.size - 1:
        time.sleep(LATE_SECONDS)
    name = sys._getframe(1).f_code.co_name
    (p.folder / f"{name}-{p.rank}").touch()
    wait()
    present = [rank for rank in range(p.size) if (p.folder / f"{name}-{rank}").exists()]
    expect(present, list(range(p.size)))


CHECKS: dict[str, Callable[[ProbeGroup], None]] = {
    "send, recv": send_recv,
    "isend, irecv": isend_irecv,
    **{
        check.__name__: check
        for check in (
            *(broadcast, all_reduce, reduce, all_gather, all_gather_into_tensor, gather, scatter),
            *(reduce_scatter, reduce_scatter_tensor, all_to_all, all_to_all_single),
        )
    },
    "object collectives": objects,
    "barrier": barrier,
    "monitored_barrier": monitored_barrier,
}
