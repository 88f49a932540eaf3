"""One list of exact versions with digests, and every way to install the course follows it."""

import importlib.metadata
import re
import subprocess
import sys
import tomllib

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from course.paths import ROOT
from course.tools.licences import PAGE, licence
from course.tools.pins import (
    APART,
    CONDA,
    DEVELOPERS,
    LOCK,
    NOT_FOR_THE_SITE,
    PIP_LOCK,
    PIP_WANTED,
    PROJECTS,
    SITE_LOCK,
    SITE_WANTED,
    blocks,
    conda,
    environments,
    pins,
    wanted,
)

RESOLVED = """\
one==1.0 ; python_full_version < '3.15' and (sys_platform == 'darwin' or sys_platform == 'linux') \\
    --hash=sha256:{a} \\
    --hash=sha256:{b}
older==2.0 ; python_full_version < '3.12' \\
    --hash=sha256:{a}
windows==3.0 ; sys_platform == 'win32' \\
    --hash=sha256:{a}
nvidia-cublas==4.0 ; sys_platform == 'linux' \\
    --hash=sha256:{a}
""".format(a="a" * 64, b="b" * 64)


def lock() -> str:
    return LOCK.read_text()


def installs(file: str) -> str:
    """What installs the course in a file, its continued lines joined; of a Makefile, the recipe of setup."""
    text = (
        (ROOT / file)
        .read_text()
        .replace("\\\n", " ")
        .replace("$(PIP)", "pip install")
        .replace("$(LOCKED)", "pip install")
    )
    return text.partition("\n$(READY):")[2].partition("@touch")[0] or text


def without_digest(text: str) -> list[str]:
    """The pins in the text of a lock that name no digest."""
    found = re.findall(r"^([a-z0-9][\w.-]*==\S+)([^\n]*(?:\n +[^\n]+)*)", text, re.MULTILINE)
    return [pin for pin, rest in found if not re.search(r"--hash=sha256:[0-9a-f]{64}\b", rest)]


def test_every_pin_has_digests_but_for_torch_which_is_named_apart() -> None:
    assert without_digest(lock()) == []
    assert re.findall(r"^# (\w+)==\S+$", lock(), re.MULTILINE) == [APART]


def test_markers_that_always_hold_go_and_so_do_other_platforms_and_accelerators() -> None:
    assert [pin for pin, _ in blocks(RESOLVED)] == ["one==1.0", "older==2.0 ; python_full_version < '3.12'"]
    assert dict(blocks(RESOLVED))["one==1.0"].count("--hash=sha256:") == 2
    assert {each["sys_platform"] for each in environments()} == {"linux", "darwin"}


