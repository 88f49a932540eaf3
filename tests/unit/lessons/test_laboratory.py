"""A good lesson of the laboratory passes; for every rule, one that breaks it is found, with the remedy."""

from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest

from course.tools import frame, laboratory
from course.tools.build import compose, notebook_of, write, write_take_home
from course.tools.laboratory import MAX_OWN_LINES, MAX_WORDS
from course.tools.lesson import LessonSource
from tests.unit.lessons.sources import write_source

FIRST = """\
# ---
# title: First
# goal: Do one thing well.
# able: [do it]
# before: Python
# minutes: {core: 20, more: 15}
# ranks: 4
# ---

# %% tags=["source: course_lib.theory.partition:even_range"]
"""
LESSON = """\
# ---
# title: Try
# goal: Do one thing well.
# able: [do it]
# before: "{00}. Helpful: {02}"
# minutes: {core: 20, more: 15}
# ranks: 4
# warm-up: [{ask: 1, answer: 1}, {ask: 2, answer: 2}, {ask: 3, answer: 3}]
# ---

# %% [markdown]
# Words.

# %%
# %%px --save 01_try.py
\"\"\"Distribute ten items.\"\"\"

from mpi4py import MPI

comm = MPI.COMM_WORLD

# %% tags=["source: course_lib.theory.partition:even_ranges"]
# %%px --save 01_try.py

# %%
from course.lessons.l01_try.figures import shares
from course_lib.measure import timed
from course_lib.theory.partition import even_range, even_ranges

print(even_range(10, 4, 0), even_ranges(10, 4))

# %% tags=["nbval-ignore-output"]
# %%px
print(MPI.Wtime())

# %%
# %%px --save 01_try.py
if __name__ == "__main__":
    print(even_ranges(10, comm.size)[comm.rank])

# %% [markdown] tags=["more"]
# ## More

# %%
from course.lessons.l01_try.runs import explain_everything
"""
LAST = LESSON.replace("# title: Try", "# title: Last").replace("01_try.py", "02_last.py")
LAST = LAST.replace("partition:even_ranges", "partition:fused_ranges").replace("even_ranges", "even_range")
Problems = Callable[..., list[str]]


@pytest.fixture
def problems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Problems:
    """What the rules say of lesson 01 with this source, built with the output 7 below each cell."""
    monkeypatch.setattr(laboratory, "IGNORED", {"01": 2})  # that of Setup, and one of its own
    monkeypatch.setattr(frame, "START", "00_first")
    write_source(tmp_path, FIRST, "00_first")
    write_source(tmp_path, LAST, "02_last")

    def found(text: str, output: str = "7\n", program: bool = True) -> list[str]:
        source = write_source(tmp_path, text)
        built(source, output)
        if program:
            write_take_home(source, compose(source))
        lesson = LessonSource(source)
        return [sentence for _, sentence in laboratory.laboratory(lesson)]

    return found


def built(source: Path, output: str) -> None:
    """The notebook that a build would leave."""
    notebook = compose(source)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [nbformat.v4.new_output("stream", text=output)]
    write(notebook, notebook_of(source))


def test_a_good_lesson_has_no_findings(problems: Problems) -> None:
    assert problems(LESSON) == []


OURS = "from course_lib.theory.partition import even_range, even_ranges"
WORDS = "# Words.\n"
MORE = '# %% [markdown] tags=["more"]'
MAIN = '# %%px --save 01_try.py\nif __name__ == "__main__":\n'
CASES: dict[str, tuple[str, str, str]] = {
    "a name of a lesson that draws nothing": (
        "from course.lessons.l01_try.figures import shares",
        "from course.lessons.l01_try.runs import shares",
        "a core imports only figures from the lessons, not course.lessons.l01_try.runs:shares; write it here",
    ),
    "a name of the library that was not shown": (
        OURS,
        f"{OURS}, fused_ranges",
        "fused_ranges of course_lib.theory.partition was not shown; put a cell 'source: course_lib.theory",
    ),
    "a core of too many words": (
        WORDS,
        WORDS + "# word word\n" * (MAX_WORDS // 2),
        f"words; cut it to {MAX_WORDS}",
    ),
    "no program": (" --save 01_try.py", "", "the lesson makes 0 programs"),
    "a program that imports ours": (
        MAIN,
        MAIN + "    from course_lib.measure import timed\n",
        "code/01_try.py imports course_lib.measure; show its source in a cell that is saved",
    ),
    "a program that starts before its last part": (
        MAIN,
        MAIN.replace("__main__", "__maine__"),
        "code/01_try.py: what starts it must stay last",
    ),
    "a program that is too long": (
        MAIN,
        MAIN + "    print()\n" * MAX_OWN_LINES,
        f"lines of its own; cut it to {MAX_OWN_LINES}",
    ),
    "one more output that nbval passes over": (
        "# %%\nfrom course.lessons.l01_try.figures",
        '# %% tags=["nbval-ignore-output"]\nfrom course.lessons.l01_try.figures',
        "nbval passes over 3 outputs, 2 are allowed; print what is counted",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_breaks_a_rule_is_found(problems: Problems, case: str) -> None:
    good, bad, words = CASES[case]
    assert good in LESSON
    found = problems(LESSON.replace(good, bad))
    assert any(words in sentence for sentence in found), found
    assert len(found) == 1 or case == "a program that is too long", found  # the core is, too


def test_an_elective_has_no_program_to_take_home(problems: Problems) -> None:
    elective = LESSON.replace("{core: 20, more: 15}", "{core: 20}").partition(MORE)[0]
    assert problems(elective) == ["an elective has no program to take home; remove --save 01_try.py"]
    assert problems(elective.replace(" --save 01_try.py", ""), program=False) == []


def test_a_program_that_is_not_what_the_cells_say_is_found(problems: Problems) -> None:
    problems(LESSON)
    (sentence,) = problems(LESSON.replace("even_ranges(10, comm", "even_ranges(12, comm"), program=False)
    assert sentence == "code/01_try.py is not what the cells say; run make notebooks LESSON=01"


def test_a_core_whose_compared_outputs_have_no_number_is_found(problems: Problems) -> None:
    (sentence,) = problems(LESSON, "no number\n")
    assert sentence == "no output of the core that nbval compares has a number; print one that is counted"
