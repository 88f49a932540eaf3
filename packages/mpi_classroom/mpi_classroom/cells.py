"""The cells that went to the ranks: what they bind, and how the engines and the notebook call them."""

import ast
import builtins
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from ipykernel.compiler import get_tmp_hash_seed, murmur2_x86
from IPython.core.inputtransformer2 import TransformerManager

from mpi_classroom.errors import meaning
from mpi_classroom.sentences import runs_of


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell that went to the ranks: its text, its number in the notebook, lines above the text (`%%px`)."""

    text: str
    number: int
    lines_above: int
    setup: bool
    file: str = ""  # what `__file__` is while it runs, for a cell that is a part of a program

    def assigned(self) -> set[str]:
        """Names that the cell binds at its top level."""
        try:
            tree = ast.parse(TransformerManager().transform_cell(self.text))  # without %magics and !commands
        except (SyntaxError, ValueError):  # Python before 3.11.4 has a ValueError for a null byte
            return set()
        names = set()
        todo: list[ast.AST] = list(tree.body)
        while todo:
            node = todo.pop()
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                names.add(node.name)  # what is bound inside stays inside
                continue
            if isinstance(node, ast.Lambda | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
                continue
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names.add(node.id)
            if isinstance(node, ast.alias):
                names.add(node.asname or node.name.partition(".")[0])
            todo.extend(ast.iter_child_nodes(node))
        return {name for name in names if not name.startswith(("_", "*"))}

    def file_name(self) -> str:
        """What the engines call the file of this cell in their stacks."""
        return f"{murmur2_x86(self.text, get_tmp_hash_seed())}.py"


def hint(problem: str, cell: Cell, earlier: Sequence[Cell], raised: Collection[int] = ()) -> str:
    """A sentence on a name that `earlier` cells bound, or did not bind, for `cell`, which raised `problem`.

    `problem` says which ranks raised what; `raised` are the numbers of cells that ended in an error. "" when
    there is nothing to advise: where rank 0 has the name, running its cell again would not help the others.
    """
    if words := meaning(problem):
        return words
    if "is not callable" in problem:
        for name, before in _last_assigned([*earlier, cell]).items():
            if hasattr(builtins, name) and re.search(rf"\b{name}\s*\(", cell.text):
                where = f"{name} is a variable of yours since cell [{before.number}]"
                return f"{where}; `%px del {name}` brings Python's own back."
    last = _last_assigned(earlier)
    missing = re.search(
        r"^ranks? (\d+).* raised NameError: name '(\w+)' is not defined", problem, re.MULTILINE
    )
    if missing and missing[2] in last:
        name, before = missing[2], last[missing[2]]
        if not _binds_on_all_ranks(before, name):
            where = f"Cell [{before.number}] sets `{name}` inside an `if`"
            return f"{where}; only the ranks that entered it have `{name}`."
        if missing[1] != "0":
            return ""
        if before.number in raised:
            return f"{name} comes from cell [{before.number}], which raised an error: repair that cell first."
        return f"{name} comes from cell [{before.number}]: run that cell again."
    if "AttributeError" in problem:
        made = _last_assigned([before for before in earlier if before.setup])
        for name in sorted(made.keys() & last.keys()):
            if not last[name].setup and re.search(rf"\b{name}\.", cell.text):
                where = f"{name} was given another value in cell [{last[name].number}]"
                return f"{where}; cell [{made[name].number}] brings it back."
    return ""


def _binds_on_all_ranks(cell: Cell, name: str) -> bool:
    """Whether the cell binds `name` in a statement that no rank skips, or in both branches of an `if`."""

    def bound(statements: Sequence[ast.stmt]) -> bool:
        return any(
            bound(each.body) and bound(each.orelse)
            if isinstance(each, ast.If)
            else name in Cell(ast.unparse(each), cell.number, cell.lines_above, cell.setup).assigned()
            for each in statements
        )

    return bound(ast.parse(TransformerManager().transform_cell(cell.text)).body)


def _last_assigned(cells: Sequence[Cell]) -> dict[str, Cell]:
    """Every name that the cells bind, with the last cell that does."""
    return {name: cell for cell in cells for name in cell.assigned()}


def cell_numbers(numbers: Sequence[int]) -> str:
    """The cells' numbers in words, as the page shows them: `cells [5]–[7], [9]`."""
    words = [f"[{run[0]}]" if len(run) == 1 else f"[{run[0]}]–[{run[-1]}]" for run in runs_of(numbers)]
    return f"cell{'s' * (len(numbers) > 1)} {', '.join(words)}"
