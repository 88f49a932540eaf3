"""The tables of docs/several-machines/measured.md agree with the recorded results, and say what these say."""

import json
from dataclasses import asdict
from pathlib import Path

from benchmarks.recorded import BLOCKS, PAGE, RESULTS, blocks, rendered
from benchmarks.slow_link_training import CONTENDERS, PLAIN, rows_of

EMPTY = "".join(f"<!-- recorded: {name} -->\nold\n<!-- end -->\n" for name in BLOCKS)


def test_the_page_has_every_table_and_agrees_with_what_is_recorded() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert sorted(name for name, _ in blocks(page)) == sorted(BLOCKS)
    assert rendered(page, RESULTS) == page, "results and page differ; run: python -m benchmarks.recorded"


def test_the_table_of_remedies_is_made_from_results(tmp_path: Path) -> None:
    run = {"seconds": [9.0, 20.0], "accuracy": [0.9, 0.95], "parts": 2, "batches": 10, "bytes": 42_000_000}
    half = run | {"seconds": [4.0, 8.0], "accuracy": [0.9, 0.96], "bytes": 21_000_000}
    never = run | {"accuracy": [0.5, 0.6]}
    runs = dict.fromkeys(CONTENDERS, half) | {PLAIN: run, "one bucket": never}
    rows = [asdict(row) for row in rows_of("2 nodes × 1 rank, MNIST", 2, [runs, runs])]
    (tmp_path / "slow_link_training.json").write_text(json.dumps(rows))
    about = {"machine": {"processor": "a processor", "cores": 2}, "command": "it", "date": "2026-11-23"}
    (tmp_path / "slow_link_training.machine.json").write_text(json.dumps(about))
    found = dict(blocks(rendered(EMPTY, tmp_path)))["remedies"]
    assert "| 4.20 ± 0.00 MB | 2000 ± 0 ms | 20.0 ± 0.0 s | 95.0 ± 0.0 % |" in found
    assert "| 2.10 ± 0.00 MB | 800 ± 0 ms | 8.00 ± 0.00 s | 96.0 ± 0.0 % |" in found
    assert "| 4.20 ± 0.00 MB | 2000 ± 0 ms | not with" in found
