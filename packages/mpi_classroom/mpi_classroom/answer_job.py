"""The throwaway MPI job that checks one answer, watched until it ends or is ended.

The answer runs beside the learner's cluster, so that a deadlock, garbage or a killed rank is just a wrong
answer, and the cluster and its variables stay as they are. The verdict names the smallest case that fails.
"""

import ast
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from mpi_classroom import processes
from mpi_classroom.cause import report
from mpi_classroom.exercises import Exercise
from mpi_classroom.folders import EXERCISE_PREFIX, make_folder, remove_job_folders, scratch_folder
from mpi_classroom.host import LocalHost, some_child_runs
from mpi_classroom.job_output import Event, read_deaths
from mpi_classroom.launch import end_job, mpiexec_command, rank_environment
from mpi_classroom.lessons import reference
from mpi_classroom.mistake_words import Line, Words
from mpi_classroom.mistakes import Comparison
from mpi_classroom.observer import Observer, Source
from mpi_classroom.rank_log import RankLog
from mpi_classroom.sentences import listed, listed_ranks
from mpi_classroom.snapshot import RankState
from mpi_classroom.watch import CpuShares, cause_while_moving, standstill, still_moving

RANKS = 4
TICK_SECONDS = 0.02
GRACE_SECONDS = 0.5
STANDSTILL_SECONDS = 1.5
START_SECONDS, SLOW_START_SECONDS = 30.0, 120.0  # when nobody is at work any more; when somebody is
SLOW_FACTOR = 4  # an exercise may take so many times its seconds when other programs have the CPUs
LOOKS = 10
FILE_BYTES = (
    256 * 2**20
)  # the longest file that an answer can write; MPI's own, of shared memory, are shorter
LIMITED = f'ulimit -c 0; ulimit -f {FILE_BYTES // 512}; exec "$@"'  # a shell's unit is 512 bytes
LINES = 8

