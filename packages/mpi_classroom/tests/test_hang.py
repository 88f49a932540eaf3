"""The explainer of hangs says the right cause for every way in which ranks can wait for ever."""

import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace

import pytest

from mpi_classroom import host, observer
from mpi_classroom.cause import find_cycle, likely_cause, report
from mpi_classroom.host import LocalHost
from mpi_classroom.observer import Observer, Source, frames
from mpi_classroom.recording.calls import IN_LIBRARY, Call, Communicator, Done, stack_file
from mpi_classroom.snapshot import ENDED_WITH_OTHERS, PERHAPS, RankState

WORLD = Communicator(0, (0, 1, 2, 3))
LEFT, RIGHT = Communicator(1, (0, 1), part=True), Communicator(1, (2, 3), part=True)


def collective(name, turn=0, on=WORLD, root=None):
    return Call(name, root, None, None, 1, turn, on)


def send(to, tag=0, name="Send"):
    return Call(name, to, None, tag, 1, 0, WORLD)


def recv(source, tag=-1, name="Recv"):
    return Call(name, source, None, tag, 1, 0, WORLD)


def sendrecv(to, source, tag=-1):
    return Call("Sendrecv", source, to, tag, 1, 0, WORLD)


def waiting(rank, call=None, done=None, **where):
    return RankState(rank, "waiting", call, done=done, **where)


def finished(rank, name="", turn=0, on=WORLD):
    return RankState(rank, "finished", done=Done(name, turn, on) if name else None)


def raised(rank):
    return RankState(rank, "raised", error="raised ValueError: boom", line=4, code="raise ValueError('boom')")


def computing(rank):
    return RankState(rank, "computing", line=2, code="while True: pass")


# -------------------------------------------------------------------- the likely cause


def test_a_rank_that_raised_is_the_cause_and_the_others_wait():
    cause = likely_cause([waiting(0, collective("Barrier")), raised(1), waiting(2, collective("Barrier"))])
    assert cause.startswith("rank 1 raised an error and left the cell, so ranks 0 and 2 wait for something")
    assert cause.endswith("Correct the error first.")


def test_one_waiting_rank_after_a_raise_is_singular():
    assert "so rank 0 waits for" in likely_cause([waiting(0, recv(1)), raised(1)])


def test_a_killed_rank_comes_before_everything_else():
    states = [raised(0), RankState(1, "gone", error="was killed"), waiting(2, collective("Barrier"))]
    assert likely_cause(states) == "rank 1 died; MPI then ends all the others."


def test_a_collective_skipped_by_one_rank_names_that_rank():
    states = [*(waiting(rank, collective("Allreduce", 3)) for rank in (0, 1, 3)), finished(2)]
    cause = likely_cause(states)
    assert cause.startswith("Allreduce is a collective: every rank of the communicator must call it")
    assert "and rank 2 did not." in cause and "branch" in cause


def test_a_rank_that_left_a_reduce_early_has_called_it():
    """In a Reduce only the root waits for all: a rank that has finished may have sent its part."""
    states = [
        waiting(0, collective("Reduce", 5, root=0)),
        finished(1, "Reduce", 5),
        finished(2, "Allreduce", 4),
        finished(3, "Barrier", 9),
    ]
    assert "and rank 2 did not." in likely_cause(states)


def test_a_rank_that_is_already_in_the_next_collective_has_called_this_one():
    states = [
        waiting(0, collective("Reduce", 5, root=0)),
        waiting(1, collective("Barrier", 6)),
        waiting(2, collective("Barrier", 6)),
        finished(3, "Barrier", 4),
    ]
    cause = likely_cause(states)
    assert cause.startswith("Reduce is a collective") and "and rank 3 did not." in cause


def test_ranks_outside_a_sub_communicator_are_not_accused():
    states = [finished(0), finished(1), waiting(2, collective("Barrier", 0, RIGHT)), finished(3)]
    cause = likely_cause(states)
    assert cause.startswith("Barrier of ranks 2, 3 is a collective")
    assert "and rank 3 did not." in cause


def test_a_sub_communicator_made_twice_is_not_confused_with_the_first():
    again = Communicator(7, RIGHT.members, part=True)
    states = [waiting(2, collective("Barrier", 0, again)), finished(3, "Barrier", 12, RIGHT)]
    cause = likely_cause(states)
    assert "and rank 3 perhaps did not: its last collective was on another communicator." in cause


def test_a_rank_whose_last_collective_made_a_communicator_has_not_used_it():
    states = [waiting(2, collective("Barrier", 0, RIGHT)), finished(3, "Split", 1)]
    assert "and rank 3 did not." in likely_cause(states)


def test_two_different_collectives_are_named():
    states = [waiting(0, collective("Allreduce")), *(waiting(r, collective("Bcast", root=0)) for r in (1, 2))]
    cause = likely_cause(states)
    assert cause.startswith("the ranks are in different collectives (Allreduce, Bcast)")
    assert "same order" in cause


