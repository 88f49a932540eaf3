"""Write the bundle: a folder that installs the course where there is no network.

Its packages are those of `requirements.lock`: pip downloads them for each system and Python that was asked
for, and refuses a file whose digest is not in the lock. pip's own settings hold, so a mirror or a folder of
wheels works as it does for `make setup`. `sha256.txt` comes last: a bundle without it was interrupted.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator, Sequence
from datetime import date
from importlib.metadata import version
from pathlib import Path

from packaging.requirements import Requirement

from course.paths import ROOT
from course.tools.bundle import install
from course.tools.pins import ACCELERATOR, LOCK, PIP_LOCK, PYTHONS, blocks, environments
from course.version import MADE_FROM, made_from
from course_lib.data import cifar10, mnist
from course_lib.data.downloads import find_file, read_registry
from mpi_classroom.errors import CourseError

# What the course needs to run: what the image has, and what `make lab` reads.
COURSE_FILES = (
    "CHANGELOG.md",
    "LICENSE",
    "Makefile",
    "README.md",
    "benchmarks",
    "course",
    "course_lib",
    "data",
    "docs",
    "notebooks",
    "packages",
    "pyproject.toml",
    "requirements-hub-5.lock",
    "requirements-hub.lock",
    "requirements.lock",
)
MADE_HERE = {"__pycache__", ".ipynb_checkpoints", ".mypy_cache", ".pytest_cache", ".ruff_cache"}
DOWNLOADED = {f"data/{name}" for name in ("cache", "mnist", "cifar10", "cnn_dailymail")}
PARTS = ("wheels", "data", "image", "bundle.json", "course.zip", "install.py", "README.txt", "sha256.txt")
SYSTEMS = {  # as markers see them
    "linux-x86_64": ("linux", "x86_64"),
    "linux-aarch64": ("linux", "aarch64"),
    "macos-arm64": ("darwin", "arm64"),
}
MACOS = "macosx_14_0_arm64"  # the newest macOS that a wheel may ask for
DATA_SETS = ("mnist", "cifar10")
UNPACKED = 6  # a package without a wheel takes so many times its archive, once it is built
COMPILED = 1.4  # Python keeps what it compiled, and the last block of each file is not full
Show = Callable[[str], object]


class BundleError(CourseError):
    """The bundle cannot be written: what is wrong, and what to do."""


def make_bundle(
    folder: Path,
    *,
    systems: Sequence[str] = (),
    pythons: Sequence[str] = (),
    data: Sequence[str] = (),
    image: Path | None = None,
    torch_index: str = "",
    show: Show = print,
) -> None:
    """Write the bundle into `folder`, which is new, empty or an earlier bundle.

    `systems` are names of SYSTEMS and `pythons` versions such as 3.11; none: those of this machine. `data`
    names data sets that are on this machine; `image` is a saved container image. Raises BundleError.
    """
    targets = [
        (s, p) for s in systems or [install.this_platform()] for p in pythons or [install.this_python()]
    ]
    check_wishes(targets, data, image)
    sets = {name: files_of_set(name) for name in dict.fromkeys(data)}
    clear(folder)
    manifest: dict[str, object] = {"course": version("course-lib"), "made": date.today().isoformat()}
    show("The course …")
    nbytes = pack_course(folder / "course.zip")
    entries = []
    for system, python in targets:
        show(f"Packages for {system} and Python {python} …")
        files = download(folder / "wheels", system, python, torch_index or default_index())
        needed = nbytes + sum(size_installed(folder / "wheels" / name) for name in files)
        entries.append({"platform": system, "python": python, "nbytes": needed, "files": files})
    for name, paths in sets.items():
        copy_all(paths, folder / "data" / name)
    if image:
        copy_all([image], folder / "image")
    (folder / "bundle.json").write_text(json.dumps(manifest | {"targets": entries}, indent=1) + "\n")
    shutil.copyfile(install.__file__, folder / "install.py")
    (folder / "README.txt").write_text(readme(targets, list(sets), image))
    write_digests(folder)


def check_wishes(targets: Sequence[tuple[str, str]], data: Sequence[str], image: Path | None) -> None:
    """Raise BundleError for a system, Python, data set or image that there is not."""
    for system, python in targets:
        if system not in SYSTEMS:
            raise BundleError(f"there are no packages for {system}; choose from {', '.join(SYSTEMS)}")
        if python not in PYTHONS:
            raise BundleError(f"the course is not for Python {python}; choose from {', '.join(PYTHONS)}")
    if unknown := set(data) - set(DATA_SETS):
        raise BundleError(f"there is no data set {unknown.pop()} to add; choose from {', '.join(DATA_SETS)}")
    if image and not image.is_file():
        raise BundleError(f"{image} is not a file; write it with: docker save mpi-course | gzip > {image}")


def clear(folder: Path) -> None:
    """Make an empty folder of an earlier bundle; BundleError when it holds something else."""
    folder.mkdir(parents=True, exist_ok=True)
    others = {path.name for path in folder.iterdir()} - set(PARTS)
    if others:
        raise BundleError(f"{folder} holds {sorted(others)[0]}, which is no part of a bundle; name another")
    for path in folder.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()


# -------------------------------------------------------------------- the course and its data


def course_files(root: Path = ROOT) -> Iterator[Path]:
    """The files of the course in a checkout, without what was made or downloaded there."""
    for name in COURSE_FILES:
        for path in sorted((root / name).rglob("*")) if (root / name).is_dir() else [root / name]:
            inside = path.relative_to(root)
            downloaded = "/".join(inside.parts[:2]) in DOWNLOADED
            if path.is_file() and not MADE_HERE & set(inside.parts) and not downloaded:
                yield path


def pack_course(archive: Path, root: Path = ROOT) -> int:
    """Write the course's files into a zip; the bytes that they take unpacked."""
    nbytes = 0
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as target:
        for path in course_files(root):
            target.write(path, path.relative_to(root).as_posix())
            nbytes += path.stat().st_size
        target.writestr(MADE_FROM, made_from(root, course_files(root)))
    return nbytes


