"""Pages made from the course's data: course map, exercises, the study, the index of the API."""

import re
from collections.abc import Sequence
from pathlib import Path

from course.lessons.l07_ddp_on_mnist.study_results import load
from course.tools.build import source_of
from course.tools.catalogue import Lesson
from course.tools.frame import read_frame
from course.tools.parts import MORE
from course.tools.site.api import Module
from course.tools.site.practice import target
from course.tools.study.report import page
from mpi_classroom.exercises import Question
from mpi_classroom.lessons import exercises_of


def toctree(entries: Sequence[str], *options: str) -> str:
    """The directive that tells Sphinx which pages are below this one."""
    return "\n".join(["```{toctree}", ":hidden:", *options, "", *entries, "```"])


def course_map(lessons: Sequence[Lesson]) -> str:
    """All lessons: what each is for, what it builds on, how long its core and More take."""
    rows = ["| | lesson | goal | builds on | core, minutes | More, minutes |", "|---|---|---|---|--:|--:|"]
    core = more = 0
    for lesson in lessons:
        frame = read_frame(source_of(lesson.path))
        takes, optional = frame.minutes["core"], frame.minutes.get(MORE, 0)  # an elective has no More
        core, more = core + takes, more + optional
        before = ", ".join(sorted(set(re.findall(r"\{(\d\d)\}", frame.before)))) or "–"
        rows.append(
            f"| {lesson.number} | [{lesson.title}]({lesson.path.name}) | {frame.goal} "
            f"| {before} | {takes} | {optional or '–'} |"
        )
    words = [
        "# Course map",
        "Each lesson has a **core** and an optional second part, **More**. A lesson builds on the cores of "
        f"the lessons in the fourth column. All cores take {core} minutes, all of More {more}; minutes are "
        "those of a learner, exercises included.",
        "\n".join(rows),
        "After lesson 07 the path forks: memory (11 to 13) or model parallelism (08 to 10). The order of the "
        "numbers always works.",
        "The pages show the outputs of one run on 2 cores. The lessons themselves run on your machine, on "
        "four MPI ranks: see [how to start](../README.md).",
        toctree([lesson.stem for lesson in lessons]),
    ]
    return "\n\n".join(words) + "\n"


def exercises_page(lessons: Sequence[Lesson]) -> str:
    """Every exercise and question with a link to where it stands."""
    parts = [
        "# Exercises and questions",
        "Exercises are checked on 1 to 4 ranks in the notebook; here you can read them, with hints and "
        "solutions folded. Questions answer on the page: open an option to read its reply.",
    ]
    for lesson in lessons:
        items = exercises_of(lesson.number)
        if not items:
            continue
        parts.append(f"## {lesson.number} · {lesson.title}")
        parts.append("\n".join(_line(lesson, item.id, _title(item)) for item in items))
    return "\n\n".join(parts) + "\n"


def _line(lesson: Lesson, id: str, title: str) -> str:
    return f"- [{id}](notebooks/{lesson.path.name}#{target(id)}) {title}"


def _title(item: object) -> str:
    if isinstance(item, Question):
        return f"Question: {item.question.splitlines()[0]}"
    return str(getattr(item, "title", ""))


def study_page() -> str:
    """The report of the committed study; its headings are those of the site."""
    body = page(load()).partition("<body>")[2].partition("</body>")[0]
    parts = re.split(r"<h([1-4])>(.*?)</h\1>", body, flags=re.DOTALL)
    text = [_raw(parts[0])]
    for level, title, html in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
        text += [f"{'#' * int(level)} {title}", _raw(html)]
    return "\n\n".join(part for part in text if part) + "\n"


def _raw(html: str) -> str:
    return f"```{{raw}} html\n{html.strip()}\n```" if html.strip() else ""


def api_index(packages: Sequence[tuple[str, str, Sequence[Module]]]) -> str:
    """The index of the API: per package the modules, each with its first line."""
    parts = ["# API", "Every public function and class of the three packages, from their docstrings."]
    for name, readme, found in packages:
        rows = [f"| [{each.name}]({each.name}.md) | {each.summary} |" for each in found]
        parts += [f"## {name}", f"[What it is for, with an example]({readme})."]
        parts.append("\n".join(["| module | what it does |", "|---|---|", *rows]))
        parts.append(toctree([each.name for each in found], f":caption: {name}"))
    return "\n\n".join(parts) + "\n"


def folder_index(title: str, pages: Sequence[Path]) -> str:
    """A list of the pages of a folder that has no first page of its own.

    A page called `index` is that of a folder inside it.
    """
    names = {path: path.name if path.stem != "index" else f"{path.parent.name}/index.md" for path in pages}
    lines = [f"- [{first_heading(path)}]({name})" for path, name in names.items()]
    entries = [name.removesuffix(".md") for name in names.values()]
    return f"# {title}\n\n" + "\n".join(lines) + "\n\n" + toctree(entries) + "\n"


def first_heading(path: Path) -> str:
    """The title of a markdown page; the file's name where it has none."""
    found = re.search(r"^# (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return found[1] if found else path.stem
