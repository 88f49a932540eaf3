"""What the site makes of lessons, exercises and docstrings, before Sphinx sees it."""

import ast

import nbformat
import pytest

from course.tools.build import source_of
from course.tools.catalogue import find_lessons
from course.tools.frame import read_frame
from course.tools.site.api import Module, module_page
from course.tools.site.lessons import lesson_page, site_links, slug
from course.tools.site.pages import course_map, exercises_page
from course.tools.site.practice import exercise_help, question_page
from mpi_classroom.exercises import Exercise, Option, Question
from mpi_classroom.lessons import exercises_of

QUESTION = Question(
    id="00.q9",
    question="Which rank has `x`?",
    options=(
        Option("all of them", reply="Ranks share no memory.", belief="shared"),
        Option("rank 0", reply="It alone ran the line.", right=True),
    ),
)


def page_of(text: str) -> str:
    return module_page(Module("package.module", ast.parse(text)))


def test_each_option_of_a_question_opens_its_own_reply() -> None:
    page = question_page(QUESTION)
    assert page.count("{fold}") == 2
    assert page.count(":group: 00.q9") == 2, "of one question, one reply is open at a time"
    for letter, option in QUESTION.lettered.items():
        mark = "✓ Yes." if option.right else "✗ No."
        assert (
            f"{{fold}} ({letter}) {option.text}\n:class: option {'right' if option.right else 'wrong'}"
            in page
        )
        assert f"**{mark}** {option.reply}" in page


@pytest.mark.parametrize("lesson", find_lessons(), ids=lambda lesson: lesson.stem)
def test_a_lessons_page_has_hints_solutions_and_replies_and_every_picture(lesson) -> None:  # type: ignore[no-untyped-def]
    before, page = nbformat.read(lesson.path, as_version=4), lesson_page(lesson)
    text = "\n".join(cell.source for cell in page.cells)
    for item in exercises_of(lesson.number):
        wanted = question_page(item) if isinstance(item, Question) else exercise_help(item)
        assert wanted in text, item.id
        if isinstance(item, Exercise):
            assert all(hint.strip("\n") in wanted for hint in item.hints)
            assert item.solution.strip("\n") in wanted
    assert "not attempted" not in str([cell.get("outputs") for cell in page.cells])
    assert pictures(page) == pictures(before)
    assert 'answer("")' not in text


def pictures(notebook: nbformat.NotebookNode) -> list[str]:
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return [
        output.data["text/html"]
        for output in outputs
        if "<img" in output.get("data", {}).get("text/html", "")
    ]


def test_a_page_whose_notebook_is_out_of_date_is_not_made(tmp_path) -> None:  # type: ignore[no-untyped-def]
    lesson = find_lessons()[1]
    notebook = nbformat.read(lesson.path, as_version=4)
    for cell in notebook.cells:
        cell.source = cell.source.replace("**Question 01.q4**", "**Question**")
    nbformat.write(notebook, tmp_path / lesson.path.name)
    with pytest.raises(ValueError, match=r"above %%exercise 01\.q4 is not its text; build the lesson again"):
        lesson_page(find_lessons(tmp_path)[0])


def test_anchors_of_jupyterlab_become_those_of_the_site() -> None:
    assert slug("1 · The course") == "1--the-course"
    assert site_links("[map](00_start_here.ipynb#The-course)") == "[map](00_start_here.ipynb#the-course)"
    assert site_links("[map](#The-course), [x](../README.md#a-b)") == (
        "[map](#the-course), [x](../README.md#a-b)"
    )


def test_a_module_page_has_signatures_and_docstrings_of_what_is_public() -> None:
    page = page_of(
        '"""Sums.\n\n    a picture\n\nEnd.\n"""\n'
        "def add(comm: MPI.Comm, *, width: int = 1) -> int:\n"
        '    """Add.\n\n    >>> add(1)\n    1\n    """\n'
        "def _hidden(): ...\n"
        "class Ring:\n"
        '    """A ring."""\n'
        "    def __init__(self, size: int) -> None: ...\n"
        "    def shift(self, by: int) -> None:\n"
        '        """Shift."""\n'
        "    @property\n"
        "    def size(self) -> int: ...\n"
        "    @staticmethod\n"
        "    def of(comm: MPI.Comm) -> 'Ring': ...\n"
    )
    assert page.startswith("# package.module\n\n```{py:module} package.module\n```\n\nSums.\n\n    a picture")
    assert "::::::{py:function} add(comm: MPI.Comm, *, width: int=1) -> int\n\nAdd.\n\n" in page
    assert "```pycon\n>>> add(1)\n1\n```" in page
    assert "_hidden" not in page
    assert "{py:class} Ring(size: int)" in page
    assert ":::::{py:method} shift(by: int) -> None\n\nShift." in page
    assert "{py:property} size\n:type: int" in page
    assert "{py:method} of(comm: MPI.Comm) -> 'Ring'\n:staticmethod:" in page


def test_a_dataclass_is_made_from_its_fields() -> None:
    page = page_of(
        "@dataclass(frozen=True)\nclass Link:\n"
        "    rate: float\n    ports: list[int] = field(default_factory=list)\n"
    )
    assert "{py:class} Link(rate: float, ports: list[int] = …)" in page


def test_the_course_map_names_every_lesson_with_goal_and_minutes() -> None:
    lessons = find_lessons()
    page = course_map(lessons)
    for lesson in lessons:
        row = next(line for line in page.splitlines() if line.startswith(f"| {lesson.number} |"))
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        assert cells[2].endswith((".", "?")), f"{lesson.stem} has no goal"
        assert int(cells[4]) > 0
        assert cells[5] == "–" if read_frame(source_of(lesson.path)).elective else int(cells[5]) > 0


def test_every_exercise_is_on_the_list_of_exercises() -> None:
    lessons = find_lessons()
    page = exercises_page(lessons)
    for lesson in lessons:
        for item in exercises_of(lesson.number):
            assert f"- [{item.id}](notebooks/{lesson.path.name}#exercise-{item.id.replace('.', '-')})" in page
