"""The pictures of the project: of today's lesson, and made again by one command."""

import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from course.paths import ROOT
from tests.browser import pictures
from tests.browser.chromium import REMEDY, find_chromium
from tests.browser.pictures import IMAGES, faults

WIDTH = 900


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


@pytest.mark.release
@pytest.mark.timeout(600)
def test_one_command_makes_all_of_them(tmp_path: Path) -> None:
    if find_chromium() is None:
        pytest.skip(REMEDY)
    command = [sys.executable, "-m", "tests.browser.pictures", "--into", str(tmp_path)]
    made = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=580)
    assert made.returncode == 0, made.stderr
    assert all(is_sane(tmp_path / name) for name in ("lesson.png", "ranks_live.png"))
    assert faults(tmp_path / "course.gif") == []
