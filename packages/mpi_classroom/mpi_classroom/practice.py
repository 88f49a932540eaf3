"""What a learner types to practise: `%%exercise 04.1`, `hint()`, `solution()`, `predict()`, and so on.

The cell of an exercise runs in the notebook and on its ranks like any other, and is checked beside them when
it runs. A quiz is an exercise too: its cell says `answer("b")`; a puzzle of lines says `order("C A D")`. An
untouched cell says "not attempted" and the notebook runs on. Results are saved in a local file.
"""

import contextlib
import re
import textwrap
from collections.abc import Callable
from typing import Any

from mpi_classroom.answer_job import Verdict, check
from mpi_classroom.errors import ClusterError
from mpi_classroom.exercises import Exercise, Question, Wrong
from mpi_classroom.lessons import find_exercise, find_prediction
from mpi_classroom.progress import note_hint, note_outcome, note_prediction, note_try
from mpi_classroom.take_home import FOLDER, SaveError, cell_id, save_part, solved

WIDTH = 100  # letters in a line of text
_current: "Practice | None" = None


def current_practice() -> "Practice | None":
    """The exercises of this notebook; None before its first start_cluster()."""
    return _current


# An answer may use np in the notebook, too, as when it was judged.
NP_AT_HAND = 'if "np" not in globals():\n    import numpy as np'


