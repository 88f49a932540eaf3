"""JupyterLab and Chromium for the tests of this folder; without Chromium they skip, with the remedy."""

import contextlib
import json
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import pytest
from playwright.sync_api import Browser

from tests.browser.chromium import REMEDY, find_chromium, headless
from tests.browser.lab import Lesson, open_lesson
from tests.browser.server import Server, course_lab

OpenLesson = Callable[[str], AbstractContextManager[Lesson]]


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """Chromium without a window. Ended with the module: its event loop must not be met by other tests."""
    program = find_chromium()
    if program is None:
        pytest.skip(REMEDY)
    with headless(program) as browser:
        yield browser


@pytest.fixture(scope="module")
def server(chromium: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with course_lab(tmp_path_factory.mktemp("learner")) as server:
        yield server


@pytest.fixture
def open_copy(chromium: Browser, server: Server, request: pytest.FixtureRequest) -> OpenLesson:
    """`with open_copy("01") as lesson`: a fresh copy, open; afterwards nothing of its cluster may be left."""
    evidence = re.sub(r"\W+", "-", request.node.name).strip("-")

    @contextlib.contextmanager
    def opened(number: str) -> Iterator[Lesson]:
        path = server.fresh_copy(number)
        cells = len(json.loads(path.read_text())["cells"])
        try:
            name = f"{evidence}-{number}"
            with open_lesson(chromium, server.lesson(path.name), cells, name) as lesson:
                yield lesson
        finally:
            server.shut_kernels_down()
        server.expect_left(1, "the kernels have ended")

    return opened
