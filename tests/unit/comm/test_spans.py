"""Spans: who waited and who transferred, whose moment it was, and what a viewer reads. No rank takes part."""

import json
from itertools import pairwise
from pathlib import Path

import pytest

from course_lib.comm.spans import Span, duration, innermost, split_collectives, to_chrome_trace, totals

KIND = {"c": "compute", "t": "transfer", "w": "wait", "A": "collective", "B": "collective"}


def spans_of(*lanes: str) -> list[Span]:
    """A line a rank, a letter a second: compute, transfer, wait, the collectives A and B, or nothing."""
    found = []
    for rank, lane in enumerate(lanes):
        start = 0
        for end in range(1, len(lane) + 1):
            if end == len(lane) or lane[end] != lane[start]:
                letter = lane[start]
                if letter in KIND:
                    found.append(Span(rank, letter, KIND[letter], start, end))
                start = end
    return found


def drawn(spans: list[Span]) -> list[str]:
    """The reverse: a line a rank with the kind of its innermost span, in every second."""
    end = int(duration(spans))
    lanes = {span.rank: ["."] * end for span in spans}
    for piece in innermost(spans):
        for second in range(int(piece.start), int(piece.end)):
            lanes[piece.rank][second] = piece.kind[0]
    return ["".join(lane) for lane in lanes.values()]


def test_a_rank_waits_until_the_last_one_arrives_and_then_transfers() -> None:
    spans = spans_of("ccAAAAAA", "ccccAAAA", "cccccAAA")
    assert drawn(split_collectives(spans)) == ["ccwwwttt", "ccccwttt", "cccccttt"]


def test_the_second_meeting_of_a_name_is_not_the_first() -> None:
    spans = spans_of("cAAAccAAAA", "cccAccccAA")
    assert drawn(split_collectives(spans)) == ["cwwtccwwtt", "ccctcccctt"]


def test_two_collectives_in_a_row_are_two_meetings() -> None:
    spans = spans_of("cAABBBB", "ccABBBB", "ccAccBB")
    assert drawn(split_collectives(spans)) == ["cwtwwtt", "cctwwtt", "cctcctt"]


def test_the_root_of_a_broadcast_that_left_before_a_late_rank_came_did_not_wait_for_it() -> None:
    spans = spans_of("cAcccccc", "AAAccccc", "ccccccAA")
    assert drawn(split_collectives(spans)) == ["ctcccccc", "wttccccc", "cccccctt"]


def test_a_clock_that_is_a_little_wrong_does_not_turn_waiting_into_transfer() -> None:
    late = Span(1, "A", "collective", 3.01, 4.0)
    spans = [Span(0, "A", "collective", 0.0, 3.0), late]  # rank 0 left before rank 1 came: it cannot be
    assert totals(split_collectives(spans, uncertainty=0.02))[0] == {"compute": 0, "wait": 3, "transfer": 0}
    assert totals(split_collectives(spans))[0]["wait"] == 0  # what would be told without the allowance


def test_one_rank_never_waits() -> None:
    assert drawn(split_collectives(spans_of("ccAAc"))) == ["ccttc"]


def test_the_collectives_inside_a_collective_tell_who_waited() -> None:
    outer = [Span(rank, "all-reduce", "collective", 0, 6) for rank in range(2)]
    assert drawn(split_collectives([*outer, *spans_of("AABBBB", "tAtttB")])) == ["wtwwwt", "tttttt"]


def test_a_moment_belongs_to_the_innermost_span() -> None:
    step, forward, sum_ = Span(0, "step", "compute", 0, 8), Span(0, "f", "wait", 1, 3), spans_of(".....tt.")
    pieces = innermost([step, forward, *sum_])
    assert drawn([step, forward, *sum_]) == ["cwwccttc"]
    assert all(one.end <= two.start for one, two in pairwise(pieces))


def test_no_moment_is_counted_twice() -> None:
    spans = [
        Span(0, "step", "compute", 0, 10),
        Span(0, "inner", "compute", 2, 5),
        Span(0, "x", "transfer", 3, 4),
    ]
    assert totals(spans) == {0: {"compute": 9, "wait": 0, "transfer": 1}}


def test_spans_that_take_no_time_count_nothing() -> None:
    assert totals([Span(2, "x", "compute", 1, 1)]) == {2: {"compute": 0, "wait": 0, "transfer": 0}}
    assert totals([]) == {}


# ---------------------------------------------------------------- the viewer's format


@pytest.fixture
def trace(tmp_path: Path) -> list[dict]:
    spans = [*spans_of("ccttc", "cwttt"), Span(0, "step", "compute", 0, 5), Span(1, "step", "compute", 0, 5)]
    path = tmp_path / "trace.json"
    to_chrome_trace(spans, path)
    return json.loads(path.read_text())["traceEvents"]


def test_every_span_is_a_complete_event_in_microseconds(trace: list[dict]) -> None:
    events = [event for event in trace if event["ph"] == "X"]
    assert len(events) == 8
    needed = {"name": str, "cat": str, "ts": float, "dur": float, "pid": int, "tid": int}
    assert all(isinstance(event[key], kind) for event in events for key, kind in needed.items())
    (wait,) = (event for event in events if event["cat"] == "wait")
    assert (wait["name"], wait["pid"], wait["ts"], wait["dur"]) == ("w", 1, 1e6, 1e6)


def test_every_rank_has_a_named_track_in_its_place(trace: list[dict]) -> None:
    about = [(event["name"], event["pid"], event["args"]) for event in trace if event["ph"] == "M"]
    for rank in range(2):
        assert ("process_name", rank, {"name": f"rank {rank}"}) in about
        assert ("thread_name", rank, {"name": f"rank {rank}"}) in about
        assert ("process_sort_index", rank, {"sort_index": rank}) in about
    assert {event["ph"] for event in trace} == {"M", "X"}


def test_the_events_of_a_track_lie_inside_each_other_or_apart(trace: list[dict]) -> None:
    for rank in range(2):
        open_ends: list[float] = []
        for event in (event for event in trace if event["ph"] == "X" and event["tid"] == rank):
            while open_ends and open_ends[-1] <= event["ts"]:
                open_ends.pop()
            assert not open_ends or event["ts"] + event["dur"] <= open_ends[-1]
            open_ends.append(event["ts"] + event["dur"])
