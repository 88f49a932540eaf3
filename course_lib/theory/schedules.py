"""Pipeline schedules as data: for every rank the list of its actions, in order.

    F0 F1 B0 B1     forward and backward of micro-batches 0 and 1; the stage is the rank's own

In the formulas, p is the number of ranks (and of stages, unless interleaved), m of micro-batches; f and b are
the seconds of a forward and of a backward of one micro-batch through one stage.

    naive    one micro-batch at a time through all stages                    idle share  (p-1)/p
    gpipe    all forwards, then all backwards          (Huang 2019)          idle share  (p-1)/(m+p-1)
    1F1B     each backward as early as possible     (Narayanan 2021)         the same; fewer activations held
    GEMS     two replicas of the model in opposite directions: one goes forward in memory that the other's
             backward has freed                     (Jain 2020)

The same lists of `Action` are executed by `parallel/pipeline.py`, drawn by a lesson and timed here by
`simulate`, which starts each action as soon as its rank is free and its input has arrived.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["F", "B"]


@dataclass(frozen=True, slots=True)
class Action:
    """The forward (F) or backward (B) pass of one micro-batch through one stage of one replica."""

    kind: Kind
    stage: int
    microbatch: int
    replica: int = 0

    def __repr__(self) -> str:
        """F0 or B0, with a prime for replica 1. Without the stage: mostly it is the rank's own."""
        return f"{self.kind}{self.microbatch}" + "'" * self.replica


Actions = list[Action]
Schedule = list[Actions]  # the index is the rank
FORWARD_BACKWARD: tuple[Kind, Kind] = ("F", "B")

# ---------------------------------------------------------------- one model, one direction


def naive(stages: int, microbatches: int) -> Schedule:
    """Layer parallelism, no pipeline: one stage works at a time, on one micro-batch forward and backward."""
    _check(stages, microbatches)
    return [
        [Action(kind, stage, i) for i in range(microbatches) for kind in FORWARD_BACKWARD]
        for stage in range(stages)
    ]


def gpipe(stages: int, microbatches: int) -> Schedule:
    """All forwards, then all backwards, the last micro-batch first. Huang et al. (2019), "GPipe"."""
    _check(stages, microbatches)
    return [
        [Action("F", stage, i) for i in range(microbatches)]
        + [Action("B", stage, i) for i in reversed(range(microbatches))]
        for stage in range(stages)
    ]


def one_f_one_b(stages: int, microbatches: int) -> Schedule:
    """A warm-up of forwards, then one forward and one backward alternate: activations are freed early.

    Stage s never holds more than min(p - s, m) micro-batches. Narayanan et al. (2021), "Efficient Large-Scale
    Language Model Training on GPU Clusters Using Megatron-LM"; there it is called PipeDream-Flush.
    """
    _check(stages, microbatches)
    schedule = []
    for stage in range(stages):
        warmup = min(stages - 1 - stage, microbatches)
        forwards = [Action("F", stage, i) for i in range(microbatches)]
        backwards = [Action("B", stage, i) for i in range(microbatches)]
        schedule.append(_in_turn(forwards, backwards, warmup))
    return schedule


def interleaved_one_f_one_b(ranks: int, microbatches: int, *, chunks: int) -> Schedule:
    """1F1B with v = `chunks` stages per rank: r, r + p, …; idle share (p-1)/(v·m+p-1) if f = b.

    The micro-batches go through in groups of p. With one chunk it is 1F1B. Raises ValueError if there are
    more chunks and the number of micro-batches is not a multiple of the ranks. Narayanan et al. (2021),
    section 2.2.
    """
    _check(ranks, microbatches)
    if chunks < 1 or (chunks > 1 and microbatches % ranks):
        raise ValueError(
            f"{microbatches} micro-batches on {ranks} ranks with {chunks} stages each cannot be interleaved; "
            f"use 1 stage or more per rank, and a multiple of {ranks} micro-batches"
        )
    if chunks == 1:
        return one_f_one_b(ranks, microbatches)
    total = microbatches * chunks
    schedule = []
    for rank in range(ranks):
        forwards = [_interleaved_action("F", k, rank, ranks, chunks) for k in range(total)]
        backwards = [_interleaved_action("B", k, rank, ranks, chunks) for k in range(total)]
        # Micro-batch 0 reaches this rank's last chunk after (chunks - 1) · p forwards. Its gradient comes
        # back after 2 more actions per later rank: a forward on the way there, a backward on the way back.
        warmup = min(2 * (ranks - 1 - rank) + (chunks - 1) * ranks, total)
        schedule.append(_in_turn(forwards, backwards, warmup))
    return schedule


