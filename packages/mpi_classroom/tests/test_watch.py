"""The watch is handed snapshots and says what to do: a table of moments, without ranks, clocks or files."""

from dataclasses import replace

import pytest

from mpi_classroom.recording.calls import EVERYONE, IN_LIBRARY, Call, Collectives, Counts
from mpi_classroom.snapshot import Death, RankState, Snapshot
from mpi_classroom.watch import STILL_MOVES, CpuShares, Decision, Watch, status_line

BARRIER = Call("Barrier", None, None, None, 1)


def waiting(rank, since=0.0, cpu=1.0, number=1, runnable=True):
    return RankState(
        *(rank, "waiting", replace(BARRIER, number=number)), since=since, cpu_seconds=cpu, runnable=runnable
    )


def computing(rank, runnable=True):
    return RankState(rank, "computing", cpu_seconds=1.0, runnable=runnable, line=2, code="while True: pass")


def used(state, cpu):
    return replace(state, cpu_seconds=cpu)


def made(collectives):
    return Counts({EVERYONE: Collectives(collectives)})


def finished(rank, collectives=0):
    return RankState(rank, "finished", counts=made(collectives))


def raised(rank):
    return RankState(rank, "raised", error="raised ValueError: boom")


def gone(rank):
    return RankState(rank, "gone", error="was killed", death=Death(rank, "signal", 9))


def at(seconds, *ranks, down="", background=()):
    ended = all(state.ended for state in ranks)
    died = any(state.kind == "gone" for state in ranks)
    return Snapshot(seconds, ranks, background, down, died, ended)


def follow(machine, *snapshots):
    """What the watch says to each snapshot; `show` is left out."""
    return [decision.do if decision.do != "show" else "go on" for decision in map(machine.decide, snapshots)]


# -------------------------------------------------------------------- when to intervene


def stands(seconds, *ranks):
    """Snapshots of ranks that wait on, with CPU time for all, up to `seconds`."""
    ticks = int(seconds * 4) + 1
    return [
        at(n / 4, *(used(state, n / 4) if state.cpu_seconds is not None else state for state in ranks))
        for n in range(ticks)
    ]


@pytest.mark.parametrize(
    ("snapshots", "reason"),
    [
        (stands(10.0, waiting(0), waiting(1)), ""),
        (stands(10.25, waiting(0), waiting(1)), "Nobody has moved for 10 s: no rank can go on."),
        (stands(10.25, waiting(0), finished(1)), "Nobody has moved for 10 s: no rank can go on."),
        (stands(60.25, waiting(0), computing(1)), "Not done after 60 s (to allow more: %%px --timeout 300)."),
        (stands(59.0, computing(0, runnable=False), waiting(1)), ""),  # asleep: it may wake up
        (stands(1.0, raised(0), waiting(1)), ""),
        (stands(1.25, raised(0), waiting(1)), "A rank raised an error while others wait for it."),
        (stands(30.0, raised(0), computing(1)), ""),
        ([at(0.1, gone(0), waiting(1))], "A rank died."),
        ([at(0.1, waiting(0), down="the controller ended")], "the controller ended"),
        ([*stands(9.0, waiting(0)), *[at(19.0, waiting(0, since=9.5, number=2, cpu=9.0))]], ""),
    ],
)
def test_when_it_intervenes_and_why(snapshots, reason):
    machine = Watch(60, {})
    assert follow(machine, *snapshots)[:-1] == ["go on"] * (len(snapshots) - 1)
    assert machine.reason == reason
    assert (machine.state == "looking closer") is bool(reason)


def test_a_rank_in_the_background_that_moves_is_no_standstill():
    machine = Watch(60, {})
    moves = [at(n / 2, waiting(0), background=(computing(1),)) for n in range(60)]
    assert set(follow(machine, *moves)) == {"go on"}


def test_the_others_get_their_time_after_a_raise_even_if_they_waited_before():
    machine = Watch(60, {})
    before = stands(5.0, waiting(0), waiting(1))
    after = [at(5.25 + n / 4, raised(0), used(waiting(1), 5.25 + n / 4)) for n in range(6)]
    assert follow(machine, *before, *after) == ["go on"] * (len(before) + 5) + ["look closer"]


@pytest.mark.parametrize(
    ("per_second", "does"), [(0, "look closer"), (1000, "look closer"), (10**6, "go on")]
)
def test_ranks_that_move_bytes_between_hosts_in_one_long_call_are_no_standstill(per_second, does):
    machine = Watch(600, {})
    moments = [
        at(n / 4, *(replace(used(waiting(r), n / 4), moved=int(n / 4 * per_second)) for r in (0, 1)))
        for n in range(42)
    ]
    assert follow(machine, *moments)[-1] == does


