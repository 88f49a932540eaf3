"""What a rank writes about its MPI calls can be read by another process, whatever state the file is in."""

import re
import threading
import time

import numpy as np
import pytest
from mpi4py import MPI

from mpi_classroom.recording import calls, messages, recorder, requests
from mpi_classroom.recording import record as note
from mpi_classroom.recording.calls import (
    Call,
    Collectives,
    Communicator,
    Done,
    call_file,
    decode,
    read_record,
)
from mpi_classroom.recording.recorder import CALLS, RecordedComm
from packages.mpi_classroom.tests.waiting import until

NOT_RECORDED = {  # a hang in one of these shows as the line of the cell alone
    *("Free", "free", "Disconnect"),  # who hangs at the end of a communicator made the mistake before
    *("Spawn", "Spawn_multiple", "Accept", "Connect", "Join", "Create_intercomm"),  # of other worlds
    *("Create_graph", "Create_dist_graph", "Create_dist_graph_adjacent", "Create_from_group"),
    *("Ack_failed", "Agree", "Iagree", "Revoke", "Shrink", "Ishrink"),  # fault tolerance
    *("Idup", "Idup_with_info", "Iflush_buffer", "Psend_init", "Precv_init"),  # for the few who know
}


@pytest.fixture
def record(tmp_path, monkeypatch):
    """The file of rank 0 in `tmp_path`, and this process writing to it without being an engine."""
    path = call_file(tmp_path, 0)
    path.write_bytes(bytes(calls.SIZE))
    memory = np.memmap(path, dtype=np.uint8, mode="r+").data
    monkeypatch.setattr(note.note, "memory", memory)
    monkeypatch.setattr(note.note, "words", memoryview(memory).cast("i"))
    counters = ("calls", "sent", "received", "sent_bytes", "received_bytes", "posted")
    for count in counters:
        monkeypatch.setattr(note.note, count, 0)
    return tmp_path


def read_rank(folder, rank):
    """What the rank has written, as it is read on its machine."""
    return decode(read_record(folder, rank), time.monotonic())


def during(folder, name, *args, **kwargs):
    """What is read about rank 0 while `name` runs on a communicator of this process alone."""
    seen = []

    def original(self, *args, **kwargs):
        seen.append(read_rank(folder, 0).call)

    kinds = {"Probe": note.waiting_for_one, **dict.fromkeys(calls.COLLECTIVES, note.collective)}
    kind = kinds.get(name, messages.blocking)
    kind(name, original)(RecordedComm(MPI.COMM_SELF), *args, **kwargs)
    return seen[0]


# -------------------------------------------------------------------- what is noted


@pytest.mark.parametrize(
    ("name", "args", "kwargs", "said"),
    [
        ("Send", ("buf", 0, 5), {}, "Send to rank 0, tag 5"),
        ("Send", ("buf",), {"dest": 0, "tag": 5}, "Send to rank 0, tag 5"),
        ("Recv", ("buf",), {}, "Recv from any rank"),
        ("recv", (), {"source": 0, "tag": 3}, "recv from rank 0, tag 3"),
        ("Probe", (0, 2), {}, "Probe from rank 0, tag 2"),
        ("Sendrecv", ("out", 0, 1, "in", 0, 2), {}, "Sendrecv to rank 0 and from rank 0, tag 2"),
        ("Sendrecv_replace", ("buf", 0, 1, 0, 4), {}, "Sendrecv_replace to rank 0 and from rank 0, tag 4"),
        ("reduce", (1, "op"), {"root": 0}, "reduce"),
        ("Allreduce", ("a", "b"), {"op": MPI.MAX}, "Allreduce"),
    ],
)
def test_positional_and_keyword_arguments_are_noted_with_mpis_defaults(record, name, args, kwargs, said):
    assert str(during(record, name, *args, **kwargs)) == said


def test_integers_of_numpy_are_ranks_too(record):
    call = during(record, "Recv", "buf", source=np.int64(0), tag=np.int32(4))
    assert (call.peer, call.tag) == (0, 4)


