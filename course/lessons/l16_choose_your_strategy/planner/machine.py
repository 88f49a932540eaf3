"""What the ranks of a machine need: seconds of an operation by kind and size, and of a message by its bytes.

    seconds of a product     start + flop / rate + numbers / bandwidth     a roofline whose parts add up
    of another operation     start + numbers / bandwidth                   by size: caches are faster
    of a message             alpha + beta · bytes                          inside a node, and between nodes

Numbers have 4 bytes in these lines; 16-bit numbers are read and written in half the time.

`course machine` measures all of them on the reader's machine; `machine_on_paper` makes them of published
rates. With several ranks at work each has less of the memory's bandwidth, so operations are timed twice: on
one rank alone, and on as many ranks as there are cores. More ranks than cores share them.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from course.lessons.l16_choose_your_strategy.planner.models import NOTHING, Operation
from course.lessons.l16_choose_your_strategy.planner.quantity import Quantity, cited, counted, derived, given
from course_lib.theory.hockney import Hockney, Piecewise

Direction = Literal["forward", "backward"]
TIMED_NBYTES = 4  # of the numbers that a machine's seconds are for
PRODUCTS = ("linear", "attention")  # their work is in flop
POINTWISE = ("gelu", "norm", "add", "embedding", "loss", "update", "update in files", "fresh")


@dataclass(frozen=True, slots=True)
class Product:
    """Seconds of a product: of its call, per flop, and per number that it reads or writes."""

    start: float
    per_flop: float
    per_number: float


Times = Product | Piecewise  # of a product, of another operation by its numbers


@dataclass(frozen=True, slots=True)
class Rate:
    """Seconds of one kind of operation."""

    forward: Times
    backward: Times


@dataclass(frozen=True, slots=True)
class Link:
    """What two ranks need to exchange bytes, and to add what they received."""

    name: str
    exchange: Piecewise
    sum: Piecewise
    source: str  # "fitted to measurements", or "cited: …"

    def message(self, nbytes: Quantity, sharing: float = 1) -> Quantity:
        """Seconds of sending so many bytes and receiving as many; `sharing` rings use a port at once."""
        line = line_of(self.exchange, nbytes.value)
        return derived(
            "alpha + beta * sharing * nbytes",
            "s",
            alpha=Quantity(line.alpha_seconds, "s", f"a message {self.name}", self.source),
            beta=Quantity(line.beta_seconds_per_byte, "s/byte", f"per byte {self.name}", self.source),
            sharing=sharing,
            nbytes=nbytes,
        )

    def adding(self, nbytes: Quantity) -> Quantity:
        """Seconds of adding so many bytes that were received."""
        line = line_of(self.sum, nbytes.value)
        return derived(
            "start + gamma * nbytes",
            "s",
            start=Quantity(line.alpha_seconds, "s", "a sum", self.source),
            gamma=Quantity(line.beta_seconds_per_byte, "s/byte", "per byte added", self.source),
            nbytes=nbytes,
        )


@dataclass(frozen=True, slots=True)
class Machine:
    """All that the planner knows of a machine; `alone` and `together` are seconds of operations, by kind.

    With more ranks than `devices`, several ranks share a device. A node has so many `ports` to the others.
    `overlap` says which part of the messages that can hide behind computing does: 0 where the library's plain
    forms run, 1 with buckets and prefetching on GPUs. A framework holds `context` besides tensors, and
    `waste` times the tensors in gaps.
    """

    name: str
    devices: Quantity  # ranks that compute at once, each at full speed: cores, or GPUs
    memory: Quantity  # bytes for tensors on each rank
    alone: Mapping[str, Rate]
    together: Mapping[str, Rate]
    inside: Link
    between: Link
    ranks_per_node: int
    source: str
    calls: Mapping[str, Piecewise]  # what the library's exchanges take besides their messages, by bytes
    crowded_calls: Mapping[str, Piecewise]  # when there are more ranks than cores
    ports: int = 1
    overlap: float = 0.0
    context: Quantity = NOTHING
    waste: float = 0.0

    def call(self, name: str, nbytes: Quantity, *, crowded: bool) -> Quantity:
        """Seconds of an exchange besides its messages: Python, copies, waiting for a core."""
        table, who = (self.crowded_calls, ", ranks share cores") if crowded else (self.calls, "")
        if name not in table:
            return counted(0, "calls cost nothing on paper", "s")
        line = line_of(table[name], nbytes.value)
        return derived(
            "start + each * nbytes",
            "s",
            start=Quantity(line.alpha_seconds, "s", f"{name} besides messages{who}", self.source),
            each=Quantity(line.beta_seconds_per_byte, "s/byte", f"{name} besides messages{who}", self.source),
            nbytes=nbytes,
        )

    def operation(
        self, one: Operation, direction: Direction, *, alone: bool, element: int = TIMED_NBYTES
    ) -> Quantity:
        """Seconds of one operation on numbers of `element` bytes: half the bytes are read in half the time.

        Raises KeyError, with the kinds, for one that was not timed.
        """
        table = self.alone if alone else self.together
        if one.kind not in table:
            raise KeyError(f"{self.name} has no seconds of {one.kind}; it has {sorted(table)}")
        times: Times = getattr(table[one.kind], direction)
        what = f"{one.kind}, {direction}"
        if isinstance(times, Piecewise):
            work = as_timed(one.work, element)
            line = line_of(times, work.value)
            return derived(
                "start + each * work",
                "s",
                start=Quantity(line.alpha_seconds, "s", f"a call: {what}", self.source),
                each=Quantity(line.beta_seconds_per_byte, "s/number", what, self.source),
                work=work,
            )
        assert one.numbers is not None
        return derived(
            "start + per_flop * flop + per_number * numbers",
            "s",
            start=Quantity(times.start, "s", f"a call: {what}", self.source),
            per_flop=Quantity(times.per_flop, "s/flop", what, self.source),
            flop=one.work,
            per_number=Quantity(times.per_number, "s/number", f"read or written: {what}", self.source),
            numbers=as_timed(one.numbers, element),
        )

    def link(self, ways: int, stride: int) -> tuple[Link, float]:
        """The link of an axis of `ways` ranks that are `stride` apart, and how many rings share a port of it.

        Within a node it is that of the node. An axis that leaves the node crosses its border once for each of
        its groups in the node. These share the node's ports; a single group uses them all, as NCCL's
        several rings do, until the node's own link is the slower one.
        """
        if ways * stride <= self.ranks_per_node:
            return self.inside, 1
        sharing = min(stride, self.ranks_per_node) / self.ports
        inside, between = (
            link.exchange.lines[-1].beta_seconds_per_byte for link in (self.inside, self.between)
        )
        return (self.inside, 1) if sharing * between < inside else (self.between, sharing)

    def allocated(self, tensors: Quantity) -> Quantity:
        """The bytes that a framework takes for so many bytes of tensors."""
        if not self.waste and not self.context.value:
            return tensors
        waste = given(self.waste, "of the tensors, in gaps that the allocator leaves")
        return derived(
            "context + (1 + waste) * tensors", "bytes", context=self.context, waste=waste, tensors=tensors
        )


def as_timed(work: Quantity, element: int) -> Quantity:
    """How many numbers of the timed size have as many bytes as this `work` on numbers of `element` bytes.

    Work in other units (calls) stays as it is.
    """
    if element == TIMED_NBYTES or work.unit != "numbers":
        return work
    return derived("work * element / timed", "numbers", work=work, element=element, timed=TIMED_NBYTES)


def line_of(lines: Piecewise, amount: float) -> Hockney:
    """The line of the regime that `amount` is in."""
    return next(line for limit, line in zip(lines.limits_nbytes, lines.lines, strict=True) if amount <= limit)


# ---------------------------------------------------------------- on paper


def machine_on_paper(
    name: str,
    reference: str,
    *,
    memory_nbytes: float,
    flop_per_second: float,
    memory_bytes_per_second: float,
    inside: Hockney,
    between: Hockney,
    ranks_per_node: int,
    file_bytes_per_second: float | None = None,
    devices: float = math.inf,
    ports: int = 1,
    overlap: float = 1.0,
    context_nbytes: float = 0.0,
    waste: float = 0.0,
) -> Machine:
    """A machine of published rates: calls cost nothing, and every rank has a device, but for `devices`.

    A product's backward pass has twice its forward's flop; what it reads and writes hides behind them. Any
    other operation reads one number and writes one, forward; backward it reads two and writes one. If
    Adam's moments are in files, AdamW reads and writes 16 bytes per parameter there. Give
    `file_bytes_per_second` if plans with `offload` are compared: without it files are as fast as the memory.
    """
    source = f"cited: {reference}"
    rates = _rates_on_paper(flop_per_second, memory_bytes_per_second, file_bytes_per_second)
    return Machine(
        name,
        given(devices, "ranks that compute at once"),
        cited(memory_nbytes, "bytes", "memory per rank", reference),
        rates,
        rates,
        _cited_link("inside a node", inside, source),
        _cited_link("between nodes", between, source),
        ranks_per_node,
        source,
        {},
        {},
        ports,
        overlap,
        given(context_nbytes, "what the framework holds besides tensors", "bytes"),
        waste,
    )


def _rates_on_paper(
    flop_per_second: float, memory_bytes_per_second: float, file_bytes_per_second: float | None
) -> dict[str, Rate]:
    """Forward and backward of every kind of operation, and the update of a parameter."""
    each, number = 1 / flop_per_second, TIMED_NBYTES / memory_bytes_per_second
    rates = {kind: Rate(Product(0.0, each, 0.0), Product(0.0, 2 * each, 0.0)) for kind in PRODUCTS}
    rates |= {kind: Rate(_straight(2 * number), _straight(3 * number)) for kind in POINTWISE}
    rates["block"] = Rate(_straight(0.0), _straight(0.0))
    rates["update"] = Rate(_straight(7 * number), _straight(0.0))  # reads 4 numbers, writes 3
    in_files = 4 * 4 / (file_bytes_per_second or memory_bytes_per_second)  # two moments, read and written
    rates["update in files"] = Rate(_straight(3 * number + in_files), _straight(0.0))
    return rates


def _cited_link(name: str, line: Hockney, source: str) -> Link:
    return Link(name, Piecewise((math.inf,), (line,)), _straight(line.gamma_seconds_per_byte), source)


def _straight(each: float) -> Piecewise:
    return Piecewise((math.inf,), (Hockney(0.0, each),))