def files_of_set(name: str) -> list[Path]:
    """The files of a data set on this machine; BundleError when it is not here."""
    found: list[Path] = []
    if name == "mnist":
        wanted = read_registry("mnist")
        folder = mnist.find(wanted)
        found = [path for file in wanted.files if folder and (path := find_file(folder, file))]
    elif source := cifar10.find():
        train, test = cifar10.known_batches()
        batches = [path for batch in (*train, test) if (path := source.file(batch))]
        found = batches if source.path.is_dir() else [source.path]
    if not found:
        raise BundleError(f"{name} is not on this machine; get it first: course fetch {name}")
    return found


def copy_all(paths: Sequence[Path], folder: Path) -> None:
    """Copy files into a folder that may not exist yet."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in paths:
        shutil.copyfile(path, folder / path.name)


# -------------------------------------------------------------------- packages


def default_index() -> str:
    """Where `make setup` looks for PyTorch's CPU build."""
    return re.findall(r"^TORCH_INDEX \?= (\S+)", (ROOT / "Makefile").read_text(), re.MULTILINE)[0]


def tags(system: str) -> list[str]:
    """The platforms of the wheels that run on `system`, as pip names them, the newest first.

    For Linux they begin with the glibc that PyTorch's wheels need: a bundle that is made on a new system then
    installs on an older one, too.
    """
    sys_platform, machine = SYSTEMS[system]
    if sys_platform == "darwin":
        return [MACOS]
    named = [f"manylinux_2_{minor}_{machine}" for minor in range(install.GLIBC[1], 4, -1)]
    return [*named, *(f"manylinux{year}_{machine}" for year in ("2014", "2010", "1"))]


def environment_of(system: str, python: str) -> dict[str, str]:
    """A target as markers see it."""
    wanted = SYSTEMS[system]
    return next(
        each
        for each in environments()
        if (each["sys_platform"], each["platform_machine"]) == wanted and each["python_version"] == python
    )


