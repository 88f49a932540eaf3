"""What this course registers with mpi_classroom, in `pyproject.toml`: its lessons, where its files are."""

from course.paths import LESSONS, MY_COURSE, NOTEBOOKS
from course.version import EDITION
from mpi_classroom.lessons import Course

FOLDERS = {path.parent.name[1:3]: path.parent.name for path in sorted(LESSONS.glob("l*/exercises.py"))}
COURSE = Course(
    exercises={number: f"course.lessons.{folder}.exercises" for number, folder in FOLDERS.items()},
    notebooks=NOTEBOOKS,
    progress=MY_COURSE / ".progress.json",
    edition=EDITION,
)
