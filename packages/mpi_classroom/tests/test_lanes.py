"""Lanes are handed snapshots and say what each rank did: no ranks, no clock, no widget."""

from dataclasses import replace

import pytest

from mpi_classroom.lanes import Lanes, doing_of, waits_for
from mpi_classroom.recording.calls import EVERYONE, Call, Collectives, Communicator, Counts
from mpi_classroom.snapshot import RankState, Snapshot


def send(to, tag=0, number=1):
    return Call("Send", to, None, tag, number)


def recv(source, tag=0, number=1):
    return Call("Recv", source, None, tag, number)


def sendrecv(to, source, number=1):
    return Call("Sendrecv", source, to, -1, number)


def collective(name="Barrier", turn=0, members=(), number=1):
    return Call(name, None, None, None, number, turn, Communicator(0, members, bool(members)))


def state(rank, call=None, since=0.0, kind="", **more):
    return RankState(rank, kind or ("waiting" if call else "computing"), call, since=since, **more)


def at(seconds, *states, **more):
    ended = all(each.ended for each in states)
    return Snapshot(seconds, states, ended=ended, **more)


def shown(*moments, size=2, counts=None):
    lanes = Lanes(size)
    lanes.begin(counts or {})
    for moment in moments:
        lanes.see(moment)
    return lanes.frame


# -------------------------------------------------------------------- waiting for whom, or transferring


@pytest.mark.parametrize(
    ("calls", "missing"),
    [
        # Each line: the calls of ranks 0, 1, …, and for whom each waits. None: it is in no call.
        ([send(1), None], [[1], []]),
        ([send(1), recv(0)], [[], []]),
        ([send(1), send(0)], [[1], [0]]),
        ([send(1, tag=5), recv(0, tag=6)], [[1], [0]]),
        ([send(1, tag=5), recv(0, tag=-1)], [[], []]),
        ([send(2), recv(2), recv(0)], [[], [2], []]),
        ([sendrecv(1, 2), sendrecv(2, 0), sendrecv(0, 1)], [[], [], []]),
        ([sendrecv(1, 2), sendrecv(2, 0), None], [[2], [2], []]),
        ([sendrecv(1, 1), recv(0)], [[1], []]),  # rank 1 receives, and sends nothing back
        ([recv(-1), None], [[], []]),
        ([recv(0), sendrecv(1, 1)], [[0], []]),  # from and to themselves
        ([collective(), None, collective()], [[1], [], [1]]),
        ([collective(turn=3), collective(turn=4)], [[], [0]]),
        ([collective(members=(0, 2)), None, collective(members=(0, 2))], [[], [], []]),
        ([collective(), recv(0)], [[1], [0]]),
        ([Call("Wait", 1, None, 0, 1, of="Irecv"), send(0)], [[], []]),
        ([Call("Waitall", None, None, None, 1), None], [[], []]),
    ],
)
def test_a_rank_waits_for_those_who_have_not_come_to_its_call(calls, missing):
    states = [state(rank, call) for rank, call in enumerate(calls)]
    assert [list(waits_for(each, states)) for each in states] == missing


@pytest.mark.parametrize(
    ("call", "missing", "doing"),
    [
        (recv(1), (1,), "waiting"),
        (recv(1), (), "transferring"),
        (recv(-1), (), "waiting"),  # from any rank: who will send is not known
        (sendrecv(1, -1), (), "waiting"),
        (sendrecv(1, -2), (), "transferring"),  # PROC_NULL sends nothing
        (Call("a library that uses MPI", None, None, None, 1), (), "waiting"),
    ],
)
def test_a_rank_transfers_once_all_that_its_call_needs_have_come(call, missing, doing):
    assert doing_of(state(0, call), missing, moves=False) == doing