@pytest.mark.parametrize("rank", [None, "one", 10**12])
def test_nonsense_for_a_rank_reaches_mpi_as_it_is(record, rank):
    """MPI says what is wrong with it; the recorder must not raise in its place."""
    assert during(record, "Send", "buf", dest=rank).peer is None


def test_calls_are_counted_so_that_a_loop_is_seen_to_move(record):
    first, second = during(record, "Recv", "buf", 0), during(record, "Recv", "buf", 0)
    assert second.number > first.number and second != first


def test_collectives_are_counted_on_their_communicator(record):
    comm = RecordedComm(MPI.COMM_SELF)
    turns = []
    wrapped = note.collective("Barrier", lambda self: turns.append(read_rank(record, 0).call.turn))
    for _ in range(3):
        wrapped(comm)
    assert turns == [0, 1, 2]
    assert read_rank(record, 0).done == Done("Barrier", 2, Communicator(0, (0,)))


def test_collectives_are_summed_over_all_communicators_with_the_same_members(record, monkeypatch):
    monkeypatch.setattr(note, "_tallies", {})
    tally = note._tally_of((2, 0), 0b101, 4)
    assert note._tally_of((0, 2), 0b101, 4) is tally and note._tally_of((1, 2), 0b110, 4) is not tally
    code = calls.CODES["bcast"]
    tally.add(1, code, code, 2, 0)
    first = read_rank(record, 0).counts.on((0, 2))
    assert (first.calls, first.last) == (1, "bcast(root=2)")
    assert read_rank(record, 0).counts.on((1, 2)) == read_rank(record, 0).counts.on((2, 3)) == Collectives()
    tally.add(2, code, code, 0, 0)
    assert read_rank(record, 0).counts.on((0, 2)).digest - first.digest == 2 * 4096 * code


def test_only_as_many_sets_of_members_are_counted_as_the_file_has_room_for(record, monkeypatch):
    monkeypatch.setattr(note, "_tallies", {})
    for ranks, mask, world in (((2,), 4, 4), ((-1, 0), 1, 4), ((0, 1), 3, 65)):
        assert note._tally_of(ranks, mask, world) is None
    pairs = [note._tally_of((0, rank), 1 | 1 << rank, 64) for rank in range(1, 40)]
    assert None not in pairs[: calls.TALLIES - 1] and set(pairs[calls.TALLIES - 1 :]) == {None}
    counts = read_rank(record, 0).counts
    assert counts.on((0, 1)) == Collectives() and counts.on((0, 39)) is None
    assert note._tally_of((0, 1), 3, 64) is pairs[0] and note._tally_of(range(70), 0, 70) is note._everyone


def test_nothing_is_noted_after_a_call_returned_or_raised(record):
    comm = RecordedComm(MPI.COMM_SELF)
    assert comm.allreduce(3) == 3
    assert read_rank(record, 0).call is None
    for failing in (lambda: comm.Send(np.zeros(1), dest=7), lambda: comm.Bcast(np.zeros(1), root=7)):
        with pytest.raises(MPI.Exception):
            failing()
        assert read_rank(record, 0).call is None


def test_a_collective_that_raised_is_not_noted_as_done(record):
    comm = RecordedComm(MPI.COMM_SELF)
    comm.Barrier()
    with pytest.raises(MPI.Exception):
        comm.Bcast(np.zeros(1), root=7)
    assert read_rank(record, 0).done.name == "Barrier"


def test_an_interrupt_erases_the_note(record):
    def interrupted(self, *args):
        raise KeyboardInterrupt

    for kind, name in ((note.collective, "Barrier"), (messages.blocking, "recv")):
        with pytest.raises(KeyboardInterrupt):
            kind(name, interrupted)(RecordedComm(MPI.COMM_SELF))
        assert read_rank(record, 0).call is None


def test_a_call_of_another_thread_is_made_but_not_noted(record):
    """A server thread that waits for ever must not make its rank look stuck."""
    seen = []
    thread = threading.Thread(target=lambda: seen.append(during(record, "Recv", "buf", 0)))
    thread.start()
    thread.join()
    assert seen == [None]


