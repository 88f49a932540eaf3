"""Cells that are also a program: `%%px --save 02_pi.py` keeps a cell as a part of `code/02_pi.py`.

The parts of the file stand below lines `# %%`, in the order in which they first ran. A cell that runs again
replaces its own part. In the same session JupyterLab's cell ids say which one that is; otherwise it is the
part with which the cell shares a name (a function, a class, a variable). The parts that start the program,
`if __name__ == "__main__":`, stay last. Where an exercise is not solved, the file has the course's solution,
and says so. Runs anywhere: nothing of the classroom is in the file.
"""

import ast
import os
import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from mpi_classroom.errors import CourseError
from mpi_classroom.exercises import Exercise, Question

FOLDER = "code"
MARK = "# %%\n"
STARTS = 'if __name__ == "__main__"'
# A cell that is a part of a file: `%%px --save FILE`, `%%exercise 06.1 --save FILE`, then the code.
SAVED = re.compile(r"%%(?:px|exercise +(?P<id>\S+))\b.*? --save +(?P<file>\S+).*\n(?P<code>(?s:.*))")
NAME = re.compile(r"[\w.-]+\.py")
DOCSTRING = re.compile(r'\A"""(.+?)\s*"""\n*', re.DOTALL)
HOW_TO_START = """
Start it with one of these:

    mpiexec -n 4 python {file}                     on this machine
    mpiexec -n 8 --hostfile hosts python {file}    on the hosts that a file lists, over ssh
    sbatch -n 8 --wrap "mpiexec python {file}"     under Slurm
"""

_saved: dict[Path, dict[str, str]] = {}  # in this session: for every file, the part of each cell, by its id


class SaveError(CourseError):
    """A cell cannot be kept as a part of a program: in one sentence, with the remedy."""


def path_of(name: str) -> Path:
    """The file `name` in the folder `code` beside the notebook. Raises SaveError for a path."""
    if not NAME.fullmatch(name):
        raise SaveError(f"--save {name}: give a file name such as 02_pi.py, without a folder")
    return Path(FOLDER, name).absolute()


def cell_id(shell: Any) -> str:
    """The id of the cell that runs; "" where the notebook's frontend does not send one."""
    parent = shell.get_parent() if hasattr(shell, "get_parent") else {}
    return str(parent.get("metadata", {}).get("cellId", ""))


def save_part(name: str, code: str, cell: str = "") -> Path:
    """Keep `code` as a part of the program `name`; return its path. Raises SaveError.

    Readers see the old file or the new one. What stands in a file without parts is not ours, and is kept
    beside it. `cell`: the id of the cell, where there is one.
    """
    path = path_of(name)
    try:
        ast.parse(code)
    except (SyntaxError, ValueError) as error:
        words = f"line {getattr(error, 'lineno', None) or 1} is not plain Python: {error}"
        raise SaveError(f"{FOLDER}/{name} was not written, for {words}") from None
    try:
        path.parent.mkdir(exist_ok=True)
        before = path.read_text(encoding="utf-8") if path.exists() else MARK
        if MARK not in before:
            path.replace(path.with_name(f"{name}.before"))
            before = MARK
        docstring, *parts = before.split(MARK)
        saved, code = _saved.setdefault(path, {}), code.replace(MARK, "")
        theirs = [part for other, part in saved.items() if other != cell]
        parts = with_part(parts, code, mine=saved.get(cell, ""), theirs=theirs)
        new = composed(name, parts, docstring)
        if new != before:
            draft = path.with_name(f".{name}.{os.getpid()}")
            draft.write_text(new, encoding="utf-8")
            draft.replace(path)
        if cell:
            saved[cell] = _body(code)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise SaveError(f"{FOLDER}/{name} was not written ({reason}); the cell itself ran") from None
    return path


def with_part(parts: Sequence[str], code: str, mine: str = "", theirs: Collection[str] = ()) -> list[str]:
    """The parts of a program with `code` in the place of its old part, or added.

    The old part is `mine`; else the one that says the same; else the first that defines one of its names.
    The last two cannot be among `theirs`, the parts of other cells.
    """
    parts, names = [part.strip("\n") for part in parts if part.strip()], defines(code)
    free = [n for n, part in enumerate(parts) if _body(part) not in theirs]
    same = [n for n, part in enumerate(parts) if mine and _body(part) == mine]
    same += [n for n in free if _body(parts[n]) == _body(code)]
    same += [n for n in free if defines(parts[n]) & names]
    if same:
        parts[same[0]] = code
    else:
        parts.append(code)
    return parts


def _body(code: str) -> str:
    """A part without the docstring that it begins with, which the file has at its top."""
    return DOCSTRING.sub("", code.strip("\n"), count=1).strip("\n")


def composed(name: str, parts: Sequence[str], before: str = "") -> str:
    """The text of the program: a docstring that says how to start it, then its parts.

    The docstring is that of the first part, if this begins with one; else the one in `before`. It gets lines
    on how to start the program, unless it has some. The parts that start it come last.
    """
    parts = [part.strip("\n") for part in parts if part.strip()]
    first = DOCSTRING.match(parts[0]) if parts else None
    if first:
        parts[0] = parts[0][first.end() :]
    found = first or DOCSTRING.match(before)
    said = found[1].strip() if found else name
    if "mpiexec" not in said:
        said += "\n" + HOW_TO_START.format(file=f"{FOLDER}/{name}").rstrip()
    parts.sort(key=lambda part: STARTS in part)
    return "\n\n".join([f'"""{said}\n"""', *(f"{MARK}{part}\n" for part in parts if part)])


def defines(code: str) -> set[str]:
    """The functions, classes and variables that `code` binds at its top level; imports do not count."""
    try:
        body = ast.parse(code).body
    except (SyntaxError, ValueError):
        return set()
    names = {node.name for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    assigned = (node for node in body if isinstance(node, ast.Assign | ast.AnnAssign))
    leaves = (leaf for node in assigned for leaf in ast.walk(node) if isinstance(leaf, ast.Name))
    return names | {leaf.id for leaf in leaves if isinstance(leaf.ctx, ast.Store)}


def solved(exercise: Exercise | Question) -> str:
    """The course's solution as a part of a program, with a line that says so."""
    assert isinstance(exercise, Exercise), "a question has no code to keep"
    lines = f"# The course's solution of exercise {exercise.id}: yours takes its place when it is right.\n"
    return lines + exercise.solution