def wanted_pins(lock: str, system: str, python: str) -> str:
    """The learners' part of a lock for one target: its pins without markers, and their digests."""
    environment = environment_of(system, python)
    _, _, learners = install.requirements(lock)
    lines = []
    for pin, digests in blocks(learners):
        wants = Requirement(pin)
        if wants.marker is None or wants.marker.evaluate(environment):
            lines.append(f"{wants.name}{wants.specifier} \\\n{digests}")
    return "\n".join(lines) + "\n"


def download(folder: Path, system: str, python: str, torch_index: str) -> list[str]:
    """Let pip put a target's packages into `folder`; their names. BundleError when pip cannot."""
    folder.mkdir(exist_ok=True)
    fresh = folder.with_name("wheels.part")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir()
    try:
        lock = LOCK.read_text()
        pip = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--no-deps"]
        pip += ["--no-build-isolation", "--dest", str(fresh), "--implementation", "cp"]
        pip += ["--python-version", python, *(f"--platform={tag}" for tag in tags(system))]
        torch = install.requirements(lock)[0]
        run([*pip, "--retries", "1", "--timeout", "20", "--extra-index-url", torch_index, torch])
        check_torch(next(fresh.iterdir()), environment_of(system, python))
        pins = fresh / "pins.txt"
        pins.write_text(wanted_pins(lock, system, python))
        run([*pip, "--require-hashes", "--requirement", str(pins)])
        run([*pip, "--require-hashes", "--requirement", str(PIP_LOCK)])
        pins.unlink()
        names = sorted(path.name for path in fresh.iterdir())
        for name in names:
            os.replace(fresh / name, folder / name)
        return names
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def run(command: Sequence[str]) -> None:
    """Run pip; BundleError with its reason when it fails."""
    ran = subprocess.run(command, text=True, capture_output=True)
    if ran.returncode:
        raise BundleError(f"pip could not download the packages: {install.reason(ran.stderr)}")


def check_torch(wheel: Path, environment: dict[str, str]) -> None:
    """Raise BundleError when a build of PyTorch needs packages for an accelerator: no bundle has them."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        text = archive.read(name).decode()
    for line in re.findall(r"^Requires-Dist: (.+)", text, re.MULTILINE):
        wants = Requirement(line)
        needed = wants.marker is None or wants.marker.evaluate(environment | {"extra": ""})
        if needed and wants.name.startswith(ACCELERATOR):
            raise BundleError(
                f"pip found a build of PyTorch for an accelerator ({wheel.name}); name an index that has "
                "the CPU build: --torch-index ADDRESS"
            )


def size_installed(package: Path) -> int:
    """About how many bytes a wheel, or an archive of sources, takes once it is installed."""
    if package.suffix != ".whl":
        return UNPACKED * package.stat().st_size
    with zipfile.ZipFile(package) as archive:
        return int(COMPILED * sum(entry.file_size for entry in archive.infolist()))


# -------------------------------------------------------------------- what the folder says of itself


def readme(targets: Sequence[tuple[str, str]], data: Sequence[str], image: Path | None) -> str:
    """The words for whoever finds the folder on a stick."""
    lines = [
        "How large models are trained: a hands-on course. This folder installs it without a network.",
        "",
        "    python3 install.py             into ~/mpi-course, about 2 GB",
        "    python3 install.py FOLDER      into another folder of this computer's own disk",
        "    python3 install.py --check     only check that no file of this folder is damaged",
        "",
        "It is for: " + "; ".join(f"{system} with Python {python}" for system, python in targets) + ".",
    ]
    if data:
        lines.append(f"Data sets, which others have published: {', '.join(data)}.")
    if image:
        lines += ["", f"With Docker instead of Python: docker load --input image/{image.name}"]
    return "\n".join(lines) + "\n"


def write_digests(folder: Path) -> None:
    """Write sha256.txt, which `sha256sum --check sha256.txt` reads, too."""
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    lines = [f"{install.sha256(folder / name)}  {name}\n" for name in names]
    (folder / "sha256.txt").write_text("".join(lines))


def total_bytes(folder: Path) -> int:
    """What the whole folder takes."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
