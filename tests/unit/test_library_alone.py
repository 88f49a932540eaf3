"""The library stands alone: numpy, torch and mpi4py are all that it needs, and its wheel is enough of it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = [ROOT, ROOT / "packages/mpi_classroom", ROOT / "packages/torch_mpi4py"]

# What stands on a library of its own, which is an extra: it may only be imported where that is installed.
ABOUT_AN_EXTRA = {"course_lib.parallel.ddp"}

IMPORT_ALL = """
import importlib, importlib.metadata, pkgutil, re, sys

NEEDED = {"numpy", "torch", "mpi4py"}
OURS = {"course_lib"}

def modules_of(distribution):
    \"\"\"The top-level modules of a distribution and of what it needs, without extras.\"\"\"
    def same(name):
        return name.lower().replace("_", "-")

    found, asked = set(), [distribution]
    while asked:
        name = same(asked.pop())
        try:
            metadata = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue  # for another platform
        if name in found:
            continue
        found.add(name)
        needs = [need for need in metadata.requires or () if "extra ==" not in need]
        asked += [re.match(r"[\\w.-]+", need)[0] for need in needs]
    by_module = importlib.metadata.packages_distributions()
    return {module for module, owners in by_module.items() if found & set(map(same, owners))}

ALLOWED = set(sys.stdlib_module_names) | OURS
for name in NEEDED:
    ALLOWED |= modules_of(name)

class Refused:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in ALLOWED and not name.startswith("_sysconfigdata_"):  # sysconfig's
            raise ModuleNotFoundError(f"{name} is none of the library's dependencies", name=name)

sys.meta_path.insert(0, Refused())
import course_lib
for module in pkgutil.walk_packages(course_lib.__path__, "course_lib."):
    if module.name not in set(sys.argv[1:]):
        importlib.import_module(module.name)
        print(module.name)
"""


def test_every_module_is_imported_with_numpy_torch_and_mpi4py_alone() -> None:
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL, *ABOUT_AN_EXTRA], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.split()) > 50


IMPORT_WHEELS = """
import importlib, pathlib, pkgutil, sys
folder = pathlib.Path(sys.argv[1])
for name in ("course_lib", "mpi_classroom", "torch_mpi4py"):
    package = importlib.import_module(name)
    for module in pkgutil.walk_packages(package.__path__, name + "."):
        if not module.name.endswith("__main__"):
            found = importlib.import_module(module.name)
            assert pathlib.Path(found.__file__).is_relative_to(folder), found.__file__
from course_lib.data.cifar10 import load_cifar10
from course_lib.data.mnist import load_mnist
print(len(load_mnist().train_labels) > 0, len(load_cifar10().train_labels) > 0)
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_wheels_are_whole_outside_of_the_checkout(tmp_path: Path) -> None:
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    build = [*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(tmp_path / "wheels")]
    subprocess.run([*build, *map(str, PACKAGES)], check=True, timeout=300)
    wheels = [str(path) for path in (tmp_path / "wheels").glob("*.whl")]
    assert len(wheels) == 3
    target = tmp_path / "site"
    subprocess.run([*pip, "install", "--no-deps", "--no-index", "--target", str(target), *wheels], check=True)
    environment = {**os.environ, "PYTHONPATH": str(target), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    environment.pop("COURSE_DATA", None)
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_WHEELS, str(target)],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0 and done.stdout.split() == ["True", "True"], done.stdout + done.stderr
