"""What the ranks of a machine need: seconds of an operation by kind and size, and of a message by its bytes.

    seconds of an operation = start + each · work        by kind, direction, narrowest side of a product
    seconds of a message    = alpha + beta · bytes       inside a node, and between nodes

`course machine` measures all of them on the reader's machine; `machine_on_paper` makes them of published
rates. With several ranks at work each has less of the memory's bandwidth, so operations are timed twice: on
one rank alone, and on as many ranks as there are cores. More ranks than cores share them.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from course_lib.theory.hockney import Hockney, Piecewise, fit_piecewise
from course_lib.theory.planner.models import Operation
from course_lib.theory.planner.quantity import Quantity, cited, counted, derived, measured

Direction = Literal["forward", "backward"]
PRODUCTS = ("linear", "attention", "convolution")  # their work is in flop
POINTWISE = ("gelu", "relu", "norm", "add", "embedding", "loss", "update", "update in files", "fresh")


@dataclass(frozen=True, slots=True)
class Rate:
    """Seconds of one kind of operation by its work, for products with this narrowest side (0: any)."""

    narrow: int
    forward: Piecewise
    backward: Piecewise


@dataclass(frozen=True, slots=True)
class Link:
    """What two ranks need to exchange bytes, and to add what they received."""

    name: str
    exchange: Piecewise
    sum: Piecewise
    source: str  # "measured", or "cited: …"

    def message(self, nbytes: Quantity, sharing: int = 1) -> Quantity:
        """Seconds of sending so many bytes and receiving as many; `sharing` ranks use the link at once."""
        line = _line(self.exchange, nbytes.value)
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
        line = _line(self.sum, nbytes.value)
        return derived(
            "start + gamma * nbytes",
            "s",
            start=Quantity(line.alpha_seconds, "s", "a sum", self.source),
            gamma=Quantity(line.beta_seconds_per_byte, "s/byte", "per byte added", self.source),
            nbytes=nbytes,
        )


@dataclass(frozen=True, slots=True)
class Machine:
    """All that the planner knows of a machine; `alone` and `together` are seconds of operations, by kind."""

    name: str
    cores: Quantity  # ranks that compute at once, each at full speed
    memory: Quantity  # bytes for tensors on each rank
    alone: Mapping[str, Sequence[Rate]]
    together: Mapping[str, Sequence[Rate]]
    inside: Link
    between: Link
    ranks_per_node: int
    source: str
    calls: Mapping[str, Piecewise]  # what the library's exchanges take besides their messages, by bytes
    crowded_calls: Mapping[str, Piecewise]  # when there are more ranks than cores

    def call(self, name: str, nbytes: Quantity, *, crowded: bool) -> Quantity:
        """Seconds of an exchange besides its messages: Python, copies, waiting for a core."""
        table, who = (self.crowded_calls, ", ranks share cores") if crowded else (self.calls, "")
        if name not in table:
            return counted(0, "calls cost nothing on paper", "s")
        line = _line(table[name], nbytes.value)
        return derived(
            "start + each * nbytes",
            "s",
            start=Quantity(line.alpha_seconds, "s", f"{name} besides messages{who}", self.source),
            each=Quantity(line.beta_seconds_per_byte, "s/byte", f"{name} besides messages{who}", self.source),
            nbytes=nbytes,
        )

    def operation(self, one: Operation, direction: Direction, *, alone: bool) -> Quantity:
        """Seconds of one operation. Raises KeyError, with the kinds, for one that was not timed."""
        table = self.alone if alone else self.together
        if one.kind not in table:
            raise KeyError(f"{self.name} has no seconds of {one.kind}; it has {sorted(table)}")
        rates = sorted(table[one.kind], key=lambda rate: rate.narrow)
        narrow = min(one.sides) if one.sides else 0
        below = max(
            (rate for rate in rates if rate.narrow <= narrow), default=rates[0], key=lambda r: r.narrow
        )
        above = min(
            (rate for rate in rates if rate.narrow >= narrow), default=rates[-1], key=lambda r: r.narrow
        )
        low = self._seconds(below, one, direction)
        if below.narrow == above.narrow:
            return low
        return derived(
            "narrower * (wider / narrower) ** share",
            "s",
            f"between products whose narrowest sides are {below.narrow} and {above.narrow}",
            narrower=low,
            wider=self._seconds(above, one, direction),
            share=counted(
                math.log(narrow / below.narrow) / math.log(above.narrow / below.narrow),
                f"where {narrow} lies between them, on a log axis",
            ),
        )

    def _seconds(self, rate: Rate, one: Operation, direction: Direction) -> Quantity:
        line = _line(getattr(rate, direction), one.work.value)
        side = f", narrowest side {rate.narrow}" if rate.narrow else ""
        what = f"{one.kind}, {direction}{side}"
        return derived(
            "start + each * work",
            "s",
            start=Quantity(line.alpha_seconds, "s", f"a call: {what}", self.source),
            each=Quantity(line.beta_seconds_per_byte, f"s per {one.work.unit}", what, self.source),
            work=one.work,
        )

    def link(self, ways: int, stride: int) -> tuple[Link, int]:
        """The link of an axis of `ways` ranks that are `stride` apart, and how many ranks share it at once.

        Within a node it is that of the node. An axis that leaves the node crosses its border once for each of
        its groups in the node, and these groups share the node's link.
        """
        if ways * stride <= self.ranks_per_node:
            return self.inside, 1
        return self.between, min(stride, self.ranks_per_node)


def _line(lines: Piecewise, amount: float) -> Hockney:
    return next(line for limit, line in zip(lines.limits_nbytes, lines.lines, strict=True) if amount <= limit)


# ---------------------------------------------------------------- measured


def machine_from_json(text: str) -> Machine:
    """The machine that `course machine` measured and wrote."""
    found = json.loads(text)
    messages, ranks = found["messages"], found["cores"]
    link = Link(
        "between two ranks",
        fit_piecewise(messages["nbytes"], messages["exchange_seconds"], 4),
        fit_piecewise(messages["nbytes"], messages["sum_seconds"], 4),
        "measured",
    )
    return Machine(
        found["name"],
        measured(ranks, "", "cores that these ranks may use"),
        measured(found["memory_nbytes"], "bytes", "free memory per rank"),
        _rates(found["alone"]),
        _rates(found["together"]),
        link,
        link,
        2**31,  # one node, however many ranks
        "measured",
        {name: _besides_messages(name, table, link) for name, table in found["calls"].items()},
        {name: _besides_messages(name, table, link) for name, table in found["crowded_calls"].items()},
    )


def _besides_messages(name: str, table: Mapping[str, Sequence[float]], link: Link) -> Piecewise:
    """What a pair's exchange took longer than its messages and sums, by the bytes of its array."""
    found = []
    for nbytes, seconds in zip(table["nbytes"], table["seconds"], strict=True):
        half = nbytes / 2
        message = _line(link.exchange, half).one_way_seconds(half)
        adding = _line(link.sum, half).one_way_seconds(half)
        if name.endswith("message"):  # there and back
            whole = _line(link.exchange, nbytes).one_way_seconds(nbytes)
            found.append(seconds / 2 - whole)
        elif name.endswith("all-reduce"):
            found.append(seconds - 2 * message - adding)
        else:
            found.append(seconds - message - (adding if name.endswith("reduce-scatter") else 0))
    least = 1e-9  # a line is fitted to logarithms
    return fit_piecewise(table["nbytes"], [max(least, each) for each in found], 2)


