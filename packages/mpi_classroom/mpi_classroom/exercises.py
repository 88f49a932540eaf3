"""What an exercise is: plain data and a check that runs on real ranks.

An exercise is checked by calling the learner's code inside a throwaway MPI job, on communicators of 1, 2, 3
and 4 ranks, smallest case first, and comparing with an oracle. A check raises `Wrong` with words that teach:
what differs, where, and a question; never a verdict alone.

Every exercise, question and prediction says what it is for; the lints of the lessons hold it:

    Exercise(…,   objectives=(2,), targets=("copy-is-the-tensor",))     # a "Spot the bug" needs targets
    Question(…,   objectives=(1, 3), options=(Option(…, right=True), Option(…, belief="rank-is-core")))
    Prediction(id="02.p1", question="…", objectives=(4,), targets=("n-ranks-n-times",))

`objectives` are positions, from 1, in the line "You will be able to" of the lesson's header, divided by `;`.
Beliefs are names that the course chooses. The module of a lesson has EXERCISES (exercises and questions) and,
where it has some, PREDICTIONS (see `lessons.py`).
"""

import ast
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from string import ascii_lowercase
from types import SimpleNamespace
from typing import Any

import numpy as np

from mpi_classroom.sentences import listed_ranks


class Wrong(Exception):
    """The answer is wrong; the message says how, in the learner's terms."""


@dataclass(frozen=True, slots=True)
class WrongAnswer:
    """A mistake that learners make (a cell), and a part of the message that it must get."""

    source: str
    message: str


@dataclass(frozen=True, slots=True)
class Exercise:
    """A cell to complete.

    `check(answer, comm, case)` runs on every rank of a communicator; `answer` holds what the learner's cell
    defines, `case` is one of `cases`. It raises `Wrong`, or returns when this case is right. It must not
    communicate: a rank whose call raised would let the others wait.

    `task` is what the learner is asked to do, in markdown; it stands below the title, above the cell.
    `imports` is what the ranks have imported in this lesson, besides `np` and `MPI`. `opening` is code to
    read: a program to trace, or the lines above those of a puzzle, which has `blocks` by letter and puts them
    in the order that the learner's `order("C A D")` says. `save` names the program to take home of which the
    answer is a part ("06_by_hand.py").
    """

    id: str
    title: str
    stub: str
    hints: tuple[str, str, str]
    solution: str
    check: Callable[[SimpleNamespace, Any, Any], None]
    wrong: tuple[WrongAnswer, ...]
    why: str
    task: str = ""
    cases: tuple[Any, ...] = (1,)
    describe: Callable[[Any], str] = lambda case: ""
    sizes: tuple[int, ...] = (1, 2, 3, 4)
    imports: str = ""
    opening: str = ""
    blocks: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 10.0
    objectives: tuple[int, ...] = ()
    targets: tuple[str, ...] = ()
    save: str = ""

    @property
    def text(self) -> str:
        """What the learner reads above the cell, in markdown: title, task, program, lines to put in order."""
        code = [self.opening, ""] if self.opening else []
        for letter, block in self.blocks.items():
            first, *more = block.splitlines()
            code += [f"{letter} │ {first}", *(f"  │ {line}" for line in more)]
        program = ["", "```python", *code, "```"] if code else []
        task = f" · {self.task}" if self.task else ""
        return "\n".join([f"**Exercise {self.id} · {self.title}**{task}", *program])

    @property
    def cell(self) -> str:
        """What the learner finds in the cell, below the magic."""
        return self.stub.strip("\n")

    @property
    def spot_the_bug(self) -> bool:
        """Whether the stub is a program with a mistake that is often made."""
        return self.title.startswith("Spot the bug")

    def untouched(self, source: str) -> bool:
        """Whether the cell still does what the stub does: comments, docstrings and layout do not count."""
        return same_code(source, self.stub)

    def assemble(self, order: str) -> str:
        """The program of a Parsons puzzle with its blocks in this order ("C A D"), indented as they are.

        Raises Wrong for a letter that is no block.
        """
        letters = order.replace(",", " ").split()
        unknown = [letter for letter in letters if letter not in self.blocks]
        if unknown:
            raise Wrong(f"there is no block {unknown[0]!r}; the blocks are {', '.join(self.blocks)}.")
        return "\n".join([self.opening, *(self.blocks[letter] for letter in letters)])


@dataclass(frozen=True, slots=True)
class Option:
    """An answer to a question, and the reply to whoever chooses it.

    A wrong one may name the misconception (`belief`) that leads to it.
    """

    text: str
    reply: str
    belief: str = ""
    right: bool = False


