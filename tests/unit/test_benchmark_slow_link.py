"""The rows of `benchmarks/slow_link_training.py`, and (slow) its contenders on two ranks of this machine."""

import numpy as np
import pytest

from benchmarks.harness import on_ranks
from benchmarks.slow_link_training import (
    CONTENDERS,
    PLAIN,
    Run,
    goal_of,
    merged,
    pieces,
    race,
    rows_of,
)


def run(seconds: list[float], accuracy: list[float], nbytes: int = 1000) -> Run:
    batches = 5 * len(seconds)
    return {"seconds": seconds, "accuracy": accuracy, "parts": 2, "batches": batches, "bytes": nbytes}


def test_a_remedy_is_held_to_the_accuracy_that_ddp_ends_with() -> None:
    runs = [
        {PLAIN: run([10.0, 20.0], [0.9, 0.953]), "it": run([1.0, 2.0, 3.0], [0.9, 0.94, 0.95], 300)},
        {PLAIN: run([12.0, 24.0], [0.97, 0.972]), "it": run([2.0, 4.0, 6.0], [0.9, 0.96, 0.98], 300)},
        {PLAIN: run([10.0, 20.0], [0.9, 0.953]), "it": run([3.0, 5.0, 8.0], [0.9, 0.96, 0.97], 300)},
    ]
    rows = rows_of("here", 2, runs)
    assert [(row.case, row.unit) for row in rows] == [
        ("here: to equal accuracy, it", "s"),
        ("here: after equal epochs, it", "% right"),
        ("here: per batch, it", "s"),
        ("here: over the link per batch, it", "bytes"),
    ]
    assert (rows[0].ours, rows[0].peer) == (5.0, 20.0)  # medians of 3, 6 and 5, of 20, 12 and 20
    assert (rows[1].ours, rows[1].peer) == pytest.approx((96, 95.3))  # not of the third part
    assert (rows[2].ours, rows[2].peer) == pytest.approx((0.4, 2.0))
    assert rows[3].ratio == pytest.approx(5)
    assert {(row.ranks, row.peer_name) for row in rows} == {(2, PLAIN)}


def test_batches_are_merged_in_order() -> None:
    assert pieces("abcde", 2) == ["ab", "cd", "e"]
    (first, last) = merged([np.arange(2), np.arange(2, 5), np.arange(5, 6)], 2)
    assert (first.tolist(), last.tolist()) == ([0, 1, 2, 3, 4], [5])


@pytest.mark.release
def test_all_contenders_train_and_the_exact_ones_alike() -> None:
    found = on_ranks(2, race, timeout=200, seed=0, batches=12, device="lo")
    assert list(found) == list(CONTENDERS)
    plain = found[PLAIN]["accuracy"]
    assert len(plain) == found[PLAIN]["parts"] == 1
    for name in ("one message per parameter", "one bucket", "overlapped buckets"):
        assert found[name]["accuracy"][0] == pytest.approx(plain[0], abs=0.01)
    for each in found.values():
        assert each["accuracy"][-1] >= goal_of(found[PLAIN]) or each["batches"] == 48
        assert each["seconds"] == sorted(each["seconds"])
