"""The live view of the ranks in JupyterLab: what a learner sees there while a cell runs, hears, and types."""

from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator

from mpi_classroom import dashboard
from mpi_classroom.dashboard import legend
from tests.browser.axe import AXE, REMEDY, serious_findings
from tests.browser.conftest import OpenLesson
from tests.browser.lab import DONE, Lesson

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

SCRIPT = Path(dashboard.__file__).with_name("dashboard.js")
SECONDS = 30
RUN_SLEEP = "%%px\nimport time\ntime.sleep(3.5 * (rank == 2))\ncomm.Barrier()"
CIRCLE = "Circle of waiting: rank 0 → rank 1 → rank 2 → rank 3 → rank 0."
# The colours that are drawn in the middle of a lane.
COLOURS = """canvas => {
    const { data } = canvas.getContext('2d').getImageData(0, canvas.height / 2, canvas.width, 1);
    const seen = new Set();
    for (let at = 0; at < data.length; at += 4)
        if (data[at + 3]) seen.add([data[at], data[at + 1], data[at + 2]].join());
    return [...seen];
}"""
COMPUTING = "86,180,233"  # of the course's figures: #56B4E9
VIEW = "section.ranks"


def lanes(lesson: Lesson) -> Locator:
    return lesson.page.locator(f"{VIEW} tbody tr")


def doing(lesson: Lesson) -> list[str]:
    return [str(lane.get_attribute("data-doing")) for lane in lanes(lesson).all()]


def start(lesson: Lesson, source: str) -> Locator:
    """Run `source` in a new cell below the selected one, without waiting for its end; the cell."""
    lesson.press("Escape", "b", "Enter")
    lesson.page.keyboard.insert_text(source)
    cell = lesson.selected()
    lesson.press("Control+Enter")
    return cell


def ended(lesson: Lesson, cell: Locator) -> None:
    prompt = cell.locator(".jp-InputPrompt")
    lesson.until(lambda: DONE.fullmatch(prompt.text_content() or ""), 60, "a cell is not done")


def test_the_lanes_show_who_waits_and_the_circle_before_the_report_and_need_no_mouse(
    open_copy: OpenLesson,
) -> None:
    with open_copy("01") as lesson:
        assert "4 ranks" in lesson.run(lesson.cell("start_cluster"))
        assert lesson.run(lesson.cell("%%px --setup")) == ""
        shown = lesson.run_below(lesson.cell("%%px --setup"), "cluster.dashboard()")
        assert "rank 0" in shown and "idle" in shown
        lesson.until(lambda: doing(lesson) == ["idle"] * 4, SECONDS, "there are no lanes")

        # The lanes change while a cell runs, and name the rank for which the others wait.
        cell = start(lesson, RUN_SLEEP)
        third = lanes(lesson).nth(2)
        lesson.until(
            lambda: doing(lesson) == ["waiting", "waiting", "computing", "waiting"],
            SECONDS,
            "no lane changes",
        )
        assert "waiting in Barrier for rank 2" in (lanes(lesson).first.text_content() or "")
        ticks = third.locator("canvas")
        lesson.until(lambda: COMPUTING in ticks.evaluate(COLOURS), SECONDS, "nothing is drawn")
        ended(lesson, cell)
        lesson.until(lambda: doing(lesson) == ["finished"] * 4, SECONDS, "the end is not shown")
        assert "1 collective" in (third.text_content() or "")

        # Keyboard and labels.
        region = lesson.page.get_by_role("region", name="Live view of the ranks")
        pause = region.get_by_role("button", name="Pause")
        pause.focus()
        lesson.press("Tab")
        assert focused(lesson) == "0"
        lesson.press("ArrowDown", "ArrowDown")
        assert focused(lesson) == "2", "and not the next cell"
        label = str(third.get_attribute("aria-label"))
        assert label.startswith("rank 2: finished. In this cell: 1 collective. Last 10 s: computing "), label
        lesson.press("End", "ArrowDown", "Home", "p")
        assert focused(lesson) == "0"
        assert region.get_by_role("button", name="Resume").get_attribute("aria-pressed") == "true"
        lesson.press("p")
        assert pause.get_attribute("aria-pressed") == "false"
        assert region.get_by_role("img").count() == 4 and region.get_by_role("status").count() == 1

        # Lesson 01's deadlock: the circle is shown, and only then the report.
        lesson.run(lesson.cell("def ring(nbytes)"))
        deadlock = lesson.cell("ring(1_000_000)")
        lesson.click(deadlock)
        lesson.press("Control+Enter")
        status = region.get_by_role("status")
        lesson.until(lambda: CIRCLE in (status.text_content() or ""), SECONDS, "no circle is shown")
        assert "Likely cause" not in lesson.output(deadlock)
        assert lanes(lesson).nth(3).get_attribute("class") == "circle"
        ended(lesson, deadlock)
        assert "a circle of waiting" in lesson.output(deadlock)

        # What stays when the cluster is gone.
        lesson.run_new("cluster.stop()")
        last = lesson.page.locator("img[alt^='Timeline: one lane per rank, the last 10 s']")
        view = lesson.page.locator(VIEW)
        lesson.until(lambda: last.count() == 1 and not view.count(), SECONDS, "the last frame does not stay")


