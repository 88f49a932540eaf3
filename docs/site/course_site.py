"""What the site adds to Sphinx: anchors of headings, colours of cells, and folds, which open when chosen.

A fold is HTML's `<details>`: it needs no script.

    :::{fold} Hint 1
    :class: hint
    :group: 01.1

    Which call does both?
    :::

Of one `group`, the browser keeps one open at a time. What a cell shows is in a fold, too, if the cell's
metadata has a title for it, `fold`.
"""

import re
from typing import ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from pygments.lexer import bygroups
from pygments.lexers.python import PythonLexer
from pygments.token import Comment, Text
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from sphinx.util.typing import ExtensionMetadata
from sphinx.writers.html5 import HTML5Translator


def slug(heading: str) -> str:
    """The anchor of a heading, as in `course/tools/site/lessons.py`."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


class CellLexer(PythonLexer):
    """A cell of a lesson: Python below the magic (`%%px --setup`), if there is one."""

    name = "cell of a lesson"
    aliases = ("lesson-cell",)
    tokens: ClassVar = {
        **PythonLexer.tokens,
        "root": [
            (r"\A(%%[^\n]*)(\n)", bygroups(Comment.Preproc, Text)),
            (r"^(%[a-z][^\n]*|![^\n]*)(\n)", bygroups(Comment.Preproc, Text)),
            *PythonLexer.tokens["root"],
        ],
    }


class fold(nodes.General, nodes.Element):
    """A fold: a title, and content that the reader opens."""


class fold_title(nodes.General, nodes.TextElement):
    """The title of a fold, which is always seen."""


class Fold(SphinxDirective):
    """The directive `fold`, as shown above; its argument is the title."""

    has_content = True
    required_arguments = 1
    final_argument_whitespace = True
    option_spec: ClassVar = {"class": directives.class_option, "group": directives.unchanged}

    def run(self) -> list[nodes.Node]:
        """One fold, its title and its content parsed as markdown."""
        whole = fold(classes=["fold", *self.options.get("class", [])], group=self.options.get("group", ""))
        title = fold_title("", "")
        words, messages = self.state.inline_text(self.arguments[0], self.lineno)
        title += words
        whole += title
        self.state.nested_parse(self.content, self.content_offset, whole)
        return [whole, *messages]


def _open(translator: HTML5Translator, node: fold) -> None:
    attributes = {"name": node["group"]} if node["group"] else {}
    translator.body.append(translator.starttag(node, "details", **attributes))


def _close(translator: HTML5Translator, node: fold) -> None:
    translator.body.append("</details>\n")


def _open_title(translator: HTML5Translator, node: fold_title) -> None:
    translator.body.append("<summary>")


def _close_title(translator: HTML5Translator, node: fold_title) -> None:
    translator.body.append("</summary>\n")


def fold_outputs(app: Sphinx, document: nodes.document) -> None:
    """Put the outputs of the cells with `fold` in their metadata into a fold."""
    for cell in list(document.findall(nodes.container)):
        title = cell.get("cell_metadata", {}).get("fold")
        for output in list(cell.children) if title else []:
            if output.get("nb_element") == "cell_code_output":
                whole = fold("", fold_title("", title), classes=["fold"], group="")
                cell.replace(output, whole)
                whole += output


def setup(app: Sphinx) -> ExtensionMetadata:
    """Register the directive, its nodes, the folds of outputs and the lexer of cells."""
    app.add_node(fold, html=(_open, _close))
    app.add_node(fold_title, html=(_open_title, _close_title))
    app.add_directive("fold", Fold)
    app.connect("doctree-read", fold_outputs)
    app.add_lexer("lesson-cell", CellLexer)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
