"""The film of an all-reduce shows what every rank held, darker the more ranks are in a sum."""

import pytest

from course.lessons.l04_collectives.figures import film
from tests.unit.figures.pictures import check_legible, letters_of

START = [[1, 2], [10, 20]]
HALF = [[1, 22], [11, 20]]
DONE = [[11, 22], [11, 22]]
FILMS = [{"ring": [START[r], HALF[r], DONE[r]], "doubling": [START[r], DONE[r]]} for r in (0, 1)]


def test_each_frame_has_what_the_ranks_held_and_a_heading() -> None:
    picture = film(FILMS, "A title")
    check_legible(picture)
    used = [panel for panel in picture.figure.axes if panel.patches]
    headings = [panel.get_title(loc="left") for panel in used]
    assert headings == [
        "ring, before",
        "ring, 1 done",
        "ring, 2 done",
        "doubling, before",
        "doubling, 1 done",
    ]
    assert {"1", "22", "11", "20"} <= {text.get_text() for text in letters_of(picture)}
    assert "ring, 1 done: rank 0 1 and 22; rank 1 11 and 20." in picture.alt


def test_more_than_four_ranks_are_refused() -> None:
    with pytest.raises(ValueError, match="film the first four"):
        film([{"ring": [[1]]}] * 5, "A title")
