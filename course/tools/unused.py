"""Lists the public names of our three packages that nothing uses.

    python -m course.tools.unused        one line per name; exit code 1 when there is one

Used is what a lesson, a benchmark, a tool, a README, an entry point or a used name uses. Tests do not count.
A name is a function, a class, a method or a constant that begins with no underscore. Text is read, nothing is
imported. Three rules of thumb: a method is used where any attribute of that name is; all methods of a class
with a base class are, as that may call them; and text that names `long_names` in backticks uses them. The
plain form of a used fast one is its oracle, and the cost of a used collective its prediction: used, too.
"""

import ast
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from importlib.util import resolve_name
from pathlib import Path

from course.paths import ROOT

PACKAGES = {
    "course_lib": ROOT / "course_lib",
    "mpi_classroom": ROOT / "packages" / "mpi_classroom" / "mpi_classroom",
    "torch_mpi4py": ROOT / "packages" / "torch_mpi4py" / "torch_mpi4py",
}
USERS = ("course/**/*.py", "benchmarks/**/*.py", "notebooks/code/**/*.py")
PAGES = ("*.md", "course_lib/*.md", "packages/*/README.md", "docs/**/*.md")
TABLES = ("pyproject.toml", "course/pyproject.toml", "packages/*/pyproject.toml")
CALLED_BY_OTHERS = {"load_ipython_extension"}  # by IPython
INVENTORY = "internals.py"  # private names of other libraries, which tests look for

IMPORT = re.compile(r"from\s+([\w.]+)\s+import\s+(?:\(([^)]*)\)|([^\n]*))")
REFERENCE = re.compile(r"\b(\w+(?:\.\w+)*):(\w+)")
MODULE = re.compile(r"\b(?:course_lib|mpi_classroom|torch_mpi4py)(?:\.\w+)*")
WORD = re.compile(r"\.(\w+)|[\"'](\w+)[\"']|(\w+)=")
NAMED = re.compile(r"`(?:\w+\.)*(\w*[a-z](?:_|[A-Z])\w+)")
CODE = re.compile(r"```(?:python|bash|sh)?\n(.*?)```", re.DOTALL)

Name = tuple[str, str]  # module, and name in it: "" for what runs on import, "Class.method" for a method


@dataclass
class Uses:
    """What a piece of code uses: names, and words that may be attributes."""

    names: set[Name] = field(default_factory=set)
    words: set[str] = field(default_factory=set)

    def add(self, other: "Uses") -> None:
        """Add what another piece uses."""
        self.names |= other.names
        self.words |= other.words


def unused(
    packages: dict[str, Path] | None = None, texts: Iterable[str] | None = None
) -> list[tuple[Path, int, str]]:
    """File, line and name of every public name of `packages` that neither `texts` nor a used name uses."""
    modules = {name: path for root in (packages or PACKAGES).items() for name, path in modules_of(*root)}
    places: dict[Name, tuple[Path, int]] = {}
    inside: dict[Name, Uses] = {}
    for module, path in modules.items():
        package = module if path.name == "__init__.py" else module.rpartition(".")[0]
        tree = parsed(path.read_text(encoding="utf-8"), package)
        for name, line, uses in definitions(module, tree):
            if line:
                places.setdefault((module, name), (path, line))
            inside.setdefault((module, name), Uses()).add(uses)
    users = [text_uses(text, inside) for text in (user_texts() if texts is None else texts)]
    used = reached(inside, users)
    return sorted(
        (*place, name[1])
        for name, place in places.items()
        if is_public(name[1]) and name not in used and not place[0].name.endswith(INVENTORY)
    )


def modules_of(package: str, folder: Path) -> Iterator[tuple[str, Path]]:
    """The modules of a package by their dotted names."""
    for path in sorted(folder.rglob("*.py")):
        parts = [package, *path.relative_to(folder).with_suffix("").parts]
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def user_texts() -> Iterator[str]:
    """The code of lessons, tools and benchmarks, the examples of pages, and the entry points."""
    for pattern in (*USERS, *TABLES):
        for path in sorted(ROOT.glob(pattern)):
            yield path.read_text(encoding="utf-8")
    for pattern in PAGES:
        for path in sorted(ROOT.glob(pattern)):
            text = path.read_text(encoding="utf-8")
            yield from CODE.findall(text)
            yield " ".join([*(f"`{name}`" for name in NAMED.findall(text)), *MODULE.findall(text)])


def is_public(name: str) -> bool:
    """Whether no part of it begins with an underscore, and others call it only when ours does."""
    return bool(name) and not re.search(r"(^|\.)_", name) and name not in CALLED_BY_OTHERS


def reached(inside: dict[Name, Uses], users: Iterable[Uses]) -> set[Name]:
    """All names that `users` use, directly or by way of names that they use."""
    found: set[Name] = set()
    todo: list[Name] = []
    words: set[str] = set()
    methods: dict[Name, list[Name]] = {}
    for each in inside:
        if "." in each[1]:
            methods.setdefault((each[0], each[1].partition(".")[0]), []).append(each)

    def use(uses: Uses) -> None:
        todo.extend(uses.names)
        words.update(uses.words)

    for user in users:
        use(user)
    while True:
        while todo:
            name = todo.pop()
            if name not in found and name in inside:
                found.add(name)
                todo.append((name[0], ""))  # its module is imported
                todo += twins(name)
                use(inside[name])
        todo = [
            method
            for owner in found & methods.keys()
            for method in methods[owner]
            if method not in found and (method[1].partition(".")[2] in words or not is_public(method[1]))
        ]
        if not todo:
            return found


