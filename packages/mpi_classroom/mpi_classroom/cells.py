"""The cells that went to the ranks: what they bind, and how the engines and the notebook call them."""

import ast
import builtins
import re
from collections.abc import Sequence
from dataclasses import dataclass

from ipykernel.compiler import get_tmp_hash_seed, murmur2_x86
from IPython.core.inputtransformer2 import TransformerManager


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell that went to the ranks: its text, its number in the notebook, lines above the text (`%%px`)."""

    text: str
    number: int
    lines_above: int
    setup: bool

    def assigned(self) -> set[str]:
        """Names that the cell binds at its top level."""
        try:
            tree = ast.parse(TransformerManager().transform_cell(self.text))  # without %magics and !commands
        except SyntaxError:
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


def hint(problem: str, cell: Cell, earlier: Sequence[Cell]) -> str:
    """A sentence on a name that `earlier` cells took from `cell`, which raised `problem`; "" if none did."""
    if "is not callable" in problem:
        for name, before in _last_assigned([*earlier, cell]).items():
            if hasattr(builtins, name) and re.search(rf"\b{name}\s*\(", cell.text):
                where = f"{name} is a variable of yours since cell {before.number}"
                return f"{where}; `%px del {name}` brings Python's own back."
    last = _last_assigned(earlier)
    missing = re.search(r"NameError: name '(\w+)' is not defined", problem)
    if missing and missing[1] in last:
        return f"{missing[1]} comes from cell {last[missing[1]].number}: run that cell again."
    if "AttributeError" in problem:
        made = _last_assigned([before for before in earlier if before.setup])
        for name in sorted(made.keys() & last.keys()):
            if not last[name].setup and re.search(rf"\b{name}\.", cell.text):
                where = f"{name} was given another value in cell {last[name].number}"
                return f"{where}; cell {made[name].number} brings it back."
    return ""


def _last_assigned(cells: Sequence[Cell]) -> dict[str, Cell]:
    """Every name that the cells bind, with the last cell that does."""
    return {name: cell for cell in cells for name in cell.assigned()}


def cell_numbers(numbers: Sequence[int]) -> str:
    """The cells' numbers in words: `cells 5–7, 9`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    words = [str(run[0]) if len(run) == 1 else f"{run[0]}–{run[-1]}" for run in runs]
    return f"cell{'s' * (len(numbers) > 1)} {', '.join(words)}"
