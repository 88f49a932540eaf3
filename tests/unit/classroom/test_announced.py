"""The torch backend and the recorder mean the same by what the one announces to the other."""

from mpi_classroom.recording import record
from torch_mpi4py import announce


def test_both_mean_the_same_by_the_levels_of_pcontrol():
    for name in ("WAITS", "GOES_ON", "MOVES", "MOVED"):
        assert getattr(record, name) == getattr(announce, name)
