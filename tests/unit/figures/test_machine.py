"""What the pictures of lesson 00 say, and that they stay readable for other machines than this one."""

from pathlib import Path

import nbformat
import pytest

from course.lessons.l00_start_here import figures as machine
from course.paths import NOTEBOOKS
from course_lib.theory.memory import training_state
from mpi_classroom.figures import Picture

GB = 10**9
SEVEN_BILLION = training_state(7 * GB)


def texts(picture: Picture) -> str:
    """Everything that is written inside the first axes, line breaks as spaces."""
    axes = picture.figure.axes[0]
    words = [axes.get_title(loc="left"), *(text.get_text() for text in axes.texts)]
    return " | ".join(words).replace("\n", " ")


def check_form(picture: Picture) -> None:
    """At most 800 pixels wide, no font under 12 points, an alt text of one paragraph."""
    width, _ = picture.figure.get_size_inches() * picture.figure.dpi
    assert width <= 800
    for axes in picture.figure.axes:
        ticks = [*axes.get_xticklabels(), *axes.get_yticklabels()] if axes.axison else []
        words = [text for text in axes.texts if text.get_text()]  # an arrow is a text without words
        shown = [*words, axes.title, *ticks]
        assert all(text.get_fontsize() >= 12 for text in shown)
    assert "\n" not in picture.alt
    assert picture.png().startswith(b"\x89PNG")


# ------------------------------------------------------------------ ranks and cores


def test_more_ranks_than_cores_share_them() -> None:
    picture = machine.cluster_picture([0, 1, 1, 0], 2)
    check_form(picture)
    assert "4 ranks on 2 cores: ranks share cores" in texts(picture)
    assert "rank 2 on core 1" in picture.alt


def test_with_a_core_for_every_rank_none_has_to_share() -> None:
    assert machine.cluster_title(4, 4) == "4 ranks on 4 cores: each rank can have a core to itself"


def test_one_core_is_singular() -> None:
    assert machine.cluster_title(2, 1) == "2 ranks on 1 core: ranks share the core"


def test_no_caption_touches_another_or_a_box() -> None:
    picture = machine.cluster_picture([0, 1, 1, 0], 8)
    axes = picture.figure.axes[0]
    picture.png()  # lays the figure out
    captions = [text for text in axes.texts if text.get_text().startswith(("cells", "%%px", "and"))]
    assert len(captions) == 3
    extents = [text.get_window_extent() for text in captions]
    boxes = [box.get_window_extent() for box in axes.patches]
    assert not any(one.overlaps(other) for one in extents for other in [*extents, *boxes] if one is not other)
    assert all(one.y0 >= picture.figure.bbox.y0 for one in extents)


@pytest.mark.parametrize(
    ("seen", "count", "shown"),
    [
        ([0, 0, 0, 0], 2, [0, 1]),  # an idle core of a small machine is drawn
        ([3, 1, 6, 0], 8, [0, 1, 3, 6]),
        ([33, 1, 62, 33], 64, [1, 33, 62]),
        ([5, 7, 5, 7], 2, [5, 7]),  # a container may use two cores that are not the first two
    ],
)
def test_only_cores_that_say_something_are_drawn(seen: list[int], count: int, shown: list[int]) -> None:
    assert machine.shown_cores(seen, count) == shown
    picture = machine.cluster_picture(seen, count)
    check_form(picture)
    assert [f"core {core}" in texts(picture) for core in shown] == [True] * len(shown)
    assert (f"and {count - len(shown)} more" in texts(picture)) == (count > len(shown))


def test_a_system_that_does_not_say_where_ranks_run_gets_no_arrows_to_cores() -> None:
    picture = machine.cluster_picture([None, None, None, None], 8)
    check_form(picture)
    assert "core 3" in texts(picture) and "and 4 more" in texts(picture)
    assert "Last seen: unknown on this system." in picture.alt


# ------------------------------------------------------------------ memory


def test_the_title_says_that_no_device_has_enough() -> None:
    picture = machine.memory_bars(
        SEVEN_BILLION, {"this machine": 16 * GB, "a GPU": 80 * GB}, parameters=7 * GB
    )
    check_form(picture)
    assert "Training 7 billion parameters takes 112 GB; neither of these devices has that much" in texts(
        picture
    )
    assert "weights 14 GB, gradients 14 GB, optimizer state 84 GB" in picture.alt
    assert "this machine 16 GB, a GPU 80 GB" in picture.alt


def test_devices_that_can_hold_it_are_named() -> None:
    memories = {"this machine": 256 * GB, "my GPU": 8 * GB, "one 80 GB GPU": 80 * GB}
    title = machine.memory_title(112 * GB, memories, 7 * GB)
    assert title == "Training 7 billion parameters takes 112 GB;\nthis machine has enough"
    title = machine.memory_title(24 * GB, memories, 1_500_000_000)
    assert title == "Training 1.5 billion parameters takes 24 GB;\nthis machine and one 80 GB GPU have enough"
    assert machine.memory_title(999 * GB, memories, 1).endswith(";\nnone of these devices has that much")
    assert machine.memory_title(999 * GB, {"a": 1}, 1).endswith(";\nthis device does not have that much")


