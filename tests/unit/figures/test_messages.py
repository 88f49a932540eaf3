"""The timeline of calls: what it says is what happened."""

from matplotlib.text import Annotation

from course.lessons.l01_mpi_basics.figures import Call, timeline

SENDER: list[Call] = [
    ("Barrier", 10.0, 10.001),
    ("Send 80 B", 10.001, 10.001),
    ("Barrier", 10.001, 10.301),
    ("Send 4,017 B", 10.301, 10.601),
]
RECEIVER: list[Call] = [
    ("Barrier", 10.0, 10.001),
    ("asleep", 10.001, 10.301),
    ("Recv 80 B", 10.301, 10.301),
    ("Barrier", 10.301, 10.301),
    ("asleep", 10.301, 10.601),
    ("Recv 4,017 B", 10.601, 10.601),
]
PICTURE = timeline([SENDER, RECEIVER])


def test_the_title_says_how_long_each_send_took() -> None:
    title = PICTURE.figure.axes[0].get_title(loc="left")
    assert title.startswith("Send took 0") and title.endswith("with 80 B and 300 ms with 4,017 B")
    swapped = (
        timeline([[("Send 1 B", 0.0, 0.3), ("Send 2 B", 0.3, 0.3)]]).figure.axes[0].get_title(loc="left")
    )
    assert swapped.startswith("Send took 300 ms with 1 B")


def test_the_alt_text_counts_from_the_first_call() -> None:
    assert "Rank 0: Barrier from 0.00 to 0.00 s, Send 80 B from 0.00 to 0.00 s" in PICTURE.alt
    assert "Recv 4,017 B from 0.60 to 0.60 s" in PICTURE.alt


def test_every_call_is_a_bar_on_the_lane_of_its_rank() -> None:
    axes = PICTURE.figure.axes[0]
    bars = [(round(bar.get_y() + bar.get_height() / 2), round(bar.get_x(), 2)) for bar in axes.patches]
    assert bars == [(0, 0.0)] * 3 + [(0, 0.3), (1, 0.0), (1, 0.0)] + [(1, 0.3)] * 3 + [(1, 0.6)]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["rank 0", "rank 1"]


def test_a_barrier_is_named_where_there_is_room_and_looks_unlike_a_message() -> None:
    axes = PICTURE.figure.axes[0]
    assert [text.get_text() for text in axes.texts if "Barrier" in text.get_text()] == ["Barrier: 300 ms"]
    assert [bool(bar.get_hatch()) for bar in axes.patches[:4]] == [True, False, True, False]
    assert axes.patches[0].get_height() < axes.patches[1].get_height() / 2


def test_an_arrow_points_at_a_send_that_returned_at_once() -> None:
    arrows = [text for text in PICTURE.figure.axes[0].texts if isinstance(text, Annotation)]
    assert [(text.get_text()[:9], round(text.xy[0], 2), round(text.xy[1])) for text in arrows] == [
        ("Send 80 B", 0.0, 0)
    ]


def test_sleep_has_its_name_and_the_colour_of_no_rank() -> None:
    axes = PICTURE.figure.axes[0]
    assert [text.get_text() for text in axes.texts if "asleep" in text.get_text()] == ["asleep: 300 ms"] * 2
    colours = [bar.get_facecolor() for bar in axes.patches]
    assert colours[5] == colours[8] and colours[5] not in (colours[1], colours[6])


def test_the_picture_can_be_drawn() -> None:
    assert PICTURE.png().startswith(b"\x89PNG")
    assert PICTURE.figure.get_size_inches()[0] <= 8
