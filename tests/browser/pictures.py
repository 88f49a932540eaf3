"""The pictures in docs/images and the animation, made from today's course in a real browser: `make pictures`.

    lesson.png       lesson 01's deadlock: the cells, and the report that ends it
    ranks_live.png   the live view of four ranks that all send before they receive
    course.gif       the same, moving: the cell is run, the lanes move, the report comes

JupyterLab runs on a learner's fresh copy. The animation shows what the browser showed, each frame for as
long as it was there. Only when nothing moves for longer, as while the ranks are restarted, is that time cut.
"""

import argparse
import io
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import nbformat
from PIL import Image, ImageChops, ImageSequence
from PIL.PngImagePlugin import PngInfo
from playwright.sync_api import Browser, FloatRect, Locator

from course.paths import NOTEBOOKS, ROOT
from tests.browser.chromium import REMEDY, find_chromium, headless
from tests.browser.lab import DONE, Lesson, open_lesson
from tests.browser.server import Server, course_lab

IMAGES = ROOT / "docs" / "images"
SCALE = 1.125  # pixels of a picture per pixel of the page
VIEWPORT = {"width": 898, "height": 2400}  # high enough that nothing scrolls; cells are 800 wide then
HEIGHT = 760  # of what is filmed, in pixels of the page
NO_TOOLBAR = ".jp-cell-toolbar { display: none !important; }"
MARGIN = 8  # pixels of a picture below its content
LAST = 130  # seconds in which the cell that is filmed must end; a busy machine restarts ranks slowly

# The code cells of lesson 01 that are in its picture, by words in them; the first two run before.
BEFORE = ("start_cluster", "%%px --setup")
SHOWN = ("def ring(nbytes)", "ring(80)", "ring(1_000_000)")
HEADING = "Once around the ring"

FILMED = (
    "from mpi_classroom.cluster import start_cluster\n\ncluster = start_cluster(n=4)",
    """%%px --setup
import time

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
left, right = (rank - 1) % size, (rank + 1) % size""",
    "cluster.dashboard()",
    """%%px --timeout 3
for numbers in (10, 100, 125_000):  # from 80 bytes to 1 MB: all ranks send, then receive
    mine, theirs = np.full(numbers, rank), np.empty(numbers, int)
    time.sleep((rank + 1) / 8)  # stands for computing
    comm.Send(mine, dest=right)
    comm.Recv(theirs, source=left)""",
)
# It ends after three seconds, when a cell would begin to say what the ranks do, once a second: beside lanes
# that move ten times a second, that line would be behind them.
KERNEL = {"name": "python3", "display_name": "Python 3 (ipykernel)", "language": "python"}
CIRCLE = "Circle of waiting"

FIRST_SECONDS, STILL_SECONDS, LAST_SECONDS = 1.2, 0.8, 4.0  # the first frame, any other at most, the last
COLOURS = 255
LARGEST, FEWEST, SHORTEST, LONGEST = 2_000_000, 15, 8.0, 14.0  # bytes, frames and seconds of the animation


@dataclass(frozen=True, slots=True)
class Shot:
    """What the browser showed at a moment, in seconds."""

    moment: float
    image: Image.Image


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the pictures of the course again.")
    parser.add_argument("--into", type=Path, default=IMAGES, help="the folder for them (docs/images)")
    into = parser.parse_args().into
    program = find_chromium()
    if program is None:
        sys.exit(f"No pictures can be made: {REMEDY}.")
    into.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as home,
        course_lab(Path(home)) as server,
        headless(program) as browser,
    ):
        photograph_lesson(browser, server, into / "lesson.png")
        server.shut_kernels_down()
        film_ring(browser, server, into)
        server.shut_kernels_down()
    if found := faults(into / "course.gif"):
        sys.exit(f"{into / 'course.gif'} {', '.join(found)}. Is the machine busy? Make it again.")


# -------------------------------------------------------------------- what is shown


def photograph_lesson(browser: Browser, server: Server, path: Path) -> None:
    """Run lesson 01 up to its deadlock, and write the picture with its code as a comment."""
    copy = server.fresh_copy("01")
    cells = len(nbformat.read(copy, as_version=4).cells)
    with open_lesson(browser, server.lesson(copy.name), cells, "pictures-lesson", SCALE) as lesson:
        tidy(lesson)
        for words in (*BEFORE, *SHOWN):
            lesson.run(lesson.cell(words))
        heading = lesson.cells.filter(has_text=HEADING).first
        top, bottom = box_of(heading), box_of(lesson.cell(SHOWN[-1]))
        image = take(
            lesson, top | {"height": bottom["y"] + bottom["height"] - top["y"] - 2}
        )  # the next cell has a frame
    comment = PngInfo()
    comment.add_text("Comment", "\n\n".join(sources_shown()))
    image.quantize(256, dither=Image.Dither.NONE).save(path, optimize=True, pnginfo=comment)


