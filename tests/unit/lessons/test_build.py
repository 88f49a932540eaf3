"""A notebook is what its source says: composed without running, built with outputs, never half."""

import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from course.tools import build as builder
from course.tools.build import (
    BuildError,
    build,
    compose,
    differing_files,
    drift,
    lesson_sources,
    notebook_of,
    refresh,
    take_home_files,
    write,
)
from course.tools.frame import stem
from course.tools.parts import run_seconds
from course.tools.runner import Deadlines
from tests.unit.lessons.sources import write_source

pytestmark = pytest.mark.usefixtures("without_frame")

SHOWN = "source: dealing:deal"
DEALING = """\
def deal(total: int, parts: int) -> list[int]:
    return [total // parts] * parts


def one_part(total: int, parts: int) -> int:
    return deal(total, parts)[0]
"""


@pytest.fixture(autouse=True)
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An importable module `dealing` that lessons can show."""
    (tmp_path / "library").mkdir()
    (tmp_path / "library" / "dealing.py").write_text(DEALING)
    monkeypatch.syspath_prepend(tmp_path / "library")


# -------------------------------------------------------------------- composing


def test_only_magics_and_shell_commands_lose_their_comment_sign(tmp_path: Path) -> None:
    source = write_source(
        tmp_path, "# %%\n# %%px --block\nx = 1\n# rm the old file\n# !ls\n# %timeit x\n#  %y\n"
    )
    (cell,) = compose(source).cells
    assert cell.source == "%%px --block\nx = 1\n# rm the old file\n!ls\n%timeit x\n#  %y"


@pytest.mark.parametrize(
    ("text", "cell", "sentence"),
    [
        ("# %%\nx = 1\n# %% and now y\ny = 2\n", 2, "'# %% and now y' begins a new cell"),
        ("# %%\nx = 1\n\n# %%px\ny = 2\n", 1, "%%px must be the first line of a cell"),
        ('# %% slideshow={"slide_type": "skip"}\nx = 1\n', 1, "not slideshow"),
        (f'# %% tags=["{SHOWN}"]\nx = 1\n', 1, "no other content"),
        ('# %% tags=["exercise: 01.99"]\n', 1, "there is no exercise '01.99'"),
        ('# %%\n1\n# %% tags=["source: dealing:no_such"]\n', 2, "no function or class 'no_such'"),
    ],
)
def test_a_source_that_cannot_be_composed_names_the_cell(
    tmp_path: Path, text: str, cell: int, sentence: str
) -> None:
    with pytest.raises(BuildError, match=sentence) as raised:
        compose(write_source(tmp_path, text))
    assert raised.value.cell == cell


def test_what_was_shown_in_the_kernel_is_still_unknown_on_the_ranks(tmp_path: Path) -> None:
    one, two = "source: dealing:deal", "source: dealing:one_part"
    text = f'# %% tags=["{one}"]\n\n# %% tags=["{two}"]\n# %%px\n\n# %% tags=["{two}"]\n'
    _, on_ranks, in_kernel = compose(write_source(tmp_path, text)).cells
    line = "from dealing import deal"
    assert line in on_ranks.source and line not in in_kernel.source


def test_ids_come_from_what_cells_say_and_survive_changes_elsewhere(tmp_path: Path) -> None:
    before = compose(write_source(tmp_path, "# %%\nx = 1\n# %%\ny = 2\n# %%\nx = 1\n")).cells
    after = compose(write_source(tmp_path, "# %%\nx = 1\n# %%\ny = 3\n# %%\nx = 1\n")).cells
    assert [cell.id for cell in before] != [cell.id for cell in after]
    assert [before[n].id for n in (0, 2)] == [after[n].id for n in (0, 2)]
    assert before[2].id == before[0].id + "-2"


def test_lessons_are_named_by_number_or_stem_and_come_in_order(tmp_path: Path) -> None:
    sources = [write_source(tmp_path, "", stem) for stem in ("02_pi", "00_start", "10_halo")]
    folder = sources[0].parents[1]
    assert [stem(s) for s in lesson_sources((), folder)] == ["00_start", "02_pi", "10_halo"]
    assert [stem(s) for s in lesson_sources(["10", "2"], folder)] == ["02_pi", "10_halo"]
    assert [stem(s) for s in lesson_sources(["02_pi"], folder)] == ["02_pi"]
    with pytest.raises(BuildError, match=r"no lesson '1' .* there are: 00_start, 02_pi, 10_halo"):
        lesson_sources(["1"], folder)


# -------------------------------------------------------------------- building

GOOD = """\
# %% [markdown]
# # 01 · Try