def twins(name: Name) -> list[Name]:
    """The plain form of a fast one; the formula of what a collective costs."""
    module, own = name
    package, _, place = module.partition(".fast.")
    plain = [(f"{package}.{layer}.{place}", own) for layer in ("comm", "parallel") if place]
    return [*plain, ("course_lib.theory.cost_model", f"{own}_cost")]


# ---------------------------------------------------------------- reading code


def text_uses(text: str, known: Iterable[Name] = ()) -> Uses:
    """What a user's text uses: imports, code in its strings, `module:name`, modules and names in its prose.

    `known`: the names that prose may mean.
    """
    uses = Uses({(module, "") for module in MODULE.findall(text)})
    uses.words = {word for found in WORD.findall(text) for word in found if word}
    for module, several, one in IMPORT.findall(text):
        for name in imported(several or one):
            uses.names |= {(module, name), (f"{module}.{name}", "")}
    uses.names |= {(module, name) for module, name in REFERENCE.findall(text)}
    uses.names |= {(path.rpartition(".")[0], path.rpartition(".")[2]) for path in MODULE.findall(text)}
    named = set(NAMED.findall(text))
    uses.names |= {(module, name) for module, name in known if name.partition(".")[0] in named}
    try:
        tree = ast.parse(re.sub(r"(?m)^(\s*)[%!].*$", r"\1pass", text))
    except SyntaxError:
        return uses
    modules = module_names(tree)
    uses.names |= {(modules[name], attribute) for name, attribute in attributes(tree) if name in modules}
    return uses


def imported(names: str) -> list[str]:
    """The names of an import's list, without their new names."""
    plain = re.sub(r"#.*", "", names)
    return [words[0] for part in plain.split(",") if (words := re.findall(r"\w+", part))]


def parsed(text: str, package: str) -> ast.Module:
    """The code of a module of `package`: imports by full names, without docstrings."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            node.module = resolve_name("." * node.level + (node.module or ""), package)
            node.level = 0
        elif isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node):
            node.body[0] = ast.copy_location(ast.Pass(), node.body[0])
    return tree


def definitions(module: str, tree: ast.Module) -> Iterator[tuple[str, int, Uses]]:
    """Name, line and uses of all that a module defines; under the name "" what else runs on its import."""
    origins: dict[str, Name] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                origins[alias.asname or alias.name] = (node.module, alias.name)
    modules = module_names(tree)
    own = {name for node in tree.body for name in defined(node)}

    def uses_of(*nodes: ast.AST) -> Uses:
        uses = Uses()
        for node in (each for top in nodes for each in ast.walk(top)):
            texts = [node.value] if isinstance(node, ast.Constant) and isinstance(node.value, str) else []
            names = (
                [node.id]
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
                else [text for text in texts if text in own]
            )
            uses.names |= {(module, name) for name in names if name in own}
            uses.names |= {origins[name] for name in names if name in origins}
            uses.words |= {node.attr} if isinstance(node, ast.Attribute) else set(texts)
            for text in texts:  # code for other processes, `module:name`
                uses.add(text_uses(text) if MODULE.search(text) else Uses())
                uses.words |= set(re.findall(r"\.(\w+)\(", text))  # "run cluster.restart()"
            if isinstance(node, ast.ImportFrom) and node.module:
                uses.names |= {(node.module, alias.name) for alias in node.names}
        found = {(modules[name], word) for top in nodes for name, word in attributes(top) if name in modules}
        uses.names |= found
        return uses

    for name, origin in origins.items():  # who imports it from here uses it where it is defined
        yield name, 0, Uses({origin})
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            yield from class_definitions(node, uses_of)
            continue
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield "", 0, Uses({(each, "") for each in MODULE.findall(ast.unparse(node))})
            continue
        for name in defined(node) or [""]:
            yield name, node.lineno, uses_of(node)


def class_definitions(node: ast.ClassDef, uses_of: Callable[..., Uses]) -> Iterator[tuple[str, int, Uses]]:
    """A class, and apart from it its methods, unless a base that is not ours may call them."""
    bases = {ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in node.bases}
    apart = [each for each in node.body if isinstance(each, ast.FunctionDef)] if not bases else []
    rest = [each for each in node.body if each not in apart]
    yield node.name, node.lineno, uses_of(*rest, *node.bases, *node.decorator_list, *node.keywords)
    for method in apart:
        yield f"{node.name}.{method.name}", method.lineno, uses_of(method)


def defined(node: ast.stmt) -> list[str]:
    """The names that a statement at the top of a module defines."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else []
    targets = [node.target] if isinstance(node, ast.AnnAssign) else targets
    return [leaf.id for target in targets for leaf in ast.walk(target) if isinstance(leaf, ast.Name)]


def module_names(tree: ast.AST) -> dict[str, str]:
    """The names that may be modules of ours here, and which: `from course_lib.training import loop`."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.asname or alias.name: alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return {name: module for name, module in names.items() if MODULE.match(module)}


def attributes(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Every `owner.attribute` in the code, both as text."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            yield ast.unparse(node.value), node.attr


def main() -> int:
    """Print every unused name; 1 when there is one."""
    found = unused()
    for path, line, name in found:
        print(
            f"{path.relative_to(ROOT)}:{line}: nothing uses {name}; remove it, or name it with an underscore"
        )
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
