"""The pictures of the project: sane as committed, of today's lesson, and made again by one command."""

import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from course.paths import ROOT
from tests.browser import pictures
from tests.browser.chromium import REMEDY, find_chromium
from tests.browser.pictures import IMAGES, faults

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


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_as_wide_as_a_readme_and_small(name: str) -> None:
    assert is_sane(IMAGES / name)
    assert (IMAGES / name).stat().st_size < 200_000


def test_the_picture_of_lesson_01_shows_its_code_of_today() -> None:
    with Image.open(IMAGES / "lesson.png") as image:
        shown = image.text["Comment"]  # type: ignore[attr-defined]
    assert shown == "\n\n".join(pictures.sources_shown()), "make pictures, and look at them"


def test_the_animation_is_small_and_takes_ten_seconds() -> None:
    assert faults(IMAGES / "course.gif") == []
    with Image.open(IMAGES / "course.gif") as image:
        assert image.width == WIDTH and image.height < 900 and image.info["loop"] == 0


def test_without_a_browser_one_sentence_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(pictures, "find_chromium", lambda: None)
    monkeypatch.setattr(sys, "argv", ["pictures", "--into", str(tmp_path / "none")])
    with pytest.raises(SystemExit, match=r"^No pictures can be made: no Chromium .* COURSE_CHROMIUM\.$"):
        pictures.main()
    assert not (tmp_path / "none").exists()


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