def test_every_call_of_mpi4py_that_waits_for_other_ranks_is_recorded():
    """The oracle is mpi4py's own list of methods: each is recorded, or is known not to be and why."""
    methods = {
        name for name in dir(MPI.Intracomm) if callable(getattr(MPI.Intracomm, name)) and name[0] != "_"
    }
    local = re.compile(r"Get_|Set_|Is_|Attach|Detach|Flush|py2f|f2py|to|from|.*(_map|attr|err)")
    recorded = {*CALLS, *calls.PROBES, *calls.MAKERS, *calls.STARTED, *calls.STARTED_BY_ALL}
    left = {name for name in methods if not local.match(name)} - recorded
    assert left == {"Abort", "Compare", "Create_keyval", "Free_keyval"} | NOT_RECORDED


def test_every_call_of_a_grid_is_recorded_too():
    grids = {name for name in dir(MPI.Cartcomm) if "eighbor" in name}
    assert grids == {name for name in (*calls.ON_GRIDS, *calls.STARTED_BY_ALL) if "eighbor" in name}


@pytest.mark.parametrize(
    ("kind", "plain"), [(recorder.RecordedWin, MPI.Win), (recorder.RecordedFile, MPI.File)]
)
def test_windows_and_files_are_recorded_in_every_call_that_waits(kind, plain):
    names = {name.partition(".")[2] for name in calls.NAMES if name.startswith(f"{plain.__name__}.")}
    assert names and all(getattr(kind, name) is not getattr(plain, name) for name in names)


# -------------------------------------------------------------------- requests


@pytest.mark.parametrize(
    ("start", "said"),
    [
        (lambda c: c.Isend(np.zeros(0), 0, 5), "Wait for Isend to rank 0, tag 5"),
        (lambda c: c.Irecv(np.zeros(1), source=0, tag=7), "Wait for Irecv from rank 0, tag 7"),
        (lambda c: c.irecv(source=0), "Wait for irecv from rank 0"),
        (lambda c: c.Ibarrier(), "Wait for Ibarrier"),
        (lambda c: c.Iallreduce(np.zeros(1), np.zeros(1)), "Wait for Iallreduce"),
    ],
)
def test_a_wait_tells_what_it_waits_for(record, start, said):
    request = start(RecordedComm(MPI.COMM_SELF))
    assert isinstance(request, requests.RecordedRequest)
    seen = []
    note.waiting("Wait", request._of, lambda: seen.append(read_rank(record, 0).call))
    assert str(seen[0]) == said and seen[0].collective == (said.split()[2][1:] in ("barrier", "allreduce"))
    assert read_rank(record, 0).call is None


def test_a_rank_that_computes_between_its_tests_does_not_wait(record):
    comm = RecordedComm(MPI.COMM_SELF.Dup())
    request = comm.irecv(source=0, tag=7)
    for _ in range(5):
        assert not request.test()[0] and read_rank(record, 0).call is None
        ends = time.thread_time() + 0.01
        while time.thread_time() < ends:
            pass
    comm.send("x", 0, 7)
    assert request.wait() == "x"


def test_a_rank_that_has_stopped_testing_does_something_else(record, monkeypatch):
    comm = RecordedComm(MPI.COMM_SELF.Dup())
    request = comm.Irecv(np.zeros(1), 0)
    for _ in range(3):
        request.Test()
    assert read_rank(record, 0).call is not None
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + calls.POLL_SECONDS + 0.1)
    assert read_rank(record, 0).call is None
    monkeypatch.undo()
    comm.Send(np.ones(1), 0)
    request.Wait()


def test_a_wait_for_any_names_what_all_have_in_common(record):
    comm = RecordedComm(MPI.COMM_SELF.Dup())
    ready = comm.Isend(np.ones(1), 0)
    assert requests.RecordedRequest.Waitany([ready]) == 0
    receives = [comm.Irecv(np.zeros(1), 0, tag) for tag in (1, 2)]
    assert requests._any_of(receives)[0] == -1 and requests._any_of(receives[:1]) == receives[0]._of
    assert requests._any_of([*receives, comm.Ibarrier()]) == note.NO_OPERATION
    assert requests._any_of([comm.Ibarrier(), comm.Ibarrier()]) == note.NO_OPERATION, (
        "no root, no communicator"
    )
    for tag in (1, 2):
        comm.Send(np.zeros(1), 0, tag)
    assert sorted(requests.RecordedRequest.Waitsome(receives)) == [0, 1]


