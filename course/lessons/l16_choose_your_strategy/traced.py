"""Numbers that open: a click on a number shows its formula, and the parts of that formula open in turn.

    clickable(memory_of(shape, 32, plan), "memory")    one number, down to what was given or counted
    ranking(estimates)                                 the plans in their order, three such numbers each

Without HTML, a number stands there as the lines of `quantity.trace`, and the ranking as `ranking.report`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from course_lib.theory.planner.quantity import Quantity, trace
from course_lib.theory.planner.ranking import Estimate, report, why

NUMBERS = ("memory", "sent", "seconds")
HEADINGS = ("plan", "memory per rank", "sent per step", "step", "fits")
TEXT_DEPTH = 3


@dataclass(frozen=True, slots=True)
class Clickable:
    """Something that a notebook shows as HTML, and everything else as text."""

    html: str
    text: str

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/html": self.html, "text/plain": self.text}


def clickable(quantity: Quantity, name: str) -> Clickable:
    """`quantity` under this name, to be opened down to the numbers that it starts from."""
    text = "\n".join(trace(quantity, name, TEXT_DEPTH))
    return Clickable(f"<div>{tree(quantity, name)}</div>", text)


def ranking(estimates: Sequence[Estimate], most: int = 4) -> Clickable:
    """The first plans with their numbers to be opened, and below them why the first one is the choice."""
    head = "".join(f'<th style="text-align: left">{escape(each)}</th>' for each in HEADINGS)
    rows = "".join(_row(one) for one in estimates[:most])
    left = len(estimates) - most
    more = [f"… and {left} more plans."] if left > 0 else []
    said = "".join(f"<p>{escape(line)}</p>" for line in [*more, *why(estimates)])
    return Clickable(f"<table><tr>{head}</tr>{rows}</table>{said}", report(estimates, most))


def _row(one: Estimate) -> str:
    top = 'style="text-align: left; vertical-align: top"'
    numbers = "".join(f"<td {top}>{tree(getattr(one, name), '')}</td>" for name in NUMBERS)
    fits = "yes" if one.fits else "no"
    return f"<tr><td {top}>{escape(one.plan.name)}</td>{numbers}<td {top}>{fits}</td></tr>"


def tree(quantity: Quantity, name: str) -> str:
    """A number and, folded below it, its formula and all parts of it, each to be opened in turn.

    A formula that stands further above already, with the same value, is not opened a second time.
    """
    return _node(quantity, name, set())


def _node(quantity: Quantity, name: str, seen: set[tuple[str, float]]) -> str:
    shown = f"{escape(name)} = {escape(quantity.text)}" if name else escape(quantity.text)
    if not quantity.parts:
        what = f": {quantity.formula}" if quantity.formula else ""
        return f"{shown} <i>({escape(quantity.source + what)})</i>"
    formula, key = f"<code>{escape(quantity.formula)}</code>", (quantity.formula, quantity.value)
    if key in seen:
        return f"{shown} = {formula} <i>(see above)</i>"
    seen.add(key)
    because = quantity.source.removeprefix("derived").removeprefix(": ")
    reason = f" <i>({escape(because)})</i>" if because else ""
    parts = "".join(f"<li>{_node(part, part_name, seen)}</li>" for part_name, part in quantity.parts)
    return f"<details><summary>{shown}</summary>= {formula}{reason}<ul>{parts}</ul></details>"
