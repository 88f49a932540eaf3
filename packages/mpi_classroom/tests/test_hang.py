"""The explainer of hangs says the right cause for every way in which ranks can wait for ever."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace

import pytest

from mpi_classroom import host, observer
from mpi_classroom.cause import likely_cause, report
from mpi_classroom.host import LocalHost
from mpi_classroom.observer import Observer, Source, frames
from mpi_classroom.recording.calls import IN_LIBRARY, Call, Communicator, Done, stack_file
from mpi_classroom.snapshot import Death, RankState

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


def wait_for(of, peer=None, tag=None, turn=0, name="Wait"):
    return Call(name, peer, None, tag, 1, turn, WORLD, of)


def in_torch(rank, name="all_reduce"):
    return waiting(rank, Call(f"torch.distributed.{name}", None, None, None, 0))


def raised(rank, error="raised ValueError: boom"):
    return RankState(rank, "raised", error=error, line=4, code="raise ValueError('boom')")


def died(rank, how, signal=None, host=""):
    death = Death(rank, how, signal, host=host)
    return RankState(rank, "gone", error=death.words, death=death, host=host)


def computing(rank):
    return RankState(rank, "computing", line=2, code="while True: pass")


# -------------------------------------------------------------------- the likely cause
# The same from real cells: test_guard.py, of which most run in `make test-all`.

TORN = "message truncated"
AGAIN = Communicator(7, RIGHT.members, part=True)
ON_PART = Call("ssend", 3, None, 0, 1, 0, Communicator(7, (1, 3), part=True))
ENDED = [RankState(rank, "gone", error="was ended with the others") for rank in (0, 1)]

# By name: the states and the cause, in which "…" stands for any words.
CAUSES = {
    "a killed rank comes before everything else": (
        [raised(0), died(1, "signal", 9), waiting(2, collective("Barrier"))],
        "rank 1 died; MPI then ends all the others.",
    ),
    "no rank is blamed alone when several died together": (
        [waiting(0), *(died(rank, "perhaps") for rank in (1, 2))],
        "rank 1 or rank 2 died first; MPI then ends all the others.",
    ),
    "ranks that were ended are not said to wait": (
        ENDED,
        "ranks 0 and 1 were ended; who died first is not known, or does not run this cell.",
    ),
    "a crash is explained": (
        [died(1, "crash", 11), finished(0)],
        "rank 1 died; MPI then ends all the others. A crash often means that more data came than a buffer…",
    ),
    "a crash beside an error that says more": (
        [died(1, "crash", 6), raised(2, f"raised MPI_ERR_TRUNCATE: {TORN}")],
        "rank 1 died; MPI then ends all the others. More data came than…",
    ),
    "a raise while the others wait": (
        [raised(0), *(waiting(rank, collective("Barrier")) for rank in (1, 2))],
        "rank 0 raised an error and left the cell, so ranks 1 and 2 wait for something that never comes. "
        "Correct the error first.",
    ),
    "a raise while another computes": (
        [raised(0), computing(1)],
        "rank 0 raised an error and left the cell, and rank 1 still computes. Correct the error first.",
    ),
    "a raise while one waits and another computes": (
        [raised(0), waiting(1, collective("Barrier")), computing(2)],
        "rank 0 raised an error and left the cell, so rank 1 may wait for something that never comes, and "
        "rank 2 still computes. Correct the error first.",
    ),
    "a collective that one rank makes less often": (
        [waiting(0, collective("Barrier", 2)), finished(1, "Barrier", 1), finished(2, "Barrier", 1)],
        "…must call it, and ranks 1 and 2 did not call it again. Run any…",
    ),
    "a collective that one rank skips": (
        [*(waiting(rank, collective("Barrier")) for rank in (0, 1, 2)), finished(3)],
        "Barrier is a collective: every rank of the communicator must call it, and rank 3 did not. Run any…",
    ),
    "a collective of a part that has just been made": (
        [waiting(2, collective("Barrier", 0, RIGHT), Done("Split", 1, WORLD)), finished(3, "Split", 1)],
        "Barrier of ranks 2, 3 is a collective…and rank 3 did not.…",
    ),
    "different roots": (
        [waiting(rank, collective("Reduce", root=rank)) for rank in (0, 1)],
        "the ranks are in Reduce with different roots (0, 1).",
    ),
    "different roots on a part of the world": (
        [waiting(rank, collective("Reduce", on=RIGHT, root=rank)) for rank in (2, 3)],
        "the ranks are in Reduce with different roots (2, 3, as COMM_WORLD numbers them).",
    ),
    "a rank that is stopped": (
        [waiting(0, collective("Barrier")), RankState(1, "stopped", error="is stopped (process 9)")],
        "rank 1 is held by a stop signal (SIGSTOP) or a debugger, and was not let go on in time.",
    ),
    "a circle of sends": (
        [waiting(rank, send((rank + 1) % 3)) for rank in range(3)],
        "a circle of waiting: rank 0 → rank 1 → rank 2 → rank 0. Each waits until its send is done…",
    ),
    "synchronous sends whose receives do not fit": (
        [waiting(rank, send(1 - rank, rank, "ssend")) for rank in (0, 1)],
        "…Each sends synchronously: until a receive matches, the send does not end.",
    ),
    "a rank that sends to itself": (
        [finished(0), waiting(1, send(1))],
        "rank 1 waits for itself, and while it waits it can do nothing else.",
    ),
    **{
        f"a rank that waits for itself in {call}": (
            [finished(0), waiting(1, call)],
            "rank 1 waits for itself, and while it waits it can do nothing else. If it has begun "
            "that message with Isend or Irecv, both tags must agree.",
        )
        for call in (recv(1, tag=2), sendrecv(1, 1, tag=2), wait_for("Isend", 1, tag=2))
    },
    "a collective of torch that one rank skips": (
        [in_torch(0), finished(1), in_torch(2)],
        "ranks 0 and 2 are in torch.distributed.all_reduce, but rank 1 has finished. Every rank…",
    ),
    "a receive of torch without a send": (
        [in_torch(0, "recv"), finished(1)],
        "rank 0 is in torch.distributed.recv, but rank 1 has finished. Every send needs its receive.…",
    ),
    "another collective in its place, completed by a rank that waits elsewhere": (
        [
            waiting(0, recv(-1), Done("Bcast", 0, WORLD)),
            *(waiting(r, collective("Scatter")) for r in (1, 2, 3)),
        ],
        "the ranks are in, or have made, different collectives (Bcast, Scatter).…",
    ),
    "a Sendrecv whose send leaves the circle": (
        [waiting(0, sendrecv(1, 2, tag=3)), finished(1), waiting(2, recv(0, tag=4))],
        "a circle of waiting: rank 0 → rank 2 → rank 0. Each can go on only after the next has.…",
    ),
    "all have raised": ([raised(0), raised(1)], "ranks 0 and 1 raised an error; the cell ended everywhere."),
    "a rank in the next collective has called this one": (
        [
            waiting(0, collective("Reduce", 5, root=0)),
            *(waiting(rank, collective("Barrier", 6)) for rank in (1, 2)),
            finished(3, "Barrier", 4),
        ],
        "Reduce is a collective…and rank 3 did not.…",
    ),
    "a communicator made twice is not confused with the first": (
        [waiting(2, collective("Barrier", 0, AGAIN)), finished(3, "Barrier", 12, RIGHT)],
        "…and rank 3 perhaps did not: its last collective was on another communicator.…",
    ),
    "the root of a Bcast does not wait: it has finished while the others are in Barrier": (
        [finished(0, "Bcast", 2), *(waiting(rank, collective("Barrier", 2)) for rank in (1, 2, 3))],
        "the ranks are in, or have made, different collectives (Barrier, Bcast). All ranks…",
    ),
    "different collectives of ranks that all wait": (
        [waiting(rank, collective(name)) for rank, name in enumerate(("Bcast", "Barrier"))],
        "the ranks are in different collectives (Barrier, Bcast). All ranks…",
    ),
    "who surely misses a collective is accused before who perhaps does": (
        [
            waiting(0, collective("Barrier", 3)),
            waiting(1, recv(-1), Done("Bcast", 0, LEFT)),
            waiting(2, recv(-1), Done("Barrier", 2, WORLD)),
        ],
        "…every rank of the communicator must call it, and rank 2 is still in Recv from any rank.",
    ),
    "two names of one MPI function are the same collective": (
        [
            *(waiting(rank, collective(name)) for rank, name in enumerate(("barrier", "Barrier"))),
            *(finished(rank) for rank in (2, 3)),
        ],
        "barrier is a collective…and ranks 2 and 3 did not.…",
    ),
    "all are in the same collective": (
        [waiting(rank, collective("Allreduce")) for rank in range(4)],
        "all ranks of its communicator are in Allreduce: perhaps with different sizes or types.",
    ),
    "some have completed the collective": (
        [*(finished(rank, "Bcast", 4) for rank in range(3)), waiting(3, collective("Bcast", 4, root=0))],
        "rank 3 is still in Bcast, which the other ranks have completed: not all made it with the same size, "
        "type or root.",
    ),
    "a rank in the collective of another communicator": (
        [waiting(0, collective("Barrier", 0, LEFT)), waiting(1, collective("Barrier", 0, RIGHT))],
        "Barrier of ranks 0, 1 is a collective…rank 1 is still in Barrier of ranks 2, 3…",
    ),
    "a member that does not run the cell": (
        [waiting(rank, collective("Barrier", 4)) for rank in (0, 1, 2)],
        "…must call it, and rank 3 does not run this cell. Add it to --targets…",
    ),
    "collectives of three communicators in a circle": (
        [
            waiting(0, collective("Barrier", 0, LEFT)),
            waiting(2, collective("Barrier", 0, Communicator(2, (0, 2), part=True))),
            waiting(1, collective("Reduce", 0, Communicator(3, (1, 2), part=True))),
        ],
        "rank 0 is in Barrier of ranks 0, 1, rank 1 is in Reduce of ranks 1, 2 and rank 2 is in Barrier of "
        "ranks 0, 2: collectives of different communicators…in the same order.",
    ),
    "a request that one rank never waited for may be any of those waited for": (
        [
            *(waiting(r, collective("Barrier", 0, LEFT), Done("Split", 0, WORLD)) for r in (0, 1)),
            waiting(2, Call("Wait", None, None, None, 1, 0, RIGHT, "Ibarrier")),
            finished(3, "Ibarrier", 0, RIGHT),
        ],
        "rank 3 began Ibarrier too, but has finished without waiting for it.",
    ),
    "a circle of receives has a remedy": (
        [waiting(rank, recv((rank + 1) % 3, tag=2)) for rank in range(3)],
        "a circle of waiting: rank 0 → rank 1 → rank 2 → rank 0. Each waits for a message that the next has "
        "not sent yet, or has sent with another tag. Let one of them send before it receives, or use Send…",
    ),
    "a circle of sends and receives, of which none faces its own": (
        [waiting(0, send(1)), waiting(1, recv(2)), waiting(2, recv(0))],
        "a circle of waiting: rank 0 → rank 1 → rank 2 → rank 0. Each can go on only after…",
    ),
    "orders that agree, and a rank that has finished without a collective": (
        [
            waiting(0, collective("Reduce", 1), Done("Split", 0, WORLD)),
            waiting(1, collective("Barrier", 1, LEFT), Done("Bcast", 0, LEFT)),
            *(finished(rank, "Split") for rank in (2, 3)),
        ],
        "Reduce is a collective:…and ranks 2 and 3 did not. Run…",
    ),
    "a circle although others wait in a collective": (
        [waiting(0, recv(1)), waiting(1, recv(0)), *(waiting(r, collective("Barrier")) for r in (2, 3))],
        "…a circle of waiting: rank 0 → rank 1 → rank 0.…",
    ),
    "two circles at once": (
        [waiting(rank, recv((rank + 2) % 4)) for rank in range(4)],
        "a circle of waiting: rank 0 → rank 2 → rank 0.… The same holds for rank 1 → rank 3 → rank 1.",
    ),
    "a send and a receive with the same tag that do not match": (
        [waiting(0, send(1, tag=7)), waiting(1, recv(0, tag=7))],
        "…the one's send and the other's receive do not match.",
    ),
    "a send and a receive on different communicators": (
        [waiting(1, ON_PART), waiting(3, recv(1))],
        "rank 1 → rank 3 → rank 1 wait for each other on different communicators…",
    ),
    "each sends to one side and receives from the same": (
        [waiting(rank, sendrecv((rank + 1) % 4, (rank + 1) % 4)) for rank in range(4)],
        "…rank 0 sends to rank 1, but rank 1 receives from rank 2.…must receive from the other side.",
    ),
    "a Sendrecv is stuck in its send": (
        [waiting(0, sendrecv(to=1, source=2)), waiting(1, send(0)), waiting(2, collective("Barrier"))],
        "…rank 0 → rank 1 → rank 0…",
    ),
    "a Sendrecv to a rank that has finished": (
        [waiting(0, sendrecv(to=1, source=-1)), finished(1)],
        "…rank 0 is in Sendrecv to rank 1 and from any rank…rank 1 has finished, perhaps without a call…",
    ),
    "a Sendrecv from a rank that has finished may have received": (
        [waiting(0, sendrecv(to=2, source=1)), finished(1), waiting(2, collective("Barrier"))],
        "rank 0 is in Sendrecv to rank 2 and from rank 1, but rank 1 has finished, perhaps without a call…",
    ),
    "the end of a chain is blamed, not its beginning": (
        [waiting(0, recv(1)), waiting(1, recv(2)), finished(2)],
        "rank 1 is in Recv from rank 2…",
    ),
    "a partner that has finished comes before a rank that computes": (
        [waiting(0, recv(1)), finished(1), computing(2)],
        "rank 0 is in Recv from rank 1, but rank 1 has finished without a call that sends it.…Besides, rank "
        "2 still computes…",
    ),
    "a message from anyone": (
        [waiting(0, recv(-1, tag=2, name="Probe")), *(finished(rank) for rank in (1, 2, 3))],
        "no send and receive among these match: rank 0 is in Probe from any rank, tag 2, and ranks 1, 2 "
        "and 3 have finished. Check partners, tags and the number of messages.",
    ),
    "a wait of which nothing is recorded": (
        [waiting(rank, unrecorded=("Wait",)) for rank in range(2)],
        "ranks 0 and 1 are in calls that are not recorded. If a call is a collective…",
    ),
    "a partner that does not run the cell": (
        [waiting(1, recv(0)), finished(2)],
        "…rank 1 is in Recv from rank 0, but rank 0 does not run this cell…",
    ),
    "a call that is not recorded may be a wait": (
        [
            finished(0),
            *(RankState(r, "computing", line=4, unrecorded=("Barrier",)) for r in (1, 2)),
        ],
        "ranks 1 and 2 still compute: an endless loop…If Barrier is called on an inter…",
    ),
    "a lock that is never given back": (
        [finished(0), waiting(1, Call("Win.Lock", 0, None, None, 1, 0, WORLD))],
        "…every Lock needs its Unlock…",
    ),
    "a collective of torch and one of MPI": (
        [in_torch(0), *(waiting(rank, collective("allreduce")) for rank in (1, 2))],
        "rank 0 is in torch.distributed.all_reduce and ranks 1 and 2 are in allreduce. Every rank…",
    ),
    "who waits in torch does not compute": (
        [in_torch(0), computing(1), in_torch(2)],
        "ranks 0 and 2 wait for the others. rank 1 still computes…",
    ),
    "a wait of a library that no stack names": (
        [waiting(0, Call(IN_LIBRARY, None, None, None, 9)), finished(1)],
        "rank 0 is in a library that uses MPI, but rank 1 has finished.…",
    ),
    "a host that does not answer is no stop signal": (
        [waiting(0, host="n1"), RankState(1, "stopped", silent=True, host="n2")],
        "n2 does not answer, so nothing is known of rank 1.",
    ),
}


@pytest.mark.parametrize("case", CAUSES)
def test_the_likely_cause(case):
    states, words = CAUSES[case]
    cause = likely_cause(states)
    assert re.fullmatch(".*".join(map(re.escape, words.split("…"))), cause), cause


def test_what_is_not_so_is_not_said():
    assert "not recorded" not in likely_cause([computing(0)])
    assert "crash" not in likely_cause([died(1, "signal", 9), finished(0)])
    swapped = [waiting(rank, sendrecv((rank + 1) % 2, (rank + 1) % 2, rank)) for rank in (0, 1)]
    assert "different tags (0, 1)" in likely_cause(swapped) and "use Sendrecv" not in likely_cause(swapped)
    alone = likely_cause([waiting(0, recv(2)), waiting(1, recv(1)), waiting(2, recv(0))])
    assert "rank 1 → rank 1" not in alone
    chain = {0: LEFT, 2: Communicator(2, (0, 2), part=True), 1: Communicator(3, (1, 3), part=True)}
    rows = [waiting(rank, collective("Barrier", 0, on)) for rank, on in chain.items()]
    assert "of different communicators" not in likely_cause(rows), "rank 0 waits for 1, which waits for 3"


def test_an_await_is_no_endless_loop(tmp_path):
    state = seen(tmp_path, 1, [("/lib/selectors.py", 9, "select"), ("/lib/run.py", 1, "run")])
    cause = likely_cause([state, waiting(0, collective("Barrier"))])
    assert cause.startswith("rank 0 waits for the others. rank 1 is in an await that has not ended")
    assert "endless loop" not in cause


# -------------------------------------------------------------------- torch.distributed

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


def test_a_wait_without_a_record_takes_its_name_from_the_line_where_it_is(tmp_path):
    cell = ["def f(request):", "    request.wait()", "f(MPI.COMM_WORLD.irecv())", "inter.Barrier()"]
    stack = [("cell.py", 2, "f"), ("cell.py", 3, "<module>")]
    assert seen(tmp_path, 0, stack, lambda file: Source(cell)).what() == "waiting in wait"
    state = seen(tmp_path, 0, [("cell.py", 4, "<module>")], lambda file: Source(cell))
    assert (state.kind, state.unrecorded) == ("computing", ("Barrier",))


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


def test_each_request_gives_the_stack_of_that_moment_only(sleeper, tmp_path):
    stack_file(tmp_path, 0).write_text("ü" * 2000, encoding="utf-8")  # letters of several bytes
    child = sleeper(0)
    counts = [len(request_stacks(tmp_path, {0: child.pid})[0]) for _ in range(3)]
    assert counts[0] == counts[1] == counts[2] > 2


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


# -------------------------------------------------------------------- requests, windows, stopped ranks


def test_a_call_on_a_window_names_the_rank_whose_window_it_is():
    assert waiting(1, Call("Win.Lock", 0, None, None, 1, 0, WORLD)).what() == "waiting in Win.Lock of rank 0"
    assert waiting(1, Call("Win.Wait", None, None, None, 1, 0, WORLD)).what() == "waiting in Win.Wait"


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
        died(1, "host", host="n2"),
        died(2, "host", host="n2"),
    ]
    said = report(states)
    assert "rank 0 on n1  waiting in Barrier" in said and "rank 1 on n2  was lost with its host n2" in said
    cause = (
        "Likely cause: n2 died or cannot be reached, and ranks 1 and 2 with it; MPI then ends all the others."
    )
    assert said.endswith(cause)