def test_a_finished_rank_that_made_another_collective_in_its_place_is_seen():
    """The root of a Bcast does not wait: it has finished while the others are in Barrier."""
    states = [finished(0, "Bcast", 2), *(waiting(rank, collective("Barrier", 2)) for rank in (1, 2, 3))]
    assert "different collectives (Barrier, Bcast)" in likely_cause(states)


def test_different_roots_are_named():
    states = [waiting(rank, collective("Bcast", root=(rank + 1) % 2)) for rank in (0, 1)]
    assert likely_cause(states) == "the ranks are in Bcast with different roots (0, 1)."


def test_all_in_the_same_collective_means_that_they_disagree_on_what_to_exchange():
    states = [waiting(rank, collective("Allreduce")) for rank in range(4)]
    assert likely_cause(states) == "all ranks are in Allreduce, but with different sizes, types or roots."


def test_a_rank_still_in_a_message_keeps_a_collective_from_completing():
    states = [waiting(0, collective("Barrier")), waiting(1, recv(0)), waiting(2, collective("Barrier"))]
    cause = likely_cause(states)
    assert cause.startswith("Barrier is a collective") and "rank 1 is still in Recv from rank 0" in cause


def test_a_rank_in_the_collective_of_another_communicator_is_named():
    states = [waiting(0, collective("Barrier", 0, LEFT)), waiting(1, collective("Barrier", 0, RIGHT))]
    cause = likely_cause(states)
    assert "Barrier of ranks 0, 1 is a collective" in cause
    assert "rank 1 is still in Barrier of ranks 2, 3" in cause


def test_a_circle_of_receives_is_drawn():
    cause = likely_cause([waiting(rank, recv((rank + 1) % 3)) for rank in range(3)])
    assert "a circle of waiting: rank 0 → rank 1 → rank 2 → rank 0." in cause
    assert "only after its own receive" in cause and "Sendrecv" in cause


def test_a_circle_of_large_sends_is_told_from_one_of_receives():
    cause = likely_cause([waiting(rank, send((rank + 1) % 4)) for rank in range(4)])
    assert "rank 0 → rank 1 → rank 2 → rank 3 → rank 0" in cause
    assert cause.endswith("Each waits until its send is done, and none has reached its receive.")


def test_a_circle_is_found_although_others_wait_in_a_collective():
    states = [waiting(0, recv(1)), waiting(1, recv(0)), *(waiting(r, collective("Barrier")) for r in (2, 3))]
    assert "a circle of waiting: rank 0 → rank 1 → rank 0." in likely_cause(states)


def test_send_and_receive_with_different_tags_do_not_match():
    cause = likely_cause([waiting(0, send(1, tag=7, name="Ssend")), waiting(1, recv(0, tag=8))])
    assert cause == "rank 0 → rank 1 → rank 0 wait for each other with different tags (7, 8)."


def test_send_and_receive_with_the_same_tag_still_do_not_match():
    cause = likely_cause([waiting(0, send(1, tag=7)), waiting(1, recv(0, tag=7))])
    assert cause.endswith("the one's send and the other's receive do not match.")


def test_sendrecv_is_never_advised_to_one_who_uses_it():
    cause = likely_cause([waiting(rank, sendrecv((rank + 1) % 2, (rank + 1) % 2, rank)) for rank in (0, 1)])
    assert "different tags (0, 1)" in cause and "use Sendrecv" not in cause


def test_collectives_of_two_communicators_in_opposite_orders():
    twin = Communicator(7, (0, 1, 2, 3))
    states = [waiting(rank, collective("Barrier", 0, twin if rank % 2 else WORLD)) for rank in range(4)]
    assert likely_cause(states) == (
        "ranks 0 and 2 are in Barrier and ranks 1 and 3 are in Barrier: collectives of different "
        "communicators that wait for each other. All ranks must make the collective calls of their "
        "communicators in the same order."
    )
    column = Communicator(2, (0, 2), part=True)
    rows = [
        waiting(0, collective("Barrier", 0, LEFT)),
        *(waiting(r, collective("Barrier", 0, column)) for r in (2,)),
    ]
    rows.append(waiting(1, collective("Bcast", 0, Communicator(3, (1, 3), part=True))))
    assert "of different communicators" not in likely_cause(rows), "rank 0 waits for 1, which waits for 3"
    rows = [*rows[:2], waiting(1, collective("Reduce", 0, Communicator(3, (1, 2), part=True)))]
    assert likely_cause(rows).startswith(
        "rank 0 is in Barrier of ranks 0, 1, rank 1 is in Reduce of ranks 1, 2 "
        "and rank 2 is in Barrier of ranks 0, 2: collectives of different communicators"
    )


def test_synchronous_sends_are_not_said_to_be_large():
    cause = likely_cause([waiting(rank, send(1 - rank, tag=rank, name="ssend")) for rank in (0, 1)])
    assert "Each sends synchronously: until a receive fits, the send does not end." in cause
    assert "too large" not in cause