def test_the_segments_of_the_bar_add_up_to_the_need() -> None:
    picture = machine.memory_bars(SEVEN_BILLION, {"this machine": 16 * GB}, parameters=7 * GB)
    widths = [patch.get_width() for patch in picture.figure.axes[0].patches]
    assert sum(widths[:3]) == pytest.approx(112)
    assert widths[3] == pytest.approx(16)


@pytest.mark.parametrize(
    ("number", "words"),
    [(7 * GB, "7 billion"), (1_500_000_000, "1.5 billion"), (421_642, "422 thousand"), (12, "12")],
)
def test_numbers_of_parameters_are_spoken(number: int, words: str) -> None:
    assert f"Training {words} parameters" in machine.memory_title(1, {"x": 1}, number)


MEASURED = {1: {64: 6 * 10**6, 128: 24 * 10**6}, 16: {64: 96 * 10**6}}  # bytes: 1465 per pixel


@pytest.mark.parametrize(
    ("memory", "side"), [(24 * 10**6, 256), (96 * 10**6, 512), (GB, 1024), (100 * GB, 16384)]
)
def test_the_first_image_that_no_device_can_hold(memory: int, side: int) -> None:
    assert machine.first_too_large(MEASURED[1], memory) == side
    title = machine.size_title(MEASURED, {"a": memory, "b": 1})
    assert f"; extrapolated:\nno device here has room for one image of {side:,} × {side:,} pixels" in title


def test_an_image_that_was_measured_is_not_called_extrapolated() -> None:
    assert machine.size_title(MEASURED, {"a": 1}).endswith(
        ";\nno device here has room for one image of 128 × 128 pixels"
    )


def test_memory_by_size_is_measured_first_and_scaled_beyond() -> None:
    picture = machine.memory_by_size(MEASURED, {"a GPU": 16 * GB})
    check_form(picture)
    one, scaled, *_ = picture.figure.axes[0].get_lines()
    assert list(one.get_xdata()) == [64, 128] and list(one.get_ydata()) == [0.006, 0.024]
    assert list(scaled.get_xdata())[:3] == [128, 256, 512]
    assert list(scaled.get_ydata())[:3] == pytest.approx([0.024, 0.096, 0.384])
    assert scaled.get_linestyle() == "--" and one.get_linestyle() == "-"
    assert "2 times the side takes 4.0 times the memory" in texts(picture)
    assert "16 images: 0.096 GB at 64" in picture.alt and "a GPU 16 GB" in picture.alt


# ------------------------------------------------------------------ course map


def test_the_map_has_every_lesson_once_in_order() -> None:
    picture = machine.course_map()
    check_form(picture)
    numbers = [number for part in machine.COURSE for number, _ in part.lessons]
    assert numbers == [f"{n:02d}" for n in range(17)]
    assert [texts(picture).count(f"{number}  ") for number in numbers] == [1] * 17
    assert "Lesson 00 and 16 more in 5 parts" in picture.alt


def test_the_table_links_the_lessons_that_exist_and_names_the_others(tmp_path: Path) -> None:
    (tmp_path / "l00_start_here").mkdir()
    (tmp_path / "l00_start_here" / "lesson.py").touch()
    table = machine.lesson_table(machine.COURSE[:2], tmp_path).data
    assert "[00 · Start here](00_start_here.ipynb)" in table and "· 03 · arctan π and quadrature ·" in table
    assert table.endswith("In preparation: 01, 02, 03 and 04.")


def test_the_lesson_shows_the_table_as_it_is_now() -> None:
    notebook = nbformat.read(NOTEBOOKS / "00_start_here.ipynb", as_version=4)
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    shown = [output.data["text/markdown"] for output in outputs if "text/markdown" in output.get("data", {})]
    assert shown == [machine.lesson_table().data], "a lesson was added: make notebooks LESSON=00"


def test_lessons_without_a_source_are_dashed(tmp_path: Path) -> None:
    (tmp_path / "l00_start_here").mkdir()
    (tmp_path / "l00_start_here" / "lesson.py").touch()
    picture = machine.course_map(folder=tmp_path)
    check_form(picture)
    lines = [box.get_linestyle() for box in picture.figure.axes[0].patches]
    assert lines == ["-"] + ["--"] * 16
    assert "dashed: in preparation" in texts(picture)
    assert picture.alt.endswith("In preparation: " + ", ".join(f"{n:02d}" for n in range(1, 16)) + " and 16.")


def test_one_box_is_marked_as_the_place_where_you_are() -> None:
    boxes = machine.course_map("06").figure.axes[0].patches
    assert len({box.get_facecolor() for box in boxes}) == 2
    marked = [i for i, box in enumerate(boxes) if box.get_facecolor() != boxes[0].get_facecolor()]
    assert marked == [6]


def test_no_text_of_the_map_is_wider_than_its_box() -> None:
    picture = machine.course_map()
    axes = picture.figure.axes[0]
    picture.png()  # lays the figure out
    for box, text in zip(axes.patches, [t for t in axes.texts if t.get_text()[:2].isdigit()], strict=True):
        assert text.get_window_extent().width < box.get_window_extent().width
