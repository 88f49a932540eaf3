"""What the networks of lesson 05 read in new digits."""

import numpy as np

from course.lessons.l05_training_one_process.figures import draw_readings
from tests.unit.figures.pictures import check_legible

IMAGES, NAMES = np.zeros((10, 64)), ("uncut", "64 + 64", "100 + 28", "127 + 1")
READ = list(range(10))


def test_every_digit_stands_below_its_image() -> None:
    picture = draw_readings(IMAGES, NAMES, [READ, READ, [9, *READ[1:]], [5] * 10])
    check_legible(picture)
    places = {(text.get_position()[0], text.get_text()) for text in picture.figure.axes[0].texts[:10]}
    assert places == {(n + 0.5, str(n)) for n in READ}


def test_the_alt_text_does_not_depend_on_what_a_lost_network_guesses() -> None:
    alts = {draw_readings(IMAGES, NAMES, [READ, READ, READ, [guess] * 10]).alt for guess in READ}
    (alt,) = alts
    assert "uncut: 0 1 2 3" in alt and "127 + 1: mostly other digits" in alt
    repaired = draw_readings(IMAGES, NAMES, [READ] * 4).alt
    assert "other digits" not in repaired
    assert "100 + 28: some other digits" in draw_readings(IMAGES, NAMES[:3], [READ, READ, [1, *READ[1:]]]).alt