def test_a_rank_that_gets_no_cpu_time_has_had_no_chance_to_move():
    machine = Watch(60, {})
    frozen = [at(n / 4, waiting(0), waiting(1)) for n in range(120)]
    assert set(follow(machine, *frozen)) == {"go on"}
    assert machine.decide(at(30.0, used(waiting(0), 1.2), used(waiting(1), 1.2))).do == "look closer"


@pytest.mark.parametrize(
    ("kind", "runnable", "cpu", "starved"),
    [
        ("waiting", True, 0.0, True),  # it could run and was not let
        ("waiting", True, 0.2, False),
        ("waiting", False, 0.0, False),  # it waits for something: nobody keeps it from running
        ("stopped", False, 0.0, True),
    ],
)
def test_who_could_run_and_was_not_let_is_starved(kind, runnable, cpu, starved):
    shares, state = CpuShares(), RankState(1, kind, cpu_seconds=5.0, runnable=runnable)
    shares.starved([state])
    later = used(state, 5.0 + cpu)
    assert shares.starved([later]) is starved
    shares.restart()
    assert shares.starved([later]) is (kind == "stopped" or runnable), "counted from there on again"
    unknown = CpuShares().starved([replace(state, cpu_seconds=None)])
    assert unknown is (kind == "stopped"), "of a rank that is gone, say, no CPU time is known"


# -------------------------------------------------------------------- what it does then


def test_ranks_inside_mpi_are_healed_with_the_report():
    machine = Watch(60, {})
    follow(machine, *stands(10.25, waiting(0), finished(1)))
    decision = machine.decide(at(10.6, replace(waiting(0), line=2, code="comm.Barrier()"), finished(1)))
    assert decision.do == "heal"
    assert decision.words.startswith(
        "Nobody has moved for 10 s: no rank can go on.\n\nrank 0  waiting in Barrier"
    )
    assert decision.words.endswith("move the call out of the branch that only some ranks take.\n")


@pytest.mark.parametrize(
    "moved",
    [
        (waiting(0, since=10.3, number=2), waiting(1, cpu=10.3)),
        (replace(computing(0), cpu_seconds=10.3), waiting(1, cpu=10.3)),
        (finished(0), waiting(1, cpu=10.3)),
    ],
)
def test_a_rank_that_moves_during_the_close_look_lets_the_cell_go_on(moved):
    machine = Watch(60, {})
    assert follow(machine, *stands(10.25, waiting(0), waiting(1)))[-1] == "look closer"
    assert follow(machine, at(10.4, *moved), at(10.5, *moved)) == ["go on"] * 2, "the verdict was stale"
    assert machine.decide(at(10.6, finished(0), finished(1))) == Decision("end")


def test_after_a_raise_too_a_rank_that_moves_during_the_close_look_gets_its_time():
    machine = Watch(60, {})
    assert follow(machine, *stands(1.25, raised(0), waiting(1)))[-1] == "look closer"
    after = [at(1.5 + n / 4, raised(0), waiting(1, since=1.4, cpu=n / 4, number=2)) for n in range(6)]
    assert follow(machine, *after) == ["go on"] * 4 + ["look closer", "heal"]


def test_no_move_helps_a_cell_that_is_out_of_time_or_has_lost_a_rank():
    machine = Watch(1, {})
    follow(machine, at(1.25, waiting(0)))
    assert machine.decide(at(1.5, waiting(0, since=1.4, number=2))).do == "heal"
    machine = Watch(60, {})
    assert follow(machine, *stands(10.25, waiting(0), waiting(1)))[-1] == "look closer"
    assert machine.decide(at(10.4, gone(0), waiting(1), down="the MPI job ended")).do == "heal"


def test_a_wait_that_a_library_announced_stands_still_under_the_name_that_the_stack_has_for_it():
    announced = Call(IN_LIBRARY, None, None, None, 7)
    named = replace(announced, name="torch.distributed.all_reduce")
    machine = Watch(60, {})
    states = [replace(waiting(0), call=announced), finished(1)]
    assert follow(machine, *stands(10.25, *states))[-1] == "look closer"
    decision = machine.decide(at(10.6, replace(states[0], call=named, cpu_seconds=10.6), finished(1)))
    assert decision.do == "heal" and "rank 0  waiting in torch.distributed.all_reduce" in decision.words