# %%
import os
import subprocess
import sys

print(os.path.basename(os.getcwd()), os.environ["IPP_NONINTERACTIVE"])
print("seen", "seen", file=sys.stderr)

# %%
child = subprocess.Popen(["sleep", "300"], start_new_session=True)

# %% tags=["raises-exception"]
1 / 0

# %% tags=["nbval-ignore-output"]
from pathlib import Path

import numpy

print(child.pid, numpy.__file__, Path.home() / "x")

# %%
{"answer": 42}
"""


@pytest.fixture(scope="module")
def built(without_frame: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small lesson, built once."""
    return build(write_source(tmp_path_factory.mktemp("good"), GOOD))


def test_a_built_notebook_holds_the_outputs_of_a_run_in_its_own_folder(built: Path) -> None:
    cells = nbformat.read(built, as_version=4).cells
    assert {out.name: out.text for out in cells[1].outputs} == {
        "stdout": "notebooks 1\n",
        "stderr": "seen seen\n",
    }
    assert cells[3].outputs[0].ename == "ZeroDivisionError"
    assert cells[5].outputs[0].data["text/plain"] == "{'answer': 42}"
    assert [cell.execution_count for cell in cells[1:]] == [1, 2, 3, 4, 5]


def test_a_built_notebook_is_valid_and_says_nothing_about_this_machine(built: Path) -> None:
    text = built.read_text()
    notebook = nbformat.reads(text, as_version=4)
    nbformat.validate(notebook)
    assert notebook.metadata.kernelspec.name == "python3"
    assert "version" not in notebook.metadata.language_info
    assert not any(
        word in text for word in ('execution": {', "iopub", str(Path.home()) + "/", str(builder.ROOT))
    )
    assert ".../site-packages/numpy/__init__.py" in text


def test_a_fresh_build_has_not_drifted_whatever_its_outputs_are(built: Path) -> None:
    assert drift(built) is None
    notebook = nbformat.read(built, as_version=4)
    notebook.cells[1].outputs = []
    nbformat.write(notebook, built)
    assert drift(built) is None


@pytest.mark.parametrize("change", ["tags", "removed"])
def test_drift_finds_the_cell_that_differs(tmp_path: Path, change: str) -> None:
    source = write_source(tmp_path, "# %%\nx = 1\n# %%\ny = 2\n")
    notebook = compose(source)
    if change == "tags":
        notebook.cells[1].metadata["tags"] = ["nbval-ignore-output"]
    else:
        del notebook.cells[1]
    nbformat.write(notebook, notebook_of(source))
    assert drift(notebook_of(source)) == 2


@pytest.mark.parametrize(
    ("cell", "sentence"),
    [
        ("# %%\ndef f():\n    raise ValueError('boom')\nf()", "raised ValueError: boom"),
        ('# %% tags=["raises-exception"]\nx = 1', "is tagged raises-exception and did not raise"),
        ("# %%\nimport time\ntime.sleep(60)", "this cell was not done after 2 s"),
    ],
)
def test_a_build_that_fails_says_where_and_leaves_the_old_notebook(
    tmp_path: Path, cell: str, sentence: str
) -> None:
    source = write_source(tmp_path, f"# %% [markdown]\n# text\n\n{cell}\n\n# %%\nprint('never')\n")
    notebook_of(source).write_text("the old one")
    with pytest.raises(BuildError, match=sentence) as raised:
        build(source, Deadlines(cell=2, lesson=60))
    assert raised.value.cell == 2
    assert cell.splitlines()[-1] in str(raised.value)  # its source, to the last line
    assert notebook_of(source).read_text() == "the old one"
    assert [path.name for path in notebook_of(source).parent.iterdir() if path.is_file()] == ["01_try.ipynb"]


