"""What a cell's MPI calls did wrong although it ended: asked of the ranks, in the words of the notebook."""

from collections.abc import Callable
from pathlib import PurePath
from typing import Any

from mpi_classroom.cells import Cell
from mpi_classroom.engine import log_of_calls, note_order
from mpi_classroom.errors import ClusterError, CourseError
from mpi_classroom.mistake_words import Line, Words
from mpi_classroom.mistakes import Comparison, Mistake


class MistakeError(CourseError):
    """A cell ended, and its MPI calls were wrong: its numbers may be, too."""


class CellChecks:
    """Compares the MPI calls of the ranks, cell after cell, as long as the ranks live."""

    def __init__(self, magics: Any) -> None:
        self.magics = magics
        self.comparison = Comparison()

    def mistakes(self, cell: Cell, forget: bool) -> list[Mistake]:
        """What was wrong in the calls since the last look; `forget` what waits for its partner after it."""
        try:
            logs = dict(enumerate(self.magics.cluster.ask(log_of_calls)))
        except ClusterError:  # the next cell will say why
            return []
        words = Words(lambda line: self._where(line, cell), self._text_of)
        found = self.comparison.compare(logs, words)
        if forget:
            self.comparison.forget()
        if forget or not self.comparison.trusted:  # messages of a cell that failed may be received later
            self.comparison.trusted = not self.magics.earlier_unreceived
        if not self.magics.earlier_unreceived:
            self.comparison.settle()
        return found

    def twice(self, run: Callable[[], Any]) -> None:
        """Run a cell twice, and say where messages from any source came in another order the second time."""
        orders = []
        try:
            for pauses in (False, True):
                self.magics.cluster.ask(note_order, True, pauses)
                run()
                orders.append(self.comparison.orders)
        finally:
            self.magics.cluster.ask(note_order, False, False)
        words = Words(lambda line: self._where(line, self.magics.history[-1]), self._text_of)
        for (rank, line), once in orders[0].items():
            again = orders[1].get((rank, line), once)
            if again != once:
                print(f"Note: {words.other_order(rank, line, once, again)}")

    def _where(self, line: Line, now: Cell) -> tuple[str, str]:
        file, number = line
        cell = self.magics.cell_of(file)
        if cell is None:
            return f"{PurePath(file).name}, line {number}", ""
        lines = cell.text.splitlines()
        text = lines[number - 1].strip() if number <= len(lines) else ""
        where = f"line {number + cell.lines_above}"
        return where if cell.text == now.text else f"cell [{cell.number}], {where}", text

    def _text_of(self, file: str) -> str:
        cell = self.magics.cell_of(file)
        return "" if cell is None else cell.text


def in_words(found: list[Mistake]) -> str:
    """All mistakes, a line each."""
    return "\n".join(mistake.line() for mistake in found)
