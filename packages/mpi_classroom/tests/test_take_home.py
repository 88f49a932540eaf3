"""Cells that are also a program: which part a cell is, and what the file says."""

import ast
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from mpi_classroom import take_home
from mpi_classroom.take_home import MARK, SaveError, cell_id, composed, save_part, with_part

MAIN = 'if __name__ == "__main__":\n    print(f())'


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of a notebook, in a new session."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(take_home, "_saved", {})
    yield tmp_path


def parts(name: str = "01_try.py") -> list[str]:
    """The parts of the program, without its docstring."""
    return [part.strip() for part in Path("code", name).read_text().split(MARK)[1:]]


# -------------------------------------------------------------------- which part a cell is


def test_a_cell_takes_the_place_of_the_part_that_shares_a_name_with_it() -> None:
    assert with_part(["x = 1", "def f():\n    return 1"], "def f():\n    return 2\n\n\ny = 3") == [
        "x = 1",
        "def f():\n    return 2\n\n\ny = 3",
    ]
    assert with_part(["class A: ...", "b: int = 1"], "b = 2") == ["class A: ...", "b = 2"]
    assert with_part(["(first, second) = 1, 2"], "second = 3") == ["second = 3"]


def test_a_new_cell_comes_last_but_for_the_parts_that_start_the_program() -> None:
    def order(parts: list[str]) -> list[str]:
        return [part.strip() for part in composed("01_try.py", parts).split(MARK)[1:]]

    race = 'if __name__ == "__main__" and comm.rank == 0:\n    race()'
    assert order(with_part(["x = 1"], "y = 2")) == ["x = 1", "y = 2"]
    assert order(with_part(["x = 1", MAIN], "y = 2")) == ["x = 1", "y = 2", MAIN]
    assert order(with_part(["x = 1", "y = 2"], MAIN)) == ["x = 1", "y = 2", MAIN]
    assert order(with_part(["x = 1", race, MAIN], "def late(): ...")) == [
        "x = 1",
        "def late(): ...",
        race,
        MAIN,
    ]
    assert order(["x = 1", MAIN, "y = 2", race]) == ["x = 1", "y = 2", MAIN, race]


def test_imports_are_no_names_and_the_same_cell_is_a_part_once() -> None:
    assert with_part(["import os"], "import os\nx = 1") == ["import os", "import os\nx = 1"]
    assert with_part(["import os", "print(1)"], "print(1)\n") == ["import os", "print(1)\n"]


def test_a_cell_that_was_renamed_replaces_its_part_where_ids_say_which_it_is() -> None:
    save_part("01_try.py", "def f(): ...", "a")
    save_part("01_try.py", "def g(): ...", "a")
    assert parts() == ["def g(): ..."]
    save_part("01_try.py", "def h(): ...")  # without an id it is a new part
    assert parts() == ["def g(): ...", "def h(): ..."]


def test_two_cells_of_a_session_may_bind_the_same_name() -> None:
    for code, cell in (("x = 1", "a"), ("x = 2", "b"), ("x = 3", "a"), ("x = 4", "b")):
        save_part("01_try.py", code, cell)
    assert parts() == ["x = 3", "x = 4"]


def test_in_a_new_session_a_cell_finds_its_part_by_its_text_and_then_by_its_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    save_part("01_try.py", "x = 1", "a")
    save_part("01_try.py", "x = 2", "b")
    monkeypatch.setattr(take_home, "_saved", {})
    save_part("01_try.py", "x = 2", "b")
    save_part("01_try.py", "x = 5", "a")
    assert parts() == ["x = 5", "x = 2"]


def test_a_part_that_was_removed_from_the_file_by_hand_is_added_again() -> None:
    path = save_part("01_try.py", "x = 1", "a")
    save_part("01_try.py", "y = 2", "b")
    path.write_text(path.read_text().replace(f"{MARK}x = 1\n", ""))
    save_part("01_try.py", "x = 3", "a")
    assert parts() == ["y = 2", "x = 3"]


