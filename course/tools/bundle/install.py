"""Install the course from this folder, without a network: python3 install.py [FOLDER]

    python3 install.py                 into ~/mpi-course
    python3 install.py ~/workshop      into another folder
    python3 install.py --check         only check every file of this folder against sha256.txt

Whatever is wrong is one sentence. Nothing outside FOLDER is changed. A second run repairs an installation
that was interrupted, brings newer lessons, and never touches my_course/, the learner's own notebooks.

This file runs before anything is installed, and on Pythons that are too old for the course: standard
library only, and no syntax newer than Python 3.6.
"""

import argparse
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
GLIBC = (2, 28)  # what the wheels need: manylinux_2_28
MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
DEVELOPERS = "# What only developers need"


class Trouble(Exception):
    """The course cannot be installed: one sentence that says why, and what helps."""


# -------------------------------------------------------------------- is this the right machine?


def this_platform() -> str:
    """This machine as bundles name it: linux-x86_64, linux-aarch64, macos-arm64, …"""
    machine = platform.machine().lower()
    if platform.system() == "Darwin":
        return "macos-" + machine
    return platform.system().lower() + "-" + MACHINES.get(machine, machine)


def this_python() -> str:
    """The version of Python that runs this: 3.11"""
    return "{}.{}".format(*sys.version_info[:2])


def find_target(targets: list, system: str, python: str, libc: tuple) -> dict:
    """The target of the bundle for this system and Python; Trouble when it has none.

    `libc` is what platform.libc_ver returns: ("glibc", "2.36").
    """
    here = [target for target in targets if target["platform"] == system]
    if not here:
        systems = ", ".join(sorted({target["platform"] for target in targets}))
        raise Trouble(f"This bundle is for {systems}, and this machine is {system}. {other_way(system)}")
    found = [target for target in here if target["python"] == python]
    if not found:
        pythons = [target["python"] for target in here]
        raise Trouble(
            "Python {} runs this, and the bundle is for Python {}. {}".format(
                python, " and ".join(pythons), other_python(pythons)
            )
        )
    if system.startswith("linux"):
        check_libc(libc)
    return found[0]


def other_way(system: str) -> str:
    """What someone can do whose system the bundle is not for."""
    if system.startswith("windows"):
        return "On Windows, run this inside WSL2, or use the container image."
    if system == "macos-x86_64":
        return "PyTorch has no files for Macs with Intel processors any more; use another machine."
    return "Ask for a bundle made with: course bundle --platform " + system


def other_python(pythons: list) -> str:
    """How to start this with a Python that fits."""
    for python in pythons:
        if shutil.which("python" + python):
            return "Start it again: python{} {}".format(python, HERE / "install.py")
    return "Install one of them, or use the container image."


def check_libc(libc: tuple) -> None:
    """Trouble when the C library is not one that the wheels were built for."""
    name, version = libc
    numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:2])
    if name != "glibc" or numbers < GLIBC:
        raise Trouble(
            "The packages need a Linux with glibc {}.{} or newer, and this one has {}; "
            "use the container image.".format(*GLIBC, " ".join(libc).strip() or "another C library")
        )


def check_folder(folder: Path, needed: int) -> None:
    """Trouble when `folder` has too little room, belongs to something else, or cannot hold links."""
    if folder.exists() and not folder.is_dir():
        raise Trouble(f"{folder} is a file; name another folder: python3 install.py FOLDER")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / "requirements.lock").is_file():
        raise Trouble(f"{folder} holds something else; name another: python3 install.py FOLDER")
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(str(folder)).free
    if free < needed:
        raise Trouble(
            f"The course needs {needed / 1e9:.1f} GB in {folder}, and {free / 1e9:.1f} GB are free; "
            "free some, or name a folder on another disk: python3 install.py FOLDER"
        )
    link = folder / ".link"
    try:
        os.symlink("nowhere", str(link))
        link.unlink()
    except OSError:
        raise Trouble(
            f"{folder} cannot hold symbolic links, which Python needs; name a folder on the computer's own "
            "disk: python3 install.py FOLDER"
        ) from None