def test_no_installed_package_lacks_another_and_the_part_for_developers_is_apart() -> None:
    check = [sys.executable, "-m", "pip", "check", "--disable-pip-version-check"]
    done = subprocess.run(check, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    learners = pins(lock().partition(DEVELOPERS)[0])
    assert "ruff" not in learners and "hatchling" in learners


@pytest.mark.parametrize("folder", PROJECTS)
def test_the_build_system_is_pinned_alike(folder: str) -> None:
    project = tomllib.loads((ROOT / folder / "pyproject.toml").read_text())
    assert project["build-system"]["requires"] == [f"hatchling=={pins(lock())['hatchling']}"]


def unbounded(lines: list[str], pinned: dict[str, str]) -> list[str]:
    """The requirements without a lower or an upper bound, or whose bounds exclude the pinned version."""
    found = []
    for requirement in map(Requirement, lines):
        kinds = {each.operator for each in requirement.specifier}
        if "==" not in kinds and not {">=", "<"} <= kinds:
            found.append(str(requirement))
        elif not requirement.specifier.contains(pinned[requirement.name]):
            found.append(f"{requirement} excludes {pinned[requirement.name]}")
    return found


def test_every_dependency_has_bounds_that_hold_the_pinned_version() -> None:
    assert unbounded(wanted(), pins(lock())) == []


def complaints(text: str) -> list[str]:
    """What is wrong with a file that installs the course; each `pip install` is one line of it."""
    found = []
    for line in re.findall(r"pip install[^\n]*?(?=&&|\n|$)", text):
        if re.search(r"torch==\S|[$({]torch|\$\(TORCH\)", line):
            continue
        if "--editable" in line:
            kinds = {"--no-deps", "--no-build-isolation"}
        else:
            kinds = {"--no-deps", "--require-hashes", "--requirement"}
        found += [f"{kind} is missing: {line.strip()}" for kind in sorted(kinds) if kind not in line]
    return found


@pytest.mark.parametrize("file", ["Makefile", "Dockerfile"])
def test_every_way_to_install_demands_digests(file: str) -> None:
    assert installs(file).count("--require-hashes") >= 2
    for folder in PROJECTS:
        assert f"--editable {folder} " in installs(file).replace("\n", " "), folder
    assert complaints(installs(file)) == []
    assert "(torch==.*" in (ROOT / file).read_text(), "PyTorch's version comes from the lock"


def makefiles_index() -> str:
    return re.findall(r"TORCH_INDEX \?= (\S+)", (ROOT / "Makefile").read_text())[0]


def test_docker_gets_torch_from_the_same_place_as_make() -> None:
    assert f"ARG TORCH_INDEX={makefiles_index()}\n" in (ROOT / "Dockerfile").read_text()


def test_a_bundles_pip_is_pinned_with_digests_and_is_a_wheel_everywhere() -> None:
    assert list(pins(PIP_LOCK.read_text())) == ["pip"] and without_digest(PIP_LOCK.read_text()) == []
    assert Requirement(PIP_WANTED).specifier.contains(pins(PIP_LOCK.read_text())["pip"])


def test_conda_alone_gives_the_course_in_the_versions_of_the_lock() -> None:
    text = CONDA.read_text()
    assert text == conda(text, lock()), "run make lock"
    assert conda(text, lock().replace("jupyterlab==", "jupyterlab==9")) != text
    *_, last = yaml.safe_load(text)["dependencies"]
    index, *lines = last["pip"]
    assert f"--extra-index-url {makefiles_index()}" == index
    (ours, theirs) = (
        [line for line in lines if editable == line.startswith("--editable ")] for editable in (1, 0)
    )
    assert {line.partition(" ")[2] for line in ours} == set(PROJECTS)
    names_of = {Requirement(line).name for line in theirs}
    assert names_of == set(pins(lock().partition(DEVELOPERS)[0], everywhere=True))


def test_every_pin_installs_on_debian_12s_own_python() -> None:
    excluding = []
    for name in pins(lock()):
        requires = importlib.metadata.distribution(name).metadata.get("Requires-Python")
        if requires and not SpecifierSet(requires).contains("3.11.2"):
            excluding.append(f"{name} wants Python {requires}")
    assert excluding == []


def test_the_licences_of_all_pins_are_listed() -> None:
    rows = re.findall(r"^\| (\S+) \| (\S+) \| (\S.*) \|$", PAGE.read_text(), re.MULTILINE)
    rows = [row for row in rows if row[0] != "package"]
    assert {name: version for name, version, _ in rows} == pins(lock(), everywhere=True)
    said = {name: text for name, _, text in rows}
    assert {name: text for name, text in said.items() if "GPL" in text and "LGPL" not in text} == {}
    installed = {name: licence(importlib.metadata.metadata(name)) for name in pins(lock())}  # type: ignore[arg-type]
    assert {name: said[name] for name in installed} == installed


def test_the_tools_of_the_site_are_pinned_with_digests_and_within_their_bounds() -> None:
    text = SITE_LOCK.read_text()
    found = pins(text, everywhere=True)
    for line in SITE_WANTED.read_text().splitlines():
        if not line.startswith("#"):
            wants = Requirement(line.partition("  #")[0])
            assert wants.specifier.contains(found[wants.name]), line
    assert not set(NOT_FOR_THE_SITE) & set(found)
    assert without_digest(text) == []