_MISSING = {
    "comm": "; outside the function there is no `comm`: call it in a %%px cell of its own.",
    "rank": "; ask the communicator that the function is given: comm.rank",
    "size": "; ask the communicator that the function is given: comm.size",
}


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of checking one answer; `loads`: whether its cell runs to the end by itself."""

    state: Literal["right", "wrong", "not attempted"]
    text: str
    seconds: float = 0.0
    loads: bool = False


def check(exercise: Exercise, source: str) -> Verdict:
    """Check `source` as the answer to `exercise` in a job of its own."""
    if not exercise.blocks and exercise.untouched(source):
        text = f"{exercise.id} not attempted yet: change the cell and run it again."
        return Verdict("not attempted", text, loads=True)
    try:
        compile(source, "answer.py", "exec")
    except SyntaxError as error:
        where = f"line {(error.lineno or 0) + 1}: {(error.text or '').strip()}"
        return Verdict("wrong", f"✗ {exercise.id} is not Python yet: {error.msg}, {where}")
    except ValueError as error:  # a null byte, before Python 3.11.4
        return Verdict("wrong", f"✗ {exercise.id} is not Python yet: {error}")
    for name in _functions(exercise.stub) - _functions(source):
        return Verdict("wrong", f"✗ {exercise.id}: the cell does not define `{name}`.")
    for _ in range(2):  # once in a while a job does not start, on a machine that has too much to do
        began = time.monotonic()
        with AnswerJob(exercise, source) as job:
            text = job.watch()
        seconds = time.monotonic() - began
        if job.log.everything:
            break
    if text:
        return Verdict("wrong", "\n".join(text.splitlines()[:LINES]), seconds, job.log.loaded)
    return Verdict("right", f"{_praise(exercise)}\nThink about it: {exercise.why}", seconds, True)


def _praise(exercise: Exercise) -> str:
    sizes = sorted(exercise.sizes)
    if sizes == [1]:
        return f"✓ {exercise.id} is right."
    return f"✓ {exercise.id} is right on {listed(sizes)} ranks, also with random pauses between the calls."


def _functions(source: str) -> set[str]:
    return {node.name for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)}


class AnswerJob:
    """The throwaway MPI job of one check; whatever it started ends with it.

    Files and memory are limited (see also `judge.limit_memory`). The number of processes is not: that limit
    counts all processes of the user, those of other containers too, so that it would refuse at random.
    """

    def __init__(self, exercise: Exercise, source: str) -> None:
        self.exercise, self.source = exercise, source
        place = Path(scratch_folder() or tempfile.gettempdir())
        self.folder, self._held = make_folder(EXERCISE_PREFIX, place)
        self.log = RankLog(self.folder, RANKS)
        self.pids: dict[int, int] = {}
        host = LocalHost(self.folder, self.pids)
        self.observer = Observer(dict.fromkeys(range(RANKS), host), self._source_of)
        self.cpu_shares = CpuShares()
        self.ready_at, self.news_at, self.looks = 0.0, 0.0, 0
        self.events = 0

    def __enter__(self) -> "AnswerJob":
        (self.folder / "answer.py").write_text(self.source)
        (self.folder / "exercise").write_text(reference(self.exercise.id))
        self.environment = environment = rank_environment(RANKS) | processes.marker(
            self.folder, processes.EXERCISE
        )
        command = [
            sys.executable,
            "-P",
            "-m",
            "mpi_classroom.judge",
            str(self.folder),
        ]  # -P: not the working directory
        with open(self.folder / "output", "wb") as output:
            self.process = subprocess.Popen(
                ["/bin/sh", "-c", LIMITED, "sh", *mpiexec_command(RANKS, command)],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return self

    def __exit__(self, *error: object) -> None:
        end_job(self.process)
        # Also what has left mpiexec's family, as daemons do: it carries the mark of this job.
        processes.end_marked(processes.CLUSTER, str(self.folder), timeout=GRACE_SECONDS)
        remove_job_folders(self.environment)
        shutil.rmtree(self.folder, ignore_errors=True)
        if self._held is not None:
            os.close(self._held)

    def watch(self) -> str:
        """Wait for the verdict; return what is wrong, or "" when all cases are right."""
        while True:
            ended = self.process.poll() is not None
            self.log.read()
            failure = self.log.first_failure
            if failure is None and self.log.done:
                return self._describe_silent()
            if failure is not None and (ended or all(self.log.outcomes(failure).values())):
                return self._describe(failure, hung=False)
            if ended:
                return self._describe_death()
            step = self.log.last_step if failure is None else failure
            if self._stuck(step, STANDSTILL_SECONDS if failure is None else GRACE_SECONDS):
                return self._describe(step, hung=True)
            time.sleep(TICK_SECONDS)

    def _stuck(self, step: int, limit: float) -> bool:
        """Whether the deadline is over, or all without an outcome are in the same MPI calls for `limit` s."""
        elapsed = self.observer.seconds
        if not self.log.ready:  # Python and its libraries are starting: nobody's mistake
            self.ready_at = elapsed
            if elapsed <= START_SECONDS:
                return False
            return elapsed > SLOW_START_SECONDS or not some_child_runs(self.process.pid)  # all fell asleep
        self.pids.update({rank: self.log.pid(rank) for rank in self.log.events})
        pending = [rank for rank, outcome in self.log.outcomes(step).items() if not outcome]
        states = self.observer.look(pending)
        if len(self.log.everything) != self.events:
            self.events, self.news_at = len(self.log.everything), elapsed
        still = min(standstill(states, elapsed), elapsed - self.news_at)
        if self._late(elapsed - self.ready_at, states):
            return True
        if still < limit / 2:
            self.cpu_shares.restart()
        if all(self.log.returned(step, rank) for rank in pending):
            limit *= SLOW_FACTOR  # they are in our own barrier, where only other programs should hold them up
        return still > limit and not self.cpu_shares.starved(states)

    def _late(self, seconds: float, states: Sequence[RankState]) -> bool:
        """Whether the ranks had their time: what other programs took from them does not count."""
        allowed = self.exercise.seconds
        if seconds <= allowed:
            return False
        starved = any(state.runnable and (state.cpu_seconds or 0.0) < allowed / 2 for state in states)
        self.looks = 0 if starved else self.looks + 1  # one look may find all of them in a short pause
        return self.looks > LOOKS or seconds > SLOW_FACTOR * allowed

    # ---------------------------------------------------------------- saying it

    def _describe(self, step: int, hung: bool) -> str:
        if not self.log.everything:
            return f"{self.exercise.id} could not be checked: {RANKS} ranks did not start; run it again."
        outcomes = self.log.outcomes(step)
        if not step:
            return self._describe_cell(outcomes)
        head = f"✗ {self.exercise.id}, {self._case(step)}:"
        if hung:
            return f"{head} it does not end.\n{self._hang(step)}\n{self._so_far(step)}"
        right = [rank for rank, outcome in outcomes.items() if outcome and outcome["event"] == "right"]
        body = self._faults(outcomes)[:2] + self._mistakes(step)[:1]
        if right:
            body.append(f"({listed_ranks(right)} {'is' if len(right) == 1 else 'are'} right.)")
        hint = f'hint("{self.exercise.id}") shows where to look.'
        return "\n".join([head, *body[:4], self._so_far(step), hint])

    def _describe_cell(self, outcomes: Mapping[int, Event | None]) -> str:
        head = f"✗ {self.exercise.id}: the cell itself does not"
        faults = self._faults(outcomes)
        return "\n".join([f"{head} run.", *faults]) if faults else f"{head} end.\n{self._hang(0)}"

    def _describe_silent(self) -> str:
        """The first mistake in the MPI calls of an answer whose results are right; "" when there is none."""
        for step in range(1, self.log.last_step + 1):
            if mistakes := self._mistakes(step):
                head = f"✗ {self.exercise.id}, {self._case(step)}: the results are right here, by luck."
                return "\n".join([head, *mistakes[:2], f'hint("{self.exercise.id}") shows where to look.'])
        return ""

    def _mistakes(self, step: int) -> list[str]:
        """What the MPI calls of the answer did wrong in a step, in words."""
        words = Words(self._where, lambda file: self.source if file == "answer.py" else "")
        found = Comparison().compare(self.log.calls(step), words)
        return [mistake.text for mistake in found if mistake.kind == "error" and "(line " in mistake.text]

    def _where(self, line: Line) -> tuple[str, str]:
        """The words for a line of the answer, and its text; %%exercise is the first line of its cell."""
        file, number = line
        if file != "answer.py":
            return f"{Path(file).name}, line {number}", ""
        lines = self.source.splitlines()
        text = lines[number - 1].strip() if number <= len(lines) else ""
        return f"line {number + (not self.exercise.blocks)}", text

    def _faults(self, outcomes: Mapping[int, Event | None]) -> list[str]:
        """What is wrong, a line for all ranks that it is said of."""
        groups: dict[str, list[int]] = {}
        for rank, outcome in outcomes.items():
            if outcome and outcome["event"] != "right":
                groups.setdefault(self._words(outcome), []).append(rank)
        return [f"{listed_ranks(ranks)}: {words}" for words, ranks in groups.items()]

    def _case(self, step: int) -> str:
        began = self.log.began(step)
        size = began["size"]
        words = f"on {size} rank{'s' * (size > 1)}"
        detail = self.exercise.describe(self.exercise.cases[began["case"]])
        if detail:
            words += f" with {detail}"
        return words + (", and only when ranks pause at random between calls" if began["pause"] else "")

    def _so_far(self, step: int) -> str:
        sizes = sorted({self.log.size(s) for s in range(1, step)})
        if not sizes:
            return "This is the smallest case."
        return f"Right so far: all smaller cases, on {', '.join(map(str, sizes))} rank{'s' * (sizes != [1])}."

    def _words(self, outcome: Event) -> str:
        if outcome["event"] == "wrong":
            return str(outcome["message"])
        lines, line = self.source.splitlines(), outcome.get("line")
        where = ""
        if line and line <= len(lines):
            number = "" if self.exercise.blocks else f"line {line + 1}: "  # %%exercise is the first
            where = f"  ({number}{lines[line - 1].strip()})"
        missing = _MISSING.get(outcome.get("name", ""), "") if outcome["error"] == "NameError" else ""
        message = f": {outcome['message']}" if outcome["message"] else ""
        return f"raised {outcome['error']}{message}{where}{missing}"

    def _hang(self, step: int) -> str:
        """One line per rank, and the likely cause."""
        outcomes = self.log.outcomes(step)
        waiting = [rank for rank in outcomes if not self.log.returned(step, rank)]
        seen = {state.rank: _plain(state) for state in self.observer.look(waiting, close=True)}
        states = []
        for rank, outcome in outcomes.items():
            if rank in waiting:
                states.append(seen[rank])
            elif outcome and outcome["event"] == "raised":
                states.append(RankState(rank, "raised", error=self._words(outcome)))
            else:
                states.append(RankState(rank, "finished"))
        moving = still_moving(states, self.observer.seconds)
        return report(states, cause_while_moving(states, moving))

    def _source_of(self, file: str) -> Source | None:
        return Source(self.source.splitlines()) if file == "answer.py" else None

    def _describe_death(self) -> str:
        if not self.log.everything:
            return self._describe(0, hung=False)
        deaths = read_deaths((self.folder / "output").read_text(errors="replace"))
        how = f"rank {deaths[0].rank} {deaths[0].words}" if deaths else "a rank ended before it was done"
        step = self.log.last_step
        where = f", {self._case(step)}" if step else ""
        return f"✗ {self.exercise.id}{where}: {how}."


def _plain(state: RankState) -> RankState:
    """Without the remark that a communicator is a part of the world: here the ranks have the same numbers."""
    if state.call is None:
        return state
    return replace(state, call=replace(state.call, on=replace(state.call.on, part=False)))
