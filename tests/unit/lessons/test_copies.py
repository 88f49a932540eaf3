"""The learner's copy: clean, never overwritten, and it knows what it was made from."""

import os
from datetime import datetime

import nbformat
import pytest

from course.tools.copies import CopyError, reset_copies, update_copies

NOON = datetime(2026, 11, 20, 15, 30)


def write_lesson(folder, stem, code="total = comm.allreduce(1)", output="4"):
    cells = [
        nbformat.v4.new_markdown_cell("# 04 · Collectives\n[next](06_data_parallel_by_hand.ipynb)", id="a"),
        nbformat.v4.new_code_cell(
            code,
            id="b",
            execution_count=7,
            outputs=[nbformat.v4.new_output("stream", text=output)],
            metadata={
                "tags": ["nbval-ignore-output", "source: course_lib.pi:count_inside"],
                "execution": {"iopub.status.busy": "2026"},
            },
        ),
    ]
    folder.mkdir(exist_ok=True)
    nbformat.write(
        nbformat.v4.new_notebook(cells=cells, metadata={"widgets": {"x": 1}}), folder / f"{stem}.ipynb"
    )


@pytest.fixture
def source(tmp_path):
    write_lesson(tmp_path / "notebooks", "04_collectives")
    return tmp_path / "notebooks"


@pytest.fixture
def target(tmp_path):
    return tmp_path / "my_course"


def test_a_copy_has_no_outputs_counts_or_test_marks_and_is_a_valid_notebook(source, target):
    update_copies(source, target)
    copy = nbformat.read(target / "04_collectives.ipynb", as_version=4)
    nbformat.validate(copy)
    code = copy.cells[1]
    assert (code.outputs, code.execution_count) == ([], None)
    assert code.metadata == {"tags": ["source: course_lib.pi:count_inside"]}
    assert code.source == "total = comm.allreduce(1)"
    assert copy.metadata.kernelspec.name == "python3"
    assert "widgets" not in copy.metadata


def test_an_update_adds_new_lessons_and_leaves_edited_ones_alone(source, target):
    update_copies(source, target)
    mine = target / "04_collectives.ipynb"
    mine.write_text(mine.read_text().replace("allreduce(1)", "allreduce(2)"))
    edited = mine.read_bytes()
    write_lesson(source, "06_data_parallel_by_hand")
    update = update_copies(source, target)
    assert mine.read_bytes() == edited
    assert update.added == ("06_data_parallel_by_hand",)
    assert update.outdated == ()
    assert update.sentences() == ["Added to your copy: 06_data_parallel_by_hand."]


def test_new_outputs_do_not_make_a_copy_outdated(source, target):
    update_copies(source, target)
    write_lesson(source, "04_collectives", output="4 in 3.2 ms")
    assert update_copies(source, target).outdated == ()


def test_a_changed_lesson_is_announced_with_the_command_that_fetches_it(source, target):
    update_copies(source, target)
    old = (target / "04_collectives.ipynb").read_bytes()
    write_lesson(source, "04_collectives", code="total = comm.reduce(1)")
    update = update_copies(source, target)
    assert (target / "04_collectives.ipynb").read_bytes() == old
    assert update.outdated == ("04_collectives",)
    assert len(update.sentences()) == 1
    assert "course reset 04" in update.sentences()[0]


def test_the_version_survives_a_save_by_the_editor(source, target):
    update_copies(source, target)
    mine = target / "04_collectives.ipynb"
    nbformat.write(nbformat.read(mine, as_version=4), mine)
    write_lesson(source, "04_collectives", code="changed = True")
    assert update_copies(source, target).outdated == ("04_collectives",)


def test_a_notebook_of_the_learner_under_a_lessons_name_is_left_in_peace(source, target):
    target.mkdir()
    nbformat.write(nbformat.v4.new_notebook(), target / "04_collectives.ipynb")
    assert update_copies(source, target).sentences() == []


@pytest.mark.parametrize("damage", ['{"cells": [', "[]"])
def test_a_damaged_copy_is_kept_and_reported(source, target, damage):
    target.mkdir()
    mine = target / "04_collectives.ipynb"
    mine.write_text(damage)
    update = update_copies(source, target)
    assert mine.read_text() == damage
    assert "course reset 04" in update.sentences()[0]


