"""Which private names of other libraries, that our packages use, are no longer where they were.

    make moved

Each package lists what it uses of others' private parts in a module `internals`, whose `moved()` has one
line for each name that it misses.
"""

import sys
from importlib import import_module
from pathlib import Path

from course.paths import ROOT

PACKAGES = {
    "course": ROOT,
    "course_lib": ROOT,
    "mpi_classroom": ROOT / "packages" / "mpi_classroom",
    "torch_mpi4py": ROOT / "packages" / "torch_mpi4py",
}


def inventories() -> list[str]:
    """The modules `internals` of all our packages."""
    found = []
    for package, root in PACKAGES.items():
        files: list[Path] = sorted((root / package).rglob("internals.py"))
        found += [".".join(file.relative_to(root).with_suffix("").parts) for file in files]
    return found


def main() -> int:
    """Print what moved, a module a line and below it what it misses; 1 when anything did."""
    missing = 0
    for name in inventories():
        gone = import_module(name).moved()
        missing += len(gone)
        print(f"{name}: {len(gone) or 'nothing'} moved", *(f"  {line}" for line in gone), sep="\n")
    return min(missing, 1)


if __name__ == "__main__":
    sys.exit(main())