def test_sends_and_receives_in_a_circle_of_three_are_no_mismatch():
    """The partner of each is busy with somebody else: no send faces its own receive."""
    cause = likely_cause([waiting(0, send(1)), waiting(1, recv(2)), waiting(2, recv(0))])
    assert cause.startswith(
        "a circle of waiting: rank 0 → rank 1 → rank 2 → rank 0. Each can go on only after"
    )
    assert "do not match" not in cause


def test_a_sendrecv_may_be_stuck_in_its_send():
    busy = waiting(2, collective("Barrier"))
    cause = likely_cause([waiting(0, sendrecv(to=1, source=2)), waiting(1, send(0)), busy])
    assert "rank 0 → rank 1 → rank 0" in cause
    cause = likely_cause([waiting(0, sendrecv(to=1, source=-1)), finished(1)])
    assert "rank 0 is in Sendrecv to rank 1 and from any rank" in cause
    assert "rank 1 has finished, perhaps without a call that receives" in cause


def test_a_rank_that_waits_for_itself():
    assert likely_cause([waiting(2, recv(2)), finished(0)]).startswith("rank 2 waits for itself")


def test_a_receive_without_a_send():
    cause = likely_cause([waiting(0, recv(2, tag=5)), finished(1), finished(2)])
    assert cause.startswith(
        "rank 0 is in Recv from rank 2, tag 5, but rank 2 has finished without a call that"
    )
    assert "sends it" in cause and "tag" in cause


def test_a_large_send_without_a_receive():
    cause = likely_cause([waiting(3, send(1)), finished(1), finished(0), finished(2)])
    assert "rank 3 is in Send to rank 1, tag 0, but rank 1 has finished" in cause and "receives it" in cause


def test_the_end_of_a_chain_is_blamed_not_its_beginning():
    states = [waiting(0, recv(1)), waiting(1, recv(2)), finished(2)]
    assert likely_cause(states).startswith("rank 1 is in Recv from rank 2")


def test_a_message_from_anyone_that_nobody_sends():
    cause = likely_cause([waiting(0, recv(-1)), finished(1)])
    assert cause.startswith("a message is waited for that no rank sends")


def test_a_request_that_never_completes():
    cause = likely_cause([waiting(rank, code="request.Wait()") for rank in range(2)])
    assert cause.startswith("a message is waited for that no rank sends")


def test_a_partner_that_does_not_run_the_cell_is_named():
    cause = likely_cause([waiting(1, recv(0)), finished(2)])
    assert "rank 1 is in Recv from rank 0, but rank 0 does not run this cell" in cause


def test_ranks_that_were_ended_are_not_said_to_wait():
    states = [RankState(rank, "gone", error=ENDED_WITH_OTHERS) for rank in (0, 1)]
    assert likely_cause(states) == "ranks 0 and 1 were ended; which one died first is not known."
    assert likely_cause([states[0], waiting(1, recv(0))]).startswith("rank 0 was ended")


def test_of_ranks_that_died_together_no_one_is_blamed_alone():
    states = [RankState(rank, "gone", error=f"{PERHAPS} (killed)") for rank in (1, 2)]
    assert likely_cause([waiting(0), *states]) == (
        "rank 1 or rank 2 died first; MPI then ends all the others."
    )


def test_an_await_is_no_endless_loop(tmp_path):
    state = seen(tmp_path, 1, [("/lib/selectors.py", 9, "select"), ("/lib/run.py", 1, "run")])
    cause = likely_cause([state, waiting(0, collective("Barrier"))])
    assert cause.startswith("rank 0 waits for the others. rank 1 is in an await that has not ended")
    assert "endless loop" not in cause


def test_endless_computation_on_all_ranks():
    cause = likely_cause([computing(rank) for rank in range(3)])
    assert cause.startswith("ranks 0, 1 and 2 still compute: an endless loop")


def test_endless_computation_on_one_rank_with_the_others_in_a_collective():
    states = [computing(1), *(waiting(rank, collective("Allreduce")) for rank in (0, 2))]
    cause = likely_cause(states)
    assert cause.startswith("ranks 0 and 2 wait for the others. rank 1 still computes: an endless loop")


def test_a_line_with_a_call_that_is_not_recorded_may_be_a_wait():
    states = [RankState(rank, "computing", line=4, code="if rank: inter.Barrier()") for rank in (1, 2)]
    cause = likely_cause([finished(0), *states])
    assert cause.startswith("ranks 1 and 2 still compute: an endless loop")
    assert "Or a wait that is not recorded: Barrier on an intercommunicator" in cause
    assert "not recorded" not in likely_cause([computing(0)])


def test_states_without_any_record_still_give_a_sentence():
    assert likely_cause([waiting(0), finished(1)])
    assert likely_cause([raised(0), raised(1)]) == "ranks 0 and 1 raised; the cell ended everywhere."


def test_a_skipped_collective_may_be_one_of_a_loop():
    states = [finished(0, "Barrier", 9), *(waiting(rank, collective("Barrier", 10)) for rank in (1, 2, 3))]
    assert likely_cause(states).endswith(
        "and rank 0 did not. Run any loop around it equally often on all ranks, or move the call out of the "
        "branch that only some ranks take."
    )


