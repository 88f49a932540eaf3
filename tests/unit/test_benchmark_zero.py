"""The rows of `benchmarks/zero.py`, and that contenders who train something else are not timed."""

import pytest

from benchmarks.zero import must_agree

NAMES = ["own 1", "own 2", "own 3", "own 3, prefetch", "DeepSpeed 1", "DeepSpeed 2", "DeepSpeed 3"]
NAMES += ["FSDP2 2", "FSDP2 3"]


def test_contenders_that_train_something_else_are_not_timed():
    must_agree({"own 1": [5.0, 4.0], "FSDP2 3": [5.0, 4.0001]})
    with pytest.raises(RuntimeError, match="FSDP2 3 and own 1 do not train alike"):
        must_agree({"own 1": [5.0, 4.0], "FSDP2 3": [5.0, 4.01]})
