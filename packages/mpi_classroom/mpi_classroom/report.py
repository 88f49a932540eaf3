"""The report on a program that ran with `launch --check`: the mistakes of its MPI calls, by lines."""

import linecache
from pathlib import Path

from mpi_classroom.mistake_words import Line, Words
from mpi_classroom.mistakes import Comparison, Mistake


def mistakes_of_program(logs: dict[int, bytes], ended_well: bool) -> list[Mistake]:
    """What the logs of all ranks say; messages that nobody received count if all ranks came to their end."""
    comparison, words = Comparison(), Words(_source, lambda file: "".join(linecache.getlines(file)))
    found = comparison.compare(logs, words)
    return found + (comparison.never_received(words) if ended_well else [])


def _source(line: Line) -> tuple[str, str]:
    file, number = line
    return f"{Path(file).name}, line {number}", linecache.getline(file, number).strip()


def report(found: list[Mistake]) -> str:
    """The mistakes in words, a paragraph each."""
    errors = sum(mistake.kind == "error" for mistake in found)
    head = f"MPI calls checked: {errors} mistake{'s' * (errors != 1)}, {len(found) - errors} to look at."
    return "\n".join([head, *(mistake.line() for mistake in found)])
