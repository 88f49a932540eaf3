"""The rows of `benchmarks/zero.py`, and that contenders who train something else are not timed."""

import pytest

from benchmarks.zero import LAYERS, LENGTH, RANKS, SEQUENCES, WIDTH, must_agree, rows

NAMES = ["own 1", "own 2", "own 3", "own 3, prefetch", "DeepSpeed 1", "DeepSpeed 2", "DeepSpeed 3"]
NAMES += ["FSDP2 2", "FSDP2 3"]


def test_each_stage_stands_beside_its_peers():
    found = rows({name: [1.0 + index, 1.1 + index] for index, name in enumerate(NAMES)}, layers=6)
    assert [(row.case.removeprefix("a step, 6 layers: "), row.peer_name) for row in found] == [
        ("own 1", "DeepSpeed 1"),
        ("own 2", "DeepSpeed 2"),
        ("own 3", "DeepSpeed 3"),
        ("own 2", "FSDP2 2"),
        ("own 3", "FSDP2 3"),
        ("own 3, prefetch", "own 3"),
    ]
    assert all(row.better == "lower" and row.ratio == pytest.approx(row.peer / row.ours) for row in found)


def test_the_model_is_the_one_that_is_promised():
    assert (RANKS, WIDTH, LENGTH, SEQUENCES, LAYERS) == (2, 512, 128, 8, 6)


def test_contenders_that_train_something_else_are_not_timed():
    must_agree({"own 1": [5.0, 4.0], "FSDP2 3": [5.0, 4.0001]})
    with pytest.raises(RuntimeError, match="FSDP2 3 and own 1 do not train alike"):
        must_agree({"own 1": [5.0, 4.0], "FSDP2 3": [5.0, 4.01]})
