"""Spans: who waited and who transferred, whose moment it was, and what a viewer reads. No rank takes part."""

from itertools import pairwise

from course_lib.comm.spans import Span, by_rank, cut, split_collectives, totals

KIND = {"c": "compute", "t": "transfer", "w": "wait", "A": "collective", "B": "collective"}


def spans_of(*lanes: str) -> list[Span]:
    """A line per rank, a letter per second: compute, transfer, wait, the collectives A and B, or nothing."""
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
    """The reverse: a line per rank with the kind of its innermost span, in every second."""
    end = int(max(span.end for span in spans))
    lanes = {rank: ["."] * end for rank in by_rank(spans)}
    for rank, lane in by_rank(spans).items():
        for piece in cut(lane):
            for second in range(int(piece.start), int(piece.end)):
                lanes[rank][second] = piece.kind[0]
    return ["".join(lane) for lane in lanes.values()]


def test_a_rank_waits_until_the_last_one_arrives_and_then_transfers() -> None:
    spans = spans_of("ccAAAAAA", "ccccAAAA", "cccccAAA")
    assert drawn(split_collectives(spans)) == ["ccwwwttt", "ccccwttt", "cccccttt"]


def test_the_second_meeting_of_a_name_is_not_the_first() -> None:
    spans = spans_of("cAAAccAAAA", "cccAccccAA")
    assert drawn(split_collectives(spans)) == ["cwwtccwwtt", "ccctcccctt"]


def test_the_root_of_a_broadcast_that_left_before_a_late_rank_came_did_not_wait_for_it() -> None:
    spans = spans_of("cAcccccc", "AAAccccc", "ccccccAA")
    assert drawn(split_collectives(spans)) == ["ctcccccc", "wttccccc", "cccccctt"]


def test_a_clock_that_is_a_little_wrong_does_not_turn_waiting_into_transfer() -> None:
    late = Span(1, "A", "collective", 3.01, 4.0)
    spans = [Span(0, "A", "collective", 0.0, 3.0), late]  # rank 0 left before rank 1 came: it cannot be
    assert totals(split_collectives(spans, uncertainty=0.02))[0] == {"compute": 0, "wait": 3, "transfer": 0}
    assert totals(split_collectives(spans))[0]["wait"] == 0  # what would be told without the allowance


def test_the_collectives_inside_a_collective_tell_who_waited() -> None:
    outer = [Span(rank, "all-reduce", "collective", 0, 6) for rank in range(2)]
    assert drawn(split_collectives([*outer, *spans_of("AABBBB", "tAtttB")])) == ["wtwwwt", "tttttt"]


def test_a_moment_belongs_to_the_innermost_span() -> None:
    step, forward, sum_ = Span(0, "step", "compute", 0, 8), Span(0, "f", "wait", 1, 3), spans_of(".....tt.")
    pieces = cut([step, forward, *sum_])
    assert drawn([step, forward, *sum_]) == ["cwwccttc"]
    assert all(one.end <= two.start for one, two in pairwise(pieces))


def test_no_moment_is_counted_twice() -> None:
    spans = [
        Span(0, "step", "compute", 0, 10),
        Span(0, "inner", "compute", 2, 5),
        Span(0, "x", "transfer", 3, 4),
    ]
    assert totals(spans) == {0: {"compute": 9, "wait": 0, "transfer": 1}}