@dataclass(frozen=True, slots=True)
class Question:
    """A question with two or more options, one of them right.

    Learners see the options as a, b, c … in an order that depends on the id alone: write them in any order,
    and do not speak of letters.
    """

    id: str
    question: str
    options: tuple[Option, ...]
    objectives: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if sum(option.right for option in self.options) != 1:
            raise ValueError(f"{self.id} needs one right option")

    @property
    def lettered(self) -> dict[str, Option]:
        """The options by letter, as learners see them."""
        by_hash = sorted(
            range(len(self.options)), key=lambda n: hashlib.sha256(f"{self.id} {n}".encode()).digest()
        )
        return {letter: self.options[n] for letter, n in zip(ascii_lowercase, by_hash, strict=False)}

    @property
    def right(self) -> str:
        """The letter of the right option."""
        return next(letter for letter, option in self.lettered.items() if option.right)

    @property
    def text(self) -> str:
        """What the learner reads above the cell, in markdown."""
        options = [f"- ({letter}) {option.text}" for letter, option in self.lettered.items()]
        return "\n".join([f"**Question {self.id}** · {self.question}", "", *options])

    @property
    def cell(self) -> str:
        """What the learner finds in the cell, below the magic."""
        return 'answer("")'

    @property
    def targets(self) -> tuple[str, ...]:
        """The beliefs that its wrong options stand for."""
        return tuple(option.belief for option in self.options if option.belief)


@dataclass(frozen=True, slots=True)
class Prediction:
    """A figure to guess before it is measured: `predict("question", None)`, then `outcome("question", …)`."""

    id: str
    question: str
    objectives: tuple[int, ...]
    targets: tuple[str, ...] = ()


def changed(source: str, *changes: tuple[str, str]) -> str:
    """`source` with each (old, new) of `changes` made: how a wrong answer differs from the right one."""
    for old, new in changes:
        if old not in source:
            raise ValueError(f"there is no {old!r} to change in:\n{source}")
        source = source.replace(old, new)
    return source


def same_code(one: str, other: str) -> bool:
    """Whether two pieces of code differ only in comments, docstrings and layout."""
    try:
        return _bare(one) == _bare(other)
    except (SyntaxError, ValueError):
        return one.split() == other.split()


def _bare(source: str) -> str:
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and len(node.body) > 1:
                node.body = node.body[1:]
    return ast.dump(tree)


# -------------------------------------------------------------------- what checks are written with


def expect(condition: bool, message: str) -> None:
    """Raise Wrong(message) unless `condition`."""
    if not condition:
        raise Wrong(message)


def expect_array(got: Any, expected: np.ndarray, lookalikes: Mapping[str, Any] | None = None) -> None:
    """Raise Wrong unless `got` is `expected` (same shape, equal to rounding).

    `lookalikes` maps an explanation to the value that a certain mistake gives: if that is what came out, the
    explanation is the message.
    """
    expect(got is not None, "returned None. Does every path of the function reach a `return`?")
    try:
        values = np.asarray(got)
    except ValueError:
        raise Wrong("returned lists of different lengths, expected an array.") from None
    expect(values.dtype.kind in "biufc", f"returned {type(got).__name__}, expected numbers.")
    if _close(values, expected):
        return
    for explanation, lookalike in (lookalikes or {}).items():
        if _close(values, np.asarray(lookalike)):
            raise Wrong(explanation)
    if values.shape != np.shape(expected):
        raise Wrong(f"has the shape {values.shape}, expected {np.shape(expected)}.")
    raise Wrong(f"got {show(values)}, expected {show(expected)}.")


def _close(values: np.ndarray, expected: np.ndarray) -> bool:
    return values.shape == np.shape(expected) and bool(np.allclose(values, expected, rtol=1e-10, atol=1e-12))


def show(values: Any) -> str:
    """A short array in words: at most six of its values."""
    flat = np.ravel(values)
    text = ", ".join(f"{value:g}" for value in flat[:6])
    return f"{text}, …" if flat.size > 6 else text or "nothing"


def missing_ranks(total: float, size: int) -> str:
    """What a decimal-coded sum (rank r gave 10**r) shows: whose contribution is missing or counted twice.

    >>> missing_ranks(1011, 4)
    "rank 2's contribution is missing"
    """
    digits = [int(total) // 10**rank % 10 for rank in range(size)]
    absent = [rank for rank, digit in enumerate(digits) if digit == 0]
    twice = [rank for rank, digit in enumerate(digits) if digit > 1]
    if total != int(total) or total >= 10**size * 10 or not (absent or twice):
        return f"the sum is {total:g}"
    words = [f"rank {rank}'s contribution is missing" for rank in absent]
    if len(absent) > 1:
        words = [f"the contributions of {listed_ranks(absent)} are missing"]
    words += [f"rank {rank}'s contribution is counted {digits[rank]} times" for rank in twice]
    return "; ".join(words)
