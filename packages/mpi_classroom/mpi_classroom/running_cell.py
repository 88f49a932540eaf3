"""The driver of a running cell: it shows the output, takes snapshots, and does what the watch says.

Its result is none when all ranks ended the cell well, and an error with a report otherwise. The ranks are
free afterwards: by an interrupt where Python can hear it, else because the cluster was replaced.
"""

import contextlib
import signal
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ipyparallel import error
from IPython.display import display

from mpi_classroom import undelivered
from mpi_classroom.cells import Cell, hint
from mpi_classroom.engine import unreceived
from mpi_classroom.errors import ClusterError, HangError
from mpi_classroom.mistakes import Mistake
from mpi_classroom.observer import Source
from mpi_classroom.output import LiveOutput, clip
from mpi_classroom.raised import RanksRaised, all_raised, raised
from mpi_classroom.recording.calls import Counts
from mpi_classroom.said import MistakeError, in_words
from mpi_classroom.snapshot import RankState, Snapshot
from mpi_classroom.text_only import settled
from mpi_classroom.watch import Decision, Watch

if TYPE_CHECKING:
    from mpi_classroom.guard import GuardedMagics

TICK_SECONDS = 0.02
FREE = "The ranks are free again; their variables are as the cell left them."


class RunningCell:
    """One cell that the ranks run.

    `before` counts the collectives and messages of every rank of the world before the cell; if it is empty,
    they are not compared. Messages are compared only after a cell that all ranks ran: with `--targets`, the
    next cell may receive them.
    """

    def __init__(
        self,
        magics: "GuardedMagics",
        result: Any,
        cell: Cell,
        timeout: float,
        live: bool,
        groupby: str,
        before: Mapping[int, Counts],
    ) -> None:
        self.magics, self.cluster, self.result, self.cell = magics, magics.cluster, result, cell
        self.parts = dict(zip(result._targets, result.split(), strict=True))  # rank → its own result
        self.groupby = groupby
        self.output = LiveOutput(result, list(self.parts)) if live else None
        if self.cluster.live is not None:
            self.cluster.live.begin(cell.number, before)
        everyone = len(self.parts) == self.cluster.n
        before = {} if magics.busy() else before
        self.before, self.before_all = before if everyone else {}, before
        self.watch = Watch(timeout, {rank: before[rank] for rank in self.parts if rank in before}, everyone)
        self.observer = self.cluster.observer(self._source_of)
        self.raised: dict[int, RankState] = {}

    def run(self) -> None:
        """Return when all ranks ended the cell well; raise RanksRaised or HangError otherwise."""
        decision = Decision("go on")
        while decision.do == "go on":
            try:
                decision = self._until("look closer", "heal", "end")
            except KeyboardInterrupt:
                decision = self.watch.learner_interrupts(self.observer.seconds)
            if decision.do == "look closer":
                with _uninterrupted():
                    decision = self.watch.decide(self._snapshot(close=True))
                    if decision.do == "interrupt":
                        self.observer.interrupt(self._unfinished())
                        decision = self._until("heal", "end")
                    if decision.words:
                        self._report_stop(decision)
        self.result.wait_for_output(1)
        self._show_output()
        if decision.do == "heal":
            with _uninterrupted():
                said = self._said_lines()
                raise HangError(f"{decision.words}{said}\n{self._heal()}")
        if decision.words and not self.raised:
            raise HangError(f"{decision.words}{self._said_lines()}\n{FREE}")
        self._show_results()

    def _until(self, *actions: str) -> Decision:
        """Hand the watch snapshot after snapshot, until it decides on one of `actions`."""
        while True:
            self.result.wait(TICK_SECONDS)
            if self.output:
                self.output.update()
            decision = self.watch.decide(self._snapshot())
            if decision.do in actions:
                return decision
            if decision.do == "show" and self.output:
                self.output.status(decision.words)

    def _report_stop(self, decision: Decision) -> None:
        """End a cell that was stopped: raise HangError with the report and what became of the ranks."""
        healed = self._heal() if decision.do == "heal" else FREE
        left = self._unreceived(discard=True) if decision.do == "end" else ""
        if decision.do == "end":
            self._mistakes(failed=True)
        self._show_output(wait=False)
        raise HangError("\n".join(filter(None, (decision.words, left, healed))))

    def _show_results(self) -> None:
        """After a cell that ended by itself: its last values, or RanksRaised; messages not received."""
        failed = any(map(self._failed, self.parts))
        left, mistakes = self._unreceived(discard=failed), self._mistakes(failed)
        said = in_words(mistakes)
        try:
            replies = self.result.get()
        except error.CompositeError as problem:
            text = all_raised(self._ended())
            advice = hint(text, self.cell, self.magics.history, self.magics.raised)
            self.magics.raised.add(self.cell.number)
            raise RanksRaised(problem, "\n".join(filter(None, (text, said, advice, left)))) from None
        if left:
            print(left)
        if self.output:
            for reply in replies:
                if reply.execute_result:
                    display(reply)
        if any(mistake.kind == "error" for mistake in mistakes):
            raise MistakeError(said)
        if said:
            print(said)

    def _said_lines(self) -> str:
        """The mistakes with their lines, if the ranks can be asked."""
        mistakes = [] if self._unfinished() else self._mistakes(failed=True)
        return "\n" + in_words(mistakes) + "\n" if mistakes else ""

    def _mistakes(self, failed: bool) -> list[Mistake]:
        """What the cell's MPI calls did wrong, if it made any and no other cell is at work."""
        after = self.cluster.observer().counts(self.before_all)
        if self.magics.busy() or not any(
            c.made_calls_since(self.before_all[rank]) for rank, c in after.items()
        ):
            return []
        return self.magics.checks.mistakes(self.cell, forget=failed)

    def _heal(self) -> str:
        try:
            return self.magics.heal()
        except ClusterError as problem:
            return str(problem)

    def _unreceived(self, discard: bool) -> str:
        """What to say of messages that nobody received; `discard` removes them if they are this cell's."""
        after = self.observer.counts(self.before)
        if self.magics.busy() or not undelivered.moved(self.before, after):
            return ""
        if not undelivered.outstanding(after):
            self.magics.earlier_unreceived = False
            return ""
        discard = discard and not self.magics.earlier_unreceived
        try:
            answers = self.cluster.ask(unreceived, discard)
        except ClusterError:  # the next cell will say why
            return ""
        messages = sorted(message for messages in answers for message in messages)
        self.magics.earlier_unreceived = bool(messages) and not discard
        words = undelivered.discarded if discard else undelivered.note
        return words(messages) if messages else ""

    # ---------------------------------------------------------------- what everyone is doing

    def _snapshot(self, close: bool = False) -> Snapshot:
        ended, down = self._ended(), ""
        try:
            self.cluster.check_alive()
        except ClusterError as problem:
            down = str(problem)
        now = self.observer.snapshot(
            self.parts,
            ended=ended,
            background=self.magics.busy(),
            down=down,
            deaths=self.cluster.deaths() if down or close else {},
            close=close,
        )
        if self.cluster.live is not None:
            self.cluster.live.show(now)
        return now

    def _ended(self) -> dict[int, RankState]:
        """The ranks that have ended the cell."""
        for rank in self.parts.keys() - self.raised.keys():
            if self._failed(rank):
                self.raised[rank] = raised(rank, self.parts[rank].exception(), self.cell)
        finished = [rank for rank, part in self.parts.items() if part.ready() and rank not in self.raised]
        return {rank: RankState(rank, "finished") for rank in finished} | self.raised

    def _unfinished(self) -> list[int]:
        return [rank for rank, part in self.parts.items() if not part.ready()]

    def _failed(self, rank: int) -> bool:
        return self.parts[rank].ready() and not self.parts[rank].successful()

    def _source_of(self, file: str) -> Source | None:
        """The lines of the cell that the engines call `file`, numbered as in the notebook."""
        cell = self.magics.cell_of(file)
        if cell is None:
            return None
        earlier = "" if cell.text == self.cell.text else f"  (of cell [{cell.number}], still running)"
        return Source(cell.text.splitlines(), cell.lines_above, earlier)

    def _show_output(self, wait: bool = True) -> None:
        if self.output:
            self.output.update(final=True)
        elif wait:
            for part in self.result._metadata:
                part |= {stream: settled(part[stream]) for stream in ("stdout", "stderr")}
            with contextlib.suppress(error.CompositeError):
                self.result.display_outputs(self.groupby)
        else:
            for rank, text in zip(self.parts, self.result["stdout"], strict=True):
                if text:
                    print(f"[stdout:{rank}] {clip(settled(text))}", end="" if text.endswith("\n") else "\n")


@contextlib.contextmanager
def _uninterrupted() -> Any:
    """A second interrupt while the cluster is being replaced would leave half of one."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread is interrupted, and may set handlers
        return
    before = signal.signal(signal.SIGINT, lambda *_: None)  # not SIG_IGN, which new ranks would inherit
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