def test_a_member_that_does_not_run_the_cell_is_named_and_no_sizes_are_blamed():
    cause = likely_cause([waiting(rank, collective("Barrier", 4)) for rank in (0, 1, 2)])
    assert cause.endswith(
        "must call it, and rank 3 does not run this cell. Add it to --targets, or look at what it runs in "
        "the background."
    )


def test_a_collective_that_some_have_completed_and_others_not_is_one_of_different_sizes():
    late = waiting(3, collective("Bcast", 4, root=0))
    through = [waiting(rank, collective("Barrier", 5)) for rank in range(3)]
    words = (
        "rank 3 is still in Bcast, which the other ranks have completed: they made it with different sizes, "
        "types or roots."
    )
    assert likely_cause([*through, late]) == words
    assert likely_cause([*(finished(rank, "Bcast", 4) for rank in range(3)), late]) == words


def test_every_rank_that_sends_to_one_side_must_receive_from_the_other():
    cause = likely_cause([waiting(rank, sendrecv((rank + 1) % 4, (rank + 1) % 4)) for rank in range(4)])
    assert "rank 0 sends to rank 1, but rank 1 receives from rank 2." in cause
    assert cause.endswith("If each sends to one side, each must receive from the other side.")


def test_a_circle_of_receives_has_a_remedy_that_names_the_calls():
    cause = likely_cause([waiting(rank, recv((rank + 1) % 3)) for rank in range(3)])
    assert cause.endswith("Let one of them send before it receives, or use Sendrecv.")


def test_two_circles_at_once_are_both_drawn():
    cause = likely_cause([waiting(rank, recv((rank + 2) % 4)) for rank in range(4)])
    assert cause.startswith("a circle of waiting: rank 0 → rank 2 → rank 0. Each waits for a message")
    assert cause.endswith(" The same holds for rank 1 → rank 3 → rank 1.")
    alone = likely_cause([waiting(0, recv(2)), waiting(1, recv(1)), waiting(2, recv(0))])
    assert "rank 1 → rank 1" not in alone


def test_a_send_and_a_receive_on_different_communicators_do_not_meet():
    on_part = Call("ssend", 3, None, 0, 1, 0, Communicator(7, (1, 3), part=True))
    cause = likely_cause([waiting(1, on_part), waiting(3, recv(1))])
    assert cause.startswith("rank 1 → rank 3 → rank 1 wait for each other on different communicators")


def test_who_waits_for_a_message_from_anyone_is_named_with_its_tag():
    cause = likely_cause([waiting(0, recv(-1, tag=2, name="Probe")), *(finished(rank) for rank in (1, 2, 3))])
    assert cause == (
        "a message is waited for that no rank sends: rank 0 is in Probe from any rank, tag 2, and ranks 1, 2 "
        "and 3 have finished. Check partners, tags and the number of messages."
    )


def test_numbering_is_explained_only_where_a_rank_is_named():
    assert str(Call("recv", -1, None, -1, 1, 0, RIGHT)) == "recv from any rank"
    assert str(Call("recv", 2, None, -1, 1, 0, RIGHT)) == "recv from rank 2 (as COMM_WORLD numbers them)"


def test_a_crash_is_explained_and_another_death_is_not():
    inside = RankState(1, "gone", error="crashed (signal 11) in Bcast")
    assert likely_cause([inside, finished(0)]) == (
        "rank 1 died; MPI then ends all the others. A crash often means that more data came than a buffer "
        "holds: the counts and types of an MPI call must agree on all ranks."
    )
    truncated = RankState(2, "raised", error="raised MPI_ERR_TRUNCATE: message truncated")
    aborted = RankState(1, "gone", error="crashed (signal 6)")
    assert "MPI then ends all the others. More data came than" in likely_cause([aborted, truncated])
    killed = RankState(1, "gone", error="was killed")
    assert likely_cause([killed, finished(0)]) == "rank 1 died; MPI then ends all the others."


def test_a_truncated_message_is_explained_beside_the_raise():
    states = [
        RankState(0, "raised", error="raised MPI_ERR_TRUNCATE: message truncated"),
        waiting(1, collective("Alltoallv")),
    ]
    assert "Correct the error first. More data came than the receive buffer holds" in likely_cause(states)


# -------------------------------------------------------------------- torch.distributed


def in_torch(rank, name="all_reduce"):
    return waiting(rank, Call(f"torch.distributed.{name}", None, None, None, 0))


def test_a_collective_of_torch_that_one_rank_skips():
    cause = likely_cause([in_torch(0), in_torch(1), finished(2), in_torch(3)])
    assert cause.startswith(
        "ranks 0, 1 and 3 are in torch.distributed.all_reduce, but rank 2 has finished. Every rank of a "
        "process group must make the same collective calls in the same order."
    )
    assert "branch" in cause


def test_a_message_of_torch_needs_its_partner_not_the_same_call_everywhere():
    cause = likely_cause([in_torch(0, "recv"), finished(1), finished(2)])
    assert cause == (
        "rank 0 is in torch.distributed.recv, but ranks 1 and 2 have finished. Every send needs its receive. "
        "Check partners, tags and the number of messages."
    )