def _rates(found: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, list[Rate]]:
    return {
        kind: [
            Rate(
                table["narrow"],
                fit_piecewise(table["work"], table["forward_seconds"], 2),
                fit_piecewise(table["work"], table["backward_seconds"], 2),
            )
            for table in tables
        ]
        for kind, tables in found.items()
    }


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
) -> Machine:
    """A machine of published rates: every rank has a device of its own, and calls cost nothing.

    A product's backward pass has twice its forward's flop. An operation on single numbers reads one and
    writes one, forward; backward it reads two and writes one.
    """
    source = f"cited: {reference}"
    product = Rate(0, _straight(1 / flop_per_second), _straight(2 / flop_per_second))
    number = 4 / memory_bytes_per_second
    rates = {kind: [product] for kind in PRODUCTS}
    rates |= {kind: [Rate(0, _straight(2 * number), _straight(3 * number))] for kind in POINTWISE}
    rates["update"] = [Rate(0, _straight(7 * number), _straight(0.0))]  # reads 4 numbers, writes 3
    return Machine(
        name,
        cited(float("inf"), "", "a device for every rank", reference),
        cited(memory_nbytes, "bytes", "memory per rank", reference),
        rates,
        rates,
        _cited_link("inside a node", inside, source),
        _cited_link("between nodes", between, source),
        ranks_per_node,
        source,
        {},
        {},
    )


def _cited_link(name: str, line: Hockney, source: str) -> Link:
    return Link(name, Piecewise((math.inf,), (line,)), _straight(line.gamma_seconds_per_byte), source)


def _straight(each: float) -> Piecewise:
    return Piecewise((math.inf,), (Hockney(0.0, each),))