# -------------------------------------------------------------------- are the files whole?


def digests(bundle: Path) -> dict:
    """The sha256 of every file of the bundle by its name, from sha256.txt; Trouble when it is damaged."""
    try:
        text = (bundle / "sha256.txt").read_text(encoding="utf-8")
    except (OSError, ValueError):
        text = ""
    lines = text.splitlines()
    found = {line[66:]: line[:64] for line in lines if re.match("[0-9a-f]{64}  .", line)}
    if not text.endswith("\n") or len(found) != len(lines):
        raise Trouble("sha256.txt is missing or damaged; copy the bundle again.")
    return found


def check_files(bundle: Path, names: list, known: dict) -> None:
    """Compare the files with their digests; Trouble with the names of those that are damaged."""
    wrong = [name for name in names if sha256(bundle / name) != known.get(name)]
    if wrong:
        more = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        raise Trouble(f"{wrong[0]}{more} is missing or damaged; copy the bundle again.")


def sha256(path: Path) -> str:
    """The digest of a file; empty when it cannot be read."""
    digest = hashlib.sha256()
    try:
        with open(str(path), "rb") as file:
            for block in iter(lambda: file.read(1 << 20), b""):
                digest.update(block)
    except OSError:
        return ""
    return digest.hexdigest()


# -------------------------------------------------------------------- install


def unpack(archive: Path, folder: Path) -> None:
    """Write the course's files over those of an earlier version; what else is in `folder` stays."""
    with zipfile.ZipFile(str(archive)) as source:
        for entry in source.infolist():
            path = Path(source.extract(entry, str(folder)))
            if entry.external_attr >> 16 & 0o100:
                path.chmod(0o755)


def requirements(lock: str) -> tuple:
    """PyTorch's pin, the text of setuptools' pin, and the text of all that learners need."""
    torch = re.findall(r"^# (torch==\S+)", lock, re.MULTILINE)[0]
    learners = lock.partition(DEVELOPERS)[0]
    first = re.findall(r"^setuptools==.*(?:\n +.*)*", learners, re.MULTILINE)[0]
    return torch, first + "\n", learners


def install_packages(bundle: Path, folder: Path) -> None:
    """Make .venv and install everything into it: the recipe of `make setup`, from the bundle's wheels."""
    venv, log = folder / ".venv", folder / "install.log"
    shutil.rmtree(str(venv), ignore_errors=True)
    # Debian and Ubuntu keep the pip of new environments in a package of its own, so the bundle brings one.
    wheel = str(max((bundle / "wheels").glob("pip-*.whl")))
    failure = "Python cannot make a virtual environment"
    run([sys.executable, "-m", "venv", "--without-pip", str(venv)], folder, log, failure)
    torch, first, learners = requirements((folder / "requirements.lock").read_text(encoding="utf-8"))
    (venv / "first.txt").write_text(first, encoding="utf-8")
    (venv / "learners.txt").write_text(learners, encoding="utf-8")
    python = str(venv / "bin" / "python")
    options = ["install", "--isolated", "--no-index", "--no-deps", "--disable-pip-version-check"]
    pip = [python, "-m", "pip", *options, "--no-build-isolation", "--find-links", str(bundle / "wheels")]
    hashed = [*pip, "--require-hashes", "--requirement"]
    ours = ["packages/torch_mpi4py", "packages/mpi_classroom", ".", "course"]
    editable = [word for name in ours for word in ("--editable", name)]
    steps = (
        ("pip", [python, wheel + "/pip", *options, wheel]),
        ("PyTorch", [*pip, torch]),
        ("setuptools", [*hashed, str(venv / "first.txt")]),
        ("the other packages", [*hashed, str(venv / "learners.txt")]),
        ("the course", [*pip, *editable]),
    )
    for what, command in steps:
        say(f"Installing {what} …")
        run(command, folder, log, "pip could not install " + what)


