"""Lists the public names of our three packages that nothing uses.

    python -m course.tools.unused        one line per name; exit code 1 when there is one

Used is what a lesson, a benchmark, a tool, a README, an entry point or a used name says. Tests do not count,
nor do docstrings and comments but for `names` in backticks and `module:name`. A name is a function, a class,
a method or a constant that begins with no underscore. Text is read as words, nothing is imported: whoever
says `stop` uses every `stop`. All methods of a used class with a base class are used, as that may call them;
and so is the formula of what a used collective costs.
"""

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from course.paths import ROOT

PACKAGES = ("course_lib", "packages/mpi_classroom/mpi_classroom", "packages/torch_mpi4py/torch_mpi4py")
CODE = ("course/**/*.py", "benchmarks/**/*.py", "notebooks/code/*.py")
PAGES = ("*.md", "course_lib/*.md", "packages/*/README.md", "docs/**/*.md")
TABLES = ("pyproject.toml", "course/pyproject.toml", "packages/*/pyproject.toml")
CALLED_BY_OTHERS = {"load_ipython_extension"}  # by IPython
INVENTORY = "internals.py"  # private names of other libraries, which tests look for

OURS = re.compile(r"course_lib|mpi_classroom|torch_mpi4py")
NAMED = re.compile(r"`(?:\w+\.)*(\w+)`|\b\w+(?:\.\w+)*:(\w+)|```\w*\n(.*?)```", re.DOTALL)

Definition = tuple[Path, int, str, set[str]]  # where, its name, the words in it; a method is `Class.method`


def unused(folders: Iterable[Path], texts: Iterable[str]) -> list[tuple[Path, int, str]]:
    """File, line and name of every public name in `folders` that neither `texts` nor a used name says."""
    paths = [path for folder in folders for path in sorted(folder.rglob("*.py"))]
    rest = [each for path in paths for each in definitions(path)]
    said, used = {word for text in texts for word in words_of(text)}, set[str]()
    while new := [each for each in rest if is_used(each[2], said, used)]:
        rest = [each for each in rest if not is_used(each[2], said, used)]
        for _, _, name, words in new:
            used.add(name)
            said |= words | {f"{name}_cost"}
    return [
        (path, line, name)
        for path, line, name, _ in rest
        if not re.search(r"(^|\.)_", name) and path.name != INVENTORY and name not in CALLED_BY_OTHERS
    ]


def is_used(name: str, said: set[str], used: set[str]) -> bool:
    """Whether one of the words `said` is this name; of a method, if its class is used."""
    owner, _, own = name.rpartition(".")
    return not own or (own in said if not owner else owner in used and (own in said or own[0] == "_"))


def definitions(path: Path) -> Iterator[Definition]:
    """All that a module defines; under the name "" what else runs on its import."""
    for node in without_docstrings(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef):
            methods = [each for each in node.body if isinstance(each, ast.FunctionDef) and not node.bases]
            for method in methods:
                yield path, method.lineno, f"{node.name}.{method.name}", words_in(method)
            node.body = [each for each in node.body if each not in methods]
        if not isinstance(node, ast.Import | ast.ImportFrom):
            names = defined(node) or [""]
            yield from ((path, node.lineno, name, words_in(node) - {*names}) for name in names)


def defined(node: ast.stmt) -> list[str]:
    """The names that a statement at the top of a module defines."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else []
    targets = [node.target] if isinstance(node, ast.AnnAssign) else targets
    return [leaf.id for target in targets for leaf in ast.walk(target) if isinstance(leaf, ast.Name)]


def without_docstrings(text: str) -> ast.Module:
    """The code of a module."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node):
            node.body[0] = ast.copy_location(ast.Pass(), node.body[0])
    return tree


def words_in(node: ast.AST) -> set[str]:
    """The words of a piece of code, those in its strings included."""
    return set(re.findall(r"\w+", ast.unparse(node)))


def words_of(text: str) -> set[str]:
    """The words of code that knows our packages; in any text those of `names`, `module:name` and examples."""
    named = {word for found in NAMED.findall(text) for part in found for word in re.findall(r"\w+", part)}
    try:
        return named | (words_in(without_docstrings(text)) if OURS.search(text) else set())
    except SyntaxError:  # a page
        return named


def user_texts() -> Iterator[str]:
    """The code of lessons, tools and benchmarks, the pages, and the entry points."""
    for pattern in (*CODE, *PAGES, *TABLES):
        for path in sorted(ROOT.glob(pattern)):
            yield path.read_text(encoding="utf-8")


def main() -> int:
    """Print every unused name; 1 when there is one."""
    found = unused([ROOT / package for package in PACKAGES], user_texts())
    for path, line, name in found:
        remedy = "remove it, or name it with an underscore"
        print(f"{path.relative_to(ROOT)}:{line}: nothing uses {name}; {remedy}")
    return min(len(found), 1)


if __name__ == "__main__":
    raise SystemExit(main())
