"""A machine from what `course machine` measured: lines fitted to operations, messages and exchanges."""

import json
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from course.lessons.l16_choose_your_strategy.planner.machine import (
    PRODUCTS,
    Link,
    Machine,
    Product,
    Rate,
    Times,
    line_of,
)
from course.lessons.l16_choose_your_strategy.planner.models import Part, TransformerShape
from course.lessons.l16_choose_your_strategy.planner.quantity import measured
from course_lib.theory.hockney import REWEIGHTINGS, Hockney, Piecewise, fit_piecewise

DIRECTIONS = ("forward", "backward")
FITTED = "fitted to measurements"  # the source of a coefficient, which no clock has shown


def machine_from_json(text: str) -> Machine:
    """The machine that `course machine` measured and wrote."""
    return machine_of(json.loads(text))


def machine_of(found: Mapping[str, Any]) -> Machine:
    """The machine of which a job measured this: seconds of operations, messages and exchanges."""
    messages, ranks = found["messages"], found["cores"]
    link = Link(
        "between two ranks",
        fit_piecewise(messages["nbytes"], messages["exchange_seconds"], 4),
        fit_piecewise(messages["nbytes"], messages["sum_seconds"], 4),
        FITTED,
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
        FITTED,
        {name: _besides_messages(name, table, link) for name, table in found["calls"].items()},
        {name: _besides_messages(name, table, link) for name, table in found["crowded_calls"].items()},
    )


def _besides_messages(name: str, table: Mapping[str, Sequence[float]], link: Link) -> Piecewise:
    """What a pair's exchange took longer than its messages and sums, by the bytes of its array."""
    found = []
    for nbytes, seconds in zip(table["nbytes"], table["seconds"], strict=True):
        half = nbytes / 2
        message = line_of(link.exchange, half).one_way_seconds(half)
        adding = line_of(link.sum, half).one_way_seconds(half)
        if name.endswith("message"):  # there and back
            whole = line_of(link.exchange, nbytes).one_way_seconds(nbytes)
            found.append(seconds / 2 - whole)
        elif name.endswith("all-reduce"):
            found.append(seconds - 2 * message - adding)
        else:
            found.append(seconds - message - (adding if name.endswith("reduce-scatter") else 0))
    least = 1e-9  # a line is fitted to logarithms
    return fit_piecewise(table["nbytes"], [max(least, each) for each in found], 2)


def _rates(found: Mapping[str, Mapping[str, Sequence[float]]]) -> dict[str, Rate]:
    rates = {
        kind: Rate(*(_times(kind, table, way) for way in DIRECTIONS))
        for kind, table in found.items()
        if kind != "block"
    }
    both = (_besides_operations(found["block"][f"{way}_seconds"][0], rates, way) for way in DIRECTIONS)
    return rates | {"block": Rate(*both)}


def _besides_operations(seconds: float, rates: Mapping[str, Rate], direction: str) -> Piecewise:
    """What a tiny block takes besides the calls of its operations: its modules and views."""
    calls = 0.0
    for one in TransformerShape(1, 1, 1, 1, 1).layers(Part(1))[1].operations:
        if one.kind != "block":
            times: Times = getattr(rates[one.kind], direction)
            alone = times.start if isinstance(times, Product) else times.lines[0].alpha_seconds
            calls += one.times * alone
    return Piecewise((float("inf"),), (Hockney(max(0.0, seconds - calls), 0.0),))


def _times(kind: str, table: Mapping[str, Sequence[float]], direction: str) -> Times:
    seconds = table[f"{direction}_seconds"]
    if kind in PRODUCTS:
        return fit_product(table["work"], table["numbers"], seconds)
    return fit_piecewise(table["work"], seconds, 2)


def fit_product(flop: Sequence[float], numbers: Sequence[float], seconds: Sequence[float]) -> Product:
    """The start, seconds per flop and per number with the least sum of |log(predicted / measured)|.

    None of the three is below 0. As in `fit_hockney`, ratios count, not differences.
    """
    measured = np.asarray(seconds, float)
    columns = np.array([np.ones(len(measured)), flop, numbers], float).T
    scale = columns.max(axis=0)
    scale[scale == 0] = 1.0
    fits = [
        _fit_columns(columns / scale, measured, list(chosen))
        for count in (1, 2, 3)
        for chosen in combinations(range(3), count)
    ]
    _, found = min(fits, key=lambda fit: fit[0])
    return Product(*(found / scale).tolist())


def _fit_columns(
    columns: NDArray[np.float64], measured: NDArray[np.float64], chosen: list[int]
) -> tuple[float, NDArray[np.float64]]:
    """The sum of |log| and the coefficients, 0 but for the chosen columns; infinite if one is below 0."""
    best, found = np.inf, np.zeros(columns.shape[1])
    weights = 1 / measured
    for _ in range(REWEIGHTINGS):  # squares of differences, weighted until they are absolute logarithms
        part = columns[:, chosen]
        fitted = np.linalg.lstsq(part * weights[:, None], measured * weights, rcond=None)[0]
        said = np.maximum(part @ fitted, 1e-30)
        loss = float(np.abs(np.log(said / measured)).sum())
        if (fitted >= 0).all() and loss < best:
            best, found = loss, np.zeros(columns.shape[1])
            found[chosen] = fitted
        between = np.sqrt(measured * said)
        weights = 1 / (between * np.sqrt(np.maximum(np.abs(said - measured) / between, 1e-9)))
    return best, found
