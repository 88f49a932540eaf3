"""A receive buffer that is read between `Irecv`, `Iallreduce` or the like and its wait, found in the source.

MPI writes the buffer at any moment until the wait, and no program can see another read its memory. But the
lines of the start and of the wait are known, and so are the statements that surely run between them.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass

# Attributes that are not data.
_HARMLESS = {"shape", "size", "dtype", "nbytes", "ndim", "itemsize", "flags", "strides"}
_RECEIVES = {  # position of the buffer
    "Irecv": 0,
    "Isendrecv": 3,
    "Ibcast": 0,
    **dict.fromkeys(("Iallreduce", "Ireduce", "Iscan", "Iexscan", "Ireduce_scatter_block"), 1),
    **dict.fromkeys(("Iallgather", "Igather", "Iscatter", "Ialltoall"), 1),
}


@dataclass(frozen=True, slots=True)
class Read:
    """The name of a buffer, and the line that reads it."""

    name: str
    line: int


def early_read(source: str, start: int, end: int) -> Read | None:
    """The first read of its buffer between the lines `start`, of such a call, and `end`, of its wait.

    None also if the buffer is no plain name, or the two lines are not in one stretch of statements.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return None
    path = _path_to(tree, start)
    name = _buffer(path[-1]) if len(path) > 1 else None
    if name is None or end <= start:
        return None
    for statement in _after(path, end):
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store):
                return None
        for node in _reads(statement, name):
            return Read(name, node.lineno)
    return None


def _path_to(tree: ast.Module, line: int) -> list[ast.AST]:
    """The module and the statements around `line`, the innermost last."""
    path: list[ast.AST] = [tree]
    while len(found := [s for s in _statements(path[-1]) if _has(s, line)]) == 1:
        path += found
    return path


def _has(statement: ast.AST, line: int) -> bool:
    return statement.lineno <= line <= statement.end_lineno  # type: ignore[attr-defined]


def _statements(node: ast.AST) -> Iterator[ast.stmt]:
    for _, value in ast.iter_fields(node):
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, ast.stmt):
                yield each


def _buffer(statement: ast.AST) -> str | None:
    """The name of the buffer of the only such call in a statement."""
    calls = [
        node
        for node in ast.walk(statement)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _RECEIVES
    ]
    if len(calls) != 1:
        return None
    call = calls[0]
    at = _RECEIVES[call.func.attr]  # type: ignore[attr-defined]
    given = [k.value for k in call.keywords if k.arg in ("buf", "recvbuf")] or call.args[at : at + 1]
    return given[0].id if given and isinstance(given[0], ast.Name) else None


def _after(path: list[ast.AST], end: int) -> Iterator[ast.stmt]:
    """The statements that follow the last one of `path`, up to the one with the line `end`."""
    for inner, outer in zip(path[:0:-1], path[-2::-1], strict=True):
        for statement in _following(inner, outer):
            if statement.lineno > end or _has(statement, end):
                return
            yield statement
        if not isinstance(outer, ast.If | ast.With | ast.Try | ast.Module):
            return  # the wait is outside of this function or loop


def _following(statement: ast.AST, outer: ast.AST) -> list[ast.stmt]:
    """The statements that follow in the same block of `outer`."""
    blocks = [value for _, value in ast.iter_fields(outer) if isinstance(value, list) and statement in value]
    return blocks[0][blocks[0].index(statement) + 1 :] if blocks else []


def _reads(statement: ast.stmt, name: str) -> Iterator[ast.Name]:
    """Where a statement reads what `name` stands for, not only its shape or the like."""
    harmless = {
        id(node.value)
        for node in ast.walk(statement)
        if isinstance(node, ast.Attribute) and node.attr in _HARMLESS
    }
    harmless |= {
        id(argument)
        for node in ast.walk(statement)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("len", "id", "type")
        for argument in node.args
    }
    for node in ast.walk(statement):
        if (
            isinstance(node, ast.Name)
            and node.id == name
            and isinstance(node.ctx, ast.Load)
            and id(node) not in harmless
        ):
            yield node
