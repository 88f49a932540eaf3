"""Right answers made wrong by a machine: every mutant differs from the solution in one place.

`mutants(source)` yields what was changed, in words, and the changed source.
"""

import ast
import copy
from collections.abc import Callable, Iterator

Change = tuple[str, ast.AST]
PARTNERS = {"send": "recv", "recv": "send", "Send": "Recv", "Recv": "Send"}


def mutants(source: str) -> Iterator[tuple[str, str]]:
    """All mutants of `source`, without those that are spelled alike."""
    tree, seen = ast.parse(source), {ast.unparse(ast.parse(source))}
    for number, node in enumerate(ast.walk(tree)):
        for change in CHANGES:
            for words, replacement in change(node):
                text = ast.unparse(_with(tree, number, replacement))
                if text not in seen:
                    seen.add(text)
                    yield f"line {getattr(node, 'lineno', 0)}: {words}", text


def orders(solution: str, blocks: list[str]) -> Iterator[tuple[str, str]]:
    """Mutants of the order of a puzzle: neighbours exchanged, a block lost, a block too many."""
    right = solution.split()
    for i in range(len(right) - 1):
        exchanged = [*right[:i], right[i + 1], right[i], *right[i + 2 :]]
        yield f"{right[i]} and {right[i + 1]} exchanged", " ".join(exchanged)
    for i, letter in enumerate(right):
        yield f"{letter} lost", " ".join(right[:i] + right[i + 1 :])
    for letter in sorted(set(blocks) - set(right)):
        for i in range(len(right)):
            yield f"{letter} before {right[i]}", " ".join([*right[:i], letter, *right[i:]])


def _with(tree: ast.Module, number: int, replacement: ast.AST) -> ast.Module:
    """A copy of `tree` in which the node that `ast.walk` finds as `number` is another one."""
    changed = copy.deepcopy(tree)
    target = list(ast.walk(changed))[number]

    class Replace(ast.NodeTransformer):
        def visit(self, node: ast.AST) -> ast.AST:
            return copy.deepcopy(replacement) if node is target else self.generic_visit(node)

    return ast.fix_missing_locations(Replace().visit(changed))


def _expression(text: str) -> ast.AST:
    return ast.parse(text, mode="eval").body


# -------------------------------------------------------------------- what goes wrong


def other_side(node: ast.AST) -> Iterator[Change]:
    """One more for one less, and the reverse."""
    if isinstance(node, ast.BinOp) and isinstance(node.right, ast.Constant) and node.right.value == 1:
        if isinstance(node.op, ast.Add):
            yield "+ 1 is - 1", ast.BinOp(node.left, ast.Sub(), node.right)
        elif isinstance(node.op, ast.Sub):
            yield "- 1 is + 1", ast.BinOp(node.left, ast.Add(), node.right)


def one_term(node: ast.AST) -> Iterator[Change]:
    """An operation with one of its sides only."""
    if isinstance(node, ast.BinOp):
        yield f"{ast.unparse(node.right)} is lost", node.left
    if isinstance(node, ast.AugAssign):
        yield f"{ast.unparse(node.value)} is not added", ast.Pass()
    if isinstance(node, ast.IfExp):
        yield "the condition is lost", node.body


def other_reduction(node: ast.AST) -> Iterator[Change]:
    """The mean or the largest in place of the sum, in one process and over all ranks."""
    if isinstance(node, ast.keyword) and node.arg == "reduction" and ast.unparse(node.value) == "'sum'":
        yield "reduction is mean", ast.keyword("reduction", ast.Constant("mean"))
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return
    if node.func.attr == "sum":
        for name in ("mean", "max"):
            yield f"sum is {name}", ast.Call(_attribute(node.func, name), node.args, node.keywords)
    if node.func.attr in ("Reduce", "Allreduce"):
        largest = ast.keyword("op", _expression("MPI.MAX"))
        yield "the sum over ranks is the largest", ast.Call(node.func, node.args, [*node.keywords, largest])
    if node.func.attr == "allreduce" and node.args:
        yield "what all ranks have is this rank's own", node.args[0]


