"""α and β of a measured link, and what a ring all-reduce takes on it."""

from collections.abc import Mapping
from typing import Any

from course_lib.theory.cost_model import predict_seconds, ring_allreduce_cost
from course_lib.theory.hockney import Hockney, fit_hockney


def fitted(exchange: Mapping[str, Any]) -> Hockney:
    """α and β of all rounds of an exchange together."""
    rounds = exchange["seconds"]
    return fit_hockney(exchange["nbytes"] * len(rounds), [second for each in rounds for second in each])


def fitted_by_round(exchange: Mapping[str, Any]) -> list[Hockney]:
    """α and β of each round of an exchange."""
    return [fit_hockney(exchange["nbytes"], seconds) for seconds in exchange["seconds"]]


def ring_seconds(ranks: int, nbytes: float, link: Hockney) -> float:
    """A ring all-reduce of `nbytes`, on ranks of which each pair has such a link."""
    return predict_seconds(ring_allreduce_cost(ranks, nbytes), link)


def ring_band(ranks: int, nbytes: float, exchange: Mapping[str, Any]) -> tuple[float, float]:
    """The least and the most seconds of that ring, over the fits of the single rounds."""
    found = [ring_seconds(ranks, nbytes, link) for link in fitted_by_round(exchange)]
    return min(found), max(found)
