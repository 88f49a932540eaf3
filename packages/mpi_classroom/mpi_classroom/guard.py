"""`%%px` that always ends: ipyparallel's magics, with a deadline, a watch, and a cluster that heals."""

import re
import time
from collections.abc import Sequence
from pathlib import PurePath
from typing import Any

from ipyparallel.client.magics import ParallelMagics, exec_args, output_args
from IPython.core import magic_arguments
from IPython.core.error import UsageError

from mpi_classroom.awake import Deadline
from mpi_classroom.cells import Cell, cell_numbers
from mpi_classroom.errors import ClusterError
from mpi_classroom.internals import with_local
from mpi_classroom.running_cell import RunningCell
from mpi_classroom.said import CellChecks
from mpi_classroom.snapshot import Death
from mpi_classroom.take_home import SaveError, cell_id, path_of, save_part


class GuardedMagics(ParallelMagics):
    """ipyparallel's `%px`, `%%px`, `%autopx`, guarded, with `--timeout`, `--setup`, `--save`, `--twice`."""

    def __init__(self, shell: Any, cluster: Any) -> None:
        self.cluster = cluster
        self.history: list[Cell] = []  # of ended cells, since the ranks were started
        self.raised: set[int] = set()  # the numbers of those that ended in an error
        self.running: Cell | None = None
        self._background: list[tuple[Cell, Any, dict[int, Any]]] = []  # cell, result, its part of every rank
        self._options: dict[str, Any] = {}
        self.earlier_unreceived = False  # whether messages of earlier cells are on their way
        self.checks = CellChecks(self)
        super().__init__(shell, None)

    @property
    def view(self) -> Any:
        """The cluster's view; a stopped cluster says so."""
        return self.cluster.view

    @view.setter
    def view(self, value: Any) -> None:
        pass  # the base class assigns one; the cluster knows better after a restart

    @magic_arguments.magic_arguments()
    @with_local
    @exec_args
    @output_args
    @magic_arguments.argument(
        "--timeout", type=float, help="seconds this cell may take (default: cluster.timeout)"
    )
    @magic_arguments.argument(
        "--setup", action="store_true", help="run this cell again when ranks are restarted"
    )
    @magic_arguments.argument(
        "--save", metavar="FILE", help="keep the cell as a part of the program code/FILE, to take home"
    )
    @magic_arguments.argument(
        "--twice", action="store_true", help="run it twice, and say where messages came in another order"
    )
    def cell_px(self, line: str = "", cell: str | None = None) -> Any:
        """Run the cell on all ranks, within a deadline."""
        arguments = magic_arguments.parse_argstring(self.cell_px, line)
        if arguments.timeout is not None and not arguments.timeout > 0:
            raise UsageError(f"--timeout {arguments.timeout:g}: a cell needs more than 0 seconds")
        names = ("timeout", "setup", "local")
        self._options = {name: getattr(arguments, name) for name in names} | {"lines_above": 1}
        if arguments.save:
            self._options["file"] = self._save(arguments.save, cell or "")
        view = self.view
        targets = view.targets
        try:
            if arguments.targets:
                view.targets = self._eval_target_str(arguments.targets)
            how = (arguments.block, arguments.groupby, arguments.save_name, arguments.stream)
            if arguments.twice:
                return self.checks.twice(lambda: self.parallel_execute(cell, *how))
            return self.parallel_execute(cell, *how)
        finally:
            view.targets = targets
            self._options = {}

    def _save(self, name: str, cell: str) -> str:
        """Keep the cell as a part of a program; return the path of the program, "" where it can have none."""
        path = ""
        try:
            path = str(path_of(name))
            save_part(name, cell, cell_id(self.shell))
        except SaveError as problem:
            print(problem)
        return path

    def _set_file(self, cell: Cell) -> None:
        """On the ranks, `__file__` is the program of which the cell is a part, as when that runs."""
        if cell.file:
            self.cluster.view.execute(f"__file__ = {cell.file!r}", silent=True, block=False)

    def _eval_target_str(self, ts: str) -> Any:
        targets, ranks = super()._eval_target_str(ts), self.view.client.ids
        if isinstance(targets, int):
            targets = [targets + len(ranks) * (targets < 0)]  # so that results are always lists
        if targets != "all" and not set(targets) <= set(ranks):
            raise UsageError(f"--targets {ts}: the ranks are {ranks[0]} to {ranks[-1]}")
        return targets

    @magic_arguments.magic_arguments()
    @output_args
    def result(self, line: str = "") -> None:
        """Show what the last cell left; one in the background may take `cluster.timeout` from now on."""
        arguments = magic_arguments.parse_argstring(self.result, line)
        if arguments.save_name or self.last_result is None or self.last_result.ready():
            return super().result(line)
        note = next(note for note, result, _ in self._background if result is self.last_result)
        self._watch(self.last_result, note, self.cluster.timeout, False, arguments.groupby, {})
        return None

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
        blank = re.match(r"(?:[ \t]*\n)*", cell)[0]  # IPython drops it, and counts lines from there
        cell = cell[len(blank) :]
        note = Cell(
            cell,
            len(self.shell.history_manager.input_hist_parsed) - 1,  # as the notebook shows it
            self._options.get("lines_above", 0) + blank.count("\n"),
            self._options.get("setup", False),
            self._options.get("file", ""),
        )
        self._ensure_alive(note)
        block = self.view.block if block is None else block
        before = self.cluster.observer().counts(range(self.cluster.n))
        self._set_file(note)
        result = self.view.execute(cell, silent=False, block=False)
        result._fname = "%px"
        self.last_result = result
        if save_name:
            self.shell.user_ns[save_name] = result
        if self._options.get("local"):
            self.shell.run_cell(cell)
        if not block:
            self.history.append(note)
            parts = dict(zip(result._targets, result.split(), strict=True))
            self._background.append((note, result, parts))
            return result
        live = (self.stream_output if stream_output is None else stream_output) and groupby == "type"
        timeout = self._options.get("timeout") or self.cluster.timeout
        self._watch(result, note, timeout, live, groupby, before)
        return None

    def _watch(self, result: Any, note: Cell, *how: Any) -> None:
        self.running = note
        try:
            RunningCell(self, result, note, *how).run()
        finally:
            if self.cluster.live is not None:
                self.cluster.live.end()
            if self.running is not None and note not in self.history:  # the ranks it ran on are still there
                self.history.append(note)
            self.running = None

    def busy(self) -> set[int]:
        """The ranks that still run a cell in the background."""
        self._background = [entry for entry in self._background if not entry[1].ready()]
        return {rank for *_, parts in self._background for rank, part in parts.items() if not part.ready()}

    def _ensure_alive(self, cell: Cell) -> None:
        """Replace a cluster that died since the last cell; raise if that lost what this cell may need."""
        try:
            self.cluster.check_alive()
        except ClusterError as death:
            deaths = [_death(death) for _, death in sorted(self.cluster.deaths().items())]
            lost = self.heal()
            words = f"{', '.join(deaths) or death}\n{lost}"
            if not cell.setup and "lost" in lost:
                raise ClusterError(words) from None
            if self.cluster.hosts is not None:
                print(words)

    def heal(self) -> str:
        """Replace the cluster and replay its setup cells; return a sentence on what that lost."""
        began = time.monotonic()
        cut_off = [self.running, *(note for note, result, _ in self._background if not result.ready())]
        self._background, self.earlier_unreceived = [], False
        self.checks = CellChecks(self)
        left_out = self.cluster.replace()
        again = self._set_up(self.history, cut_off)
        sentence = f"The ranks were restarted in {time.monotonic() - began:.1f} s"
        if left_out:
            sentence += f" ({left_out})"
        return sentence + again

    def take_over(self, earlier: "GuardedMagics") -> str:
        """Run the setup cells of an `earlier` cluster here; return the end of a sentence on what is lost."""
        return self._set_up(
            earlier.history, [note for note, result, _ in earlier._background if not result.ready()]
        )

    def _set_up(self, cells: Sequence[Cell], cut_off: Sequence[Cell | None]) -> str:
        """Run the setup cells among `cells` on fresh ranks; return the end of a sentence on what is lost."""
        by_text = {cell.text: cell for cell in cells if cell.setup and cell not in cut_off}
        setup = list(by_text.values())  # once each, however often the learner ran them
        failed = next((cell for cell in setup if not self._replay(cell)), None)
        if failed is not None:
            self.cluster.replace()  # nothing half done
            by_text, setup = {}, []
        others = [cell for cell in cells if cell.text not in by_text and cell != self.running]
        self.history, self.running, self.last_result = setup, None, None
        again = f" and the setup cell{'s' * (len(setup) > 1)} run again" if setup else ""
        if failed is not None:
            again = f", but the setup cell [{failed.number}] failed when it was run again"
        return again + _what_is_lost(others, setup)

    def _replay(self, cell: Cell) -> bool:
        """Run a setup cell again; return whether it ended well."""
        self._set_file(cell)
        result = self.cluster.view.execute(cell.text, silent=False, block=False)
        deadline = Deadline(self.cluster.timeout)
        while not result.wait(0.05):
            if deadline.over or not self.cluster.alive:
                return False
        return bool(result.successful())

    def cell_of(self, file: str) -> Cell | None:
        """The cell that the engines call `file`."""
        for cell in [self.running, *reversed(self.history)]:
            if cell is not None and PurePath(file).name == cell.file_name():
                return cell
        return None


def _death(death: Death) -> str:
    on_host = f" on {death.host}" if death.host and death.how != "host" else ""
    return f"rank {death.rank}{on_host} {death.words}"


def _what_is_lost(cells: Sequence[Cell], setup: Sequence[Cell]) -> str:
    """The end of the sentence: what only `cells` had assigned, and which of them to run again."""
    kept = {name for cell in setup for name in cell.assigned()}
    lost = {cell.number: names for cell in cells if (names := cell.assigned() - kept)}
    if not lost:
        return "; go on with the next cell."
    everything = ", ".join(sorted({name for names in lost.values() for name in names}))
    return f"; lost on the ranks: {everything}. Run {cell_numbers(sorted(lost))} again."
