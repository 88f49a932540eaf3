"""The website that `make site` built: its weight, what opens, and what axe says of it in Chromium.

Sphinx has followed its links. Skipped where the site is not built. Nothing here needs a network.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from bs4 import BeautifulSoup
from playwright.sync_api import Browser, Page

from course.paths import BUILD
from course.tools.catalogue import Lesson, find_lessons
from tests.browser.axe import AXE, REMEDY, serious_findings

pytestmark = pytest.mark.slow
SITE = BUILD / "site" / "html"
LESSONS = find_lessons()
MEGABYTES = 2
LOOKED_AT = [
    "index.html",
    "notebooks/index.html",
    "exercises.html",
    "docs/glossary.html",
    "study.html",
    "api/index.html",
    "api/course_lib.comm.halo.html",
    "README.html",
    "docs/reliability.html",
    "docs/teaching/3-hours.html",
    "docs/teaching/learners-page.html",
    "docs/teaching/lessons/04.html",
    "search.html",
    *(f"notebooks/{lesson.stem}.html" for lesson in LESSONS),
]
DARK = ["index.html", "docs/glossary.html", "notebooks/04_collectives.html"]
SELDOM = {f"notebooks/{lesson.stem}.html" for at, lesson in enumerate(LESSONS) if at % 5} - {
    *DARK
}  # built as the others are


@pytest.fixture(scope="module")
def site() -> None:
    if not (SITE / "index.html").exists():
        pytest.skip("the site is not built: make site")


@pytest.fixture
def page(chromium: Browser, site: None) -> Iterator[Page]:
    """A page of a browser that is offline; what scripts complain of is an error.

    Only that a page from a folder may not read another file is none: search then shows titles alone.
    """
    context = chromium.new_context(
        offline=True, reduced_motion="reduce", viewport={"width": 1300, "height": 900}
    )
    page = context.new_page()
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    yield page
    context.close()
    assert [each for each in complaints if each != "Failed to fetch"] == []


def weight(page: Path) -> int:
    """The bytes of a page with all that a browser loads to show it, not compressed."""
    html = BeautifulSoup(page.read_text(encoding="utf-8"), "html.parser")
    shown = html.select("img[src], script[src], link:is([rel~=stylesheet], [rel~=icon], [rel~=preload])")
    addresses = {str(tag.get("src") or tag["href"]) for tag in shown}
    files = {page.parent / unquote(urlsplit(each).path) for each in addresses if each[:5] != "data:"}
    return sum(path.stat().st_size for path in {page, *(each.resolve() for each in files)})


@pytest.mark.parametrize("lesson", LESSONS, ids=[lesson.stem for lesson in LESSONS])
def test_a_lesson_with_all_that_it_loads_is_light(lesson: Lesson, site: None) -> None:
    megabytes = weight(SITE / "notebooks" / f"{lesson.stem}.html") / 1e6
    assert megabytes > 0.5, "its files were not found"
    assert megabytes < MEGABYTES, f"{megabytes:.2f} MB; make its figures smaller"


@pytest.mark.parametrize("paper", ["A4", "Letter"])
def test_the_page_for_learners_prints_on_one_sheet(page: Page, paper: str) -> None:
    page.goto((SITE / "docs" / "teaching" / "learners-page.html").as_uri())
    assert len(re.findall(rb"/Type\s*/Page\b", page.pdf(format=paper))) == 1


def test_an_option_replies_without_a_kernel_and_by_the_keyboard(page: Page) -> None:
    page.goto((SITE / "notebooks" / "01_mpi_basics.html").as_uri())
    options = page.locator("details[name='01.q4']")
    assert options.count() == 3
    options.nth(0).locator("summary").click()
    assert options.nth(0).get_by_text("✗").or_(options.nth(0).get_by_text("✓")).is_visible()
    options.nth(1).locator("summary").focus()
    page.keyboard.press("Enter")
    assert [options.nth(n).get_attribute("open") is not None for n in range(3)] == [False, True, False]


def test_search_finds_a_term_without_a_network(page: Page) -> None:
    page.goto((SITE / "search.html").as_uri() + "?q=deadlock")
    page.locator("#search-results li a").first.wait_for(timeout=30_000)
    assert page.locator("#search-results li a", has_text="01 · MPI basics").count() > 0


@pytest.mark.parametrize("width", [1300, 390], ids=["desk", "phone"])
@pytest.mark.parametrize(
    "name", ["index.html", "notebooks/index.html", "notebooks/04_collectives.html", "study.html"]
)
def test_nothing_is_wider_than_the_window(page: Page, name: str, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    page.goto((SITE / name).as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize(
    ("name", "scheme"),
    [
        *(
            pytest.param(name, "light", marks=pytest.mark.release if name in SELDOM else ())
            for name in LOOKED_AT
        ),
        *((name, "dark") for name in DARK),
    ],
)
def test_axe_has_no_serious_finding(page: Page, name: str, scheme: Any) -> None:
    if AXE is None:
        pytest.skip(REMEDY)
    page.emulate_media(color_scheme=scheme)
    page.goto((SITE / name).as_uri())
    page.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
    serious = serious_findings(page)
    assert serious == [], "\n".join(serious)
