"""The rows of `benchmarks/several_machines.py`, from given timings; and (slow) from a real lab."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import harness, several_machines
from benchmarks.parts.limited_link import LimitedLink
from benchmarks.several_machines import (
    MODEL,
    Inside,
    message_row,
    prediction_rows,
    predictions,
    worst,
)
from course.paths import ROOT
from course_lib.theory.hockney import Hockney, Piecewise
from mpi_classroom.network import Lab, network
from mpi_classroom.network_commands import NetworkError, burst_nbytes

LAB = Lab(Path("/nowhere"), {"head": 1, "n1": 2, "n2": 3}, 2, 250_000_000, False)
LINK = LimitedLink(8e6, 0, 0.0, 1.0)  # a microsecond per byte


def inside(trees: Hockney = Hockney(0, 0), machine: Hockney = Hockney(0, 0)) -> Inside:  # noqa: B008
    return Inside(machine, Piecewise((math.inf,), (trees,)))


NOTHING = inside()


def test_the_hierarchy_sends_the_array_over_the_link_and_the_ring_half_as_much_again():
    said = predictions(2, 2, 1_000_000, LINK, NOTHING)
    assert said == pytest.approx({"fast": 1.0, "ring": 1.5})
    adding = Hockney(0.0, 1e-9, gamma_seconds_per_byte=2e-9)  # half the array between the nodes
    trees = Hockney(0.0, 4e-9)
    assert predictions(2, 2, 1_000_000, LINK, inside(trees, adding))["fast"] == pytest.approx(1 + 5e-3)
    alone = predictions(4, 1, 1_000_000, LINK, NOTHING)
    assert alone["fast"] == alone["ring"] == pytest.approx(1.5)


def test_on_nodes_of_one_rank_halving_sends_as_much_as_the_ring_and_the_tree_four_arrays():
    assert set(predictions(2, 2, 1_000_000, LINK, NOTHING)) == {"fast", "ring"}
    said = predictions(4, 1, 1_000_000, LINK, NOTHING)
    assert (said["halving"], said["tree"]) == pytest.approx((1.5, 4.0))
    slow = LimitedLink(8e6, 0, 0.1, 1.0)  # and 0.1 s per message: 6, 4 and 4 of them
    said = predictions(4, 1, 1_000_000, slow, NOTHING)
    assert (said["ring"], said["halving"], said["tree"]) == pytest.approx((2.1, 1.9, 4.4))


def test_a_prediction_is_a_row_and_the_worst_one_a_row_beside_what_it_may_be():
    link = LINK.at(1e6, 1.0)  # replaced by the lab's rate
    right = predictions(2, 2, 10**6, LINK.at(250e6, burst_nbytes(250_000_000)), NOTHING)
    seconds = {str(10**6): {"ring": (right["ring"] / 1.1, 0.0), "fast": (right["fast"], 0.0)}}
    rows = prediction_rows(LAB, MODEL, link, NOTHING, seconds)
    assert [row.ratio for row in rows] == pytest.approx([1.1, 1.0])
    assert rows[0].case.startswith("model: 2 × 2, 250 Mbit/s: all-reduce, ring, ")
    last = worst([*rows, message_row(LAB, 2**20, 1.0, 0.1)])
    assert (last.ours, last.ratio) == pytest.approx((10, 2))


def test_without_a_lab_nothing_is_measured_nor_written(monkeypatch, tmp_path, capsys):
    def refuse(nodes, rate):
        raise NetworkError("there is no command `ip`; on Debian or Ubuntu: sudo apt install iproute2")

    monkeypatch.setattr(several_machines, "network", refuse)
    monkeypatch.setattr(sys, "argv", ["several_machines", "--json", str(tmp_path / "x.json")])
    harness.main("title", several_machines.measure)
    assert "on Debian or Ubuntu: sudo apt install iproute2" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.release
def test_in_a_lab_it_prints_json_alone_on_standard_output():
    try:
        with network(1, rate="1gbit"):
            pass
    except NetworkError as error:
        pytest.skip(str(error))
    command = [sys.executable, "-m", "benchmarks.several_machines", "--quick", "--json", "-"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    sent = {row["case"]: row for row in rows if row["unit"] == "bytes"}
    assert len(sent) == 3 and all(0.9 < row["ours"] / 2**19 < 2 for row in sent.values())
    assert rows[-1]["case"].startswith("model: what the worst of 5 predictions is off by")