def test_an_operation_that_is_started_again_and_again_counts_each_start(record):
    comm = RecordedComm(MPI.COMM_SELF.Dup())
    before = read_rank(record, 0).counts
    out, into = np.ones(1), np.zeros(1)
    send, receive = comm.Send_init(out, 0), comm.Recv_init(into, 0)
    barrier = comm.Barrier_init()
    for _ in range(3):
        send.Start()
        requests.RecordedPrequest.Startall([receive, barrier])
        requests.RecordedRequest.Waitall([send, receive, barrier])
    after = read_rank(record, 0).counts
    assert (after.sent - before.sent, after.received - before.received) == (3, 3)
    assert comm._turn == 3 and into[0] == 1


def added(record, action):
    """By how much `action` raises the counts of messages and bytes, sent and received."""
    before = read_rank(record, 0).counts
    action()
    after = read_rank(record, 0).counts
    counts = ("sent", "received", "sent_bytes", "received_bytes")
    return tuple(getattr(after, name) - getattr(before, name) for name in counts)


def test_messages_are_counted_where_they_are_sent_and_taken(record):
    comm = RecordedComm(MPI.COMM_SELF.Dup())

    def counted(action):
        return added(record, action)[:2]

    assert counted(lambda: comm.send(1, 0)) == (1, 0)
    assert counted(lambda: comm.Probe(0)) == (0, 0)
    assert counted(lambda: comm.recv()) == (0, 1)
    assert counted(lambda: comm.isend(1, 0)) == (1, 0)
    assert counted(lambda: comm.mprobe().recv()) == (0, 1)
    assert counted(lambda: comm.sendrecv(1, 0, source=0)) == (1, 1)
    assert counted(lambda: comm.send(1, MPI.PROC_NULL)) == (0, 0)
    assert counted(lambda: comm.recv(source=MPI.PROC_NULL)) == (0, 0)
    assert counted(lambda: comm.sendrecv(1, MPI.PROC_NULL, source=MPI.PROC_NULL)) == (0, 0)
    assert counted(lambda: comm.Isendrecv(np.ones(1), 0, 0, np.zeros(1), 0, 0).Wait()) == (1, 1)
    assert counted(lambda: comm.Barrier()) == (0, 0)


def test_bytes_are_those_of_the_messages_whatever_buffers_say(record):
    comm = RecordedComm(MPI.COMM_SELF.Dup())
    into = np.zeros(100)

    def counted(action):
        return added(record, action)[2:]

    assert counted(lambda: comm.Send(np.ones(5), 0)) == (40, 0)
    assert counted(lambda: comm.Recv(into, 0)) == (0, 40), "what was sent, not what there is room for"
    assert counted(lambda: comm.Send([np.ones(5), 2, MPI.DOUBLE], dest=0, tag=3)) == (16, 0)
    status = MPI.Status()
    assert counted(lambda: comm.Recv(into, 0, 3, status)) == (0, 16) and status.tag == 3
    assert counted(lambda: comm.Send(buf=[b"abc", MPI.BYTE], dest=0)) == (3, 0)
    assert counted(lambda: comm.Recv(into, 0, 0, None)) == (0, 3)
    assert counted(lambda: comm.Sendrecv(np.ones(2), 0, 0, into, 0)) == (16, 16)
    assert counted(lambda: comm.Sendrecv_replace(into, 0, source=0)) == (800, 800)
    assert counted(lambda: comm.Send(np.ones(5), MPI.PROC_NULL)) == (0, 0)
    assert counted(lambda: comm.Recv(into, MPI.PROC_NULL)) == (0, 0)
    send, receive = comm.Send_init(np.ones(3), 0), comm.Recv_init(into, 0)
    assert counted(lambda: requests.RecordedPrequest.Startall([receive, send])) == (24, 0)
    assert counted(lambda: requests.RecordedRequest.Waitall([receive, send])) == (0, 24)
    assert counted(lambda: comm.Allreduce(np.ones(5), into[:5])) == (0, 0), "of messages only"