def test_a_wait_that_only_the_stack_shows_is_interrupted_first():
    over_gloo = Call("torch.distributed.all_reduce", None, None, None, 0, interruptible=True)
    asleep = replace(waiting(0, since=2.0, runnable=False), call=over_gloo)
    machine = Watch(1, {})
    follow(machine, at(1.5, computing(0, runnable=False), finished(1)))
    assert machine.decide(at(2.0, asleep, finished(1))) == Decision("interrupt")
    assert machine.decide(at(2.5, computing(0, runnable=False), finished(1))).do == "go on"
    decision = machine.decide(at(3.5, computing(0, runnable=False), finished(1)))
    assert decision.do == "heal" and "are in" not in decision.words
    assert "rank 0 is in torch.distributed.all_reduce, but rank 1 has finished." in decision.words


def test_ranks_that_run_python_are_interrupted_and_keep_their_variables():
    machine = Watch(1, {})
    assert follow(machine, at(0.5, computing(0)), at(1.5, computing(0))) == ["go on", "look closer"]
    assert machine.decide(at(1.6, computing(0))) == Decision("interrupt")
    assert machine.decide(at(1.7, computing(0))).do == "go on"
    decision = machine.decide(at(1.8, raised(0)))
    assert decision.do == "end" and decision.words.startswith("Not done after 1 s")


@pytest.mark.parametrize(
    ("seconds", "state", "does"),
    [
        (0.9, computing(0, runnable=False), "go on"),
        (1.1, computing(0, runnable=False), "heal"),  # it catches the interrupt and sleeps on
        (1.1, computing(0), "go on"),  # it is still cleaning up
        (3.9, used(computing(0), 3.0), "go on"),
        (4.1, used(computing(0), 3.0), "heal"),
        (4.1, used(computing(0), 1.1), "go on"),  # others have the CPUs: it had no time to end
        (30.1, used(computing(0), 1.1), "heal"),
        (0.1, gone(0), "heal"),
    ],
)
def test_a_rank_that_no_interrupt_ends_is_replaced(seconds, state, does):
    machine = Watch(1, {})
    follow(machine, at(1.5, computing(0)), at(2.0, computing(0)), at(2.01, computing(0)))
    down = "the MPI job ended" if state.kind == "gone" else ""
    assert machine.decide(at(2.0 + seconds, state, down=down)).do == does


def test_an_interrupt_by_the_learner_is_a_reason_like_any_other():
    for seconds, words in ((0.2, "Interrupted."), (2.4, "Interrupted after 2 s.")):
        machine = Watch(60, {})
        assert machine.learner_interrupts(seconds) == Decision("look closer")
        decision = machine.decide(at(seconds, waiting(0), waiting(1)))
        assert decision.do == "heal" and decision.words.startswith(words)


def test_a_rank_that_moves_does_not_take_back_an_interrupt_by_the_learner():
    machine = Watch(60, {})
    assert follow(machine, *stands(10.25, waiting(0), waiting(1)))[-1] == "look closer"
    machine.learner_interrupts(10.3)  # before the driver has looked
    decision = machine.decide(at(10.4, waiting(0, since=10.3, number=2), waiting(1)))
    assert decision.do == "heal" and decision.words.startswith("Interrupted after 10 s.")


def test_a_death_that_only_the_close_look_finds_is_the_cause():
    machine = Watch(60, {})
    machine.decide(at(1.0, waiting(0), waiting(1), down="the MPI job ended with exit code 9"))
    decision = machine.decide(at(1.1, gone(0), waiting(1), down="the MPI job ended with exit code 9"))
    assert decision.words.endswith("Likely cause: rank 0 died; MPI then ends all the others.\n")


def test_ranks_that_have_all_ended_are_not_said_to_wait():
    machine = Watch(1, {})
    machine.decide(at(1.25, waiting(0), waiting(1)))
    decision = machine.decide(at(1.5, finished(0), finished(1), down="the controller ended with signal 9"))
    assert decision.do == "heal"
    assert "Likely cause: a part of the cluster was ended or removed" in decision.words


# -------------------------------------------------------------------- a program that still moves

FACING = [Call("Send", 1, None, 0, 8), Call("Recv", 0, None, 0, 9)]


def reported(*ranks):
    """The cause that is reported of `ranks` at second 60, after the deadline or an interrupt."""
    causes = []
    for end in (
        lambda machine: machine.decide(at(59.9, *ranks)),
        lambda machine: machine.learner_interrupts(59.9),
    ):
        machine = Watch(1, {})
        end(machine)
        machine.decide(at(60.0, *ranks))
        causes.append(machine.report.partition("Likely cause: ")[2].rstrip())
    assert causes[0] == causes[1]
    return causes[0]


