"""What drives the browser must itself be able to fail: in time, with evidence, and when something is left."""

import os
import subprocess
import sys
import uuid
from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser

from tests.browser import lab, server

pytestmark = pytest.mark.slow

PAGE = """
<div class="jp-Notebook-ExecutionIndicator" data-status="idle">idle</div>
<div class="jp-Notebook"><div class="jp-Cell jp-CodeCell">
  <div class="jp-InputPrompt">[*]:</div>
  <div class="jp-InputArea-editor"><div class="cm-line">a + b</div></div>
  <div class="jp-OutputArea-output">so far</div>
</div></div>"""


def test_a_cell_that_never_ends_fails_at_its_deadline_and_leaves_a_picture_and_the_text(
    chromium: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lab, "EVIDENCE", tmp_path)
    monkeypatch.setattr(lab, "CELL_SECONDS", 0.5)
    address = f"data:text/html,{quote(PAGE)}"
    with (
        pytest.raises(AssertionError, match=r"after 0\.5 s: a cell is not done") as failure,
        lab.open_lesson(chromium, address, 1, "stuck") as lesson,
    ):
        assert (lesson.prompts(), lesson.output(lesson.cell("a + b"))) == (["[*]:"], "so far")
        lesson.run(lesson.cell("a + b"))
    assert failure.value.__notes__ == [f"The page as it was: {tmp_path / 'stuck'}.png and .txt"]
    assert (tmp_path / "stuck.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "stuck.txt").read_text().split("\n") == ["to be run", "a + b", "so far", ""]


def test_a_lesson_that_does_not_open_fails_at_its_deadline(
    chromium: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lab, "EVIDENCE", tmp_path)
    monkeypatch.setattr(lab, "OPEN_SECONDS", 0.5)
    with (
        pytest.raises(AssertionError, match="the lesson is not open"),
        lab.open_lesson(chromium, "data:text/html,<p>nothing", 1, "empty"),
    ):
        pass


def test_what_a_server_leaves_behind_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "END_SECONDS", 0.5)
    mine = server.Server("http://localhost:0", tmp_path, uuid.uuid4().hex)
    sleep = [sys.executable, "-c", "import time; time.sleep(60)"]
    left = subprocess.Popen(sleep, env=os.environ | {server.MARK: mine.mark})
    try:
        with pytest.raises(
            AssertionError, match=f"JupyterLab has ended and left behind: .*{left.pid} .*sleep"
        ):
            mine.expect_left(0, "JupyterLab has ended")
    finally:
        left.kill()
        left.wait()
    mine.expect_left(0, "JupyterLab has ended")


def test_a_server_that_does_not_start_is_told_with_the_end_of_its_log(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text("Bad config encountered during initialization")
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    mine = server.Server("http://localhost:1", tmp_path, "none")
    with pytest.raises(AssertionError, match=r"JupyterLab does not answer.*\nBad config"):
        server.wait_until_it_answers(mine, ended, log)
