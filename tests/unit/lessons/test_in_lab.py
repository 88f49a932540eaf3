"""What lesson 14 runs in a lab: a function travels to its ranks, and they count what crosses the link."""

from types import FunctionType
from typing import Any

import numpy as np
import pytest

from course.lessons.l14_scaling_out import lab
from course.lessons.l14_scaling_out.lab import say_where
from course.lessons.l14_scaling_out.packed import loaded, packed
from mpi_classroom.network_commands import NetworkError


def test_a_place_is_said_in_words() -> None:
    assert say_where(1, 2, None) == "1 node, 2 ranks per node"
    assert say_where(2, 1, None) == "2 nodes, 1 rank per node, links not limited"


def helper(array: Any, factor: int = 3) -> Any:
    return array * factor


def triples(array: Any) -> Any:
    return np.sum(helper(array))


def test_a_function_travels_with_those_that_it_calls() -> None:
    assert isinstance(triples, FunctionType)
    found = loaded(packed(triples), {"np": np})
    assert found(np.array([1, 2])) == 9
    assert found.__globals__ is not triples.__globals__


@pytest.mark.slow
def test_the_ranks_in_a_lab_count_what_crosses_the_link() -> None:
    try:
        found = lab.measure(
            "allreduces",
            nodes=2,
            slots=2,
            rate="1gbit",
            nbytes=400_000,
            names=["ring", "hierarchical"],
            times=2,
        )
    except NetworkError as error:
        pytest.skip(str(error))
    assert all(each["right"] for each in found.values())
    ring, hierarchical = (found[name]["link_nbytes"] / 400_000 for name in ("ring", "hierarchical"))
    assert 3 < ring < 3.6 and 2 < hierarchical < 2.4  # arrays, both directions, with headers
