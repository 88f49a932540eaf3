"""The collectives' costs against worked numbers, limits, and independent forms."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from course_lib.theory.cost_model import (
    Traffic,
    halving_allreduce_cost,
    predict_seconds,
    recursive_doubling_allreduce_cost,
    ring_allgather_cost,
    ring_allreduce_cost,
    ring_reduce_scatter_cost,
    tree_broadcast_cost,
)
from course_lib.theory.hockney import Hockney

# ---------------------------------------------------------------- collectives

COSTS = {
    "ring all-reduce": ring_allreduce_cost,
    "doubling all-reduce": recursive_doubling_allreduce_cost,
    "reduce-scatter": ring_reduce_scatter_cost,
    "all-gather": ring_allgather_cost,
    "tree broadcast": tree_broadcast_cost,
}
few_ranks = st.integers(1, 70)
sizes = st.integers(0, 2**30)
machines = st.builds(Hockney, st.floats(1e-7, 1e-3), st.floats(1e-12, 1e-7), st.floats(0, 1e-7))


def textbook(name: str, n: int, m: float, machine: Hockney) -> float:
    """The forms as Thakur et al. (2005) print them, for a power of two; the module's opening lists them."""
    a, b, c = machine.alpha_seconds, machine.beta_seconds_per_byte, machine.gamma_seconds_per_byte
    log, share = math.log2(n), (n - 1) / n
    return {
        "ring all-reduce": 2 * (n - 1) * a + 2 * share * b * m + share * c * m,
        "doubling all-reduce": log * (a + b * m + c * m),
        "reduce-scatter": (n - 1) * a + share * (b + c) * m,
        "all-gather": (n - 1) * a + share * b * m,
        "tree broadcast": log * (a + b * m),
    }[name]


@pytest.mark.parametrize("name", COSTS)
@given(power=st.integers(0, 10), nbytes=sizes, machine=machines)
@settings(max_examples=25)
def test_on_one_line_a_cost_is_the_textbooks_form(name: str, power: int, nbytes: int, machine: Hockney):
    expected = textbook(name, 2**power, nbytes, machine)
    assert predict_seconds(COSTS[name](2**power, nbytes), machine) == pytest.approx(expected)


@pytest.mark.parametrize("name", COSTS)
@given(ranks=few_ranks, nbytes=sizes)
@settings(max_examples=25)
def test_no_rank_sends_more_than_the_busiest_and_nobody_less_than_nothing(name: str, ranks: int, nbytes: int):
    cost = COSTS[name](ranks, nbytes)
    assert 0 <= cost.busiest.messages <= cost.total.messages <= ranks * cost.busiest.messages
    assert 0 <= cost.busiest.nbytes <= cost.total.nbytes * (1 + 1e-9)
    assert cost.total.nbytes <= ranks * cost.busiest.nbytes * (1 + 1e-9)
    if ranks == 1:
        assert cost.total == Traffic(0, 0)
        assert predict_seconds(cost, Hockney(1, 1, 1)) == 0


def test_halving_sends_as_few_bytes_as_the_ring_in_as_few_rounds_as_doubling():
    machine = Hockney(1.0, 0.01, 0.001)
    seconds = predict_seconds(halving_allreduce_cost(8, 800.0), machine)
    assert seconds == pytest.approx(2 * 3 * 1.0 + 2 * 7 / 8 * 0.01 * 800 + 7 / 8 * 0.001 * 800)
    assert halving_allreduce_cost(1, 800.0).steps == ()
    with pytest.raises(ValueError, match="6 ranks; halving pairs the ranks of 1, 2, 4, 8 … only"):
        halving_allreduce_cost(6, 800.0)


def test_ranks_that_are_no_power_of_two_pay_two_messages_more():
    assert [recursive_doubling_allreduce_cost(n, 8).busiest.messages for n in (4, 5, 7, 8)] == [2, 3, 3, 3]
    assert [len(recursive_doubling_allreduce_cost(n, 8).steps) for n in (4, 5, 7, 8)] == [1, 3, 3, 1]


@pytest.mark.parametrize("name", COSTS)
def test_no_ranks_and_negative_bytes_are_refused_in_a_sentence(name: str):
    with pytest.raises(ValueError, match="8 bytes on 0 ranks; give 0 bytes or more, and 1 rank or more"):
        COSTS[name](0, 8)
    with pytest.raises(ValueError, match="-1 bytes on 2 ranks"):
        COSTS[name](2, -1)