def sources_shown() -> list[str]:
    """The code of today's lesson 01 that its picture shows."""
    (path,) = NOTEBOOKS.glob("01_*.ipynb")
    sources = [cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    return [next(source for source in sources if words in source) for words in SHOWN]


def film_ring(browser: Browser, server: Server, into: Path) -> None:
    """Write course.gif, and its frame with the circle as ranks_live.png."""
    cells = [nbformat.v4.new_code_cell(source) for source in FILMED]
    notebook = nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": KERNEL})
    nbformat.write(notebook, server.folder / "ring.ipynb")
    with open_lesson(browser, server.lesson("ring.ipynb"), len(cells), "pictures-ring", SCALE) as lesson:
        tidy(lesson)
        *before, last = lesson.code.all()
        for cell in before:
            lesson.run(cell)
        lesson.click(last)
        shots = film(lesson, last, box_of(before[-1]) | {"height": HEIGHT})
    animate([Shot(shot.moment, within(shot.image, shots[-1].image)) for shot in shots], into / "course.gif")
    circle = shots[-2].image
    within(circle, circle).quantize(256, dither=Image.Dither.NONE).save(
        into / "ranks_live.png", optimize=True
    )


def film(lesson: Lesson, cell: Locator, area: FloatRect) -> list[Shot]:
    """Run the selected `cell`; what `area` shows before, whenever that changes, and with the report."""
    prompt = cell.locator(".jp-InputPrompt")
    shots = [Shot(time.monotonic(), take(lesson, area))]
    lesson.press("Control+Enter")
    deadline = time.monotonic() + LAST
    while not (done := DONE.fullmatch(prompt.text_content() or "")):
        assert time.monotonic() < deadline, f"after {LAST} s: the cell that is filmed is not done"
        add(shots, Shot(time.monotonic(), take(lesson, area)))
    assert done and "Likely cause" in lesson.output(cell), lesson.output(cell)
    assert CIRCLE in (lesson.page.locator("section.ranks").text_content() or "")
    lesson.page.wait_for_timeout(500)  # the report is laid out
    add(shots, Shot(time.monotonic(), take(lesson, area)))
    return shots


def tidy(lesson: Lesson) -> None:
    """The page as high as the notebook, without JupyterLab's list of files and the buttons in a cell."""
    lesson.page.add_style_tag(content=NO_TOOLBAR)
    lesson.page.set_viewport_size(VIEWPORT)
    lesson.press("Control+b")
    lesson.page.locator("#filebrowser").wait_for(state="hidden")


def box_of(cell: Locator) -> FloatRect:
    box = cell.bounding_box()
    assert box is not None, "a cell is not on the page"
    return box


def take(lesson: Lesson, area: FloatRect) -> Image.Image:
    return Image.open(io.BytesIO(lesson.page.screenshot(clip=area))).convert("RGB")


# -------------------------------------------------------------------- frames


def add(shots: list[Shot], shot: Shot) -> None:
    """Add `shot` unless it shows the same as the last one."""
    if ImageChops.difference(shots[-1].image, shot.image).getbbox():
        shots.append(shot)


def within(image: Image.Image, content: Image.Image) -> Image.Image:
    """`image` without what is white below the `content`, an image of the same size."""
    white = Image.new("RGB", content.size, "white")
    box = ImageChops.difference(content, white).getbbox()
    bottom = content.height if box is None else min(content.height, box[3] + MARGIN)
    return image.crop((0, 0, image.width, bottom))


def seconds_of(shots: list[Shot]) -> list[float]:
    """How long each is shown: as long as it was, but not a longer time in which nothing moves."""
    between = [later.moment - shot.moment for shot, later in pairwise(shots[1:])]
    return [FIRST_SECONDS, *(min(seconds, STILL_SECONDS) for seconds in between), LAST_SECONDS]


def animate(shots: list[Shot], path: Path) -> None:
    """Write the shots as a GIF in the colours that are most frequent in the first and the last three."""
    counts: Counter[tuple[int, ...]] = Counter()
    for shot in (shots[0], *shots[-3:]):
        counts += Counter({colour: count for count, colour in shot.image.getcolors(1 << 24)})
    colours: dict[tuple[int, ...], tuple[int, ...]] = {}  # of those that look alike, the most frequent
    for colour, _ in counts.most_common():
        colours.setdefault(tuple(level // 8 for level in colour), colour)
    palette = Image.new("P", (1, 1))
    palette.putpalette([level for colour in [*colours.values()][:COLOURS] for level in colour])
    frames = [shot.image.quantize(palette=palette, dither=Image.Dither.NONE) for shot in shots]
    durations = [round(1000 * seconds) for seconds in seconds_of(shots)]
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=durations, loop=0, optimize=True)


def faults(gif: Path) -> list[str]:
    """What is wrong with an animation: too large, too few frames, too short or too long."""
    with Image.open(gif) as image:
        durations = [frame.info.get("duration", 0) / 1000 for frame in ImageSequence.Iterator(image)]
    found, seconds, size = [], sum(durations), gif.stat().st_size
    if size > LARGEST:
        found.append(f"has {size:,} bytes, more than {LARGEST:,}")
    if len(durations) < FEWEST:
        found.append(f"has {len(durations)} frames, fewer than {FEWEST}")
    if not SHORTEST <= seconds <= LONGEST:
        found.append(f"takes {seconds:.1f} s, not {SHORTEST:g} to {LONGEST:g}")
    return found


if __name__ == "__main__":
    main()
