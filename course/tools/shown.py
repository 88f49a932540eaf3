"""Library code as a lesson shows it: one function or class with just the imports that it needs.

`shown("course_lib.pi:count_inside")` is text that runs in an empty namespace. What the code takes from
other modules is imported as its own module does; what it takes from its own module is imported from there,
except for names that the lesson has shown before: an edit of those must take effect.
"""

import ast
import builtins
import importlib.util
import symtable
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

WIDTH = 107  # of a line, in characters: so many has a cell of JupyterLab in a window of 1280 pixels


class ShowError(ValueError):
    """A `source: module:name` that cannot be shown."""


def shown(reference: str, *, before: Collection[str] = ()) -> str:
    """The source of `module:name`, docstring and decorators included, below the imports that it needs.

    Names in `before` are there already and are not imported from its module. Raises ShowError.
    """
    module, _, name = reference.partition(":")
    text = module_text(module)
    tree = ast.parse(text)
    body = definition(text, tree, name, module)
    needed = free_names(body) - {name}
    imports, found = _imports(tree, body, needed, module)
    own = sorted((needed & own_names(tree)) - found - set(before))
    unknown = needed - found - own_names(tree) - set(dir(builtins)) - {"__name__"}
    if unknown:
        raise ShowError(f"{reference} uses {', '.join(sorted(unknown))}, which {module} does not define")
    if own:
        imports.append(_from(module, own))
    return "\n".join([*imports, "", body] if imports else [body])


def module_text(module: str) -> str:
    """The source text of a module, found without running it."""
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        spec = None
    if spec is None or spec.origin is None:
        raise ShowError(f"there is no module {module!r}; write the tag as `source: package.module:name`")
    return Path(spec.origin).read_text(encoding="utf-8")


def definition(text: str, tree: ast.Module, name: str, module: str) -> str:
    """The lines of the function or class `name`, from its first decorator to its end."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.name == name:
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            return "\n".join(text.splitlines()[first - 1 : node.end_lineno])
    raise ShowError(f"{module} has no function or class {name!r} at its top level")


def free_names(body: str) -> set[str]:
    """The names that `body` looks up outside itself when it is defined or run, builtins included."""
    names = set()

    def visit(table: symtable.SymbolTable) -> None:
        outermost = table.get_type() == "module"
        for symbol in table.get_symbols():
            if symbol.is_referenced() and (symbol.is_global() or outermost):
                names.add(symbol.get_name())
        for child in table.get_children():
            visit(child)

    visit(symtable.symtable(body, "<shown>", "exec"))
    return names


def own_names(tree: ast.Module) -> set[str]:
    """What a module defines at its top level: functions, classes and variables."""
    names = set()
    for node in _top_level(tree.body):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {
                leaf.id for target in targets for leaf in ast.walk(target) if isinstance(leaf, ast.Name)
            }
    return names


def _imports(tree: ast.Module, body: str, needed: set[str], module: str) -> tuple[list[str], set[str]]:
    """The module's import lines cut down to what `body` needs, and the names that they bind."""
    attributes = {ast.unparse(node) for node in ast.walk(ast.parse(body)) if isinstance(node, ast.Attribute)}
    lines, found = [], set()
    for node in _top_level(tree.body):
        if not isinstance(node, ast.Import | ast.ImportFrom):
            continue
        kept = []
        for alias in node.names:
            bound = alias.asname or alias.name.partition(".")[0]
            dotted = isinstance(node, ast.Import) and alias.asname is None and "." in alias.name
            if bound in needed and (not dotted or alias.name in attributes):
                kept.append(alias)
                found.add(bound)
        if kept:
            lines.append(_import_line(node, kept, module))
    return lines, found


def _import_line(node: ast.Import | ast.ImportFrom, kept: list[ast.alias], module: str) -> str:
    if isinstance(node, ast.Import):
        return ast.unparse(ast.Import(names=kept))
    origin = node.module or ""
    if node.level:  # a relative import means nothing in a notebook
        origin = importlib.util.resolve_name("." * node.level + origin, module.rpartition(".")[0])
    return _from(origin, [ast.unparse(alias) for alias in kept])


def _from(module: str, names: Sequence[str]) -> str:
    """An import of `names`, on as many lines as the width of a cell asks for."""
    lines: list[str] = []
    for name in names:
        if lines and len(lines[-1]) + len(name) + 2 <= WIDTH:
            lines[-1] += f", {name}"
        else:
            lines.append(f"from {module} import {name}")
    return "\n".join(lines)


def _top_level(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements that run when a module is imported, those under `if` and `try` included."""
    for node in body:
        yield node
        if isinstance(node, ast.If | ast.Try):
            yield from _top_level([*node.body, *node.orelse])