def _in_turn(forwards: Actions, backwards: Actions, warmup: int) -> Actions:
    """`warmup` forwards, then a forward and a backward in turn, then the backwards that are left."""
    pairs = zip(forwards[warmup:], backwards, strict=False)  # ends with the forwards
    return [
        *forwards[:warmup],
        *(action for pair in pairs for action in pair),
        *backwards[len(forwards) - warmup :],
    ]


def _interleaved_action(kind: Kind, k: int, rank: int, ranks: int, chunks: int) -> Action:
    """The k-th forward or backward of `rank`: p micro-batches through one chunk, then through the next."""
    group, rest = divmod(k, ranks * chunks)
    chunk, microbatch = divmod(rest, ranks)
    if kind == "B":
        chunk = chunks - 1 - chunk
    return Action(kind, chunk * ranks + rank, group * ranks + microbatch)


# ---------------------------------------------------------------- two replicas, opposite directions


def gems_basic(stages: int, microbatches: int) -> Schedule:
    """One stage works at a time, on one micro-batch: the baseline of GEMS, whose paper says "batch"."""
    return naive(stages, microbatches)


def gems_mast(stages: int) -> Schedule:
    """Two replicas of the model, one micro-batch each: the second goes forward while the first goes backward.

    Rank r holds stage r of replica 0 and stage p-1-r of replica 1, and runs replica 1 in the memory that
    replica 0 has just freed. Jain et al. (2020), "GEMS".
    """
    return gems_master(stages, 2)


def gems_master(stages: int, microbatches: int) -> Schedule:
    """GEMS-MAST repeated before the update: the two replicas take the micro-batches in turn.

    One update follows for all of them. Before it, sum the gradients of the two replicas (`parallel/gems.py`).

    For η micro-batches it takes p·f + η·p·b + (η-1)·f if b ≥ f: each forward after the first hides behind the
    backward before it, except for one f. `gems_basic` takes η·p·(f+b). Raises ValueError unless η is even,
    so that both replicas get equally many. Jain et al. (2020), "GEMS".
    """
    _check(stages, microbatches)
    if microbatches % 2:
        raise ValueError(f"{microbatches} micro-batches cannot be shared by 2 replicas; use an even number")
    return [
        [
            Action(kind, (rank, stages - 1 - rank)[i % 2], i, replica=i % 2)
            for i in range(microbatches)
            for kind in FORWARD_BACKWARD
        ]
        for rank in range(stages)
    ]


def _check(stages: int, microbatches: int) -> None:
    if stages < 1 or microbatches < 1:
        raise ValueError(
            f"{stages} stages and {microbatches} micro-batches make no schedule; use 1 or more of each"
        )


# ---------------------------------------------------------------- time and memory of a schedule

Seconds = float | Sequence[float]


@dataclass(frozen=True, slots=True)
class TimedAction:
    """When a rank is busy with an action: from `start` to `end`, in seconds since the start of the step."""

    rank: int
    action: Action
    start: float
    end: float


def simulate(
    schedule: Schedule, forward: Seconds, backward: Seconds, transfer: float = 0.0
) -> list[TimedAction]:
    """When each action of `schedule` runs, in order of their starts.

    `forward` and `backward` are seconds per action: one number, or one per stage.
    `transfer` is the seconds of a message to a stage on another rank; ranks compute meanwhile. Raises
    ValueError if the schedule can never finish, with the actions that wait for each other, and for what
    `owners` refuses.
    """
    owner = owners(schedule)
    last = max(stage for _, stage in owner)
    stages = 1 + last
    seconds = {"F": _seconds(forward, stages), "B": _seconds(backward, stages)}
    if transfer < 0:
        raise ValueError(f"a transfer of {transfer} s cannot be; give 0 or more")
    ended: dict[Action, float] = {}
    arrived: dict[Action, float] = {}  # its result, on another rank
    free, done = [0.0] * len(schedule), [0] * len(schedule)  # when each rank is free, how many actions it did
    timed: list[TimedAction] = []
    while len(ended) < sum(map(len, schedule)):
        ready = [
            rank
            for rank, actions in enumerate(schedule)
            if _can_run(actions[done[rank] : done[rank] + 1], last, ended)
        ]
        if not ready:
            raise ValueError(_stuck(schedule, done, last, ended))
        for rank in ready:
            action = schedule[rank][done[rank]]
            inputs = [(need, owner[need.replica, need.stage] == rank) for need in needs(action, last)]
            start = max([free[rank], *(ended[need] if own else arrived[need] for need, own in inputs)])
            free[rank] = ended[action] = start + seconds[action.kind][action.stage]
            arrived[action] = ended[action] + transfer
            done[rank] += 1
            timed.append(TimedAction(rank, action, start, free[rank]))
    return sorted(timed, key=lambda one: (one.start, one.rank))


def check_finishes(schedule: Schedule) -> None:
    """Raise ValueError if the schedule can never finish, and for what `owners` refuses."""
    simulate(schedule, 1, 1)


