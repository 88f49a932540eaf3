"""Cells to practise are held to their exercises, and every exercise has its cell."""

import re
from pathlib import Path

import pytest
from course.tools.practice import MAGIC, exercise_cells, stub

from course.tools.build import lesson_sources
from course.tools.lesson import LessonSource
from mpi_classroom.exercises import Exercise, Question
from mpi_classroom.lessons import exercises_of, find_exercise, lessons

SHIFT, QUIZ, PUZZLE = find_exercise("01.1"), find_exercise("01.q1"), find_exercise("01.2")
assert isinstance(SHIFT, Exercise) and isinstance(QUIZ, Question) and isinstance(PUZZLE, Exercise)
OPTIONS = "\n".join(f"# - ({letter}) {words}" for letter, words in QUIZ.options.items())
OPENING = "\n".join(f"# {line}" for line in PUZZLE.opening.splitlines())
BLOCKS = "\n".join(f"# {letter} {block}" for letter, block in PUZZLE.blocks.items())
GOOD = f"""\
# %% [markdown]
# # 01 · Middle
#
# **Exercise 01.1** · Do it.

# %%
# %%exercise 01.1
{SHIFT.stub}

# %% [markdown]
# **Quiz 01.q1** · {QUIZ.question}
#
{OPTIONS}

# %%
# %%exercise 01.q1
answer("")

# %% [markdown]
# **Exercise 01.2**
#
# ```
{OPENING}
{BLOCKS}
# ```

# %%
# %%exercise 01.2
order("")
"""


def problems(tmp_path: Path, text: str) -> list[tuple[int, str]]:
    """What the rule says of a lesson with this source."""
    source = tmp_path / "l01_middle" / "lesson.py"
    source.parent.mkdir(exist_ok=True)
    source.write_text(text)
    return list(exercise_cells(LessonSource(source, [source])))


def test_cells_that_say_what_their_exercises_say_pass(tmp_path: Path) -> None:
    assert problems(tmp_path, GOOD) == []


@pytest.mark.parametrize(
    ("old", "new", "cell", "words"),
    [
        ("np.zeros_like(value)", "np.zeros(3)", 2, "not the stub of 01.1"),
        ('answer("")', 'answer("b")', 4, "not the stub of 01.q1"),
        ('order("")', 'order("D B A C")', 6, "not the stub of 01.2"),
        ("%%exercise 01.1", "%%exercise 01.8", 2, "there is no exercise '01.8'; lesson 01 has 01.1"),
        ("%%exercise 01.1", "%%exercise", 2, "there is no lesson ''"),
        ("%%exercise 01.1", "%%exercise 02.1", 2, "an exercise of another lesson"),
        ("%%exercise 01.q1", "%%exercise 01.1", 4, "in this lesson twice"),
        ("Exercise 01.1**", "Exercise**", 2, "does not say 'Exercise 01.1'"),
        ("rank 1 has called", "rank 1 called", 4, "does not say '(c) rank 1 has called `Recv`'"),
        ("What do you know for certain?", "", 4, "does not say 'Rank 0 calls"),
        ("B     MPI.Request.Waitall(requests)", "B", 6, "does not say 'B     MPI.Request.Waitall(requests)'"),
    ],
)
def test_a_cell_that_differs_from_its_exercise_is_found(
    tmp_path: Path, old: str, new: str, cell: int, words: str
) -> None:
    assert old in GOOD
    found = problems(tmp_path, GOOD.replace(old, new))
    assert [n for n, sentence in found if words in sentence] == [cell], found


# -------------------------------------------------------------------- the lessons there are


@pytest.mark.parametrize("number", lessons())
def test_every_exercise_has_its_cell_in_its_lesson(number: str) -> None:
    found = [id for id, _ in cells(number)]
    assert found == [item.id for item in exercises_of(number)]


@pytest.mark.parametrize("number", lessons())
def test_the_core_has_one_exercise_and_more_has_the_others(number: str) -> None:
    core = [id for id, in_core in cells(number) if in_core and isinstance(find_exercise(id), Exercise)]
    assert len(core) == 1
    everything = exercises_of(number)
    assert any("Spot the bug" in item.title for item in everything if isinstance(item, Exercise))
    assert 2 <= len([item for item in everything if isinstance(item, Question)]) <= 3


def cells(number: str) -> list[tuple[str, bool]]:
    """The exercises of a lesson in the order of their cells, and whether each is in the core."""
    source = lesson_sources([number])[0]
    lesson = LessonSource(source, lesson_sources())
    more, _ = lesson.section("More")
    return [(match[1], n < more) for n, cell in lesson.code if (match := MAGIC.match(cell.source))]


@pytest.mark.parametrize("number", lessons())
def test_a_prediction_is_asked_before_its_outcome_and_left_open(number: str) -> None:
    lesson = LessonSource(lesson_sources([number])[0], lesson_sources())
    code = "\n".join(cell.source for _, cell in lesson.code)
    asked = re.findall(r'predict\("(.+?)", None\)', code)
    told = re.findall(r'outcome\(\s*"(.+?)"', code)
    assert asked and asked == told
    for words in map(re.escape, asked):
        assert re.search(rf'predict\("{words}".*outcome\(\s*"{words}"', code, re.DOTALL)
    assert code.count("predict(") == len(asked)


@pytest.mark.parametrize("id", ["01.1", "01.2", "01.q1"])
def test_the_stub_of_a_cell_has_no_empty_line_at_its_end(id: str) -> None:
    assert stub(find_exercise(id)) == stub(find_exercise(id)).strip("\n")
