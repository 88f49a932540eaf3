"""The rank that makes the others wait, found in spans whose straggler is known."""

import random
from collections.abc import Iterable

from course_lib.comm.spans import COLLECTIVE, COMPUTE, WAIT, Span, split_collectives, totals
from course_lib.comm.straggler import find_straggler, meetings

STEP = {"forward": 0.010, "backward": 0.020}


def recorded(
    late: dict[int, tuple[str, float]], *, ranks: int = 4, steps: int = 3, seed: int = 0
) -> list[Span]:
    """Steps of which rank r is longer in `late[r]`'s span, by as many seconds; all times vary a little."""
    rng = random.Random(seed)
    spans, now = [], [0.0] * ranks
    for _ in range(steps):
        for rank in range(ranks):
            for name, seconds in STEP.items():
                where, extra = late.get(rank, ("", 0.0))
                end = now[rank] + seconds + extra * (where == name) + rng.uniform(0, 1e-4)
                spans.append(Span(rank, name, COMPUTE, now[rank], end))
                now[rank] = end
        leave = max(now) + 0.002
        spans += [Span(rank, "sum", COLLECTIVE, now[rank], leave) for rank in range(ranks)]
        now = [leave] * ranks
    return split_collectives(spans)


def longest_wait(spans: Iterable[Span]) -> int:
    """Known-wrong: the rank that is longest in collectives. It is a victim."""
    seconds = totals(spans)
    return max(seconds, key=lambda rank: seconds[rank][WAIT])


def longest_span(spans: Iterable[Span]) -> str:
    """Known-wrong: the name of the longest compute span of all, slow rank or not."""
    return max((span for span in spans if span.kind == COMPUTE), key=lambda span: span.seconds).name


def test_the_straggler_is_found_with_what_it_was_slow_in() -> None:
    for rank in range(4):
        spans = recorded({rank: ("forward", 0.008)})
        found = find_straggler(spans)
        assert found is not None
        assert (found.rank, found.slow_in) == (rank, "forward")
        assert abs(found.excess_seconds - 3 * 0.008) < 1e-3
        assert abs(found.waited_for[rank] - 3 * 3 * 0.008) < 1e-2  # three ranks, in three steps
        said = found.sentence(steps=3)
        assert f"for rank {rank} in total. In 'forward', rank {rank} took 24 ms" in said
        assert said.endswith(": 8 ms per step.")
        assert longest_wait(spans) != rank
        assert longest_span(spans) == "backward"


def test_of_two_slow_ranks_the_slower_one_is_the_straggler() -> None:
    found = find_straggler(recorded({0: ("backward", 0.004), 2: ("forward", 0.009)}))
    assert found is not None and found.rank == 2 and found.slow_in == "forward"


def test_each_meeting_names_who_came_last() -> None:
    first = [Span(0, "sum", COLLECTIVE, 1.0, 3.1), Span(1, "sum", COLLECTIVE, 3.0, 3.1)]
    second = [Span(0, "sum", COLLECTIVE, 9.0, 9.1), Span(1, "sum", COLLECTIVE, 5.0, 9.1)]
    found = meetings(split_collectives(first + second))
    assert [(each.name, each.last) for each in found] == [("sum", 1), ("sum", 0)]
    assert [dict(each.waited) for each in found] == [{0: 2.0}, {1: 4.0}]


def test_meetings_of_two_names_are_kept_apart() -> None:
    late_0 = [Span(0, "a", COLLECTIVE, 2.0, 2.1), Span(1, "a", COLLECTIVE, 1.0, 2.1)]
    late_1 = [Span(0, "b", COLLECTIVE, 3.0, 6.1), Span(1, "b", COLLECTIVE, 6.0, 6.1)]
    assert [each.last for each in meetings(split_collectives(late_0 + late_1))] == [0, 1]


def test_without_waiting_there_is_no_straggler() -> None:
    assert find_straggler([]) is None
    assert find_straggler([Span(0, "forward", COMPUTE, 0.0, 1.0)]) is None
    together = [Span(rank, "sum", COLLECTIVE, 1.0, 2.0) for rank in range(3)]
    assert find_straggler(split_collectives(together)) is None


def test_a_rank_that_came_late_without_computing_longer_is_named_all_the_same() -> None:
    """It slept, or had no core: no span of it is longer."""
    spans = [Span(0, "sum", COLLECTIVE, 1.0, 3.1), Span(1, "sum", COLLECTIVE, 3.0, 3.1)]
    found = find_straggler(split_collectives(spans))
    assert found is not None and (found.rank, found.slow_in, found.excess_seconds) == (1, "", 0.0)
    assert found.sentence(steps=1).startswith("The others waited 2000 ms for rank 1")
    assert "no longer" in found.sentence(steps=1)
