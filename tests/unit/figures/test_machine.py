"""What the pictures of lesson 00 say, and that they stay readable for other machines than this one."""

import pytest

from course.lessons.l00_start_here import figures as machine
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


def test_more_ranks_than_cores_take_turns() -> None:
    picture = machine.cluster_picture([0, 1, 1, 0], 2)
    check_form(picture)
    assert "4 ranks on 2 cores: they take turns" in texts(picture)
    assert "rank 2 on core 1" in picture.alt


def test_a_core_for_every_rank_is_no_turn_taking() -> None:
    assert "turns" not in machine.cluster_title(4, 4)
    assert "4 ranks on 4 cores" in machine.cluster_title(4, 4)


def test_one_core_is_singular() -> None:
    assert machine.cluster_title(2, 1) == "2 ranks on 1 core: they take turns"


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


# ------------------------------------------------------------------ memory


def test_the_title_compares_with_the_first_memory() -> None:
    picture = machine.memory_bars(
        SEVEN_BILLION, {"this machine": 16 * GB, "a GPU": 80 * GB}, parameters=7 * GB
    )
    check_form(picture)
    assert "Training 7 billion parameters takes 112 GB: 7.0 times what this machine has" in texts(picture)
    assert "weights 14 GB, gradients 14 GB, Adam's state 84 GB" in picture.alt
    assert "this machine 16 GB, a GPU 80 GB" in picture.alt


def test_a_machine_that_can_hold_it_is_not_called_too_small() -> None:
    title = machine.memory_title(112 * GB, {"this machine": 256 * GB}, 7 * GB)
    assert title == "Training 7 billion parameters takes 112 GB; this machine has 256 GB"


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


# ------------------------------------------------------------------ course map


def test_the_map_has_every_lesson_once_in_order() -> None:
    picture = machine.course_map()
    check_form(picture)
    numbers = [number for part in machine.COURSE for number, _ in part.lessons]
    assert numbers == [f"{n:02d}" for n in range(17)]
    assert [texts(picture).count(f"{number}  ") for number in numbers] == [1] * 17
    assert "17 lessons in 5 parts" in picture.alt


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
