"""Pictures of buckets and of stale gradients: what is drawn, and what the titles conclude."""

import pytest
from course.lessons.l06_data_parallel_by_hand.figures.buckets import (
    bucket_overlap,
    fusion,
    median_between,
    saved_by_overlap,
    staleness,
)
from course.lessons.l06_data_parallel_by_hand.results import Fusion

from course_lib.comm.spans import Span
from tests.unit.figures.pictures import check_legible, letters_of, title_of


def step(ranks: int, *, overlap: bool, buckets: int = 3) -> list[Span]:
    """A step of 100 ms: backward from 30 to 80, three buckets, a wait of 10 to 12 ms."""
    spans = []
    for rank in range(ranks):
        done = 0.09 + 0.002 * (rank > 0)
        spans += [Span(rank, "forward", "compute", 0, 0.03), Span(rank, "backward", "compute", 0.03, 0.08)]
        spans += [Span(rank, "wait", "wait", 0.08, done), Span(rank, "update", "compute", done, 0.1)]
        starts = [0.04 + 0.01 * i if overlap else 0.081 for i in range(buckets)]
        spans += [Span(rank, f"bucket {i}", "transfer", start, done) for i, start in enumerate(starts)]
    return spans


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_lanes_and_buckets_can_be_read(ranks: int) -> None:
    picture = bucket_overlap(step(ranks, overlap=True), cores=2)
    check_legible(picture)
    letters = [text.get_text() for text in letters_of(picture)]
    assert {"forward", "backward", "wait", "update", "bucket under way"} <= set(letters)
    for rank in range(ranks):
        assert f"rank {rank}" in letters
        assert f"rank {rank}: forward 30 ms, backward 50 ms" in picture.alt
    assert "3 of 3 buckets started while backward still had work, 0 as it ended" in picture.alt


def test_the_title_counts_the_buckets_that_start_before_backward_ends() -> None:
    assert title_of(bucket_overlap(step(2, overlap=True), cores=2)) == (
        "2 ranks on 2 cores: 3 of 3 buckets start while backward still has work"
    )
    last = [Span(rank, "bucket 3", "transfer", 0.0799, 0.09) for rank in range(2)]
    assert title_of(bucket_overlap([*step(2, overlap=True), *last], cores=2)) == (
        "2 ranks on 2 cores: 3 of 4 buckets start while backward still has work; the last starts as it ends"
    )
    assert "0 of 3 buckets start while" in title_of(bucket_overlap(step(4, overlap=False), cores=2))


def test_spans_without_buckets_are_refused() -> None:
    with pytest.raises(ValueError, match="trace_buckets"):
        bucket_overlap([Span(0, "forward", "compute", 0, 1)], cores=2)


@pytest.mark.parametrize(
    ("during", "ranks", "percent", "expected"),
    [
        (
            (8, 8.1, 8.2),
            2,
            19.0,
            "From 3 rounds, the median saving lies between 18.0 % and 20.0 %. A part of the sum was",
        ),
        ((9, 10.1, 11), 2, -1.0, "That includes 0: these rounds show no difference"),
        ((12, 12, 12), 2, -20.0, "cost more than they hide"),
        ((12, 12, 12), 1, -20.0, "One rank sends nothing"),
    ],
)
def test_what_overlap_saves_is_said_with_its_spread(
    during: tuple[float, ...], ranks: int, percent: float, expected: str
) -> None:
    saved, why = saved_by_overlap([0.010] * 3, [one / 1e3 for one in during], ranks)
    assert saved == pytest.approx(percent)
    assert expected in why


@pytest.mark.parametrize(
    ("milliseconds", "title"),
    [
        ((1.0, 0.8), "The same bytes take 800 µs in 1 message, 1 ms in 8"),
        ((1.0, 1.0), "The same bytes take 1 ms in 1 message, 1 ms in 8: no difference here"),
        ((1.0, 1.25), "The same bytes take 1.25 ms in 1 message, 1 ms in 8: fewer are not faster here"),
    ],
)
def test_fusion_is_drawn_as_it_was_measured(milliseconds: tuple[float, float], title: str) -> None:
    many, one = milliseconds
    picture = fusion([Fusion(1, 8, many / 1e3), Fusion(2**25, 1, one / 1e3)])
    check_legible(picture)
    assert title_of(picture) == title
    assert "1 B: 8 messages, 1 ms; 32 MiB: 1 message," in picture.alt


def test_stale_gradients_are_drawn_side_by_side() -> None:
    picture = staleness({"equal workers": {0: 2, 1: 0, 2: 10}, "one is slow": {0: 1, 1: 8, 2: 0, 3: 2, 9: 1}})
    check_legible(picture)
    assert title_of(picture) == (
        "Staleness: equal workers, mean 1.7, at most 2; one is slow, mean 1.9, at most 9"
    )
    assert "equal workers: 2 with staleness 0, 10 with staleness 2;" in picture.alt
    heights = [bar.get_height() for bar in picture.figure.axes[0].patches]
    assert sum(heights) == 24


def test_no_updates_are_no_error() -> None:
    assert "alone: no updates" in staleness({"alone": {}}).alt


def test_very_stale_updates_share_a_bar() -> None:
    picture = staleness({"alike": {2: 7}, "one rests": {1: 4, 5: 1, 24: 2}})
    check_legible(picture)
    assert [label.get_text() for label in picture.figure.axes[0].get_xticklabels()][-1] == "5 and more"
    assert [bar.get_height() for bar in picture.figure.axes[0].patches][6:] == [0, 4, 0, 0, 0, 3]


def test_the_median_of_25_rounds_lies_between_the_8th_and_the_18th() -> None:
    assert median_between([float(n) for n in range(25, 0, -1)]) == (8, 18)
    assert median_between([3.0, 1.0, 2.0]) == (1, 3)
