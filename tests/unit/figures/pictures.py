"""What every picture of the course has to be: narrow enough, its letters large enough, all on the paper."""

from typing import Any
from unittest import mock

from matplotlib.text import Text

from mpi_classroom.figures import FONT_SIZE, MAX_WIDTH_INCHES, Picture


def letters_of(picture: Picture) -> list[Text]:
    """Every text that is drawn."""
    drawn: list[Text] = []
    draw = Text.draw

    def note(self: Text, *args: Any, **kwargs: Any) -> None:
        drawn.append(self)
        draw(self, *args, **kwargs)

    with mock.patch.object(Text, "draw", note):
        assert picture.png().startswith(b"\x89PNG")
    return [text for text in dict.fromkeys(drawn) if text.get_visible() and text.get_text().strip()]


def title_of(picture: Picture) -> str:
    """The conclusion, in one line."""
    return in_one_line(picture.figure.get_suptitle() or picture.figure.axes[0].get_title(loc="left"))


def check_legible(picture: Picture) -> None:
    """At most 800 pixels wide, no letters under 12 points, none cut off, and words that stand in for it."""
    paper = picture.figure.bbox
    assert picture.figure.get_figwidth() <= MAX_WIDTH_INCHES
    assert picture.figure.get_facecolor() == (1, 1, 1, 1)
    for text in letters_of(picture):
        assert text.get_fontsize() >= FONT_SIZE, text.get_text()
        box = text.get_window_extent()
        inside = paper.x0 - 1 <= box.x0 and box.x1 <= paper.x1 + 1
        assert inside and paper.y0 - 1 <= box.y0 and box.y1 <= paper.y1 + 1, f"{text.get_text()!r} is cut off"
    assert len(picture.alt.split()) > 12
    assert title_of(picture) in in_one_line(picture.alt)


def in_one_line(text: str) -> str:
    return " ".join(text.split())