def test_programs_do_not_share_parts() -> None:
    save_part("01_try.py", "x = 1", "a")
    save_part("02_try.py", "x = 2", "a")
    assert (parts(), parts("02_try.py")) == (["x = 1"], ["x = 2"])


def test_the_id_of_a_cell_is_what_the_frontend_sends_or_nothing() -> None:
    assert cell_id(SimpleNamespace(get_parent=lambda: {"metadata": {"cellId": "a1"}})) == "a1"
    assert cell_id(SimpleNamespace(get_parent=dict)) == ""
    assert cell_id(SimpleNamespace()) == ""


# -------------------------------------------------------------------- the file


def test_the_docstring_says_how_to_start_the_program_and_outlives_every_save() -> None:
    first = '"""Try it: in vain.\n\nMore words.\n"""\n\nimport os'
    path = save_part("01_try.py", first)
    save_part("01_try.py", "x = 1")
    save_part("01_try.py", first)
    text = path.read_text()
    assert text.startswith('"""Try it: in vain.\n\n')
    assert text.count('"""') == 2 and "mpiexec -n 4 python code/01_try.py" in str(
        ast.get_docstring(ast.parse(text))
    )
    assert parts() == ["import os", "x = 1"]


def test_a_docstring_that_says_how_to_start_the_program_is_kept_whole() -> None:
    said = "Trains.\n\n    torchrun --nproc-per-node 2 code/01_try.py\n    mpiexec -n 2 python code/01_try.py"
    save_part("01_try.py", f'"""{said}\n"""\nx = 1')
    save_part("01_try.py", "y = 1")
    assert Path("code", "01_try.py").read_text().startswith(f'"""{said}\n"""\n')


def test_a_line_that_looks_like_a_mark_divides_no_part() -> None:
    save_part("01_try.py", f"x = 1\n{MARK}y = 2")
    save_part("01_try.py", f"x = 3\n{MARK}y = 4")
    assert parts() == ["x = 3\ny = 4"]


def test_a_file_of_the_learners_own_is_kept_beside_the_program(folder: Path) -> None:
    (folder / "code").mkdir()
    (folder / "code" / "01_try.py").write_text("mine = 1\n")
    save_part("01_try.py", "x = 1")
    assert parts() == ["x = 1"]
    assert (folder / "code" / "01_try.py.before").read_text() == "mine = 1\n"


def test_nothing_is_written_where_nothing_has_changed() -> None:
    path = save_part("01_try.py", "x = 1")
    os.utime(path, (1, 1))
    save_part("01_try.py", "x = 1")
    assert path.stat().st_mtime == 1
    assert [each.name for each in path.parent.iterdir()] == ["01_try.py"]


# -------------------------------------------------------------------- refusals


@pytest.mark.parametrize("code", ["x = 1\n%time f()", "def f(:", "x = '\0'"])
def test_what_is_not_plain_python_is_refused_and_the_file_stays(folder: Path, code: str) -> None:
    save_part("01_try.py", "x = 1")
    with pytest.raises(SaveError, match=r"^code/01_try\.py was not written, for line \d is not plain Python"):
        save_part("01_try.py", code)
    assert parts() == ["x = 1"]


@pytest.mark.parametrize("name", ["../01_try.py", "/tmp/x.py", "notes.txt", ""])
def test_a_path_is_refused(folder: Path, name: str) -> None:
    with pytest.raises(SaveError, match=r"give a file name such as 02_pi\.py, without a folder"):
        save_part(name, "x = 1")
    assert list(folder.iterdir()) == []


def test_a_file_that_is_no_text_is_one_sentence_and_stays(folder: Path) -> None:
    (folder / "code").mkdir()
    (folder / "code" / "01_try.py").write_bytes(b"\xff\xfe")
    with pytest.raises(SaveError, match=r"was not written \(it is not text\)"):
        save_part("01_try.py", "x = 1")
    assert (folder / "code" / "01_try.py").read_bytes() == b"\xff\xfe"
