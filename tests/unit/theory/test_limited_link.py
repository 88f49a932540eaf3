"""The link of limited rate: buckets counted by hand; a fit finds the link that made the numbers."""

import socket

import pytest

from benchmarks.parts.limited_link import (
    LimitedLink,
    Sample,
    device_nbytes,
    fit_limited_link,
    predict_link_seconds,
)
from course_lib.theory.cost_model import predict_seconds, ring_allreduce_cost
from course_lib.theory.hockney import Hockney

MBIT = 1e6
NOTHING = Hockney(0, 0)
LINK = LimitedLink(8 * MBIT, 1000, 1e-3, 1.0)  # a byte takes 1 us, 1000 bytes are in the bucket


def test_a_message_in_the_bucket_takes_alpha_and_a_longer_one_waits_for_the_rest() -> None:
    assert LINK.send(1000, 400) == pytest.approx((1e-3, 600))
    assert LINK.send(1000, 5000) == pytest.approx((1e-3 + 4e-3, 0))
    assert LINK.send(0, 5000) == pytest.approx((1e-3 + 4e-3, 0))  # refilled while alpha passed


def test_time_between_messages_is_not_lost() -> None:
    """Six steps of 5000 bytes: the link is busy all along, but for the first α and the first bucket."""
    cost = ring_allreduce_cost(4, 20_000)
    assert predict_link_seconds(cost, LINK, NOTHING) == pytest.approx(1e-3 + 30e-3 - 1e-3)
    line = Hockney(LINK.alpha_seconds, LINK.beta_seconds_per_byte)
    assert predict_seconds(cost, line) == pytest.approx(36e-3)  # known wrong: a bucket never seen


def samples(truth: LimitedLink) -> list[Sample]:
    found = []
    for rate, burst in ((100 * MBIT, 16_384), (1000 * MBIT, 125_000)):
        link = truth.at(rate, burst)
        sizes = [4**power for power in range(1, 11)]
        found += [Sample(rate, burst, nbytes, link.send(burst, nbytes)[0]) for nbytes in sizes]
    return found


def test_a_fit_at_two_rates_finds_the_link_and_so_a_third_rate() -> None:
    truth = LimitedLink(100 * MBIT, 16_384, 8e-5, 1.05)
    fitted = fit_limited_link(samples(truth))
    assert fitted.alpha_seconds == pytest.approx(8e-5, rel=0.01)
    assert fitted.overhead == pytest.approx(1.05, rel=0.01)
    third = 250 * MBIT, 31_250
    cost = ring_allreduce_cost(4, 3 * 2**20)
    assert predict_link_seconds(cost, fitted.at(*third), NOTHING) == pytest.approx(
        predict_link_seconds(cost, truth.at(*third), NOTHING), rel=0.01
    )


def test_too_few_sizes_are_refused_with_what_to_measure() -> None:
    with pytest.raises(ValueError, match=r"1 messages below 0\.8 and 0 above 4 times"):
        fit_limited_link([Sample(1e8, 16_384, 4, 1e-4)])


def test_what_leaves_through_a_device_is_counted_by_the_system() -> None:
    try:
        before = device_nbytes("lo")
    except OSError:
        pytest.skip("this system has no /proc/self/net/dev")
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as own,
    ):
        own.sendall(bytes(5000))
    assert device_nbytes("lo") >= before + 5000
    with pytest.raises(ValueError, match=r"no network device eth9; this node has .*lo"):
        device_nbytes("eth9")
