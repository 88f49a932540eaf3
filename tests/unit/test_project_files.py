"""The files that say what the project is, and the doors to it: they agree with each other and the lock."""

import json
import os
import re
import tomllib
from pathlib import Path
from types import SimpleNamespace

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
FACTS = {  # numbers that several pages say, and the ways in which they say them
    "minutes of make course": (r"(\d+) minutes (?:in all )?on 2 cores",),
    "free memory": (r"(\d+) GB of free memory",),
    "free disk": (r"(\d+) GB of (?:free )?disk\b",),
    "memory of a hub's learner": (r"(\d+) GB per learner", r"seat is limited to (\d+) GB"),
    "the most in lesson 07": (r"all of lesson 07 \| (\S+) GB", r"\[(\S+) GB at most\]", r"07 takes (\S+) GB"),
    "newest Python": (r"3\.11 to (3\.\d+)",),
    "MB to download": (r"\| about (\d+) MB", r"downloads about (\d+) MB", r"laptops × (\d+) MB"),
}


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


def test_the_readme_is_short_and_its_map_adds_up_the_minutes_of_all_lessons() -> None:
    text, minutes = read("README.md"), lesson_minutes()
    assert len(text.split()) <= 600
    parts = re.findall(r"\| (\d\d)–(\d\d) \|", text)
    assert [n for a, b in parts for n in range(int(a), int(b) + 1)] == list(range(len(minutes)))
    for a, b in parts:
        lessons = [minutes[number] for number in minutes if a <= number <= b]
        core, more = sum(each[0] for each in lessons), sum(sum(each[1:]) for each in lessons)
        assert f"| {a}–{b} | {core} + {more} |" in text


@pytest.mark.parametrize("fact", FACTS)
def test_pages_agree_on_a_number(fact: str) -> None:
    found = [
        (page, number) for page in PAGES for way in FACTS[fact] for number in re.findall(way, read(page))
    ]
    assert len({page for page, _ in found}) > 1 and len({number for _, number in found}) == 1, found


@pytest.mark.parametrize("page", PAGES)
def test_every_link_of_a_page_leads_to_a_file(page: str) -> None:
    folder = (ROOT / page).parent
    assert [link for link in LINK.findall(read(page)) if not (folder / link).exists()] == []


def test_a_workspace_in_the_cloud_is_set_up_by_make() -> None:
    container = json.loads(read(".devcontainer/devcontainer.json"))
    assert container["onCreateCommand"] == "make setup"
    assert "--shm-size=1g" in container["runArgs"] and 8888 in container["forwardPorts"]
    start = container["postStartCommand"]
    assert os.access(ROOT / start, os.X_OK) and container["postAttachCommand"] == f"{start} address"
    assert not any("jupyter" in each for each in container["customizations"]["vscode"]["extensions"]), (
        "it would open notebooks/, not the learner's copy"
    )
    dockerfile = read(".devcontainer/Dockerfile")
    assert re.search(r"^FROM python:3\.1[1-4]-", dockerfile, re.MULTILINE)
    assert f"--uid 1000 --create-home --shell /bin/bash {container['remoteUser']}" in dockerfile


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


class Settings(SimpleNamespace):
    """What a configuration sets: any section, any trait."""

    def __getattr__(self, name: str) -> "Settings":
        if name.startswith("__"):
            raise AttributeError(name)
        section = Settings()
        setattr(self, name, section)
        return section


def settings(path: Path) -> Settings:
    found = Settings()
    exec(compile(path.read_text(), str(path), "exec"), {"get_config": lambda: found})
    return found


def test_a_container_of_a_hub_may_do_no_more_than_one_of_compose() -> None:
    compose = yaml.safe_load(read("compose.yaml"))["services"]["course"]
    host = settings(ROOT / "docs" / "hub" / "containers.py").DockerSpawner.extra_host_config
    for name in ("cap_drop", "security_opt", "pids_limit", "shm_size", "read_only"):
        assert host[name] == compose[name], name
    assert [f"{place}:{options}" for place, options in host["tmpfs"].items()] == compose["tmpfs"]


@pytest.mark.parametrize("name", ["one_install.py", "containers.py"])
def test_every_learner_of_a_hub_has_limits_and_downloads_nothing(name: str) -> None:
    found = settings(ROOT / "docs" / "hub" / name)
    spawner = found.Spawner if name == "one_install.py" else found.DockerSpawner
    assert spawner.mem_limit == "4G" and spawner.cpu_limit == 2
    assert spawner.environment["COURSE_OFFLINE"] == "1"


@pytest.mark.parametrize("name", ["one_install.py", "containers.py"])
def test_a_hub_says_who_may_log_in_and_only_where_passwords_are_the_hosts(name: str) -> None:
    found = settings(ROOT / "docs" / "hub" / name)
    assert found.PAMAuthenticator.allow_all is True
    assert not found.Authenticator.__dict__, "with another authenticator it would admit strangers"


def test_a_hubs_container_does_not_inherit_a_health_check_that_asks_at_another_address() -> None:
    assert "http://127.0.0.1:8888/api'" in read("Dockerfile")
    assert "\nHEALTHCHECK NONE\n" in read("docs/hub/Dockerfile")
