"""Every package that the course installs, with the digests of its files: `requirements.lock`.

What the website is made with is apart, in `requirements-site.lock`, and so is what a server of a JupyterHub
needs beside the course, in `requirements-hub.lock` and, for hubs of JupyterHub 5, `requirements-hub-5.lock`:
learners do not install any of these. `pip.lock` is for bundles, and `environment.yml` for conda.

    make lock                 write it again after a change of a pyproject.toml; what may stay, stays
    make lock UPGRADE=1       take the newest version of everything that the bounds allow

`uv` asks the index what fits Python 3.11 to 3.14 on Linux and macOS, and for the sha256 of every file of
each version. PyTorch is a comment in the list: you choose its build, and no two builds have one digest.
Packages that only an accelerator's build of PyTorch needs are left out; pip gets them with that build.
"""

import argparse
import re
import subprocess
import tempfile
import tomllib
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from pathlib import Path

from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from course.paths import ROOT

LOCK = ROOT / "requirements.lock"
SITE_LOCK = ROOT / "requirements-site.lock"
SITE_WANTED = ROOT / "docs" / "site" / "requirements.in"
# A server must be of its hub's first number. The Littlest JupyterHub is at 5.
HUBS = {
    ROOT / "requirements-hub.lock": ROOT / "docs" / "hub" / "requirements.in",
    ROOT / "requirements-hub-5.lock": ROOT / "docs" / "hub" / "requirements-5.in",
}
PIP_LOCK = ROOT / "course" / "tools" / "bundle" / "pip.lock"
PIP_WANTED = "pip>=26,<27"
CONDA = ROOT / "environment.yml"
PROJECTS = (".", "course", "packages/mpi_classroom", "packages/torch_mpi4py")
OURS = ("course", "course-lib", "mpi-classroom", "torch-mpi4py")
ACCELERATOR = ("nvidia-", "cuda-", "triton", "pytorch-triton", "intel-")
APART = "torch"
HEADER = """\
# Every package that the course installs, with the sha256 of each file of it. `make lock` writes this.
# PyTorch is apart, because you choose its build and every build has digests of its own:
# {torch}
"""
SITE_HEADER = """\
# What `make site` and `make slides` install into build/tools/site, with digests. `make lock` writes this.
"""
HUB_HEADER = """\
# What a server of a JupyterHub needs beside requirements.lock, with digests. `make lock` writes this.
"""
PIP_HEADER = """\
# The pip of a bundle, for a Python that comes without. `make lock` writes this.
"""
CONDA_MARK = "    # `make lock` writes what follows.\n"
# The site takes one file of axe-playwright-python; the browser's driver is in requirements.lock.
NOT_FOR_THE_SITE = ("playwright", "greenlet", "pyee")
DEVELOPERS = "# What only developers need:"
PLATFORMS = (("linux", "Linux", "x86_64"), ("linux", "Linux", "aarch64"), ("darwin", "Darwin", "arm64"))
PYTHONS = ("3.11", "3.12", "3.13", "3.14")


def environments() -> Iterator[dict[str, str]]:
    """The platforms that the list is for, as markers see them."""
    for (sys_platform, system, machine), python in product(PLATFORMS, PYTHONS):
        yield {
            "sys_platform": sys_platform,
            "platform_system": system,
            "platform_machine": machine,
            "os_name": "posix",
            "python_version": python,
            "python_full_version": f"{python}.2",
            "implementation_name": "cpython",
            "platform_python_implementation": "CPython",
        }


def pins(text: str, everywhere: bool = False) -> dict[str, str]:
    """Name and version of each pin in the text of a lock, PyTorch's included.

    Pins whose marker does not hold on this platform are left out, unless `everywhere`.
    """
    found = {}
    for line in re.findall(r"^(?:# (?=torch==))?([a-z0-9][\w.-]*==[^\\\n]+)", text, re.MULTILINE):
        pin = Requirement(line.strip())
        if everywhere or pin.marker is None or pin.marker.evaluate():
            (version,) = pin.specifier
            found[pin.name] = version.version
    return found


def wanted(developers: bool = True) -> list[str]:
    """What the four pyproject.toml ask for, with their extras and their build systems, but for our own."""
    found = set()
    for folder in PROJECTS:
        text = tomllib.loads((ROOT / folder / "pyproject.toml").read_text())
        project = text["project"]
        lines = project["dependencies"] + text["build-system"]["requires"]
        for name, extra in project.get("optional-dependencies", {}).items():
            lines += extra if developers or name != "dev" else []
        found |= {line for line in lines if canonicalize_name(Requirement(line).name) not in OURS}
    return sorted(found)


