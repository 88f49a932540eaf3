"""The files that say what the project is, and the doors to it: they agree with each other and the lock."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

from course.paths import ROOT
from course.tools.pins import HUBS, LOCK, PROJECTS, pins

LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)\s#]+)")
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for pattern in ("*.md", "course_lib/*.md", "data/*.md", "docs/**/*.md", "packages/*/*.md", "tests/*.md")
    for path in ROOT.glob(pattern)
    if "site" not in path.parts  # whose links are the website's
)


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_the_four_packages_and_the_citation_have_one_version() -> None:
    versions = {tomllib.loads(read(f"{folder}/pyproject.toml"))["project"]["version"] for folder in PROJECTS}
    citation = yaml.safe_load(read("CITATION.cff"))
    assert versions == {citation["version"]}
    assert {"cff-version", "message", "title", "authors"} <= set(citation)


def lesson_minutes() -> dict[str, list[int]]:
    """The minutes of each lesson's core and More, as its header says; an elective has no More."""
    said = re.compile(r"core (\d+) min(?: · more (\d+) min)?")
    found = {path.name[:2]: said.search(path.read_text()) for path in (ROOT / "notebooks").glob("*.ipynb")}
    return {
        number: [int(each) for each in match.groups() if each] for number, match in found.items() if match
    }


def test_the_list_of_lessons_has_every_notebook_with_its_minutes() -> None:
    rows = re.findall(
        r"^\| (\d\d) \| \[.*?\]\(\S+/(\S+?)\) \| ([\d +]+) \|", read("docs/lessons.md"), re.MULTILINE
    )
    assert [name for _, name, _ in rows] == sorted(path.name for path in (ROOT / "notebooks").glob("*.ipynb"))
    expected = {number: " + ".join(map(str, found)) for number, found in lesson_minutes().items()}
    assert {number: minutes for number, _, minutes in rows} == expected


def test_the_map_of_the_readme_adds_up_the_minutes_of_all_lessons() -> None:
    text, minutes = read("README.md"), lesson_minutes()
    parts = re.findall(r"\| (\d\d)–(\d\d) \|", text)
    assert [n for a, b in parts for n in range(int(a), int(b) + 1)] == list(range(len(minutes)))
    for a, b in parts:
        lessons = [minutes[number] for number in minutes if a <= number <= b]
        core, more = sum(each[0] for each in lessons), sum(sum(each[1:]) for each in lessons)
        assert f"| {a}–{b} | {core} + {more} |" in text


@pytest.mark.parametrize("page", PAGES)
def test_every_link_of_a_page_leads_to_a_file(page: str) -> None:
    folder = (ROOT / page).parent
    assert [link for link in LINK.findall(read(page)) if not (folder / link).exists()] == []


@pytest.mark.parametrize(("lock", "wanted"), HUBS.items(), ids=["6", "5"])
def test_what_a_hub_needs_is_pinned_with_digests_and_is_no_second_version_of_anything(
    lock: Path, wanted: Path
) -> None:
    text = lock.read_text()
    hub, course = pins(text, everywhere=True), pins(LOCK.read_text(), everywhere=True)
    assert not set(hub) & set(course)
    assert Requirement(wanted.read_text().splitlines()[-1]).specifier.contains(hub["jupyterhub"])
    assert len(re.findall(r"^[a-z0-9].*\\\n(?: +--hash=sha256:[0-9a-f]{64}\b)", text, re.MULTILINE)) == len(
        hub
    )
    assert "--require-hashes" in read("docs/hub/Dockerfile")