def test_bytes_of_pickled_messages_are_those_of_the_pickle(record):
    comm, size = RecordedComm(MPI.COMM_SELF.Dup()), len(MPI.pickle.dumps({"a": 1}))
    note.count_pickled()
    try:
        comm.send({"a": 1}, 0)
        assert comm.recv() == {"a": 1}
        comm.isend({"a": 1}, dest=0)
        assert comm.irecv(source=0).wait() == {"a": 1}
        counts = read_rank(record, 0).counts
        assert (counts.sent_bytes, counts.received_bytes) == (2 * size, 2 * size)
        assert comm.bcast([1, 2]) == [1, 2] and comm.sendrecv("x", 0, source=0) == "x"
    finally:
        MPI.pickle.__init__()


recorded = requests.RecordedRequest


@pytest.mark.parametrize(
    "finish",
    [
        lambda requests: [request.Wait() for request in requests],
        lambda requests: [request.Wait(MPI.Status()) for request in requests for _ in range(2)],
        recorded.Waitall,
        lambda requests: recorded.Waitall(requests, []),
        lambda requests: [recorded.Waitany(requests) for _ in requests],
        lambda requests: recorded.Waitsome(requests) and recorded.Waitall(requests),
        lambda requests: until(lambda: recorded.Testall(requests)),
        lambda requests: until(lambda: all(request.Test() for request in requests)),
        lambda requests: [until(lambda: recorded.Testany(requests)[1]) for _ in requests],
        lambda requests: until(lambda: recorded.Testsome(requests) is None),
    ],
)
def test_requests_are_posted_until_they_are_known_to_be_complete(record, finish):
    comm = RecordedComm(MPI.COMM_SELF.Dup())
    into = [np.zeros(4), np.zeros(4)]
    started = [comm.Irecv(into[0], 0, 1), comm.Isend(np.ones(2), 0, 1), comm.Irecv(into[1], 0, 2)]
    assert read_rank(record, 0).counts.posted == 3
    comm.Send(np.ones(3), 0, 2)
    finish(started)
    counts = read_rank(record, 0).counts
    assert (counts.posted, counts.received_bytes) == (0, 40)


@pytest.mark.parametrize(
    ("poll", "said"),
    [
        (lambda comm, request: request.Test(), "Test for Irecv from rank 0, tag 7"),
        (lambda comm, request: recorded.Testall([request]), "Testall for Irecv from rank 0, tag 7"),
        (lambda comm, request: recorded.testany([request])[1], "testany for Irecv from rank 0, tag 7"),
        (lambda comm, request: recorded.Testsome([request]), "Testsome for Irecv from rank 0, tag 7"),
        (lambda comm, request: comm.Iprobe(0, 5), "Iprobe from rank 0, tag 5"),
        (lambda comm, request: comm.Improbe(source=0, tag=5), "Improbe from rank 0, tag 5"),
    ],
)
def test_whatever_a_rank_repeats_in_vain_is_a_wait(record, monkeypatch, poll, said):
    monkeypatch.setattr(calls, "POLL_SECONDS", 60.0)  # a busy machine may look at the record late
    monkeypatch.setattr(note, "_COMPUTED", 60.0)
    comm = RecordedComm(MPI.COMM_SELF.Dup())
    request = comm.Irecv(np.zeros(1), 0, 7)
    assert not poll(comm, request) and read_rank(record, 0).call is None  # once is no wait
    assert not poll(comm, request) and str(read_rank(record, 0).call) == said
    comm.Send(np.ones(1), 0, 7)
    request.Wait()
    assert read_rank(record, 0).call is None


# -------------------------------------------------------------------- what a library announces


