"""One list of exact versions, and every way to install the course follows it."""

import importlib.metadata
import platform
import re
import sys

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from course.paths import ROOT
from course.tools.pins import ACCELERATOR, OURS, NotInstalledError, closure

REFERENCE = (sys.version_info[:2] == (3, 11), sys.platform == "linux", platform.machine() == "x86_64")


def constraints() -> dict[str, str]:
    """The pins of constraints.txt."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [re.fullmatch(r"([a-z0-9]+(?:-[a-z0-9]+)*)==([\w.!]+)", line) for line in lines]
    assert all(pins), "every line of constraints.txt must be name==version, the name in normal form"
    return {pin[1]: pin[2] for pin in pins if pin}


def complaints(text: str) -> list[str]:
    """What is wrong with a file that installs the course: no constraints, or a version that differs."""
    found = [] if re.search(r"(?:--constraint|-c)[ =]\S*constraints\.txt", text) else ["no constraints"]
    for name, version in re.findall(r"([A-Za-z0-9][A-Za-z0-9_-]*)==([0-9][\w.]*)", text):
        if constraints().get(name.lower().replace("_", "-")) != version:
            found.append(f"{name}=={version}")
    return found


def test_constraints_are_sorted_and_say_each_package_once() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    assert lines == sorted(set(lines), key=lambda line: line.partition("==")[0])
    assert len(constraints()) == len(lines)


def test_what_is_installed_is_what_the_constraints_say() -> None:
    installed, pinned = closure(), constraints()
    assert {name: installed[name] for name in installed if name in pinned} == {
        name: pinned[name] for name in installed if name in pinned
    }


@pytest.mark.skipif(not all(REFERENCE), reason="constraints.txt is made with Python 3.11 on Linux, x86-64")
def test_the_constraints_pin_the_whole_closure_and_nothing_else() -> None:
    assert closure() == constraints()


def test_the_closure_follows_extras_and_leaves_the_course_itself_out() -> None:
    pins = closure()
    assert not set(OURS) & set(pins)
    assert "ruff" in pins and "ruff" not in closure(("course",))
    assert not any(name.startswith(ACCELERATOR) for name in pins)
    assert not any("+" in version for version in pins.values())
    assert closure(("idna",)) == {"idna": pins["idna"]}


def test_a_package_that_is_missing_is_named() -> None:
    with pytest.raises(NotInstalledError, match=r"no-such-package is not installed; run make setup"):
        closure(("no_such.package",))


def test_the_build_system_is_pinned_alike() -> None:
    for folder in (".", "course", "packages/mpi_classroom", "packages/torch_mpi4py"):
        text = (ROOT / folder / "pyproject.toml").read_text()
        wanted = [Requirement(line) for line in re.findall(r'requires = \["(.+?)"\]', text)]
        assert [str(each) for each in wanted] == [f"hatchling=={constraints()['hatchling']}"], folder


@pytest.mark.parametrize("file", ["Makefile", "Dockerfile", "environment.yml"])
def test_every_way_to_install_uses_the_constraints(file: str) -> None:
    assert complaints((ROOT / file).read_text()) == []


def test_a_file_that_installs_other_versions_would_be_found() -> None:
    torch = constraints()["torch"]
    good = f"pip install --constraint constraints.txt torch=={torch}"
    assert complaints(good) == []
    assert complaints(good.replace(torch, "1.0.0")) == ["torch==1.0.0"]
    assert complaints(f"pip install torch=={torch}") == ["no constraints"]


def test_conda_and_docker_get_torch_from_the_same_place_as_make() -> None:
    index = re.search(r"TORCH_INDEX \?= (\S+)", (ROOT / "Makefile").read_text())
    assert index is not None
    assert f"ARG TORCH_INDEX={index[1]}\n" in (ROOT / "Dockerfile").read_text()
    assert f"--extra-index-url {index[1]}" in (ROOT / "environment.yml").read_text()


def test_conda_brings_a_python_that_the_course_accepts() -> None:
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    (python,) = [each for each in environment["dependencies"] if str(each).startswith("python=")]
    assert re.fullmatch(r"python=+3\.(\d+)(\.\*)?", python), python
    assert int(python.split("3.")[1].split(".")[0]) >= 11


def test_every_pin_installs_on_debian_12s_own_python() -> None:
    excluding = []
    for name in closure():
        requires = importlib.metadata.distribution(name).metadata.get("Requires-Python")
        if requires and not SpecifierSet(requires).contains("3.11.2"):
            excluding.append(f"{name} wants Python {requires}")
    assert excluding == []