def test_a_collective_of_torch_and_one_of_mpi():
    states = [in_torch(0), *(waiting(rank, collective("allreduce")) for rank in (1, 2))]
    assert likely_cause(states).startswith(
        "rank 0 is in torch.distributed.all_reduce and ranks 1 and 2 are in allreduce. Every rank"
    )


def test_who_waits_in_torch_does_not_compute():
    cause = likely_cause([in_torch(0), computing(1), in_torch(2)])
    assert cause.startswith("ranks 0 and 2 wait for the others. rank 1 still computes")


BACKEND = "/venv/torch_mpi4py/"
C10D = "/venv/torch/distributed/distributed_c10d.py"
WAIT_FOR_TORCH = [(f"{BACKEND}waiting.py", 40, "wait_until"), (f"{BACKEND}gate.py", 78, "enter")]


@pytest.mark.parametrize(
    ("stack", "name"),
    [
        ([*WAIT_FOR_TORCH, (f"{BACKEND}group.py", 9, "allreduce"), (C10D, 1, "all_reduce")], "all_reduce"),
        ([*WAIT_FOR_TORCH, (f"{BACKEND}start.py", 9, "init_process_group")], "init_process_group"),
        (
            [
                *WAIT_FOR_TORCH,
                (C10D, 1, "_new_group_with_tag"),
                (C10D, 1, "new_group"),
                ("/x/c10d_logger.py", 1, "wrapper"),
            ],
            "new_group",
        ),
    ],
)
def test_a_rank_in_the_backend_of_torch_waits(tmp_path, stack, name):
    state = seen(tmp_path, 0, [*stack, ("/tmp/cell.py", 4, "<module>")])
    assert (state.kind, state.what()) == ("waiting", f"waiting in torch.distributed.{name}")
    assert (state.line, state.inside) == (4, "")


@pytest.mark.parametrize(
    ("file", "function", "name"),
    [
        ("work.py", "wait", "Work.wait"),
        ("messages.py", "wait", "Work.wait for a message"),
        ("group.py", "allreduce", "all_reduce"),
        ("group.py", "broadcast", "broadcast"),
    ],
)
def test_what_torch_enters_the_backend_by_has_the_name_that_a_learner_knows(file, function, name):
    stack = [*WAIT_FOR_TORCH, (f"{BACKEND}{file}", 9, function), ("/venv/torch/autograd/graph.py", 1, "run")]
    assert str(observer.torch_call(stack, asleep=True)) == f"torch.distributed.{name}"


CALLBACK = [(f"{BACKEND}work.py", 109, "announce"), (f"{BACKEND}work.py", 140, "wait")]


@pytest.mark.parametrize(
    ("called", "kind"),
    [
        ([("/tmp/cell.py", 2, "callback")], "computing"),
        ([("/venv/torch/nn/linear.py", 1, "forward"), ("/tmp/cell.py", 2, "callback")], "computing"),
        ([("/lib/threading.py", 1116, "join")], "waiting"),  # the backend's own: its thread is at a gate
        ([("/lib/threading.py", 1, "_wait_for_tstate_lock"), ("/lib/threading.py", 9, "join")], "waiting"),
    ],
)
def test_a_rank_in_a_callback_that_the_backend_runs_computes(tmp_path, called, kind):
    state = seen(tmp_path, 0, [*called, *CALLBACK, ("/tmp/cell.py", 4, "<module>")])
    assert (state.kind, state.call is None) == (kind, kind == "computing")


def test_an_announced_wait_has_the_number_of_the_record_and_the_name_of_the_stack():
    recorded, barrier = Call(IN_LIBRARY, None, None, None, 9), collective("Barrier")
    shown = Call("torch.distributed.recv", None, None, None, 0)
    assert observer.named(recorded, shown) == replace(shown, number=9)
    assert observer.named(recorded, None) == recorded
    assert observer.named(None, shown) == shown
    assert observer.named(barrier, shown) == barrier
    assert observer.named(None, None) is None


def test_a_wait_of_a_library_that_no_stack_names():
    states = [waiting(0, Call(IN_LIBRARY, None, None, None, 9)), finished(1)]
    assert likely_cause(states).startswith("rank 0 is in a library that uses MPI, but rank 1 has finished.")


OVER_GLOO = [(C10D, 9, "all_reduce"), ("/venv/torch/distributed/c10d_logger.py", 83, "wrapper")]
BACKWARD = [
    ("/venv/torch/autograd/graph.py", 9, "_engine_run_backward"),
    ("/venv/torch/_tensor.py", 1, "backward"),
]


@pytest.mark.parametrize(
    ("stack", "asleep", "name"),
    [
        (OVER_GLOO, True, "torch.distributed.all_reduce"),
        (OVER_GLOO, False, "None"),
        (BACKWARD, True, "torch.distributed in backward"),
        (BACKWARD, False, "None"),
        ([("/venv/torch/nn/linear.py", 1, "forward"), *OVER_GLOO], True, "None"),
        ([(C10D, 9, "_object_to_tensor")], True, "None"),
    ],
)
def test_over_gloo_the_stack_of_a_rank_that_sleeps_names_the_call(stack, asleep, name):
    call = observer.torch_call(stack, asleep=asleep)
    assert str(call) == name
    assert call is None or call.interruptible