def other_direction(node: ast.AST) -> Iterator[Change]:
    """Send and receive exchanged, or their partners."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return
    if node.func.attr in PARTNERS:
        swapped = PARTNERS[node.func.attr]
        yield (
            f"{node.func.attr} is {swapped}",
            ast.Call(_attribute(node.func, swapped), node.args, node.keywords),
        )
    values = {keyword.arg: keyword.value for keyword in node.keywords}
    if {"dest", "source"} <= values.keys():
        exchange = {"dest": values["source"], "source": values["dest"]}
        keywords = [ast.keyword(k.arg, exchange.get(k.arg or "", k.value)) for k in node.keywords]
        yield "destination and source exchanged", ast.Call(node.func, node.args, keywords)


def _attribute(of: ast.Attribute, name: str) -> ast.Attribute:
    return ast.Attribute(of.value, name, ast.Load())


def always_rank_zero(node: ast.AST) -> Iterator[Change]:
    """A rank that takes itself for rank 0, and one that counts wrong."""
    if isinstance(node, ast.Attribute) and node.attr == "rank":
        yield f"{ast.unparse(node)} is 0", ast.Constant(0)
    if isinstance(node, ast.Attribute) and node.attr == "size" and ast.unparse(node.value) == "comm":
        yield "comm.size is 4", ast.Constant(4)


def other_range(node: ast.AST) -> Iterator[Change]:
    """One too many or one too few in a loop."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "range":
        for i, item in enumerate(node.args):
            for more in ("+ 1", "- 1"):
                changed = [*node.args[:i], _expression(f"{ast.unparse(item)} {more}"), *node.args[i + 1 :]]
                yield (
                    f"range({'from' if i + 1 < len(node.args) else 'to'} {more})",
                    ast.Call(node.func, changed, []),
                )


def first_turn_only(node: ast.AST) -> Iterator[Change]:
    """A loop that is left after its first turn."""
    if isinstance(node, ast.For):
        once = [*node.body, ast.Break()]
        yield "the loop ends after one turn", ast.For(node.target, node.iter, once, node.orelse)


def other_root(node: ast.AST) -> Iterator[Change]:
    """The last rank as the root, and another tag."""
    if isinstance(node, ast.keyword) and node.arg == "root":
        yield "root is the last rank", ast.keyword("root", _expression("comm.size - 1"))
    if isinstance(node, ast.keyword) and node.arg == "tag":
        yield "another tag", ast.keyword("tag", ast.Constant(7))


def other_condition(node: ast.AST) -> Iterator[Change]:
    """The opposite of a condition."""
    if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Eq):
        yield "== is !=", ast.Compare(node.left, [ast.NotEq()], node.comparators)
    if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Gt):
        yield "> is >=", ast.Compare(node.left, [ast.GtE()], node.comparators)


def lost_call(node: ast.AST) -> Iterator[Change]:
    """A line that is not there: a call whose result is not used, or a return."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield f"{ast.unparse(node)} is lost", ast.Pass()
    if isinstance(node, ast.Return) and node.value is not None and ast.unparse(node) != "return None":
        yield "return is lost", ast.Expr(node.value)


def lost_item(node: ast.AST) -> Iterator[Change]:
    """A list without its last item, and one with another number in it."""
    if isinstance(node, ast.List) and len(node.elts) > 1:
        yield f"{ast.unparse(node.elts[-1])} is lost", ast.List(node.elts[:-1], ast.Load())
        for i, item in enumerate(node.elts):
            if isinstance(item, ast.Constant):
                elements = [*node.elts[:i], ast.Constant(item.value + 1), *node.elts[i + 1 :]]
                yield f"item {i} is one more", ast.List(elements, ast.Load())


def other_plan(node: ast.AST) -> Iterator[Change]:
    """A plan without one of its settings, and one with a number in it doubled."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Plan":
        for i, setting in enumerate(node.keywords):
            others = [*node.keywords[:i], *node.keywords[i + 1 :]]
            yield f"{setting.arg} is lost", ast.Call(node.func, node.args, others)
            if isinstance(setting.value, ast.Constant) and not isinstance(setting.value.value, bool):
                twice = ast.keyword(setting.arg, ast.Constant(2 * setting.value.value))
                yield f"{setting.arg} is doubled", ast.Call(node.func, node.args, [*others, twice])


CHANGES: tuple[Callable[[ast.AST], Iterator[Change]], ...] = (
    other_side,
    one_term,
    other_reduction,
    other_direction,
    always_rank_zero,
    other_range,
    first_turn_only,
    other_root,
    other_condition,
    lost_call,
    lost_item,
    other_plan,
)
