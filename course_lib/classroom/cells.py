"""The cells that went to the ranks: what they bind, and how the engines and the notebook call them."""

import ast
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
