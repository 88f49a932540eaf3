"""What makes a rank say in text what it would draw on a page: a rank's widgets would reach the page broken.

A widget is a conversation between a page and the process that made it, and a page talks to the kernel alone.
So on a rank tqdm's bars for notebooks are those for terminals, and the shell does not look like a notebook's
to rich and others that ask.

`settled` then shows a bar that redraws itself hundreds of times as the one line that it is in a terminal.
"""

import re
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_CURSOR = re.compile(r"\x1b\[\?25[hl]")  # hidden and shown again
_REDRAWS = re.compile(r"\r(?!\n)|\x1b\[\d*[AK]")
_PARTS = re.compile(r"\r|\n|\x1b\[\d*A|\x1b\[\d*K|[^\r\n\x1b]+|\x1b")


def settled(text: str) -> str:
    """What a terminal shows in the end: of lines that are written again and again, the last state."""
    text = _CURSOR.sub("", text)
    if not _REDRAWS.search(text):
        return text
    lines, at, anew = [""], 0, False  # `anew`: the next letters replace the line
    for part in _PARTS.findall(text):
        if part == "\n":
            at, anew = at + 1, True  # a bar below another is reached like this, too
            lines += [""] * (at == len(lines))
        elif part == "\r":
            anew = True
        elif part.startswith("\x1b[") and part.endswith("A"):
            at, anew = max(0, at - int(part[2:-1] or 1)), True
        elif part.startswith("\x1b[") and part.endswith("K"):
            lines[at] = ""
        else:
            lines[at], anew = part if anew else lines[at] + part, False
    return "\n".join(line.rstrip() for line in lines)


def look_like_a_terminal(shell: Any) -> None:
    """Let libraries that ask `shell` what it is find no notebook; safe to call twice."""
    shell.config.pop("IPKernelApp", None)  # by this transformers knows a notebook
    if type(shell).__name__ == "ZMQInteractiveShell":  # and rich by this
        shell.__class__ = type("RankShell", (type(shell),), {"__module__": type(shell).__module__})
    if not any(isinstance(finder, _TextBars) for finder in sys.meta_path):
        sys.meta_path.insert(0, _TextBars())


class _TextBars(MetaPathFinder, Loader):
    """Finds tqdm's modules that may make widgets: they have the bars for terminals."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if fullname in ("tqdm.notebook", "tqdm.autonotebook") else None

    def exec_module(self, module: ModuleType) -> None:
        from tqdm import std  # here: it is the learner who imports tqdm, which we do not need

        vars(module).update(tqdm=std.tqdm, tqdm_notebook=std.tqdm, trange=std.trange, tnrange=std.trange)
