"""The Chromium of this machine, and how it is started without a window."""

import contextlib
import os
import shutil
from collections.abc import Iterator

from playwright.sync_api import Browser, sync_playwright

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
REMEDY = (
    "no Chromium on this machine: sudo apt install chromium, or put the path of a Chromium or Chrome into "
    "COURSE_CHROMIUM"
)


def find_chromium() -> str | None:
    """The path of COURSE_CHROMIUM, or else of the first Chromium or Chrome on the PATH."""
    return shutil.which(os.environ.get("COURSE_CHROMIUM", "")) or next(
        filter(None, map(shutil.which, BROWSERS)), None
    )


@contextlib.contextmanager
def headless(program: str) -> Iterator[Browser]:
    """The browser `program` without a window; on leaving it is closed."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--disable-dev-shm-usage"])
        yield browser
        browser.close()