@pytest.fixture
def say(record, monkeypatch):
    """MPI.Pcontrol as `install` replaces it, on a rank that has announced nothing."""
    monkeypatch.setattr(note, "_library_waits", False)
    monkeypatch.setattr(note, "_library_works", 0)
    return note.announced(lambda level: pytest.fail(f"level {level} is nobody else's"))


def elsewhere(action):
    thread = threading.Thread(target=action)
    thread.start()
    thread.join()


def test_a_wait_that_a_library_announces_is_a_call_until_it_goes_on(record, say):
    say(note.WAIT_BEGAN)
    call = read_rank(record, 0).call
    assert (str(call), call.in_library, call.number) == ("a library that uses MPI", True, 1)
    assert not call.collective and not call.on_window
    say(note.WAIT_ENDED)
    assert read_rank(record, 0).call is None
    say(note.WAIT_ENDED)  # twice does no harm
    say(note.WAIT_BEGAN)
    assert read_rank(record, 0).call.number == 2


def test_what_other_threads_wait_for_is_no_wait_of_the_rank(record, say):
    elsewhere(lambda: say(note.WAIT_BEGAN))
    assert read_rank(record, 0).call is None
    say(note.WAIT_BEGAN)
    elsewhere(lambda: say(note.WAIT_ENDED))
    assert read_rank(record, 0).call is not None


def test_a_rank_in_which_data_moves_does_not_wait(record, say):
    say(note.WAIT_BEGAN)
    before = read_rank(record, 0).call
    elsewhere(lambda: say(note.WORK_BEGAN))
    assert read_rank(record, 0).call is None
    say(note.WORK_BEGAN)
    elsewhere(lambda: say(note.WORK_ENDED))
    assert read_rank(record, 0).call is None, "the other one goes on"
    say(note.WORK_ENDED)
    assert read_rank(record, 0).call.number > before.number, "a standstill begins anew"
    say(note.WORK_BEGAN)
    say(note.WAIT_ENDED)
    say(note.WAIT_BEGAN)
    assert read_rank(record, 0).call is None, "nor one that comes to a wait meanwhile"


def during_barrier(record, action):
    """The call that is noted in a Barrier after `action`."""
    seen = []

    def original(self):
        action()
        seen.append(read_rank(record, 0).call)

    note.collective("Barrier", original)(RecordedComm(MPI.COMM_SELF))
    return str(seen[0])


def test_neither_an_announcement_nor_the_end_of_a_cell_erases_the_note_of_a_call(record, say):
    work = lambda: elsewhere(lambda: (say(note.WORK_BEGAN), say(note.WORK_ENDED)))  # noqa: E731
    assert during_barrier(record, work) == during_barrier(record, note.forget_library_wait) == "Barrier"


def test_an_announcement_of_a_thread_does_not_replace_the_note_of_a_call(record, say):
    """The main thread has left the library's wait by an interrupt, which came in place of WAIT_ENDED."""
    say(note.WORK_BEGAN)
    say(note.WAIT_BEGAN)
    again = lambda: (say(note.WORK_ENDED), say(note.WORK_BEGAN), say(note.WORK_ENDED))  # noqa: E731
    assert during_barrier(record, lambda: elsewhere(again)) == "Barrier"


def test_a_wait_takes_the_place_of_the_note_that_polls_have_left(record, say, monkeypatch):
    monkeypatch.setattr(note, "_COMPUTED", 60.0)
    comm = RecordedComm(MPI.COMM_SELF.Dup())
    assert not comm.Iprobe(0, 7) and not comm.Iprobe(0, 7)
    assert read_rank(record, 0).call.name == "Iprobe"
    say(note.WORK_BEGAN)
    say(note.WAIT_BEGAN)
    say(note.WORK_ENDED)
    assert read_rank(record, 0).call.in_library


def test_a_wait_that_an_interrupt_has_ended_without_a_word_is_over_with_the_cell(record, say):
    say(note.WAIT_BEGAN)
    note.forget_library_wait()
    assert read_rank(record, 0).call is None
    elsewhere(lambda: (say(note.WORK_BEGAN), say(note.WORK_ENDED)))
    assert read_rank(record, 0).call is None


