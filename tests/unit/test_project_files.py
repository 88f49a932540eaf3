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
PAGES = (
    "README.md",
    "docs/set-up.md",
    "CONTRIBUTING.md",
    "CODE_OF_CONDUCT.md",
    "docs/doors.md",
    "docs/progress.md",
)


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_the_four_packages_and_the_citation_have_one_version() -> None:
    versions = {tomllib.loads(read(f"{folder}/pyproject.toml"))["project"]["version"] for folder in PROJECTS}
    citation = yaml.safe_load(read("CITATION.cff"))
    assert versions == {citation["version"]}
    assert {"cff-version", "message", "title", "authors"} <= set(citation)


def test_the_first_screen_shows_the_ranks_the_commands_and_the_lessons_in_this_order() -> None:
    text = read("README.md")
    parts = [
        "ranks_live.png",
        "git clone ",
        "make course ",
        "make lab ",
        "## Lessons",
        "## For instructors",
        "## Use the parts",
    ]
    places = [text.index(part) for part in parts]
    assert places == sorted(places)
    assert text[: places[1]].count("\n") < 12
    rows = re.findall(r"^\| (\d\d) \| \[.*?\]\(notebooks/(\S+?)\)", text, re.MULTILINE)
    assert [name for _, name in rows] == sorted(path.name for path in (ROOT / "notebooks").glob("*.ipynb"))


def test_the_readme_is_short_and_has_the_minutes_of_each_lesson() -> None:
    text = read("README.md")
    assert len(re.findall(r"[A-Za-z]{2,}", re.sub(r"\]\([^)]*\)|```.*?```", "", text, flags=re.DOTALL))) < 750
    rows = dict(re.findall(r"^\| (\d\d) \| .*? \| (\d+ \+ \d+) \|", text, re.MULTILINE))
    said = re.compile(r"core (\d+) min · more (\d+) min")
    headers = {path.name[:2]: said.search(path.read_text()) for path in (ROOT / "notebooks").glob("*.ipynb")}
    assert rows == {number: f"{found[1]} + {found[2]}" for number, found in headers.items() if found}


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