def test_a_rank_in_torch_without_the_backend_computes(tmp_path):
    state = seen(tmp_path, 0, [("/venv/torch/nn/linear.py", 1, "forward"), ("/tmp/cell.py", 4, "<module>")])
    assert (state.kind, state.call) == ("computing", None)


# -------------------------------------------------------------------- the table


def test_the_report_is_the_table_of_the_ranks_and_then_the_cause():
    states = [
        waiting(0, collective("Allreduce"), line=7, code="average_gradients(model)"),
        raised(1),
        waiting(2, recv(1, tag=5), line=9, code="comm.Recv(inbox, source=1, tag=5)"),
        finished(3),
    ]
    lines = report(states).splitlines()
    assert " ".join(lines[0].split()) == "rank 0 waiting in Allreduce cell line 7 average_gradients(model)"
    assert lines[1].startswith("rank 1  raised ValueError: boom")
    assert "waiting in Recv from rank 1, tag 5" in lines[2]
    assert lines[3] == "rank 3  finished"
    assert lines[0].index("cell line") == lines[1].index("cell line") == lines[2].index("cell line")
    assert lines[4:] == ["", f"Likely cause: {likely_cause(states)}"]


def test_a_very_long_line_of_code_is_cut():
    assert max(map(len, report([computing(0), waiting(1, code="x" * 5000, line=1)]).splitlines())) < 250


def test_a_wait_without_a_record_takes_its_name_from_the_code():
    assert waiting(0, code="MPI.Request.Waitall(requests)").what() == "waiting in Waitall"
    assert waiting(0, code="f()", inside="request.wait() in f").what() == "waiting in wait"
    assert waiting(0).what() == "waiting in MPI"


# -------------------------------------------------------------------- circles


@pytest.mark.parametrize(
    ("waits_for", "cycle"),
    [
        ({}, []),
        ({0: 1, 1: None}, []),
        ({0: 1, 1: 2}, []),
        ({0: 0}, [0]),
        ({0: 1, 1: 2, 2: 1}, [1, 2]),
        ({3: 2, 2: 1, 1: 3, 0: 3}, [1, 3, 2]),
        ({0: -1, 1: -1}, []),
        ({0: 1, 1: 0, 2: 3, 3: 2}, [0, 1]),
    ],
)
def test_find_cycle(waits_for, cycle):
    assert find_cycle({rank: [other] for rank, other in waits_for.items()}) == cycle


# -------------------------------------------------------------------- looking at a real process

SLEEPER = """
import faulthandler, signal, sys, time
faulthandler.register(signal.SIGUSR1, file=open(sys.argv[1], "a"), all_threads=False)
def inner(depth):
    if depth: inner(depth - 1)
    print("ready", flush=True)
    time.sleep(100)
inner(int(sys.argv[2]))
"""


@pytest.fixture
def sleeper(tmp_path):
    """Starts a child that writes its stack on SIGUSR1, as a rank does; waits until it sleeps."""
    started = []
    (tmp_path / "sleeper.py").write_text(SLEEPER)

    def start(rank, depth=0):
        command = [sys.executable, "-m", "sleeper", str(stack_file(tmp_path, rank)), str(depth)]
        child = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True)
        started.append(child)
        assert child.stdout.readline() == "ready\n"
        return child

    yield start
    for child in started:
        child.kill()
        child.wait()
        child.stdout.close()


def request_stacks(folder, pids):
    """The frames that the processes `pids` (by rank) write when they are asked."""
    return {rank: frames(text) for rank, text in LocalHost(folder, pids).ask_stacks(pids)().items()}


def test_the_stack_of_a_process_is_its_frames_innermost_first(sleeper, tmp_path):
    child = sleeper(0)
    (stack,) = request_stacks(tmp_path, {0: child.pid}).values()
    assert [(os.path.basename(file), name) for file, _, name in stack[:2]] == [
        ("sleeper.py", "inner"),
        ("sleeper.py", "<module>"),
    ]
    assert stack[0][1] in (6, 7) and stack[1][1] == 8  # it says that it is ready just before it sleeps


def test_a_second_request_gives_the_stack_of_that_moment_only(sleeper, tmp_path):
    child = sleeper(0)
    counts = [len(request_stacks(tmp_path, {0: child.pid})[0]) for _ in range(3)]
    assert counts[0] == counts[1] == counts[2]


def test_a_stack_file_with_letters_of_several_bytes_is_read_on_from_the_right_place(sleeper, tmp_path):
    stack_file(tmp_path, 0).write_text("ü" * 2000, encoding="utf-8")
    child = sleeper(0)
    assert len(request_stacks(tmp_path, {0: child.pid})[0]) > 2