def test_work_that_ends_without_having_begun_is_not_counted(record, say):
    say(note.WORK_ENDED)
    say(note.WAIT_BEGAN)
    assert read_rank(record, 0).call is not None


def test_a_signal_handler_may_announce_while_the_main_thread_does(record, say, monkeypatch):
    said = []

    class Packing:
        def pack_into(self, *args):
            if not said:
                said.append(True)
                say(note.WAIT_ENDED)

    def main():
        monkeypatch.setattr(note, "MAIN", threading.get_ident())
        say(note.WAIT_BEGAN)

    monkeypatch.setattr(note, "NOW", Packing())
    thread = threading.Thread(target=main, daemon=True)  # which a deadlock would not end
    thread.start()
    thread.join(5.0)
    assert said and not thread.is_alive()


def test_other_levels_are_for_other_tools(record):
    heard = []
    say = note.announced(heard.append)
    for level in (0, 1, 2):
        say(level)
    assert heard == [0, 1, 2]


def test_a_probe_that_finds_a_message_is_no_wait(record):
    comm = RecordedComm(MPI.COMM_SELF.Dup())
    assert not comm.Iprobe() and not comm.Iprobe()
    comm.Send(np.ones(1), 0)
    while not comm.Iprobe():
        pass
    assert read_rank(record, 0).call is None
    comm.Recv(np.zeros(1), 0)
    with pytest.raises(TypeError):
        comm.Iprobe("nonsense")


# -------------------------------------------------------------------- what is read


def test_the_words_for_a_call_on_a_part_of_the_world():
    part = Communicator(1, (2, 3), part=True)
    assert str(Call("recv", -1, None, -1, 1, 0, part)) == "recv from any rank"
    assert str(Call("Barrier", None, None, None, 1, 0, part)) == "Barrier of ranks 2, 3"
    assert str(Call("Bcast", 3, None, None, 1, 0, part)) == (
        "Bcast with root 3 of ranks 2, 3 (as COMM_WORLD numbers them)"
    )
    assert str(Call("Recv", 3, None, 5, 1, 0, part)) == "Recv from rank 3, tag 5 (as COMM_WORLD numbers them)"


@pytest.mark.parametrize("content", [None, b"", bytes(calls.SIZE - 1), bytes(calls.SIZE + 1)])
def test_a_missing_truncated_or_foreign_file_is_no_call(tmp_path, content):
    if content is not None:
        call_file(tmp_path, 0).write_bytes(content)
    assert read_rank(tmp_path, 0).call is None and read_rank(tmp_path, 0).done is None


@pytest.mark.parametrize("code", [-1, 0, len(calls.NAMES)])
def test_a_code_that_no_call_has_is_no_call(tmp_path, code):
    record = bytearray(calls.SIZE)
    calls.NOW.pack_into(record, 0, *[0] * 9, code)
    call_file(tmp_path, 0).write_bytes(record)
    assert read_rank(tmp_path, 0).call is None


def test_whether_a_rank_still_polls_is_known_from_the_clock_of_its_own_machine():
    record = bytearray(calls.SIZE)
    calls.NOW.pack_into(record, 0, *[0] * 9, calls.CODES["Iprobe"])
    calls.POLLED.pack_into(record, calls.POLLED_AT, 5e6)  # a machine that was started long before this one
    assert calls.decode(record, 5e6 + calls.POLL_SECONDS / 2).call.name == "Iprobe"
    assert calls.decode(record, 5e6 + calls.POLL_SECONDS * 2).call is None


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ("Open MPI v5.0.11, package: Open MPI x Distribution, ident: 5.0.11", "Open MPI 5.0.11"),
        ("MPICH Version:      5.0.2\nMPICH Release date: today\nMPICH ABI: 18:2:6\n", "MPICH 5.0.2"),
        ("Intel(R) MPI Library 2021.13 for Linux* OS\n", "Intel(R) MPI Library 2021.13 for Linux* OS"),
    ],
)
def test_an_mpi_library_is_named_in_a_few_words(said: str, name: str) -> None:
    assert recorder.library_name(said) == name
