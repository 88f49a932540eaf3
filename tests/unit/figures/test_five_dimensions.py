"""Lesson 17's replay, as its cell says it, and the picture's words for it."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from course.lessons.l17_five_dimensions.figures import in_time
from course.tools.build import lesson_sources
from course.tools.lesson import LessonSource

Replay = Callable[..., list[tuple[int, float, float]]]


@pytest.fixture(scope="module")
def replay() -> Replay:
    (source,) = lesson_sources(["17"])
    names: dict[str, Any] = {}
    (cell,) = [cell.source for _, cell in LessonSource(source).code if "def replay(" in cell.source]
    exec(cell, names)
    found: Replay = names["replay"]
    return found


@pytest.mark.parametrize(
    ("images", "one_way", "both_ways"), [(1, 12, 12), (2, 24, 21), (4, 48, 39), (8, 96, 75)]
)
def test_each_further_image_from_the_other_end_adds_9_slots_not_12(
    replay: Replay, images: int, one_way: int, both_ways: int
) -> None:
    for arrows, slots in (("→→", one_way), ("→←", both_ways)):
        passes = replay((arrows * images)[:images])
        assert passes[-1][-1] == max(end for _, _, end in passes) == slots


def test_a_rank_does_one_thing_at_a_time_and_no_pass_precedes_its_input(replay: Replay) -> None:
    passes = replay("→←←→", (1, 2, 3, 4))
    for rank in range(4):
        mine = sorted((start, end) for each, start, end in passes if each == rank)
        assert len(mine) == 8
        assert all(end <= start for (_, end), (start, _) in pairwise(mine))
    assert [rank for rank, _, _ in passes[8:16]] == [3, 2, 1, 0, 0, 1, 2, 3]
    assert all(end <= start for (_, _, end), (_, start, _) in pairwise(passes[:8]))


@pytest.mark.parametrize("forward", [(1, 1, 1, 1), (9, 1, 1, 1), (40, 40, 1, 1), (1, 5, 9, 2)])
def test_no_stage_times_make_two_directions_half_again_as_fast(
    replay: Replay, forward: tuple[int, ...]
) -> None:
    basic, master = (replay(order * 200, forward)[-1][-1] for order in ("→→", "→←"))
    assert 1 < basic / master < 1.5


def test_of_the_assumptions_only_slow_messages_reach_the_published_speed_up_alone(replay: Replay) -> None:
    def speed_up(**change: Any) -> float:
        basic, master = (replay(order * 200, **change)[-1][-1] for order in ("→→", "→←"))
        return basic / master

    ratios = [speed_up(ratio=tenths / 10) for tenths in range(1, 40)]
    assert max(ratios) == speed_up(ratio=1) == pytest.approx(1.6, abs=0.005)
    assert speed_up(message=4) == pytest.approx(1.71, abs=0.005)
    assert speed_up(forward=(3, 1, 1, 1), ratio=1) == pytest.approx(1.71, abs=0.005)
    assert replay("→", message=5)[-1][-1] == 12 + 6 * 5  # three messages each way


def test_the_picture_names_stage_image_and_replica(replay: Replay) -> None:
    found = [(each.rank, each.action) for each in in_time(replay("→←"))]
    assert [(rank, action.kind, action.stage) for rank, action in found[:8]] == [
        *((stage, "F", stage) for stage in range(4)),
        *((stage, "B", stage) for stage in (3, 2, 1, 0)),
    ]
    assert {(action.microbatch, action.replica) for _, action in found[8:]} == {(1, 1)}
    assert [rank for rank, _ in found[8:]] == [3, 2, 1, 0, 0, 1, 2, 3]