def resolved(uv: str, requirements: list[str], known: str) -> str:
    """What the index has for `requirements`, as uv writes it; the versions in the text `known` stay."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "resolved.txt"
        output.write_text(known)
        command = [uv, "pip", "compile", "--universal", "--python-version", PYTHONS[0], "--generate-hashes"]
        command += ["--no-header", "--no-annotate", "--quiet", "--output-file", str(output), "-"]
        lines = "\n".join(requirements)
        subprocess.run(command, input=lines, text=True, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        return output.read_text()


def blocks(text: str) -> Iterator[tuple[str, str]]:
    """The pins in uv's text, without accelerators: `name==version ; marker`, and the lines of digests.

    A marker that holds wherever the course runs is left out; so is a pin whose marker never holds.
    """
    for block in re.findall(r"^[a-z0-9].*(?:\n +--hash=.*)*", text, re.MULTILINE):
        line, _, digests = block.partition(" \\\n")
        pin, _, marker = (part.strip() for part in line.partition(" ; "))
        holds = {not marker or Marker(marker).evaluate(environment) for environment in environments()}
        if True in holds and not pin.startswith(ACCELERATOR):
            yield (f"{pin} ; {marker}" if False in holds else pin), digests


def lock(uv: str, known: str = "") -> str:
    """Ask the index, with the executable `uv`; the text of a new lock. The versions in `known` stay."""
    everything = resolved(uv, wanted(), known.replace(f"# {APART}==", f"{APART}=="))
    learners = {pin for pin, _ in blocks(resolved(uv, wanted(developers=False), everything))}
    torch = ""
    parts: tuple[list[str], list[str]] = ([], [])
    for pin, digests in blocks(everything):
        if pin.startswith(f"{APART}=="):
            torch = pin
        else:
            parts[pin not in learners].append(f"{pin} \\\n{digests}")
    return HEADER.format(torch=torch) + "\n".join([*parts[0], DEVELOPERS, *parts[1]]) + "\n"


def site_lock(uv: str, known: str = "") -> str:
    """The text of a new lock for the tools of the site. The versions in `known` stay."""
    found = blocks(resolved(uv, _asked(SITE_WANTED), known))
    kept = [(pin, digests) for pin, digests in found if pin.partition("==")[0] not in NOT_FOR_THE_SITE]
    return SITE_HEADER + "".join(f"{pin} \\\n{digests}\n" for pin, digests in kept)


def hub_lock(wants: Path, uv: str, known: str = "") -> str:
    """The text of a new lock for a hub's servers: what `wants` asks for and the course's own lock has not."""
    course = LOCK.read_text().replace(f"# {APART}==", f"{APART}==")
    have = [pin for pin, _ in blocks(course)]
    found = blocks(resolved(uv, [*_asked(wants), *have], known))
    names = {re.split("[ =]", pin)[0] for pin in have}
    new = [(pin, digests) for pin, digests in found if re.split("[ =]", pin)[0] not in {*names, APART}]
    return HUB_HEADER + "".join(f"{pin} \\\n{digests}\n" for pin, digests in new)


def pip_lock(uv: str, known: str = "") -> str:
    """The text of a new lock for the pip of a bundle."""
    found = blocks(resolved(uv, [PIP_WANTED], known))
    return PIP_HEADER + "".join(f"{pin} \\\n{digests}\n" for pin, digests in found)


def conda(text: str, lock: str) -> str:
    """The text of environment.yml with the pins of `lock` that learners need, and our own four packages.

    pip refuses a digest where one package has none, and here PyTorch and ours have none: so there are none.
    """
    learners = lock.partition(DEVELOPERS)[0]
    pinned = re.findall(r"^(?:# (?=torch==))?([a-z0-9][\w.-]*==[^\\\n]+)", learners, re.MULTILINE)
    wants = [
        *sorted(pin.strip() for pin in pinned),
        *(f"--editable {folder}" for folder in reversed(PROJECTS)),
    ]
    lines = "".join(f'      - "{want}"\n' for want in wants)
    return text.partition(CONDA_MARK)[0] + CONDA_MARK + lines


def _asked(path: Path) -> list[str]:
    return [line.partition("  #")[0] for line in path.read_text().splitlines() if line[:1] != "#"]


def main() -> None:
    """Write the locks, and the pins in environment.yml."""
    parser = argparse.ArgumentParser(description="Write requirements.lock and those beside it.")
    parser.add_argument("--uv", default="uv", help="the uv to ask the index with")
    parser.add_argument("--upgrade", action="store_true", help="take the newest versions within the bounds")
    parser.add_argument("--names", action="store_true", help="print what the course asks for, without bounds")
    arguments = parser.parse_args()
    if arguments.names:
        print(*sorted({Requirement(line).name for line in wanted()} - {APART}))
        return
    writers: dict[Path, Callable[[str, str], str]] = {LOCK: lock, SITE_LOCK: site_lock, PIP_LOCK: pip_lock}
    for path, wants in HUBS.items():
        writers[path] = partial(hub_lock, wants)
    for path, write in writers.items():
        known = "" if arguments.upgrade or not path.exists() else path.read_text()
        path.write_text(write(arguments.uv, known))
    CONDA.write_text(conda(CONDA.read_text(), LOCK.read_text()))


if __name__ == "__main__":
    main()
