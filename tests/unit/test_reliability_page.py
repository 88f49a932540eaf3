"""The two pages of promises, for users and for maintainers, promise only what a test holds."""

import ast
import re

from course.paths import ROOT

PAGE = "\n".join(
    (ROOT / "docs" / name).read_text() for name in ("maintainers/reliability.md", "reliability.md")
)
TEST = re.compile(r"`([\w/]+\.py)::(\w+)`")


def missing(page: str) -> list[str]:
    """The tests that `page` names and that are not there."""
    found = []
    for path, name in TEST.findall(page):
        file = ROOT / path
        tree = ast.parse(file.read_text()) if file.is_file() else ast.Module([], [])
        if name not in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}:
            found.append(f"{path}::{name}")
    return found


def test_every_test_on_the_page_exists() -> None:
    assert missing(PAGE) == []


def test_every_promise_names_a_test() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| ") and "---" not in line]
    promises = [row for row in rows if "you may rely on" not in row]
    assert len(promises) > 20
    assert [row for row in promises if not TEST.search(row.split(" | ", 1)[1])] == []
