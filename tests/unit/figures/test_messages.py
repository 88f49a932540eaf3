"""Space-time diagrams and circles of waiting: what they say is what happened."""

import pytest

from course.lessons.l01_mpi_basics import figures as messages
from course.lessons.l01_mpi_basics.figures import Message

EARLY = Message("8 B", 0, 1, send=(10.0, 10.001), recv=(10.5, 10.501))
LATE = Message("1 MB", 0, 1, send=(11.0, 11.502), recv=(11.5, 11.503))
RING = {0: 1, 1: 2, 2: 3, 3: 0}


def test_a_send_that_returned_before_the_receive_is_said_to_be_early() -> None:
    assert messages.messages_title([EARLY]) == "Send of 8 B returned 0.5 s before rank 1 received it"


def test_a_send_that_waited_is_not_called_early() -> None:
    title = messages.messages_title([EARLY, LATE])
    assert title == (
        "Send of 8 B returned 0.5 s before rank 1 received it;\n"
        "Send of 1 MB returned only when rank 1 called Recv"
    )
    assert "before" not in messages.messages_title([LATE])


def test_the_alt_text_counts_from_the_first_call() -> None:
    picture = messages.space_time([EARLY, LATE])
    assert "1 MB from rank 0 to rank 1: Send from 1.00 to 1.50 s, Recv from 1.50 to 1.50 s" in picture.alt


def test_every_call_is_a_bar_on_the_lane_of_its_rank() -> None:
    axes = messages.space_time([EARLY, LATE]).figure.axes[0]
    bars = [(round(bar.get_y() + bar.get_height() / 2), round(bar.get_x(), 2)) for bar in axes.patches]
    assert bars[:4] == [(0, 0.0), (1, 0.5), (0, 1.0), (1, 1.5)]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["rank 0", "rank 1"]


def test_ranks_without_a_message_get_no_lane() -> None:
    axes = messages.space_time([Message("x", 3, 1, (0.0, 0.1), (0.0, 0.1))]).figure.axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["rank 1", "rank 3"]


@pytest.mark.parametrize(
    ("waits", "circle"),
    [
        (RING, [0, 1, 2, 3]),
        ({0: 1, 1: 0}, [0, 1]),
        ({0: 1, 1: 2, 2: 1}, [1, 2]),  # rank 0 waits for a circle that it is not in
        ({2: 2}, [2]),  # a rank that waits for itself
        ({0: 1, 1: 2, 2: 3}, []),
        ({0: 2, 1: 2}, []),
        ({}, []),
    ],
)
def test_circles_are_found_wherever_they_are(waits: dict[int, int], circle: list[int]) -> None:
    assert messages.find_circle(waits) == circle


def test_the_title_says_that_none_can_go_on() -> None:
    picture = messages.circular_wait(RING)
    assert picture.figure.axes[0].get_title(loc="left") == (
        "Ranks 0, 1, 2 and 3 wait in a circle (arrow: waits for): none can go on"
    )
    assert "rank 3 waits in Send for rank 0" in picture.alt


def test_one_wait_less_and_all_can_go_on() -> None:
    open_ring = {rank: other for rank, other in RING.items() if rank != 3}
    picture = messages.circular_wait(open_ring)
    assert "No circle: rank 3 can go on, so the others can too" in picture.alt
    assert "rank 3\nfree" in [text.get_text() for text in picture.figure.axes[0].texts]


def test_every_wait_is_an_arrow_and_every_rank_a_box() -> None:
    texts = [text.get_text() for text in messages.circular_wait(RING, call="Recv").figure.axes[0].texts]
    assert texts.count("") == 4  # an arrow is an annotation without words
    assert [text for text in texts if text] == [f"rank {rank}\nin Recv" for rank in range(4)]


def test_pictures_can_be_drawn() -> None:
    for picture in (
        messages.space_time([EARLY]),
        messages.circular_wait(RING),
        messages.circular_wait({0: 1}),
    ):
        assert picture.png().startswith(b"\x89PNG")
        assert picture.figure.get_size_inches()[0] <= 8
