"""`docs/maintainers/licences.md`: the licence of every package in `requirements.lock`, as it says itself.

    make licences

A package that is not installed here, because it is for another platform, is fetched to read what it says.
"""

import subprocess
import sys
import tempfile
from email.message import Message
from importlib.metadata import PackageNotFoundError, distribution, distributions

from course.paths import ROOT
from course.tools.pins import LOCK, pins

PAGE = ROOT / "docs" / "maintainers" / "licences.md"
HEADER = """\
# Licences of what the course installs

This page lists every package of `requirements.lock` and PyTorch, with the licence that its metadata names.
`make licences` writes it. A build of PyTorch for an accelerator installs further packages with licences of
their own; they are not listed.

| package | version | licence |
|---|---|---|
"""
CLASSIFIER = "License :: "


def licence(metadata: Message) -> str:
    """The licence in a package's metadata: its expression, else its classifiers, else its first line."""
    if expression := metadata.get("License-Expression"):
        return str(expression)
    said = [each for each in metadata.get_all("Classifier", []) if each.startswith(CLASSIFIER)]
    names = [each.split(" :: ")[-1] for each in said if each != "License :: OSI Approved"]
    lines = str(metadata.get("License") or "").strip().splitlines()
    return ", ".join(names) or (lines[0].strip() if lines else "")


def fetched(name: str, version: str) -> Message:
    """The metadata of a package that is not installed here."""
    with tempfile.TemporaryDirectory() as folder:
        install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", folder]
        subprocess.run([*install, "--disable-pip-version-check", f"{name}=={version}"], check=True)
        (package,) = distributions(path=[folder])
        return package.metadata  # type: ignore[return-value]


def page() -> str:
    """The text of the page. Raises ValueError when a package does not say its licence."""
    rows = []
    for name, version in sorted(pins(LOCK.read_text(), everywhere=True).items()):
        try:
            metadata: Message = distribution(name).metadata  # type: ignore[assignment]
        except PackageNotFoundError:
            metadata = fetched(name, version)
        said = licence(metadata)
        if not said:
            raise ValueError(f"{name} {version} does not say its licence; read its files, then add it here")
        rows.append(f"| {name} | {version} | {said} |")
    return HEADER + "\n".join(rows) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
