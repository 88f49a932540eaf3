"""The slides that `make slides` built, in a browser without a network: skipped where they are not built."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page

from course.tools.catalogue import find_lessons
from course.tools.slides import OUTPUT

pytestmark = pytest.mark.slow
NAMES = [lesson.stem for lesson in find_lessons()]
SHORT = 60  # letters: less than this is a heading alone
SMALLEST = 0.7  # of the usual size of letters
PAGES = """async () => {
  const found = [];
  for (const slide of Reveal.getSlides()) {
    const place = Reveal.getIndices(slide);
    Reveal.slide(place.h, place.v);
    while (!slide.dataset.fitted) await new Promise((done) => setTimeout(done, 20));
    const parts = [...slide.children].filter((part) => !part.matches("aside"));
    const letters = parts.map((part) => part.innerText).join("").length;
    found.push({words: slide.innerText.trim().slice(0, 40), size: slide.dataset.fitted,
            empty: letters < SHORT && !slide.querySelector("img, pre, table, details"),
            scrolls: slide.classList.contains("scrolls"), wide: slide.scrollWidth > slide.clientWidth + 1,
            mute: [...slide.querySelectorAll("img")].filter((image) => !image.alt).length});
  }
  return found;
}""".replace("SHORT", str(SHORT))


@pytest.fixture
def page(chromium: Browser) -> Iterator[Page]:
    """A browser that is offline; an error of a script, or a file that is missing, fails the test."""
    context = chromium.new_context(offline=True, viewport={"width": 1280, "height": 720})
    page = context.new_page()
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("requestfailed", lambda request: complaints.append(request.url))
    yield page
    context.close()
    assert complaints == []


@pytest.mark.parametrize("name", NAMES)
def test_every_page_of_a_deck_fits_and_its_figures_have_words(page: Page, name: str) -> None:
    path = OUTPUT / f"{name}.html"
    if not path.exists():
        pytest.skip("the slides are not built: make slides")
    page.goto(path.as_uri())
    page.wait_for_function("window.Reveal && Reveal.isReady()")
    found = page.evaluate(PAGES)
    assert len(found) >= 10
    assert [each for each in found if each["wide"] or each["mute"] or each["scrolls"]] == []
    assert [each for each in found if each["empty"] or float(each["size"]) < SMALLEST] == []