def test_a_recursion_deeper_than_a_dump_still_gives_a_stack(sleeper, tmp_path):
    (stack,) = request_stacks(tmp_path, {0: sleeper(0, depth=150).pid}).values()
    assert stack[0][2] == "inner" and len(stack) == 100


def test_a_stopped_or_dead_process_has_no_stack_and_costs_half_a_second(sleeper, tmp_path):
    stopped, dead, alive = sleeper(0), sleeper(1), sleeper(2)
    os.kill(stopped.pid, signal.SIGSTOP)
    dead.kill()
    dead.wait()
    began = time.monotonic()
    assert set(request_stacks(tmp_path, {0: stopped.pid, 1: dead.pid, 2: alive.pid})) == {2}
    assert time.monotonic() - began < 5


@pytest.mark.parametrize(("runnable", "found"), [(True, {0}), (False, set())])
def test_a_rank_that_waits_for_a_cpu_gets_longer_to_answer(sleeper, tmp_path, monkeypatch, runnable, found):
    """The child is stopped when it is asked, and goes on after a second."""
    child = sleeper(0)
    os.kill(child.pid, signal.SIGSTOP)
    state = host.ProcessState("", 1.0, runnable)
    monkeypatch.setattr(host, "process_state", lambda pid: state)
    timer = threading.Timer(1.0, os.kill, (child.pid, signal.SIGCONT))
    timer.start()
    assert request_stacks(tmp_path, {0: child.pid}).keys() == found
    timer.join()


# -------------------------------------------------------------------- from a stack to a state

CELL = ["def exchange(x):", "    comm.Recv(x)", "", "data = 1", "exchange(data)"]


def source_of(file):
    return Source(CELL) if file == "/tmp/cell.py" else None


def seen(folder, rank, stack, sources=source_of):
    """The state of a rank whose process answers with `stack`."""
    here = LocalHost(folder, {rank: os.getpid()})
    text = "\n".join(f'  File "{file}", line {line} in {function}' for file, line, function in stack)
    here.ask_stacks = lambda ranks: lambda: {rank: text}
    return Observer({rank: here}, sources).look([rank], close=True)[0]


def test_the_cell_line_is_that_of_the_module_and_inside_that_of_the_function(tmp_path):
    stack = [("/tmp/cell.py", 2, "exchange"), ("/tmp/cell.py", 5, "<module>"), ("/lib/run.py", 9, "run")]
    state = seen(tmp_path, 1, stack)
    assert (state.rank, state.kind, state.line, state.code) == (1, "computing", 5, "exchange(data)")
    assert state.inside == "comm.Recv(x) in exchange"
    assert state.where() == "cell line 5   exchange(data)  → comm.Recv(x) in exchange"


@pytest.mark.parametrize(("innermost", "kind"), [("wait", "waiting"), ("loads", "computing")])
def test_get_waits_only_while_the_rank_is_in_a_wait(tmp_path, innermost, kind):
    stack = [("/lib/threading.py", 7, innermost), ("/tmp/cell.py", 1, "<module>")]
    state = seen(
        tmp_path, 0, stack, lambda file: Source(["settings.get()"]) if file == "/tmp/cell.py" else None
    )
    assert state.kind == kind


def test_a_rank_in_library_code_called_by_the_cell_shows_the_cell_only(tmp_path):
    stack = [("/lib/numpy.py", 700, "dot"), ("/tmp/cell.py", 4, "<module>")]
    state = seen(tmp_path, 0, stack)
    assert (state.line, state.code, state.inside) == (4, "data = 1", "")


def test_a_rank_outside_any_cell_shows_where_it_is(tmp_path):
    state = seen(tmp_path, 0, [(__file__, 1, "f")])
    assert state.line is None and state.where().endswith("in f")


def test_a_rank_without_a_stack_is_computing_somewhere(tmp_path):
    state = seen(tmp_path, 0, [])
    assert (state.kind, state.where()) == ("computing", "")


def test_a_line_beyond_the_cell_is_no_error(tmp_path):
    assert seen(tmp_path, 0, [("/tmp/cell.py", 99, "<module>")]).code == ""


# -------------------------------------------------------------------- requests, windows, stopped ranks


def wait_for(of, peer=None, tag=None, turn=0, name="Wait"):
    return Call(name, peer, None, tag, 1, turn, WORLD, of)


def waits(rank, call):
    return RankState(rank, "waiting", call)


def test_a_wait_for_a_request_reads_as_what_it_waits_for():
    assert waits(0, wait_for("Irecv", 1, 5)).what() == "waiting in Wait for Irecv from rank 1, tag 5"
    assert (
        waits(0, wait_for("isend", 2, 0, name="waitall")).what()
        == "waiting in waitall for isend to rank 2, tag 0"
    )
    assert waits(0, wait_for("Ireduce", 3)).what() == "waiting in Wait for Ireduce with root 3"
    assert waits(0, wait_for("")).what() == "waiting in Wait"


