"""Messages that nobody received are reported once, and discarded only where they would do harm."""

from mpi_classroom import undelivered
from mpi_classroom.host import LocalHost
from mpi_classroom.observer import Observer
from mpi_classroom.recording import calls
from mpi_classroom.recording.calls import EVERYONE, Collectives, Counts, Message, call_file


def traffic(*sent_and_received):
    return {rank: Counts({}, sent, received) for rank, (sent, received) in enumerate(sent_and_received)}


def test_the_counts_are_those_that_the_ranks_wrote(tmp_path):
    record = bytearray(calls.SIZE)
    calls.COUNTS.pack_into(record, 0, 99, 3)
    calls.TRAFFIC.pack_into(record, calls.TRAFFIC_AT, 2, 1, 24, 16)
    call_file(tmp_path, 1).write_bytes(record)
    observer = Observer(dict.fromkeys([0, 1], LocalHost(tmp_path, {})), lambda file: None)
    none = {EVERYONE: Collectives()}
    assert observer.counts([0, 1]) == {0: Counts(none), 1: Counts(none, 3, 2, 24, 16, 1)}


def test_a_cell_without_messages_moved_none_whatever_came_before():
    before = traffic((2, 0), (0, 1))
    assert not undelivered.moved(before, before)
    assert not undelivered.moved({}, {})
    assert undelivered.moved(before, traffic((2, 0), (0, 2)))


def test_the_sentences_name_the_messages_and_leave_out_what_is_too_much():
    many = [Message(0, rank, 0, 8) for rank in range(1, 6)]
    assert undelivered.discarded(many) == (
        "5 messages that nobody had received were thrown away: rank 0 → rank 1, tag 0, 8 bytes; "
        "rank 0 → rank 2, tag 0, 8 bytes; rank 0 → rank 3, tag 0, 8 bytes and 2 more."
    )
