"""Terms are found where no lesson has introduced them yet, and nowhere else."""

from pathlib import Path

import pytest

from course.lessons.shared.glossary import glossary
from course.tools.lesson import LessonSource
from course.tools.vocabulary import early_terms, own_terms
from tests.unit.lessons.sources import HEADER, write_source

pytestmark = pytest.mark.usefixtures("without_frame")

SOURCE = """\
# %% [markdown]
# Plain words.

# %%
# %%px
def f(x):
    "A docstring."
    y = "a bubble in a string"
    return x  # a comment

# %% [markdown]
# ## Key points
#
# - One.
#
# ## References
#
# - S. Rajbhandari and others, ZeRO, 2020: pipeline parallelism, halos
"""


def problems(tmp_path: Path, text: str) -> list[tuple[int, str]]:
    return list(early_terms(LessonSource(write_source(tmp_path, HEADER + text, "02_middle"))))


def test_plain_words_strings_and_references_are_no_early_terms(tmp_path: Path) -> None:
    assert problems(tmp_path, SOURCE) == []


@pytest.mark.parametrize(
    ("old", "new", "cell", "words"),
    [
        ("Plain words.", "Every **shard** is small.", 1, "'shard' is used here, and lesson 06 introduces it"),
        ("Plain words.", "| a | all-reduce |\n# |---|---|\n# | b | c |", 1, "'all-reduce'"),
        ("Plain words.", "Call `Bcast` now.", 1, "'bcast' is used here, and lesson 04"),
        ("# a comment", "# the bubble", 2, "'bubble'"),
        ("Plain words.", "1. Why?\n#    <details><summary>x</summary>A halo.</details>", 1, "'halo'"),
        ("Plain words.", "Halos (lesson 04).", 1, "'halos'"),
    ],
)
def test_a_term_that_comes_too_early_is_found(
    tmp_path: Path, old: str, new: str, cell: int, words: str
) -> None:
    assert old in SOURCE
    ((n, sentence),) = problems(tmp_path, SOURCE.replace(old, new))
    assert n == cell and words in sentence


@pytest.mark.parametrize(
    "text",
    [
        "[06 · Data parallelism by hand](06_data_parallel_by_hand.ipynb)",
        "Lessons 04, 06 and 10: broadcasts, shards and halos; no, lessons 04, 06 and 10.",
        "Divide by zero, reduce the noise, send a DDPX.",
    ],
)
def test_links_announcements_and_other_words_are_welcome(tmp_path: Path, text: str) -> None:
    assert problems(tmp_path, SOURCE.replace("Plain words.", text)) == []


def test_a_term_that_its_lesson_does_not_introduce_is_found(tmp_path: Path) -> None:
    source = write_source(tmp_path, f"{HEADER}# %% [markdown]\n# ROUGE\n", "13_summaries")
    sentences = [sentence for _, sentence in own_terms(LessonSource(source))]
    assert any("'lead-3'" in each for each in sentences) and not any("'ROUGE'" in each for each in sentences)


def test_every_term_is_in_one_lesson() -> None:
    terms = [term.term for terms in glossary().values() for term in terms]
    assert len(terms) == len(set(terms))