@pytest.mark.parametrize("calls", [FACING, [replace(BARRIER, name="Allreduce")] * 2])
def test_a_rank_that_still_moves_is_not_accused(calls):
    ranks = [replace(waiting(rank), call=call) for rank, call in enumerate(calls)]
    assert reported(*ranks).endswith(("do not match.", "with different sizes or types."))
    ranks[1] = replace(ranks[1], since=59.8)
    assert reported(*ranks) == reported(*ranks, finished(2)) == STILL_MOVES
    assert reported(*ranks, raised(2)).startswith("rank 2 raised an error")


def test_a_rank_that_computes_is_named_but_not_the_calls_of_those_that_move():
    ranks = [replace(waiting(rank, since=59.8), call=call) for rank, call in enumerate(FACING)]
    assert reported(*ranks, computing(2)).startswith(
        "ranks 0 and 1 wait for the others. rank 2 still computes"
    )


def test_ranks_between_which_bytes_move_in_one_long_call_are_not_accused():
    machine = Watch(60, {})
    for n in range(242):
        ranks = [replace(used(waiting(r), n / 4), moved=n * 10**6) for r in (0, 1)]
        machine.decide(at(n / 4, *ranks))
    machine.decide(at(60.6, *(replace(state, moved=10**9) for state in ranks)))
    assert machine.report.endswith(f"{STILL_MOVES}\n")


# -------------------------------------------------------------------- when all have ended


@pytest.mark.parametrize(("after", "does"), [((6, 6), "end"), ((5, 6), "heal")])
def test_ranks_that_are_out_of_step_are_healed(after, does):
    machine = Watch(60, {0: made(5), 1: made(5)})
    decision = machine.decide(at(1.0, *(finished(rank, number) for rank, number in enumerate(after))))
    assert decision.do == does
    assert ("The ranks are out of step" in decision.words) is (does == "heal")


def test_without_counts_from_before_the_cell_nothing_is_compared():
    assert Watch(60, {}).decide(at(1.0, finished(0, 5), finished(1, 6))) == Decision("end")
    machine = Watch(60, {0: made(5), 1: made(5)})
    busy = at(1.0, finished(0, 5), finished(1, 6), background=(computing(2),))
    assert machine.decide(busy) == Decision("end")


def test_a_cell_for_some_ranks_is_compared_on_the_communicators_among_them():
    def counts(world, row):
        return Counts({EVERYONE: Collectives(world), (0, 1): Collectives(row)})

    before = {0: counts(5, 1), 1: counts(5, 1)}
    for rows, does in (((2, 2), "end"), ((2, 1), "heal")):
        machine = Watch(60, before, everyone=False)
        ranks = [RankState(rank, "finished", counts=counts(5 + rank, row)) for rank, row in enumerate(rows)]
        decision = machine.decide(at(1.0, *ranks))
        assert decision.do == does
        assert ("on the communicator of ranks 0 and 1" in decision.words) is (does == "heal")


def test_ranks_that_an_interrupt_left_out_of_step_are_healed():
    machine = Watch(1, {0: made(0), 1: made(0)})
    follow(machine, at(1.5, computing(0), computing(1)), at(1.6, computing(0), computing(1)))
    decision = machine.decide(at(1.7, finished(0, 1), finished(1, 0)))
    assert decision.do == "heal" and decision.words.startswith("Not done after 1 s")


# -------------------------------------------------------------------- the status line


def test_from_three_seconds_on_it_shows_once_a_second_who_waits_for_what():
    machine = Watch(60, {})
    states = (computing(0), waiting(1), finished(2), RankState(3, "stopped", error="is stopped"))
    shown = [
        decision.words for n in range(100) if (decision := machine.decide(at(n / 20, *states))).do == "show"
    ]
    assert shown == [
        f"{seconds} s · rank 0 computing · rank 1 waiting in Barrier · rank 3 stopped" for seconds in (3, 4)
    ]
    assert status_line(at(1.0, gone(0), finished(1))) == "rank 0 gone"
    unseen = RankState(1, "waiting", unrecorded=("result",))
    assert status_line(at(1.0, unseen)) == "rank 1 waiting in result"


def test_the_status_line_says_how_a_stopped_rank_goes_on_and_that_a_host_is_silent():
    held = replace(waiting(0), kind="stopped", error="is stopped (process 9)", pid=9)
    assert status_line(at(1.0, held)) == "rank 0 is stopped (process 9): kill -CONT 9"
    assert status_line(at(1.0, replace(held, host="n2"))).endswith(": kill -CONT 9 on n2")
    silent = RankState(1, "stopped", error="n2 has not answered for 4 s", silent=True, host="n2")
    assert status_line(at(1.0, silent)) == "rank 1: n2 has not answered for 4 s"