def test_reset_makes_a_fresh_copy_and_keeps_the_old_one_aside(source, target):
    update_copies(source, target)
    mine = target / "04_collectives.ipynb"
    fresh = mine.read_bytes()
    mine.write_text("my work")
    assert reset_copies(["04"], source, target, now=NOON) == [
        (mine, target / "04_collectives.2026-11-20-1530.ipynb")
    ]
    assert mine.read_bytes() == fresh
    assert (target / "04_collectives.2026-11-20-1530.ipynb").read_text() == "my work"


def test_an_aside_is_never_overwritten(source, target):
    update_copies(source, target)
    for work in ("first", "second", "third"):
        (target / "04_collectives.ipynb").write_text(work)
        reset_copies(["04"], source, target, now=NOON)
    asides = sorted(path for path in target.glob("04_collectives.2026*"))
    assert sorted(path.read_text() for path in asides) == ["first", "second", "third"]


def test_a_damaged_lesson_is_a_sentence_not_half_a_copy(source, target):
    update_copies(source, target)
    (source / "04_collectives.ipynb").write_text('{"cells": [{"cell_type": "code"}]}')
    (target / "04_collectives.ipynb").write_text("mine")
    with pytest.raises(CopyError, match=r"04_collectives\.ipynb is not a readable notebook"):
        reset_copies(["04"], source, target)
    assert (target / "04_collectives.ipynb").read_text() == "mine"


def test_a_full_disk_during_a_reset_leaves_the_learners_work_where_it_was(source, target):
    update_copies(source, target)
    mine = target / "04_collectives.ipynb"
    mine.write_text("my work")
    (target / f".04_collectives.ipynb.{os.getpid()}.part").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left"):
        reset_copies(["04"], source, target)
    assert [(path.name, path.read_text()) for path in target.iterdir()] == [
        ("04_collectives.ipynb", "my work")
    ]


def of_the_second_edition(mine, work="my work"):
    """Make the copy one that the second edition made, of another text, with a learner's work in it."""
    copy = nbformat.read(mine, as_version=4)
    del copy.metadata.course["edition"]
    copy.metadata.course["version"] = "0123456789abcdef"
    copy.cells[1].source = work
    nbformat.write(copy, mine)
    return mine.read_bytes()


def test_a_copy_of_the_second_edition_is_kept_beside_the_new_lesson_and_told_once(source, target):
    update_copies(source, target)
    mine = target / "04_collectives.ipynb"
    fresh, old = mine.read_bytes(), of_the_second_edition(mine)
    assert update_copies(source, target).sentences() == [
        "The lessons are new. Your copies of the second edition: 04_collectives.second-edition.ipynb."
    ]
    assert mine.read_bytes() == fresh
    assert (target / "04_collectives.second-edition.ipynb").read_bytes() == old
    assert update_copies(source, target).sentences() == []


def test_a_copy_of_a_lesson_that_no_edition_has_changed_stays_where_it_is(source, target):
    update_copies(source, target)
    mine = target / "04_collectives.ipynb"
    copy = nbformat.read(mine, as_version=4)
    del copy.metadata.course["edition"]
    copy.cells[1].source = "my work"
    nbformat.write(copy, mine)
    assert update_copies(source, target).sentences() == []
    assert "my work" in mine.read_text()


def test_code_starts_with_the_data_and_without_programs(source, target):
    (source / "code" / "data").mkdir(parents=True)
    (source / "code" / "06_by_hand.py").write_text("print()")
    (source / "code" / "data" / "digits.npz").write_bytes(b"images")
    update_copies(source, target)
    assert [path.name for path in (target / "code").rglob("*") if path.is_file()] == ["digits.npz"]
    mine = target / "code" / "data" / "digits.npz"
    assert mine.read_bytes() == b"images"
    mine.write_bytes(b"my own")
    update_copies(source, target)
    reset_copies(["04"], source, target)
    assert mine.read_bytes() == b"my own"