def run(command: list, folder: Path, log: Path, failure: str) -> None:
    """Run a command without pip's settings; Trouble, with the reason that the log gives, when it fails."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "PYTHON"))
    }
    environment["PIP_CONFIG_FILE"] = os.devnull
    with open(str(log), "ab") as file:
        start = file.tell()
        code = subprocess.call(command, cwd=str(folder), env=environment, stdout=file, stderr=file)
    if code:
        text = log.read_bytes()[start:].decode("utf-8", "replace")
        raise Trouble(f"{failure}: {reason(text)} All of it is in {log}")


def reason(text: str) -> str:
    """The cause in what a failed command printed, as a sentence."""
    if "No space left on device" in text or "Disk quota exceeded" in text:
        return "the disk is full; free some space and run this again."
    errors = re.findall(r"^(?:ERROR|Error|.*Error): *(.+)", text, re.MULTILINE)
    return (errors or text.strip().splitlines() or ["it said nothing."])[-1].strip()


def copy_data(bundle: Path, folder: Path) -> None:
    """Put the bundle's data sets where lessons look for them."""
    for source in sorted((bundle / "data").glob("*/*")):
        target = folder / "data" / source.parent.name / source.name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(str(source), str(target))


def say(text: str) -> None:
    """Print a line at once."""
    print(text, flush=True)


def install(bundle: Path, folder: Path) -> None:
    """Check this machine and the bundle's files, then install the course into `folder`. Raises Trouble."""
    known = digests(bundle)
    check_files(bundle, ["bundle.json"], known)
    manifest = json.loads((bundle / "bundle.json").read_text(encoding="utf-8"))
    target = find_target(manifest["targets"], this_platform(), this_python(), platform.libc_ver())
    lock, ready = folder / "requirements.lock", folder / ".venv" / ".ready"
    before = ready.read_text(encoding="utf-8") if ready.is_file() else ""
    check_folder(folder, 0 if before else target["nbytes"])
    data = [name for name in known if name.startswith("data/")]
    names = ["course.zip", *data, *("wheels/" + name for name in target["files"])]
    say(f"Checking {len(names)} files …")
    check_files(bundle, names, known)
    unpack(bundle / "course.zip", folder)
    copy_data(bundle, folder)
    if sha256(lock) == before:
        say("The packages are installed already.")
    else:
        install_packages(bundle, folder)
    # `make lab` finds everything installed, as this is newer than what was unpacked.
    ready.write_text(sha256(lock), encoding="utf-8")
    course = folder / ".venv" / "bin" / "course"
    say(f"\nThe course is in {folder}.")
    say(f"Check this machine:  {course} doctor")
    say(f"Open the lessons:    {course} lab")


def main() -> int:
    """Install, or check; 0 when all went well, else 1 and a sentence."""
    parser = argparse.ArgumentParser(description="Install the course from this folder, without a network.")
    parser.add_argument("folder", nargs="?", default="~/mpi-course", help="where to (default: %(default)s)")
    parser.add_argument("--check", action="store_true", help="only check all files of this bundle")
    arguments = parser.parse_args()
    try:
        if arguments.check:
            known = digests(HERE)
            check_files(HERE, sorted(known), known)
            say(f"All {len(known)} files are as they were written.")
        else:
            install(HERE, Path(os.path.abspath(os.path.expanduser(arguments.folder))))
    except Trouble as trouble:
        print(trouble, file=sys.stderr)
        return 1
    except OSError as error:
        print(
            "{}: {}.".format(error.filename or "The course is not installed", error.strerror), file=sys.stderr
        )
        return 1
    except KeyboardInterrupt:
        print("Stopped. The same command begins again.", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
