"""`%%px` that always ends: ipyparallel's magics, with a deadline, a watch, and a cluster that heals."""

import time
from collections.abc import Sequence
from pathlib import PurePath
from typing import Any

from ipyparallel.client.magics import ParallelMagics, exec_args, output_args
from IPython.core import magic_arguments

from course_lib.classroom.cells import Cell, cell_numbers
from course_lib.classroom.errors import ClusterError, HangError
from course_lib.classroom.watch import Watch


class GuardedMagics(ParallelMagics):
    """ipyparallel's `%px`, `%%px` and `%autopx`, with `--timeout` and `--setup`, guarded."""

    def __init__(self, shell: Any, cluster: Any) -> None:
        self.cluster = cluster
        self.history: list[Cell] = []  # of ended cells, since the ranks were started
        self.running: Cell | None = None
        self._options: dict[str, Any] = {}
        super().__init__(shell, None)

    @property
    def view(self) -> Any:
        """The cluster's view; a stopped cluster says so."""
        return self.cluster.view

    @view.setter
    def view(self, value: Any) -> None:
        pass  # the base class assigns one; the cluster knows better after a restart

    @magic_arguments.magic_arguments()
    @exec_args
    @output_args
    @magic_arguments.argument("--local", action="store_true", help="also execute the cell in the notebook")
    @magic_arguments.argument(
        "--timeout", type=float, help="seconds this cell may take (default: cluster.timeout)"
    )
    @magic_arguments.argument(
        "--setup", action="store_true", help="run this cell again when ranks are restarted"
    )
    def cell_px(self, line: str = "", cell: str | None = None) -> Any:
        """Run the cell on all ranks, within a deadline."""
        arguments = magic_arguments.parse_argstring(self.cell_px, line)
        self._options = {"timeout": arguments.timeout, "setup": arguments.setup, "lines_above": 1}
        try:
            return _upstream_cell_px(self, line, cell)
        finally:
            self._options = {}

    def parallel_execute(  # type: ignore[no-untyped-def]
        self,
        cell,
        block=None,
        groupby="type",
        save_name=None,
        stream_output=None,
        progress_after=None,
        signal_on_interrupt=None,
    ):
        """What `%px`, `%%px` and `%autopx` end in: send `cell` to the ranks, and watch it until it ends."""
        note = Cell(
            cell,
            len(self.shell.history_manager.input_hist_parsed) - 1,  # as the notebook shows it
            self._options.get("lines_above", 0),
            self._options.get("setup", False),
        )
        self._ensure_alive(note)
        block = self.view.block if block is None else block
        result = self.view.execute(cell, silent=False, block=False)
        result._fname = "%px"
        self.last_result = result
        if save_name:
            self.shell.user_ns[save_name] = result
        if not block:
            self.history.append(note)
            return result
        live = (self.stream_output if stream_output is None else stream_output) and groupby == "type"
        timeout = self._options.get("timeout") or self.cluster.timeout
        self.running = note
        try:
            Watch(self, result, note, timeout, live, groupby).run()
        finally:
            if self.running is not None:  # the ranks it ran on are still there
                self.history.append(note)
            self.running = None
        return None

    def _ensure_alive(self, cell: Cell) -> None:
        """Replace a cluster that died since the last cell; raise if that lost what this cell may need."""
        try:
            self.cluster.check_alive()
        except ClusterError as death:
            lost = self.heal()
            if not cell.setup and "lost" in lost:
                raise ClusterError(f"{death}\n{lost}") from None

    def heal(self) -> str:
        """Replace the cluster and replay its setup cells; return a sentence on what that lost."""
        began = time.monotonic()
        try:
            self.cluster.restart()
        except ClusterError:  # the machine may be busy ending the old one
            self.cluster.restart()
        setup = list(dict.fromkeys(cell for cell in self.history if cell.setup))
        others = [cell for cell in self.history if not cell.setup]  # the cell that failed is not among them
        for cell in setup:
            result = self.cluster.view.execute(cell.text, silent=False, block=False)
            if not result.wait(self.cluster.timeout):
                raise HangError(f"the setup cell {cell.number} does not end; the cluster is fresh and empty")
        kept = {name for cell in setup for name in cell.assigned()}
        lost = {cell.number: names for cell in others if (names := cell.assigned() - kept)}
        self.history, self.running = setup, None
        sentence = f"The ranks were restarted in {time.monotonic() - began:.1f} s"
        if setup:
            sentence += f" and the setup cell{'s' * (len(setup) > 1)} run again"
        if not lost:
            return sentence + "; go on with the next cell."
        everything = ", ".join(sorted({name for names in lost.values() for name in names}))
        return f"{sentence}; lost on the ranks: {everything}. Run {cell_numbers(sorted(lost))} again."

    def lines_of(self, file: str) -> Sequence[str] | None:
        """The lines, as the notebook numbers them, of the cell that the engines call `file`."""
        for cell in [self.running, *reversed(self.history)]:
            if cell is not None and PurePath(file).name == cell.file_name():
                return cell.text.splitlines()
        return None


_upstream_cell_px = ParallelMagics.cell_px
