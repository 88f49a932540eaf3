"""API pages from the sources: one per module, with its public functions and classes and their docstrings.

The sources are read, not imported, so a page costs milliseconds and needs neither MPI nor a GPU. Docstrings
are markdown; what they indent is code.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Module:
    """One module: its name, such as `course_lib.comm.halo`, and its file as a syntax tree."""

    name: str
    tree: ast.Module

    @property
    def summary(self) -> str:
        """The first line of its docstring."""
        return (ast.get_docstring(self.tree) or "").partition("\n")[0]


def modules(package: Path) -> list[Module]:
    """The modules of the package in the folder `package`, the package first; private ones are left out."""
    found = []
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package.parent).with_suffix("").parts
        parts = parts[:-1] if parts[-1] == "__init__" else parts
        if not any(part.startswith("_") for part in parts):
            found.append(Module(".".join(parts), ast.parse(path.read_text(encoding="utf-8"))))
    return sorted(found, key=lambda module: module.name)


def module_page(module: Module) -> str:
    """The page of one module, in MyST markdown."""
    text = ast.get_docstring(module.tree) or ""
    parts = [f"# {module.name}", f"```{{py:module}} {module.name}\n```", _prose(text)]
    parts += [_described(node, depth=0) for node in _public(module.tree.body)]
    return "\n\n".join(part for part in parts if part) + "\n"


def has_page(module: Module) -> bool:
    """Whether there is something to read: a function, a class, or words of the module."""
    return bool(ast.get_docstring(module.tree)) or any(True for _ in _public(module.tree.body))


def _public(body: list[ast.stmt]) -> Iterator[Function | ast.ClassDef]:
    for node in body:
        if isinstance(node, Function | ast.ClassDef) and not node.name.startswith("_"):
            yield node


def _described(node: Function | ast.ClassDef, depth: int) -> str:
    """A function or class as a directive, with its methods inside."""
    fence = ":" * (6 - depth)
    body = [_prose(ast.get_docstring(node) or "")]
    if isinstance(node, ast.ClassDef):
        head = f"{fence}{{py:class}} {node.name}{_constructor(node)}"
        body += [_described(each, depth + 1) for each in _public(node.body)]
    else:
        names = {ast.unparse(each).rpartition(".")[2] for each in node.decorator_list}
        accessor = "setter" in names or "deleter" in names
        if accessor:
            return ""
        is_property = bool(names & {"property", "cached_property"})
        kind = "property" if is_property else "method" if depth else "function"
        static = [f":{each}:" for each in ("classmethod", "staticmethod") if each in names]
        if is_property:
            static = [f":type: {ast.unparse(node.returns)}"] if node.returns else []
        signature = (
            "" if is_property else _signature(node, skip_first=depth > 0 and "staticmethod" not in names)
        )
        head = "\n".join([f"{fence}{{py:{kind}}} {node.name}{signature}", *static])
    return "\n\n".join([head, *(part for part in body if part), fence])


def _signature(node: Function, *, skip_first: bool) -> str:
    """`(comm: MPI.Comm, *, width: int = 1) -> Tensor`."""
    parts = {name: getattr(node.args, name) for name in node.args._fields}
    if skip_first:
        first = "posonlyargs" if node.args.posonlyargs else "args"
        parts[first] = parts[first][1:]
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return f"({ast.unparse(ast.arguments(**parts))}){returns}"


def _constructor(node: ast.ClassDef) -> str:
    """How an object is made: the arguments of `__init__`, or the fields of a dataclass."""
    for each in node.body:
        if isinstance(each, Function) and each.name == "__init__":
            return _signature(each, skip_first=True).partition(" -> ")[0]
    if any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list):
        fields = [
            ast.unparse(each.target) + f": {ast.unparse(each.annotation)}" + _default(each.value)
            for each in node.body
            if isinstance(each, ast.AnnAssign) and "ClassVar" not in ast.unparse(each.annotation)
        ]
        return f"({', '.join(fields)})"
    bases = [ast.unparse(base) for base in node.bases]
    return f"({', '.join(bases)})" if bases else ""


def _default(value: ast.expr | None) -> str:
    if value is None:
        return ""
    return " = …" if isinstance(value, ast.Call) else f" = {ast.unparse(value)}"


def _prose(text: str) -> str:
    """A docstring as markdown: examples with `>>>` are code."""
    shown, example = list[str](), False
    for line in text.splitlines():
        if line.startswith(">>>") and not example:
            shown.append("```pycon")
            example = True
        elif example and not line.strip():
            shown.append("```")
            example = False
        shown.append(line)
    if example:
        shown.append("```")
    return "\n".join(shown)