def test_the_table_of_the_cluster_has_a_button_that_becomes_the_live_view(open_copy: OpenLesson) -> None:
    with open_copy("01") as lesson:
        lesson.run(lesson.cell("start_cluster"))
        lesson.run(lesson.cell("%%px --setup"))
        assert "may use" in lesson.run_below(lesson.cell("%%px --setup"), "cluster")
        lesson.page.get_by_role("button", name="Live view").click()
        lesson.until(lambda: doing(lesson) == ["idle"] * 4, SECONDS, "there are no lanes")
        assert not lesson.page.get_by_role("button", name="Live view").count()
        lesson.run_below(lesson.cell("%%px --setup"), "cluster.stop()")


FRAME = {
    "when": "1 rank",
    "note": "",
    "running": True,
    "lanes": [
        {"name": "rank 0", "doing": "computing", "now": "computing", "circle": False, "traffic": "no message"}
        | {"shares": [], "ticks": "c"}
    ],
}
# Show one frame as anywidget does, which is the last that comes; the clock of the page is ours.
MOUNT = """async ([script, looks, frame]) => {
    const file = URL.createObjectURL(new Blob([script], { type: 'text/javascript' }));
    const { default: view } = await import(file);
    const model = { get: name => ({ looks, frame: JSON.stringify(frame) })[name], on() {}, send() {} };
    view.render({ model, el: document.body });
}"""
WIDTH = "canvas => canvas.width"
DRAWN = """canvas => {
    const { data } = canvas.getContext('2d').getImageData(0, canvas.height / 2, canvas.width, 1);
    return data.filter((_, at) => at % 4 === 3 && data[at]).length / canvas.width;
}"""


def test_of_the_time_after_the_last_frame_no_more_is_drawn_than_the_page_waits_for_a_frame(
    chromium: Browser,
) -> None:
    """A kernel that is gone sends no frame any more; a learner makes the window wider a minute later."""
    page = chromium.new_page(viewport={"width": 700, "height": 400})
    try:
        page.clock.install()
        page.evaluate(MOUNT, [SCRIPT.read_text(), legend(1), FRAME])
        ticks = page.locator("section.ranks tbody canvas")
        page.clock.run_for(60_000)
        before = ticks.evaluate(WIDTH)
        page.set_viewport_size({"width": 800, "height": 400})
        for _ in range(100):
            page.clock.run_for(100)  # draws
            if ticks.evaluate(WIDTH) != before:
                break
        page.clock.run_for(100)
        share = 20 / 100  # of ten seconds: the two that the page waits
        assert ticks.evaluate(DRAWN) == pytest.approx(share, abs=0.02)
    finally:
        page.close()


@pytest.mark.parametrize(
    "theme", [pytest.param("JupyterLab Light", marks=pytest.mark.release), "JupyterLab Dark"]
)
def test_axe_has_no_serious_finding_in_the_live_view(open_copy: OpenLesson, theme: str) -> None:
    if AXE is None:
        pytest.skip(REMEDY)
    with open_copy("01") as lesson:
        choose_theme(lesson, theme)
        lesson.run(lesson.cell("start_cluster"))
        lesson.run(lesson.cell("%%px --setup"))
        lesson.run_below(lesson.cell("%%px --setup"), "cluster.dashboard()")
        lesson.until(lambda: doing(lesson) == ["idle"] * 4, SECONDS, "there are no lanes")
        found = {"idle": serious_findings(lesson.page, VIEW)}

        cell = start(lesson, RUN_SLEEP)
        lesson.until(lambda: "waiting" in doing(lesson), SECONDS, "no lane changes")
        found["waiting"] = serious_findings(lesson.page, VIEW)
        ended(lesson, cell)
        found["finished"] = serious_findings(lesson.page, VIEW)

        lesson.run(lesson.cell("def ring(nbytes)"))
        deadlock = lesson.cell("ring(1_000_000)")
        lesson.click(deadlock)
        lesson.press("Control+Enter")
        view = lesson.page.locator(VIEW)
        lesson.until(lambda: CIRCLE in (view.text_content() or ""), SECONDS, "no circle is shown")
        view.get_by_role("button", name="Pause").click()
        assert CIRCLE in (view.text_content() or "")  # and stays
        found["circle"] = serious_findings(lesson.page, VIEW)
        ended(lesson, deadlock)
    assert found == {state: [] for state in found}


def choose_theme(lesson: Lesson, theme: str) -> None:
    """Menu Settings → Theme, as a learner does; the theme stays for the lessons that are opened later."""
    lesson.page.get_by_role("menuitem", name="Settings", exact=True).click()
    lesson.page.get_by_text("Theme", exact=True).hover()
    lesson.page.get_by_text(theme, exact=True).click()
    lesson.page.locator(f"body[data-jp-theme-name='{theme}']").wait_for(state="attached")


def focused(lesson: Lesson) -> str | None:
    """The rank whose lane has the focus."""
    return lesson.page.evaluate("document.activeElement.dataset.rank")
