"""Lists the public names of course_lib by who reads them, so that one sees what carries nothing.

    python -m course.tools.readers          a line per name: its lines, the name, its readers, how many tests
    python -m course.tools.readers few      only names with at most one reader

A reader is a file that names both the module and the name: a lesson with its program to take home, a tool, a
benchmark, a page, another module of the library. Tests are counted, but are no readers. Text is read, nothing
is imported, and a page that lists everything counts for each name; so judge what you see here.
"""

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from course.paths import ROOT

PLACES = ("course_lib", "course", "benchmarks", "packages", "notebooks/code", "tests")
PAGES = ("*.md", "docs/**/*.md", "course_lib/*.md", "packages/*/README.md")


@dataclass(frozen=True, slots=True)
class Name:
    """A public name of the library, its module, and how many lines it takes."""

    module: str
    name: str
    nlines: int


@dataclass(frozen=True, slots=True)
class File:
    """A file that may read the library: its short name, its text, and the words in that."""

    reader: str
    text: str
    words: frozenset[str]


def names() -> Iterator[Name]:
    """Every public function and class, and every constant, at the top of a module of the library."""
    for path in sorted((ROOT / "course_lib").rglob("*.py")):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            nlines = (node.end_lineno or node.lineno) - node.lineno + 1
            for name in defined(node):
                if not name.startswith("_"):
                    yield Name(module, name, nlines)


def defined(node: ast.stmt) -> list[str]:
    """The names that a statement defines."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else []
    return [target.id for target in targets if isinstance(target, ast.Name)]


def files() -> list[File]:
    """Every file that may read the library."""
    paths = [path for place in PLACES for path in sorted((ROOT / place).rglob("*.py"))]
    paths += [path for pattern in PAGES for path in sorted(ROOT.glob(pattern))]
    found = []
    for path in paths:
        text = path.read_text(encoding="utf-8")
        found.append(File(reader_of(path), text, frozenset(re.findall(r"\w+", text))))
    return found


def reader_of(path: Path) -> str:
    """A lesson by its number, any other file by its path: `l06`, `benchmarks/zero`."""
    short = path.relative_to(ROOT).with_suffix("").as_posix()
    lesson = re.match(r"course/lessons/l(\d\d)_|notebooks/code/(\d\d)_", short)
    return f"l{lesson[1] or lesson[2]}" if lesson else short.removesuffix("/__init__")


def that_name(module: str, among: list[File]) -> list[File]:
    """The files, other than the module's own, that name the module: by its full name, or in an import."""
    parent, _, last = module.rpartition(".")
    imported = rf"from {re.escape(parent)} import (?:\([^)]*|.*)\b{last}\b"
    means = re.compile(rf"\b{re.escape(module)}\b|{imported}")
    own = module.replace(".", "/")
    return [each for each in among if last in each.words and each.reader != own and means.search(each.text)]


def main() -> int:
    """Print a line per name."""
    among = files()
    for module, own in groupby(names(), lambda name: name.module):
        those = that_name(module, among)
        for each in own:
            found = sorted({file.reader for file in those if each.name in file.words})
            readers = [reader for reader in found if not reader.startswith("tests")]
            if "few" not in sys.argv[1:] or len(readers) <= 1:
                tests = len(found) - len(readers)
                print(f"{each.nlines:4} {module}:{each.name}  {' '.join(readers) or '-'}  ({tests} tests)")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
