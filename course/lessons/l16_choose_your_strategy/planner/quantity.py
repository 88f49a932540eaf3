"""A number that says where it is from: its unit, its formula, and the quantities in the formula.

    state = derived("16 * parameters / ranks", "bytes", parameters=given(7e9), ranks=given(8))

    state.value           14 000 000 000.0, computed from the formula's text
    state.formula         16 * parameters / ranks
    state["ranks"]        8, given

The text is what is evaluated, so the formula that is kept is the one that was used. A quantity without parts
was given by the reader, counted in the model, measured on a machine, fitted to such measurements, or is cited
from a publication: no other number enters a plan.
"""

import ast
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from types import CodeType
from typing import Any

FUNCTIONS: dict[str, Callable[..., float]] = {"max": max, "min": min, "ceil": math.ceil, "log2": math.log2}


@dataclass(frozen=True, slots=True, eq=False)
class Quantity:
    """A number, its unit, its formula, its source, and by name the quantities that the formula is made of.

    Of a number without parts `formula` says in words what it is.
    """

    value: float
    unit: str
    formula: str
    source: str
    parts: tuple[tuple[str, "Quantity"], ...] = ()

    def __getitem__(self, name: str) -> "Quantity":
        """The part of this name. Raises KeyError when the formula has none."""
        return dict(self.parts)[name]


def given(value: float, what: str = "", unit: str = "") -> Quantity:
    """A number that the reader chose: a size of the model, a number of ranks."""
    return Quantity(value, unit, what, "given")


def counted(value: float, what: str, unit: str = "") -> Quantity:
    """A number that follows from the model and the plan by counting; `what` says what is counted."""
    return Quantity(value, unit, what, "counted")


def measured(value: float, unit: str, what: str) -> Quantity:
    """A number that a measurement gave; `what` says of what."""
    return Quantity(value, unit, what, "measured")


def cited(value: float, unit: str, what: str, reference: str) -> Quantity:
    """A number from a publication."""
    return Quantity(value, unit, what, f"cited: {reference}")


def derived(formula: str, unit: str, reference: str = "", **parts: Quantity | float) -> Quantity:
    """The value of `formula`, evaluated from its `parts`; numbers among them count as given.

    The formula is an expression of Python with + - * / // ** and max, min, ceil, log2. `reference` says where
    it is from, or why it holds. Raises ValueError when the formula has a name that is not a part, or does not
    use a part.
    """
    quantities = {name: part if isinstance(part, Quantity) else given(part) for name, part in parts.items()}
    code, names = _compiled(formula)
    if names != set(quantities):
        raise ValueError(
            f"the formula {formula!r} has the names {sorted(names)} and got {sorted(quantities)}; "
            "give exactly the parts that it uses"
        )
    values: dict[str, Any] = {name: part.value for name, part in quantities.items()}
    value = float(eval(code, {"__builtins__": {}, **FUNCTIONS}, values))
    source = f"derived: {reference}" if reference else "derived"
    return Quantity(value, unit, formula, source, tuple(quantities.items()))


class Formulas:
    """Makes quantities from formulas over the same names; the same formula gives the same quantity.

    of = Formulas(tokens=given(512), width=given(64))
    of("4 * tokens * width", "bytes")
    """

    def __init__(self, **names: Quantity | float) -> None:
        self.names = names
        self.made: dict[tuple[str, str, str], Quantity] = {}

    def __call__(self, formula: str, unit: str = "bytes", reference: str = "") -> Quantity:
        """The quantity that `formula` gives, from those of the names that it uses."""
        key = formula, unit, reference
        if key not in self.made:
            _, used = _compiled(formula)
            parts = {name: value for name, value in self.names.items() if name in used}
            self.made[key] = derived(formula, unit, reference, **parts)
        return self.made[key]


def total(unit: str, addends: Iterable[tuple[str, Quantity]], reference: str = "") -> Quantity:
    """The sum of `addends`, which have names; equal ones of one name are one term: 4 * block + head."""
    alike = _grouped(addends)
    if not alike:
        return counted(0, "nothing", unit)
    names = _different(name for name, _ in alike)
    terms = [
        name if len(one) == 1 else f"{len(one)} * {name}" for name, (_, one) in zip(names, alike, strict=True)
    ]
    parts = {name: one[0] for name, (_, one) in zip(names, alike, strict=True)}
    return derived(" + ".join(terms), unit, reference, **parts)


def largest(unit: str, candidates: Iterable[tuple[str, Quantity]], reference: str = "") -> Quantity:
    """The largest of `candidates`, which have names; equal ones are named once."""
    alike = _grouped(candidates)
    names = _different(name for name, _ in alike)
    parts = {name: one[0] for name, (_, one) in zip(names, alike, strict=True)}
    formula = f"max({', '.join(names)})" if len(names) > 1 else names[0]
    return derived(formula, unit, reference, **parts)


@cache
def _compiled(formula: str) -> tuple[CodeType, set[str]]:
    """The code of a formula, and the names in it that are no functions."""
    tree = ast.parse(formula, mode="eval")
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} - set(FUNCTIONS)
    return compile(tree, formula, "eval"), names


def _grouped(named: Iterable[tuple[str, Quantity]]) -> list[tuple[str, list[Quantity]]]:
    """The quantities by name, formula and value, in their order."""
    groups: dict[tuple[str, str, float], list[Quantity]] = {}
    for name, quantity in named:
        groups.setdefault((name, quantity.formula, quantity.value), []).append(quantity)
    return [(name, group) for (name, _, _), group in groups.items()]


def _different(names: Iterable[str]) -> list[str]:
    """The names, numbered from the second of a kind on: block, block_2, block_3."""
    seen: dict[str, int] = {}
    result = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        result.append(name if seen[name] == 1 else f"{name}_{seen[name]}")
    return result
