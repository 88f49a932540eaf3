"""Every figure begins in mpi_classroom.figures, which puts aside what a user has configured."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PLACES = ("course", "benchmarks", "packages/mpi_classroom/mpi_classroom")


def begun_elsewhere(source: str) -> Iterator[int]:
    """The lines that make a figure by matplotlib's own names."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if name == "Figure" or (name == "subplots" and ast.unparse(node.func) != "figure.subplots"):
                yield node.lineno


def test_no_figure_is_begun_elsewhere() -> None:
    ours = ROOT / "packages/mpi_classroom/mpi_classroom/figures.py"
    files = [path for place in PLACES for path in (ROOT / place).rglob("*.py") if path != ours]
    assert len(files) > 100
    found = {str(path): [*begun_elsewhere(path.read_text())] for path in files}
    assert {path: lines for path, lines in found.items() if lines} == {}
