"""The pictures of the project: sane as committed, of today's lesson, and made again by one command."""

import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from course.paths import ROOT
from tests.browser import pictures
from tests.browser.chromium import REMEDY, find_chromium
from tests.browser.pictures import IMAGES, Shot, animate, faults

PICTURES = ("lesson.png", "ranks_live.png")
WIDTH = 900


def of(shade: int) -> Image.Image:
    return Image.new("RGB", (WIDTH, 4), (shade, shade, shade))


def is_sane(path: Path) -> bool:
    with Image.open(path) as image:
        width, height = image.size
        return (
            width == WIDTH and 300 < height < 1200 and len(image.convert("RGB").getcolors(1 << 20) or ()) > 20
        )


def test_the_picture_of_lesson_01_shows_its_code_of_today() -> None:
    with Image.open(IMAGES / "lesson.png") as image:
        shown = image.text["Comment"]  # type: ignore[attr-defined]
    assert shown == "\n\n".join(pictures.sources_shown()), "make pictures, and look at them"


def test_the_animation_is_small_and_takes_ten_seconds() -> None:
    assert faults(IMAGES / "course.gif") == []
    with Image.open(IMAGES / "course.gif") as image:
        assert image.width == WIDTH and image.height < 900 and image.info["loop"] == 0


def test_an_animation_of_three_frames_or_of_a_minute_has_faults(tmp_path: Path) -> None:
    animate([Shot(moment, of(shade)) for moment, shade in enumerate((0, 80, 160))], tmp_path / "short.gif")
    assert faults(tmp_path / "short.gif") == ["has 3 frames, fewer than 15", "takes 6.0 s, not 8 to 14"]
    animate([Shot(moment, of(255 * (moment % 2))) for moment in range(100)], tmp_path / "long.gif")
    assert faults(tmp_path / "long.gif") == ["takes 83.6 s, not 8 to 14"]


@pytest.mark.release
@pytest.mark.timeout(600)
def test_one_command_makes_all_of_them(tmp_path: Path) -> None:
    if find_chromium() is None:
        pytest.skip(REMEDY)
    command = [sys.executable, "-m", "tests.browser.pictures", "--into", str(tmp_path)]
    made = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=580)
    assert made.returncode == 0, made.stderr
    assert all(is_sane(tmp_path / name) for name in PICTURES)
    assert faults(tmp_path / "course.gif") == []