# -------------------------------------------------------------------- the program to take home

PROGRAM = f"""\
# %%
# %%px --save 01_try.py
\"\"\"Deal.\"\"\"

import sys

# %%
# %%px
late = 1  # not a part

# %% tags=["{SHOWN}"]
# %%px --timeout 5 --save 01_try.py

# %%
# %%px --save 01_try.py
if __name__ == "__main__":
    print(deal(4, 2))
"""


def test_cells_that_are_saved_are_a_program_that_runs(tmp_path: Path) -> None:
    source = write_source(tmp_path, PROGRAM)
    assert differing_files(source) == ["01_try.py"]
    builder.write_take_home(source, compose(source))
    assert differing_files(source) == []
    path = tmp_path / "notebooks" / "code" / "01_try.py"
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=30)
    assert done.stdout == "[2, 2]\n"
    text = path.read_text()
    assert text.startswith('"""Deal.\n\n') and "mpiexec -n 4 python code/01_try.py" in text
    assert "\n".join(DEALING.splitlines()[:2]) in text and "late" not in text
    path.write_text(f"{text}\n")
    assert differing_files(source) == ["01_try.py"]


def test_two_parts_that_bind_the_same_name_are_refused(tmp_path: Path) -> None:
    cells = "".join(f"# %%\n# %%px --save 01_try.py\nx = {n}\n\n" for n in range(2))
    with pytest.raises(BuildError, match=r"another part of 01_try\.py defines x, too; rename one") as raised:
        take_home_files(compose(write_source(tmp_path, cells)))
    assert raised.value.cell == 2


# -------------------------------------------------------------------- a changed text


def pretended(folder: Path, text: str) -> Path:
    """A lesson with the notebook that a build would have left, and the output 7 below every code cell."""
    source = write_source(folder, text)
    notebook = compose(source)
    for number, cell in enumerate((cell for cell in notebook.cells if cell.cell_type == "code"), 1):
        cell.outputs, cell.execution_count = [nbformat.v4.new_output("stream", text="7\n")], number
    notebook.metadata["course"] = {"run_seconds": {"core": 5, "more": 0}}
    write(notebook, notebook_of(source))
    return source


def test_a_changed_text_keeps_all_outputs_and_runs_nothing(tmp_path: Path) -> None:
    source = pretended(tmp_path, f"# %% [markdown]\n# Old.\n\n{PROGRAM}")
    source.write_text(f"# %% [markdown]\n# New.\n\n# %% [markdown]\n# Words.\n\n{PROGRAM}")
    assert drift(notebook_of(source)) == 1
    notebook = nbformat.read(refresh(source), as_version=4)
    assert drift(notebook_of(source)) is None
    assert [cell.source for cell in notebook.cells[:2]] == ["New.", "Words."]
    code = notebook.cells[2:]
    assert [(cell.execution_count, cell.outputs[0].text) for cell in code] == [
        (n, "7\n") for n in range(1, 5)
    ]
    assert run_seconds(notebook_of(source)) == {"core": 5, "more": 0}
    assert differing_files(source) == []


def test_the_command_runs_nothing_and_keeps_no_output_of_a_changed_cell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = pretended(tmp_path, PROGRAM)
    monkeypatch.setattr(builder, "lesson_sources", lambda names: [source])
    monkeypatch.setattr(builder, "execute", lambda *arguments: pytest.fail("a cell was run"))
    assert builder.main(["--text", "01"]) == 0
    before = notebook_of(source).read_bytes()
    source.write_text(PROGRAM.replace("late = 1", "late = 2"))
    assert builder.main(["--text", "01"]) == 1
    assert "code cell 2 has changed" in capsys.readouterr().err
    assert notebook_of(source).read_bytes() == before
