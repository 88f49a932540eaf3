"""The rows of `benchmarks/several_machines.py`, from given timings; and (slow) from a real lab."""

import json
import math
import subprocess
import sys

import pytest

from benchmarks import harness, several_machines
from benchmarks.several_machines import (
    Inside,
    predictions,
)
from course.paths import ROOT
from course_lib.theory.hockney import Hockney, Piecewise
from course_lib.theory.limited_link import LimitedLink
from mpi_classroom.network import network
from mpi_classroom.network_commands import NetworkError

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


def test_without_a_lab_nothing_is_measured_nor_written(monkeypatch, tmp_path, capsys):
    def refuse(nodes, rate):
        raise NetworkError("there is no command `ip`; on Debian or Ubuntu: sudo apt install iproute2")

    monkeypatch.setattr(several_machines, "network", refuse)
    monkeypatch.setattr(sys, "argv", ["several_machines", "--json", str(tmp_path / "x.json")])
    harness.main("title", several_machines.measure)
    assert capsys.readouterr().err == (
        "Nothing was measured: it needs a lab of several nodes; there is no command `ip`; "
        "on Debian or Ubuntu: sudo apt install iproute2\n"
    )
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
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
    assert rows[-1]["case"].startswith("model: what the worst of 2 predictions is off by")