def test_requests_take_part_in_circles_like_the_calls_they_stand_for():
    ring = [waits(rank, wait_for("Irecv", (rank + 1) % 3)) for rank in range(3)]
    assert likely_cause(ring).startswith(
        "a circle of waiting: rank 0 → rank 1 → rank 2 → rank 0. Each waits for a message"
    )
    ring = [waits(rank, wait_for("Isend", (rank + 1) % 3, 0)) for rank in range(3)]
    assert "until its send is done" in likely_cause(ring)


def test_a_collective_request_that_one_rank_did_not_make():
    states = [RankState(0, "finished"), *(waits(rank, wait_for("Ibarrier")) for rank in (1, 2))]
    assert (
        "Ibarrier is a collective: every rank of the communicator must call it, and rank 0 did not"
        in likely_cause(states)
    )


def test_a_collective_request_that_one_rank_made_and_never_waited_for():
    done = Done("Ibarrier", 0, WORLD)
    states = [RankState(0, "finished", done=done), waits(1, wait_for("Ibarrier"))]
    assert likely_cause(states) == "rank 0 began Ibarrier too, but has finished without waiting for it."


def test_the_request_that_one_rank_never_waited_for_may_be_any_of_those_waited_for():
    on_left = waiting(1, collective("Barrier", 0, LEFT), done=Done("Split", 0, WORLD))
    partner = waiting(0, collective("Barrier", 0, LEFT), done=Done("Split", 0, WORLD))
    right = RankState(2, "waiting", Call("Wait", None, None, None, 1, 0, RIGHT, "Ibarrier"))
    states = [partner, on_left, right, finished(3, "Ibarrier", 0, RIGHT)]
    assert likely_cause(states) == "rank 3 began Ibarrier too, but has finished without waiting for it."


def test_a_barrier_and_a_barrier_request_are_different_collectives():
    states = [waits(0, collective("Barrier")), waits(1, wait_for("Ibarrier"))]
    assert "different collectives (Barrier, Ibarrier)" in likely_cause(states)


def test_a_lock_that_is_never_given_back():
    lock = Call("Win.Lock", 0, None, None, 1, 0, WORLD)
    assert waits(1, lock).what() == "waiting in Win.Lock of rank 0"
    assert waits(1, Call("Win.Wait", None, None, None, 1, 0, WORLD)).what() == "waiting in Win.Wait"
    assert "every Lock needs its Unlock" in likely_cause([RankState(0, "finished"), waits(1, lock)])


def test_a_stopped_rank_is_the_cause_before_all_others_and_has_its_remedy():
    states = [waits(0, collective("Barrier")), RankState(1, "stopped", error="is stopped (process 77)")]
    assert states[1].what() == "is stopped (process 77)"
    assert "rank 1 is held by a stop signal" in likely_cause(states) and "kill -CONT" in likely_cause(states)


def test_ranks_that_were_ended_with_the_one_that_died_are_not_the_cause():
    states = [RankState(0, "gone", error=ENDED_WITH_OTHERS), RankState(1, "gone", error="was killed")]
    assert likely_cause(states) == "rank 1 died; MPI then ends all the others."


def test_a_cause_that_is_known_takes_the_place_of_the_likely_one():
    assert report([RankState(0, "finished")], "somebody pulled the plug.").endswith(
        "cause: somebody pulled the plug."
    )


def test_a_lookup_in_a_dictionary_is_no_wait(tmp_path):
    state = seen(tmp_path, 0, [("cell.py", 1, "<module>")], lambda file: Source(["x = table.get('key')"]))
    assert state.kind == "computing"
    stack = [("/lib/threading.py", 1, "wait"), ("cell.py", 1, "<module>")]
    state = seen(tmp_path, 0, stack, lambda file: Source(["future.result()"]) if file == "cell.py" else None)
    assert (state.kind, state.what()) == ("waiting", "waiting in result")
    assert "rank 0 waits for another thread, whose MPI calls are not recorded" in likely_cause([state])


def test_a_rank_whose_handler_a_cell_took_away_is_not_ended_by_the_question(tmp_path):
    code = "import signal, time; signal.signal(10, signal.SIG_DFL); print(1, flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as child:
        child.stdout.readline()
        assert request_stacks(tmp_path, {0: child.pid}) == {}
        assert child.poll() is None
        child.kill()


# -------------------------------------------------------------------- several hosts


def test_each_rank_says_its_host_and_a_host_that_was_lost_is_the_cause():
    states = [
        waiting(0, collective("Barrier"), host="n1"),
        RankState(1, "gone", error="was lost with its host n2", host="n2"),
        RankState(2, "gone", error="was lost with its host n2", host="n2"),
    ]
    said = report(states)
    assert "rank 0 on n1  waiting in Barrier" in said and "rank 1 on n2  was lost with its host n2" in said
    cause = (
        "Likely cause: n2 died or cannot be reached, and ranks 1 and 2 with it; MPI then ends all the others."
    )
    assert said.endswith(cause)


def test_a_host_that_does_not_answer_is_no_stop_signal():
    states = [waiting(0, host="n1"), RankState(1, "stopped", error="n2 has not answered for 4 s", host="n2")]
    assert likely_cause(states) == "n2 does not answer, so nothing is known of rank 1."
