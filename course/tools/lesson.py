"""A lesson's source, taken apart for the rules that hold its anatomy."""

import re
from functools import cached_property
from itertools import pairwise
from pathlib import Path

from nbformat import NotebookNode

from course.paths import ROOT
from course.tools.build import compose
from course.tools.frame import read_frame, stem
from course.tools.markdown import Page, read_markdown

LOCAL_PATH = re.compile(r"(?<![\w.~/+])/(?:home|Users|root|tmp|opt|private|work|mnt)/[^\s\"'`<>(),;:]+")
Problem = tuple[int, str]  # the cell, counted from 1, and a sentence with the remedy


class LessonSource:
    """A source, and what it composes to."""

    def __init__(self, source: Path) -> None:
        self.source = source
        self.stem = stem(source)
        self.number = self.stem[:2]
        self.frame = read_frame(source)
        self.cells: list[NotebookNode] = compose(source).cells

    @cached_property
    def code(self) -> list[tuple[int, NotebookNode]]:
        """The code cells with their numbers."""
        return [(n, cell) for n, cell in enumerate(self.cells, 1) if cell.cell_type == "code"]

    @cached_property
    def pages(self) -> list[tuple[int, str, Page]]:
        """The markdown cells with their numbers, as text and in parts."""
        texts = [(n, cell.source) for n, cell in enumerate(self.cells, 1) if cell.cell_type == "markdown"]
        return [(n, text, read_markdown(text)) for n, text in texts]

    @cached_property
    def headings(self) -> list[tuple[int, int, str]]:
        """All headings as cell number, level, text."""
        return [(n, level, text) for n, _, page in self.pages for level, text in page.headings]

    @property
    def anchors(self) -> set[str]:
        """What links into this lesson can lead to."""
        return set().union(*(page.anchors for _, _, page in self.pages))

    def section(self, title: str) -> tuple[int, list[NotebookNode]]:
        """The number of the cell with the heading `## title`, and the cells up to the next such heading.

        The cells begin with the one that has the heading; (0, []) when there is none.
        """
        starts = [(n, text) for n, level, text in self.headings if level == 2]
        for (start, text), (end, _) in pairwise([*starts, (len(self.cells) + 1, "")]):
            if text == title:
                return start, self.cells[start - 1 : max(start, end - 1)]
        return 0, []


def local_path(text: str) -> str:
    """The first path in `text` that belongs to one machine; empty when there is none."""
    text = re.sub(r"data:image/[^\"')]+", "", text)
    match = LOCAL_PATH.search(text)
    return match[0] if match else str(ROOT) if f"{ROOT}/" in text else ""
