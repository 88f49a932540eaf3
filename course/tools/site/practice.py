"""Exercises and questions on a page without a kernel: folded hints and solutions, options that reply.

A fold is the directive of `docs/site/course_site.py`: an HTML `<details>`, which opens without a script and
with the keyboard alone.
"""

from mpi_classroom.exercises import Exercise, Question

HINT_TITLES = ("Hint 1: where to look", "Hint 2: the idea", "Hint 3: a line with a gap")


def target(id: str) -> str:
    """The anchor of an exercise or question: "exercise-01-1"."""
    return f"exercise-{id.replace('.', '-')}"


def fold(title: str, body: str, *, kind: str = "", group: str = "") -> str:
    """A part of the page that opens when its title is chosen; of a `group`, one is open at a time."""
    longest = max((len(run) for run in body.split() if set(run) == {":"}), default=0)
    fence = ":" * max(3, longest + 1)
    options = [f":{name}: {value}" for name, value in (("class", kind), ("group", group)) if value]
    return "\n".join([f"{fence}{{fold}} {title}", *options, "", body, fence])


def question_page(question: Question) -> str:
    """The question with its options; each opens its own reply."""
    options = []
    for letter, option in question.lettered.items():
        kind = "right" if option.right else "wrong"
        mark = "✓ Yes." if option.right else "✗ No."
        body = f"**{mark}** {option.reply}"
        options.append(fold(f"({letter}) {option.text}", body, kind=f"option {kind}", group=question.id))
    head = f"({target(question.id)})=\n**Question {question.id}** · {question.question}"
    return "\n\n".join([head, "Choose an answer; it opens the reply.", *options])


def exercise_text(exercise: Exercise) -> str:
    """What stands above the cell of an exercise, with an anchor."""
    text = exercise.text
    if exercise.blocks:  # lines with letters before them are no Python
        text = text.replace("```python", "```text")
    return f"({target(exercise.id)})=\n{text}"


def exercise_help(exercise: Exercise) -> str:
    """What stands below the cell of an exercise: three hints and the solution, folded."""
    hints = [
        fold(title, _hint(text), kind="hint") for title, text in zip(HINT_TITLES, exercise.hints, strict=True)
    ]
    code = exercise.solution.strip("\n")
    solution = f"```python\n{code}\n```\n\nThink about it: {exercise.why}"
    return "\n\n".join([*hints, fold("Solution", solution, kind="solution")])


def _hint(text: str) -> str:
    """A hint is printed in a notebook as it stands; so a picture or a line of code keeps its layout."""
    prose = "\n" not in text and (text.rstrip().endswith((".", "?", ":")) or "`" in text)
    return text if prose else f"```text\n{text.strip(chr(10))}\n```"