def test_bytes_that_move_between_hosts_within_one_call_are_a_transfer():
    waitall = Call("Waitall", None, None, None, 7)
    moments = [
        at(0.0, state(0, waitall, moved=0)),
        at(0.1, state(0, waitall, moved=10**6)),
        at(0.2, state(0, waitall, moved=10**6 + 50)),
        at(0.3, state(0, replace(waitall, number=8), moved=10**7)),  # in the call before, perhaps
    ]
    assert shown(*moments, size=1).lanes[0].ticks == "wtww"


# -------------------------------------------------------------------- words


def test_a_deadlock_names_the_circle_once_it_has_stood_for_a_second():
    early, late = (at(t, state(0, send(1), 0.5), state(1, send(0), 0.5)) for t in (1.4, 1.5))
    assert shown(early).note == ""
    frame = shown(early, late)
    assert frame.note == "Circle of waiting: rank 0 → rank 1 → rank 0."
    assert [lane.words for lane in frame.lanes] == [
        "waiting in Send to rank 1, tag 0",
        "waiting in Send to rank 0, tag 0",
    ]
    assert all(lane.in_circle and lane.seconds == 1.0 for lane in frame.lanes)


def test_ranks_that_move_bytes_between_hosts_are_no_circle():
    moments = [
        at(2.0 + n / 10, state(0, send(1), moved=n * 10**6), state(1, send(0), moved=0)) for n in (0, 1)
    ]
    assert shown(*moments[:1]).note and shown(*moments).note == ""


def test_a_collective_names_the_ranks_that_have_not_come():
    frame = shown(at(2.0, state(0, collective()), state(1), state(2)), size=3)
    assert frame.lanes[0].words == "waiting in Barrier for ranks 1 and 2"
    assert frame.note == "", "they compute, and may still come"


def test_a_wait_for_a_rank_that_has_ended_is_named():
    states = (
        state(0, collective()),
        state(1, kind="finished"),
        state(2, kind="raised", error="raised KeyError: 1"),
    )
    frame = shown(at(2.0, *states), size=3)
    assert frame.note == "Rank 0 waits for ranks 1 and 2, which have ended the cell."
    assert frame.lanes[2].words == "raised KeyError: 1"


# -------------------------------------------------------------------- the last ten seconds


def test_a_lane_has_one_letter_per_tenth_of_a_second_and_ends_with_the_cell():
    moments = [at(n / 50, state(0, recv(1) if n % 10 >= 5 else None)) for n in range(25)]
    moments += [at(0.5, state(0, kind="finished"))]
    assert shown(*moments, size=1).lanes[0].ticks == "cwcwcf"


def test_a_gap_separates_two_cells_and_the_lanes_of_all_ranks_stay_aligned():
    lanes = Lanes(2)
    lanes.begin({})
    lanes.see(at(0.0, state(0), state(1)))
    lanes.begin({})
    lanes.see(at(0.0, state(1)))  # rank 0 does not run this cell
    assert [lane.ticks for lane in lanes.frame.lanes] == ["c    ", "c   c"]
    assert lanes.frame.lanes[0].words == "idle"


def test_messages_bytes_and_collectives_are_those_of_the_cell():
    def counts(calls, sent, nbytes):
        return Counts({EVERYONE: Collectives(calls), (0, 1): Collectives(1)}, sent, 0, nbytes)

    now = at(0.0, state(0, counts=counts(5, 7, 4096)))
    lane = shown(now, size=1, counts={0: counts(3, 5, 1024)}).lanes[0]
    assert (lane.sent_bytes, lane.messages, lane.collectives) == (3072, 2, 2)


@pytest.mark.parametrize(
    ("call", "messages"),
    [
        (send(1), 1),
        (sendrecv(1, 1), 1),
        (sendrecv(-2, 1), 2),
        (recv(1), 2),
        (Call("Wait", 1, None, 0, 1, of="Isend"), 2),
    ],
)
def test_a_message_counts_with_its_bytes_once_the_call_that_sends_it_has_returned(call, messages):
    lane = shown(at(0.0, state(0, call, counts=Counts(sent=2)), state(1))).lanes[0]
    assert lane.messages == messages
