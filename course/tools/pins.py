"""The exact version of every package that the course installs, as they are installed here.

    python -m course.tools.pins > constraints.txt

Accelerator packages that a CUDA or ROCm build of torch brings along are left out: they belong to that
build, and a constraint on torch's version pins them.
"""

from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

OURS = ("course", "course-lib", "mpi-classroom", "torch-mpi4py")
ROOTS = ("course[dev]", "course-lib", "mpi-classroom", "hatchling")
ACCELERATOR = ("nvidia-", "cuda-", "triton", "pytorch-triton", "intel-")


class NotInstalledError(LookupError):
    """A package of the closure is missing here."""


def closure(roots: tuple[str, ...] = ROOTS) -> dict[str, str]:
    """Name and version of every package that `roots` need on this platform, and of themselves.

    Our own packages are left out. Versions have no local part: `2.13.0+cpu` is 2.13.0. Raises
    NotInstalledError.
    """
    found: dict[str, str] = {}
    todo, done = [Requirement(root) for root in roots], set()
    while todo:
        wanted = todo.pop()
        name, extras = canonicalize_name(wanted.name), frozenset(wanted.extras)
        if (name, extras) in done or name.startswith(ACCELERATOR):
            continue
        done.add((name, extras))
        try:
            package = distribution(name)
        except PackageNotFoundError:
            raise NotInstalledError(f"{name} is not installed; run make setup") from None
        found[name] = package.version.partition("+")[0]
        todo += _needs(package.requires or [], extras)
    return {name: version for name, version in sorted(found.items()) if name not in OURS}


def _needs(lines: list[str], extras: frozenset[str]) -> Iterator[Requirement]:
    """The requirements that hold on this platform, with these extras."""
    for requirement in map(Requirement, lines):
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in extras | {""}):
            yield requirement


if __name__ == "__main__":
    print("\n".join(f"{name}=={version}" for name, version in closure().items()))
