"""From whatever went wrong in a lesson to one line: which cell, which rank, what.

ipyparallel wraps the errors of ranks: "one or more exceptions raised in: %px\\n[2:execute]ValueError: boom";
while output streams it shows that first and then says only "1 errors". Reports of a hang name their ranks.
"""

import errno
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LONGEST = 160
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_RANK_FORMS = (
    re.compile(r"^\[(?P<rank>\d+):\w+\]:?[ \t]*(?P<error>.*)$", re.MULTILINE),
    re.compile(
        r"^\s*\[?rank (?P<rank>\d+)\]?:?\s+(?:raised\s+)?(?P<error>\w+(?:Error|Exception|Exit)\b.*)$", re.M
    ),
    re.compile(r"\[rank (?P<rank>\d+)\]:?[ \t]*(?P<error>.*)$", re.MULTILINE),
)
_ERROR_LINE = re.compile(r"^(?P<error>[\w.]*(?:Error|Exception|Exit|Interrupt)\b.*)$", re.MULTILINE)
_CARRIERS = ("CompositeError", "AlreadyDisplayedError", "RemoteError")


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a lesson did not run to its end. `cell` counts code cells from 1; no `rank`: in the notebook."""

    text: str
    cell: int | None = None
    rank: int | None = None

    def __str__(self) -> str:
        where = [f"cell {self.cell}"] if self.cell is not None else []
        where += [f"rank {self.rank}"] if self.rank is not None else []
        return f"{', '.join(where)}: {self.text}" if where else self.text


def cell_failure(cell: int, name: str, value: str, outputs: Iterable[Mapping[str, Any]] = ()) -> Failure:
    """The failure of code cell number `cell`, whose error `name: value` reached the notebook.

    `outputs` are what the cell displayed before: there the ranks' errors are when the error itself is mute.
    """
    outputs = list(outputs)
    name, value = raised_while_shown(name, plain(value), outputs)
    places = [value] if name not in _CARRIERS else [value, *map(_text, outputs)]
    for text in places:
        for form in _RANK_FORMS:
            if match := form.search(text):
                error = match["error"] or _next_error(text[match.end() :])
                return Failure(one_line(error or f"{name}: {value}"), cell, int(match["rank"]))
    return Failure(one_line(f"{name}: {value}"), cell)


def raised_while_shown(name: str, value: str, outputs: Iterable[Mapping[str, Any]]) -> tuple[str, str]:
    """The error behind "NoneType: None", which Jupyter sends for one that was raised while a value was shown.

    The traceback that was displayed ends with it. Any other error is returned as it is.
    """
    if name != "NoneType":
        return name, value
    ends = [output["traceback"][-1] for output in outputs if output.get("traceback")]
    real, _, words = plain(ends[-1]).strip().partition(": ") if ends else ("", "", "")
    return (real, words) if real else ("error", "a value could not be shown; run the cell to see why")


def plain(text: str) -> str:
    """Text without terminal colours."""
    return _COLOUR.sub("", text)


def one_line(text: str) -> str:
    """The first line of `text` that says something, without colours, short enough for a table."""
    lines = (line.strip() for line in plain(text).splitlines())
    line = next((line for line in lines if line), "")
    return line if len(line) <= LONGEST else line[: LONGEST - 1] + "…"


def file_words(path: Path, error: Exception) -> str:
    """What is wrong with the file at `path`, with the remedy for a full disk."""
    if isinstance(error, OSError):
        remedy = "; free some disk space and run again" if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
        return f"{error.filename or path}: {error.strerror or error}{remedy}"
    return one_line(f"{path.name} is not a readable notebook: {error}")


def _next_error(text: str) -> str:
    """The first line of a traceback's end that names an error, before another rank's traceback begins."""
    ours = re.split(r"^\[\d+:\w+\]", text, maxsplit=1, flags=re.MULTILINE)[0]
    errors = [
        match["error"] for match in _ERROR_LINE.finditer(ours) if "Traceback (most" not in match["error"]
    ]
    return errors[-1] if errors else ""


def _text(output: Mapping[str, Any]) -> str:
    """What one output of a cell shows, as plain text."""
    if output.get("output_type") == "error":
        text = output.get("evalue", "") + "\n" + "\n".join(output.get("traceback", []))
    else:
        text = output.get("text", "") or output.get("data", {}).get("text/plain", "")
    return plain(text)