class Practice:
    """The exercises of one notebook: attempts, hints, predictions."""

    def __init__(self, shell: Any, cluster: Any) -> None:
        self.shell, self.cluster = shell, cluster
        self.attempts: dict[str, int] = {}
        self.solved: dict[str, bool] = {}
        self._right: set[str] = set()  # exercises of which a program has the learner's right answer
        self.hints: dict[str, int] = {}
        self.asked: dict[str, int] = {}
        self.predictions: dict[str, float] = {}
        self.last = ""

    def register(self, **functions: Callable[..., object]) -> None:
        """Make `%%exercise`, the functions below and other `functions` known."""
        global _current
        _current = self
        self.shell.register_magic_function(self.exercise, "cell", "exercise")
        names: dict[str, Callable[..., object]] = {
            "hint": self.hint,
            "solution": self.solution,
            "predict": self.predict,
            "outcome": self.outcome,
            "continue_with": self.continue_with,
            **functions,
        }
        self.shell.push(names, interactive=False)

    # ---------------------------------------------------------------- %%exercise

    def exercise(self, line: str, cell: str) -> None:
        """Check the cell as the answer to the exercise named on the first line: `%%exercise 06.1`.

        With `--save FILE`, the answer is a part of a program if it is right, else the course's solution is.
        """
        id, _, file = line.partition("--save")
        try:
            exercise = find_exercise((id.split() or [""])[0])
        except LookupError as error:
            print(error)
            return
        self.last = exercise.id
        verdict = self._verdict(exercise, cell)
        self.solved[exercise.id] = verdict.state == "right"
        if verdict.state != "not attempted":
            self.attempts[exercise.id] = self.attempts.get(exercise.id, 0) + 1
            note_try(exercise.id, verdict.state == "right")
        print(verdict.text)
        if file and isinstance(exercise, Exercise):
            self._keep(exercise, cell, verdict, file.strip())

    def _keep(self, exercise: Exercise, cell: str, verdict: Verdict, file: str) -> None:
        """Keep a right answer in the program, else the course's; what was tried is what runs next."""
        if verdict.state != "right" and exercise.id in self._right:
            print(f"{FOLDER}/{file} still has your right answer; the next cells run the one above.")
            return
        if verdict.state == "not attempted":
            self.define_solution(exercise)
            print(f"Until you solve it, the next cells and {FOLDER}/{file} run the course's solution.")
        elif verdict.state != "right":
            yours = "The next cells run yours; " if verdict.loads else ""
            print(f"{yours}{FOLDER}/{file} has the course's solution until yours is right.")
        try:
            code = cell if verdict.state == "right" else solved(exercise)
            save_part(file, code, cell_id(self.shell))
        except SaveError as problem:
            print(problem)
            return
        if verdict.state == "right":
            self._right.add(exercise.id)

    def _verdict(self, exercise: Exercise | Question, cell: str) -> Verdict:
        if isinstance(exercise, Question):
            return reply(exercise, argument(cell, "answer"))
        if exercise.blocks:
            return self._puzzle(exercise, argument(cell, "order"))
        verdict = check(exercise, cell)
        if verdict.loads:
            self.define(cell)
        return verdict

    def _puzzle(self, exercise: Exercise, order: str) -> Verdict:
        if not order:
            return Verdict("not attempted", f'{exercise.id} not attempted yet: order("…") wants letters.')
        try:
            source = exercise.assemble(order)
        except Wrong as wrong:
            return Verdict("wrong", f"✗ {exercise.id}: {wrong}")
        verdict = check(exercise, source)
        if verdict.state == "right":
            self.define(source)
        return verdict

    def continue_with(self, id: str) -> None:
        """Let the next cells run the learner's answer if it is right, else the course's, and print which."""
        try:
            exercise = find_exercise(id)
        except LookupError as error:
            print(error)
            return
        if isinstance(exercise, Question):
            print(f"{id} is a question: it defines nothing for the next cells.")
            return
        named = re.findall(r"^def (\w+)", exercise.stub, re.MULTILINE)
        what = f"`{named[0]}`" if named else "program"
        if self.solved.get(id):
            print(f"{id} is right: the next cells run your own {what}.")
            return
        self.define_solution(exercise)
        print(f"{id} is not solved yet: the next cells run the course's {what}.")

    def define_solution(self, exercise: Exercise) -> None:
        """Run the course's solution in the notebook and on the ranks."""
        solution = exercise.solution
        self.define(exercise.assemble(argument(solution, "order")) if exercise.blocks else solution)

    def define(self, source: str) -> None:
        """Run the cell, known to end, in the notebook and, where a cluster is up, on its ranks."""
        if self.cluster.alive:
            try:
                result = self.cluster.view.execute(source, silent=True, block=False)
                result.wait(self.cluster.timeout)
            except ClusterError as error:
                print(error)
        self.shell.ex(NP_AT_HAND)
        with contextlib.suppress(NameError):  # what only the ranks have imported
            name = self.shell.compile.cache(source)  # so that `inspect.getsource` finds it
            self.shell.ex(compile(source, name, "exec"))

    # ---------------------------------------------------------------- help

    def hint(self, id: str = "") -> None:
        """Show the next hint: where to look, then the idea, then a line with a gap."""
        exercise = self._named(id)
        if exercise is None:
            return
        level = self.hints.get(exercise.id, 0)
        self.hints[exercise.id] = min(level + 1, len(exercise.hints) - 1)
        note_hint(exercise.id, level + 1)
        text = exercise.hints[level]
        gap = "\n" if "\n" in text else " "  # a picture begins on a line of its own
        print(f"Hint {level + 1} of {len(exercise.hints)} for {exercise.id}:{gap}{text}")

    def solution(self, id: str = "") -> None:
        """Show the solution after one attempt, or when asked for a second time."""
        exercise = self._named(id)
        if exercise is None:
            return
        self.asked[exercise.id] = self.asked.get(exercise.id, 0) + 1
        if not self.attempts.get(exercise.id) and self.asked[exercise.id] == 1:
            print(f"Try {exercise.id} once first, or call hint(). Call solution() again to see it anyway.")
            return
        print(exercise.solution)
        print(f"Think about it: {exercise.why}")

    def _named(self, id: str) -> Exercise | None:
        if not (id or self.last):
            print('Which exercise? For example: hint("01.1")')
            return None
        try:
            exercise = find_exercise(id or self.last)
        except LookupError as error:
            print(error)
            return None
        if isinstance(exercise, Question):
            print("A question has no hints. Choose a letter: the reply explains it.")
            return None
        self.last = exercise.id
        return exercise

    # ---------------------------------------------------------------- predictions

    def predict(self, question: str, value: float | None = None) -> None:
        """Save what you expect before you measure: `predict("speed-up?", 3.5)`. None skips the prediction."""
        if value is None:
            print(f"{question}  Write your guess as the second argument, or run on.")
            return
        self.predictions[question] = float(value)
        if prediction := find_prediction(question):
            note_prediction(prediction.id, float(value))
        print(f"{question}  You say {value:.10g}.")

    def outcome(
        self, question: str, value: float, unit: str = "", because: str = "", word: str = "measured"
    ) -> None:
        """Compare the result with the prediction that was saved under the same question."""
        said = self.predictions.get(question)
        if said is not None and (prediction := find_prediction(question)):
            note_outcome(prediction.id, float(value))
        unit = f" {unit}" if unit else ""
        words = f"you said {said:.10g}{unit}, {word}" if said is not None else word
        print(f"{question}  {words} {in_digits(value)}{unit}.")
        if because:
            print(textwrap.fill(because, WIDTH, break_long_words=False, break_on_hyphens=False))


def in_digits(value: float) -> str:
    """Three digits that count, or all before the point: 1.88, 0.0213, 4194."""
    return f"{value:.0f}" if 1000 <= abs(value) < 1e15 else f"{value:.3g}"


def reply(question: Question, letter: str) -> Verdict:
    """The reply to one letter: every wrong one has its own."""
    letter = letter.strip().lower()
    if not letter:
        return Verdict("not attempted", f'{question.id} not attempted yet: write a letter into answer("").')
    options = question.lettered
    if letter not in options:
        return Verdict("wrong", f"The options of {question.id} are {', '.join(options)}.")
    chosen = options[letter]
    return Verdict(
        "right" if chosen.right else "wrong", f"{'✓' if chosen.right else '✗'} {letter}: {chosen.reply}"
    )


def argument(cell: str, function: str) -> str:
    """The letters in `function("…")`, with or without the quotes; "" when the cell says nothing."""
    match = re.search(rf"""^\s*{function}\(\s*["']?([^"')]*)""", cell, re.MULTILINE)
    return match[1].strip() if match else ""
