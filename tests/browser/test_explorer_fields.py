"""Lesson 16's explorer in a browser: its fields and its numbers open by the keyboard, without a script."""

import pytest
from playwright.sync_api import Browser

from course.lessons.l16_choose_your_strategy.exercises import JOB, NVLINK
from course.lessons.l16_choose_your_strategy.figures import explore
from course.paths import NOTEBOOKS

pytestmark = pytest.mark.slow


def test_the_keyboard_chooses_a_panel_and_opens_a_number(chromium: Browser) -> None:
    tab = chromium.new_page()
    tab.set_default_timeout(10_000)
    tab.set_content(explore(str(NOTEBOOKS / "code" / "16_plan.py"), JOB | NVLINK).html)
    try:
        for keys in ("Tab", "ArrowRight", "Tab", "ArrowLeft", "Tab", "Tab", "Tab", "Enter"):
            tab.keyboard.press(keys)
        assert tab.locator("section:visible").count() == 1
        assert tab.locator("section:visible td").first.inner_text() == "tensor 8, 1 micro-batch"
        assert tab.locator("section:visible li:visible").first.inner_text().startswith("weights = 1.7 GB")
    finally:
        tab.close()
