"""Write the sources of the website: `python -m course.tools.site FOLDER`; `make site` then runs Sphinx."""

import argparse
import shutil
from collections.abc import Sequence
from pathlib import Path

import nbformat

from course.paths import BUILD, ROOT
from course.tools.catalogue import find_lessons
from course.tools.site.api import Module, has_page, module_page, modules
from course.tools.site.lessons import lesson_page, site_links
from course.tools.site.pages import (
    api_index,
    course_map,
    exercises_page,
    folder_index,
    study_page,
)

PACKAGES = (
    ("course_lib", "course_lib", "course_lib/README.md"),
    ("mpi_classroom", "packages/mpi_classroom/mpi_classroom", "packages/mpi_classroom/README.md"),
    ("torch_mpi4py", "packages/torch_mpi4py/torch_mpi4py", "packages/torch_mpi4py/README.md"),
)
COPIED = (
    "README.md",
    "CONTRIBUTING.md",
    "CODE_OF_CONDUCT.md",
    "CHANGELOG.md",
    "CITATION.cff",
    "LICENSE",
    "data/README.md",
    "tests/README.md",
)
FOLDERS = {
    "decisions": "Decisions",
    "teaching": "For instructors",
    "lessons": "Lesson by lesson",
    "maintainers": "For maintainers",
    "several-machines": "Several machines",
}


def write_sources(folder: Path) -> None:
    """Write all pages into `folder`, which is emptied first."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    shutil.copytree(ROOT / "docs" / "site", folder, dirs_exist_ok=True)
    for name in [*COPIED, *(readme for _, _, readme in PACKAGES)]:
        _write(folder / name, site_links((ROOT / name).read_text(encoding="utf-8")))
    _documents(folder)
    _lessons(folder)
    _api(folder / "api")
    _write(folder / "study.md", study_page())


def _documents(folder: Path) -> None:
    """Copy `docs/` with its pictures; write a list of the pages of each folder in it."""
    docs = ROOT / "docs"
    for path in sorted(docs.rglob("*")):
        inside = path.relative_to(docs)
        if inside.parts[0] in ("site", "slides") or not path.is_file():
            continue
        (folder / "docs" / inside).parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".md":
            _write(folder / "docs" / inside, site_links(path.read_text(encoding="utf-8")))
        else:
            shutil.copy(path, folder / "docs" / inside)
    inner = [path for path in (folder / "docs").rglob("*") if path.is_dir()]
    for each in sorted(inner, reverse=True):  # a folder after those inside it
        pages = [page for page in each.glob("*.md") if page.stem != "index"]
        pages.sort(key=lambda page: (page.stem != "README", page.name))
        pages += sorted(each.glob("*/index.md"))
        if pages:
            title = FOLDERS.get(each.name, each.name.replace("_", " ").capitalize())
            _write(each / "index.md", folder_index(title, pages))


def _lessons(folder: Path) -> None:
    lessons = find_lessons()
    for lesson in lessons:
        _write(folder / "notebooks" / lesson.path.name, nbformat.writes(lesson_page(lesson)) + "\n")
    _write(folder / "notebooks" / "index.md", course_map(lessons))
    _write(folder / "exercises.md", exercises_page(lessons))


def _api(folder: Path) -> None:
    packages = list[tuple[str, str, list[Module]]]()
    for name, where, readme in PACKAGES:
        found = [module for module in modules(ROOT / where) if has_page(module)]
        packages.append((name, f"../{readme}", found))
        for module in found:
            _write(folder / f"{module.name}.md", module_page(module))
    _write(folder / "index.md", api_index(packages))


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the sources into the folder named on the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m course.tools.site", description="Write the site's sources."
    )
    parser.add_argument("folder", nargs="?", type=Path, default=BUILD / "site" / "source")
    folder = parser.parse_args(arguments).folder
    write_sources(folder)
    print(f"{sum(path.is_file() for path in folder.rglob('*'))} files in {folder}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
