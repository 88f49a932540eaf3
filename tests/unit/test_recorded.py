"""The tables of docs/several-machines/measured.md agree with the recorded results, and say what these say."""

import json
import math
import re
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from benchmarks import recorded
from benchmarks.allreduce import MIB
from benchmarks.parts.limited_link import LimitedLink
from benchmarks.recorded import BLOCKS, PAGE, RESULTS, blocks, rendered
from benchmarks.several_machines import (
    ALL,
    PEERS,
    PREDICTED,
    PREDICTED_RATES,
    PREDICTED_SIZES,
    SHOWN_RATES,
    SHOWN_SIZES,
    Inside,
    message_row,
    prediction_rows,
    race_rows,
)
from benchmarks.slow_link_training import CONTENDERS, PLAIN, rows_of
from course_lib.theory.hockney import Hockney, Piecewise
from mpi_classroom.network import Lab
from mpi_classroom.network_commands import parse_rate

ABOUT = {
    "machine": {"processor": "a processor", "cores": 2},
    "command": "python -m benchmarks.it --json FILE",
    "date": "2026-11-23",
}
EMPTY = "".join(f"<!-- recorded: {name} -->\nold\n<!-- end -->\n" for name in BLOCKS)


def lab(rate: str, slots: int = 2) -> Lab:
    return Lab(Path("/nowhere"), {"head": 1, "n1": 2, "n2": 3}, slots, parse_rate(rate), False)


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Results of both benchmarks: MPI in turn takes 5 times as long as the fast form, and so on."""
    four = str(4 * MIB)
    seconds = {four: {name: (0.4 * (at + 1), 0.05) for at, name in enumerate(ALL)}}
    sent = {four: dict.fromkeys(ALL, (4400000.0, 0.0))}
    rows = [each for peer in PEERS for each in race_rows(lab("100mbit"), peer, seconds, sent)]
    rows += [message_row(lab(rate, 1), size, 0.1, 0.02) for rate in SHOWN_RATES for size in SHOWN_SIZES]
    link = LimitedLink(1e6, 0, 1e-4, 1.05)
    times = {str(size): {"ring": (1.0, 0.1), "fast": (0.5, 0.1)} for size in PREDICTED_SIZES}
    nothing = Inside(Hockney(0, 0), Piecewise((math.inf,), (Hockney(0, 0),)))
    for rate in PREDICTED_RATES:
        for kind, name in PREDICTED:
            alone = {size: {name: each[name]} for size, each in times.items()}
            rows += prediction_rows(lab(rate), kind, link, nothing, alone)
    run = {"seconds": [9.0, 20.0], "accuracy": [0.9, 0.95], "parts": 2, "batches": 10, "bytes": 42_000_000}
    half = run | {"seconds": [4.0, 8.0], "accuracy": [0.9, 0.96], "bytes": 21_000_000}
    never = run | {"accuracy": [0.5, 0.6]}
    runs = dict.fromkeys(CONTENDERS, half) | {PLAIN: run, "one bucket": never}
    trained = rows_of("2 nodes × 1 rank, MNIST", 2, [runs, runs])
    for name, found in (("several_machines", rows), ("slow_link_training", trained)):
        (tmp_path / f"{name}.json").write_text(json.dumps([asdict(row) for row in found]))
        (tmp_path / f"{name}.machine.json").write_text(json.dumps(ABOUT))
    return tmp_path


def test_the_page_has_every_table_and_agrees_with_what_is_recorded() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert sorted(name for name, _ in blocks(page)) == sorted(BLOCKS)
    assert rendered(page, RESULTS) == page, "results and page differ; run: python -m benchmarks.recorded"


def test_tables_are_made_from_results(results: Path) -> None:
    found = dict(blocks(rendered(EMPTY, results)))
    source = "Recorded on 2026-11-23 by `python -m benchmarks.it`: a processor, 2 cores."
    assert all(text.endswith(source) for name, text in found.items() if not name.startswith("study"))
    assert "| hierarchical, `course_lib.fast` | 1.05 × the array | 400 ± 25 ms |" in found["all-reduces"]
    assert "(`mpiexec --map-by node`) | 1.05 × the array | 2000 ± 25 ms |" in found["all-reduces"]
    assert "`--mca btl_tcp_eager_limit 8388608` `--mca btl_tcp_max" in found["all-reduces"]
    assert "| 1 MiB | 100 ± 10 ms (84%) |" in found["messages"]
    assert "| 500 Mbit/s | ring, eager | 12 MiB | 1000 ± 50 ms | " in found["model"]
    assert "| 500 Mbit/s | ring, rendezvous from 64 KiB | 12 MiB | 1000 ± 50 ms | " in found["model"]
    assert re.search(r"Of the 16 predictions .* the worst is off by \d+%\.", found["model"])
    assert (
        "| PyTorch's DDP | `parallel/ddp.py` | 4.20 ± 0.00 MB | 2000 ± 0 ms | 20.0 ± 0.0 s | 95.0 ± 0.0 % |"
        in found["remedies"]
    )
    assert "| 2.10 ± 0.00 MB | 800 ± 0 ms | 8.00 ± 0.00 s | 96.0 ± 0.0 % |" in found["remedies"]
    assert (
        "| one bucket | `parallel/data_parallel.py` | 4.20 ± 0.00 MB | 2000 ± 0 ms | not with"
        in found["remedies"]
    )


def test_a_table_without_results_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.md"
    page.write_text(EMPTY)
    monkeypatch.setattr(recorded, "PAGE", page)
    monkeypatch.setattr(recorded, "RESULTS", tmp_path)
    monkeypatch.setattr(sys, "argv", ["recorded"])
    assert recorded.main() == 0 and page.read_text() == EMPTY
    assert capsys.readouterr().err.count("is missing; its tables stay as they are") == 4
