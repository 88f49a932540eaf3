"""The rows of `benchmarks/data_parallel.py`: what is compared with what."""

import pytest

from benchmarks.data_parallel import ALONE, OURS, PEERS, SIMPLE, rows_of


def test_efficiency_is_the_throughput_of_two_ranks_over_twice_that_of_one() -> None:
    rates = {OURS: [190.0], SIMPLE: [180.0], ALONE: [100.0], PEERS["ours"]: [200.0], PEERS["peer"]: [150.0]}
    rows = rows_of("cnn", rates)
    assert [(row.case, row.peer_name) for row in rows] == [
        ("cnn: efficiency, overlapped buckets", "2 × one rank"),
        ("cnn: efficiency, one bucket", "2 × one rank"),
        ("cnn: overlapped buckets", "DDP over mpi4py"),
        ("cnn: overlapped buckets", "DDP over Gloo"),
        ("cnn: one bucket", "DDP over mpi4py"),
        ("cnn: overlapped buckets", "one bucket"),
    ]
    assert [row.ratio for row in rows] == pytest.approx([0.95, 0.9, 0.95, 190 / 150, 0.9, 190 / 180])
    assert {row.better for row in rows} == {"higher"}