def _can_run(following: Actions, last: int, ended: dict[Action, float]) -> bool:
    """Whether there is a next action, and all its inputs are computed."""
    return bool(following) and all(need in ended for need in needs(following[0], last))


def needs(action: Action, last_stage: int) -> list[Action]:
    """The actions whose results `action` needs, of the same micro-batch and replica."""
    kind, stage, i, replica = action.kind, action.stage, action.microbatch, action.replica
    if kind == "F":
        return [Action("F", stage - 1, i, replica)] if stage > 0 else []
    after = [Action("B", stage + 1, i, replica)] if stage < last_stage else []
    return [Action("F", stage, i, replica), *after]


def owners(schedule: Schedule) -> dict[tuple[int, int], int]:
    """The rank of each (replica, stage).

    Raises ValueError if two ranks run one stage, an action comes twice, or a message would have no sender or
    no receiver, because an action is missing, or because one replica has fewer stages than another.
    """
    owner: dict[tuple[int, int], int] = {}
    for rank, actions in enumerate(schedule):
        for action in actions:
            first = owner.setdefault((action.replica, action.stage), rank)
            if first != rank:
                raise ValueError(f"ranks {first} and {rank} both run stage {action.stage}; give it to one")
        if len(set(actions)) < len(actions):
            twice = next(action for action in actions if actions.count(action) > 1)
            raise ValueError(f"rank {rank} runs {twice} of stage {twice.stage} twice; it runs once per step")
    microbatch_count(schedule)
    _check_messages(schedule, max(stage for _, stage in owner))
    return owner


def _check_messages(schedule: Schedule, last: int) -> None:
    """Raise ValueError if an action is missing that computes what another needs, or that receives it.

    Where anything goes backward, everything must: else the gradient would lack a micro-batch.
    """
    present = {action for actions in schedule for action in actions}
    trains = any(action.kind == "B" for action in present)
    for action in (action for actions in schedule for action in actions):
        for other in [*needs(action, last), *_receiver(action, last)]:
            if other not in present:
                raise ValueError(
                    f"the schedule has {action} of stage {action.stage} and nowhere {other} of stage "
                    f"{other.stage}, so a rank would wait for it forever; add it"
                )
    for action in (action for actions in schedule for action in actions if trains):
        back = Action("B", action.stage, action.microbatch, action.replica)
        if back not in present:
            raise ValueError(
                f"the schedule has {action} of stage {action.stage} and nowhere its {back}, so the gradient "
                "would lack that micro-batch; add it"
            )


def _receiver(action: Action, last_stage: int) -> list[Action]:
    """The action on another stage that receives the result of `action`; none at the end of the pipeline."""
    forward = action.kind == "F"
    if action.stage == (last_stage if forward else 0):
        return []
    other_stage = action.stage + (1 if forward else -1)
    return [Action(action.kind, other_stage, action.microbatch, action.replica)]


def microbatch_count(schedule: Schedule) -> int:
    """The number of micro-batches. Raises ValueError if there is none, or if one is left out."""
    found = {action.microbatch for actions in schedule for action in actions}
    if not found:
        raise ValueError(f"a schedule of {len(schedule)} ranks without an action does nothing; give it some")
    if found != set(range(len(found))):
        raise ValueError(f"a schedule of micro-batches {sorted(found)} leaves some out; number them from 0")
    return len(found)


def _seconds(given: Seconds, stages: int) -> list[float]:
    each = list(given) if isinstance(given, Sequence) else [given] * stages
    if len(each) != stages or min(each) < 0:
        raise ValueError(
            f"{len(each)} times, the least {min(each, default=0)} s, for {stages} stages; give one "
            "of at least 0 s for each"
        )
    return each


def _stuck(schedule: Schedule, done: Sequence[int], last: int, ended: dict[Action, float]) -> str:
    """The message that names each waiting rank's next action and what it waits for."""
    following = [
        (rank, actions[done[rank]]) for rank, actions in enumerate(schedule) if done[rank] < len(actions)
    ]
    waits = [
        f"rank {rank} cannot run {action} of stage {action.stage} before "
        + " and ".join(f"{n} of stage {n.stage}" for n in needs(action, last) if n not in ended)
        for rank, action in following
    ]
    return "the schedule never finishes: " + "; ".join(waits)


def makespan(timed: Iterable[TimedAction]) -> float:
    """Seconds until the last rank has finished."""
    return max(one.end for one in timed)


def peak_activations(actions: Actions) -> int:
    """The most pairs (stage, micro-batch) that a rank holds at once: forward, but not yet backward."""
    held = peak = 0
    for action in actions:
        held += 1 if action.kind == "F" else -1
        peak = max(peak, held)
    return peak
