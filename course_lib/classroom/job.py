"""The throwaway MPI job that checks one answer, watched until it ends or is ended.

The answer runs beside the learner's cluster, so that a deadlock, garbage or a killed rank is just a wrong
answer, and the cluster and its variables stay as they are. The verdict names the smallest case that fails.
"""

import ast
import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import psutil

from course_lib.classroom import processes
from course_lib.classroom.hang import RankState, likely_cause, observe, request_stacks
from course_lib.comm.launch import mpiexec_command, rank_environment
from course_lib.comm.recorder import read_call
from course_lib.exercises.model import Exercise

RANKS = 4
TICK_SECONDS = 0.02
GRACE_SECONDS = 0.5
STANDSTILL_SECONDS = 1.5
LINES = 8

Events = dict[int, list[dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came out of checking one answer."""

    state: Literal["right", "wrong", "not attempted"]
    text: str
    seconds: float = 0.0


def check(exercise: Exercise, source: str) -> Verdict:
    """Check `source` as the answer to `exercise` in a job of its own."""
    if not exercise.blocks and exercise.untouched(source):
        return Verdict("not attempted", f"{exercise.id} not attempted yet: change the cell and run it again.")
    try:
        compile(source, "answer.py", "exec")
    except SyntaxError as error:
        where = f"line {(error.lineno or 0) + 1}: {(error.text or '').strip()}"
        return Verdict("wrong", f"✗ {exercise.id} is not Python yet: {error.msg}, {where}")
    for name in _functions(exercise.stub) - _functions(source):
        return Verdict("wrong", f"✗ {exercise.id}: the cell does not define `{name}`.")
    began = time.monotonic()
    with Job(exercise, source) as job:
        text = job.watch()
    seconds = time.monotonic() - began
    if text:
        return Verdict("wrong", "\n".join(text.splitlines()[:LINES]), seconds)
    sizes = sorted(exercise.sizes)
    ranks = f"{', '.join(map(str, sizes[:-1]))} and {sizes[-1]} ranks" if sizes[1:] else f"{sizes[0]} ranks"
    praise = f"✓ {exercise.id} is right on {ranks}, also with random pauses between the calls."
    return Verdict("right", f"{praise}\nThink about it: {exercise.why}", seconds)


def _functions(source: str) -> set[str]:
    return {node.name for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)}


class Job:
    """The throwaway MPI job of one check."""

    def __init__(self, exercise: Exercise, source: str) -> None:
        self.exercise, self.source = exercise, source
        self.events: Events = {rank: [] for rank in range(RANKS)}
        self.elapsed, self.still_since, self.seen = 0.0, 0.0, None

    def __enter__(self) -> "Job":
        self.folder = Path(tempfile.mkdtemp(prefix="course-exercise-"))
        (self.folder / "answer.py").write_text(self.source)
        (self.folder / "exercise").write_text(self.exercise.id)
        environment = rank_environment(RANKS) | processes.marker(self.folder, "an exercise")
        command = [sys.executable, "-m", "course_lib.exercises.judge", str(self.folder)]
        with open(self.folder / "output", "wb") as output:
            self.process = subprocess.Popen(
                mpiexec_command(RANKS, command),
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return self

    def __exit__(self, *error: object) -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in psutil.Process(self.process.pid).children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    child.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(2)
        if self.process.poll() is None:
            processes.end_marked(processes.CLUSTER, str(self.folder))
        shutil.rmtree(self.folder, ignore_errors=True)

    def watch(self) -> str:
        """Wait for the verdict; return what is wrong, or "" when all cases are right."""
        last, failed_at = time.monotonic(), None
        while True:
            ended = self.process.poll() is not None
            self._read()
            if all(events and events[-1]["event"] == "done" for events in self.events.values()):
                failure = self._first_failure()
                return self._describe(failure, hung=False) if failure else ""
            failure = self._first_failure()
            now = time.monotonic()
            self.elapsed, last = self.elapsed + min(now - last, 1.0), now
            if failure is not None:
                failed_at = self.elapsed if failed_at is None else failed_at
                if self._complete(failure) or ended:
                    return self._describe(failure, hung=False)
            if ended:
                return self._describe_death()
            if (failed_at is not None and self.elapsed - failed_at > GRACE_SECONDS) or self._stuck():
                return self._describe(failure or self._last_step(), hung=True)
            time.sleep(TICK_SECONDS)

    # ---------------------------------------------------------------- reading what the ranks wrote

    def _read(self) -> None:
        for rank in self.events:
            path = self.folder / f"rank-{rank}.jsonl"
            lines = path.read_text().splitlines(keepends=True) if path.exists() else []
            self.events[rank] = [json.loads(line) for line in lines if line.endswith("\n")]

    def _stuck(self) -> bool:
        """Whether the deadline is over, or everyone has been inside the same MPI calls for a while."""
        calls = tuple(read_call(self.folder, rank) for rank in range(RANKS))
        state = (calls, tuple(map(len, self.events.values())))
        if state != self.seen or not all(calls[: self._size(self._last_step())]):
            self.seen, self.still_since = state, self.elapsed  # type: ignore[assignment]
        began = any(self.events.values())
        standstill = began and self.elapsed - self.still_since > STANDSTILL_SECONDS
        return standstill or self.elapsed > self.exercise.seconds

    def _last_step(self) -> int:
        return max((event["step"] for events in self.events.values() for event in events), default=0)

    def _first_failure(self) -> int | None:
        steps = [
            e["step"] for events in self.events.values() for e in events if e["event"] in ("wrong", "raised")
        ]
        return min(steps, default=None)

    def _began(self, step: int) -> dict[str, Any]:
        for events in self.events.values():
            for event in events:
                if event["event"] == "began" and event["step"] == step:
                    return event
        return {"size": RANKS, "case": 0, "pause": False}

    def _size(self, step: int) -> int:
        return int(self._began(step)["size"])

    def _outcome(self, step: int, rank: int) -> dict[str, Any] | None:
        for event in self.events[rank]:
            if event["step"] == step and event["event"] in ("right", "wrong", "raised"):
                return event
        return None

    def _complete(self, step: int) -> bool:
        return all(self._outcome(step, rank) for rank in range(self._size(step)))

    # ---------------------------------------------------------------- saying it

    def _describe(self, step: int, hung: bool) -> str:
        outcomes = {rank: self._outcome(step, rank) for rank in range(self._size(step))}
        if step == 0:
            head = f"✗ {self.exercise.id}: the cell itself does not run."
        else:
            head = f"✗ {self.exercise.id}, {self._case(step)}:"
        if hung and any(outcome is None for outcome in outcomes.values()):
            return f"{head} it does not end.\n{self._hang(step, outcomes)}"
        groups: dict[str, list[int]] = {}
        for rank, outcome in outcomes.items():
            if outcome and outcome["event"] != "right":
                groups.setdefault(self._words(outcome), []).append(rank)
        body = [f"{_ranks(ranks)} {words}" for words, ranks in groups.items()]
        right = [rank for rank, outcome in outcomes.items() if outcome and outcome["event"] == "right"]
        if right:
            body.append(f"({_ranks(right)} {'is' if len(right) == 1 else 'are'} right.)")
        return "\n".join(
            [head, *body[:4], self._so_far(step), f'hint("{self.exercise.id}") shows where to look.']
        )

    def _case(self, step: int) -> str:
        began = self._began(step)
        size = began["size"]
        words = f"on {size} rank{'s' * (size > 1)}"
        detail = self.exercise.describe(self.exercise.cases[began["case"]])
        if detail:
            words += f" with {detail}"
        return words + (", and only when ranks pause at random between calls" if began["pause"] else "")

    def _so_far(self, step: int) -> str:
        sizes = sorted({self._size(s) for s in range(1, step)})
        if not sizes:
            return "This is the smallest case."
        return f"Right so far: all smaller cases, on {', '.join(map(str, sizes))} rank{'s' * (sizes != [1])}."

    def _words(self, outcome: Mapping[str, Any]) -> str:
        if outcome["event"] == "wrong":
            return str(outcome["message"])
        lines = self.source.splitlines()
        line = outcome.get("line")
        where = f"  (line {line + 1}: {lines[line - 1].strip()})" if line and line <= len(lines) else ""
        return f"raised {outcome['error']}: {outcome['message']}{where}"

    def _hang(self, step: int, outcomes: Mapping[int, dict[str, Any] | None]) -> str:
        pids = {
            rank: self._pid(rank) for rank, outcome in outcomes.items() if outcome is None and self._pid(rank)
        }
        stacks = request_stacks(self.folder, pids)
        states = []
        for rank, outcome in outcomes.items():
            if outcome is None:
                states.append(observe(self.folder, rank, stacks.get(rank, []), self._lines))
            elif outcome["event"] == "right":
                states.append(RankState(rank, "finished"))
            else:
                states.append(RankState(rank, "raised", error=self._words(outcome)))
        width = max(len(state.what()) for state in states)
        rows = [f"rank {state.rank}  {state.what():<{width}}  {state.where()}".rstrip() for state in states]
        return "\n".join([*rows, f"Likely cause: {likely_cause(states)}", self._so_far(step)])

    def _pid(self, rank: int) -> int:
        return int(next((event["pid"] for event in reversed(self.events[rank]) if "pid" in event), 0))

    def _lines(self, file: str) -> Sequence[str] | None:
        return self.source.splitlines() if file == "answer.py" else None

    def _describe_death(self) -> str:
        output = (self.folder / "output").read_text(errors="replace").strip().splitlines()
        last = next((line for line in reversed(output) if line.strip() and "---" not in line), "")
        step = self._last_step()
        head = f"✗ {self.exercise.id}, {self._case(step)}:" if step else f"✗ {self.exercise.id}:"
        return f"{head} a rank ended before it was done (os._exit, a signal, or MPI_Abort).\n{last[:200]}"


def _ranks(ranks: Sequence[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"
