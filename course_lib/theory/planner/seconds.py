"""Bytes that a rank sends in a step, and how long the step takes.

    step = compute + synchronize + update

    compute       forward and backward passes of all micro-batches, the layers' own messages included; of a
                  pipeline as long as its schedule, simulated with the seconds of its stages
    synchronize   summing gradients and gathering weights over the data ranks, or gradients over tiles
    update        AdamW on the parameters that a rank owns

Nothing overlaps, as in the plain forms of the library. Collectives are rings: Patarasuk and Yuan (2009).
"""

from collections.abc import Iterable, Sequence
from math import prod

from course_lib.theory.planner.machine import Direction, Machine
from course_lib.theory.planner.memory import Stage, buckets_of, each_of, masters_of, schedule_of, stages_of
from course_lib.theory.planner.models import NOTHING, Layer, Message, Operation, Shape
from course_lib.theory.planner.plan import AXES, Plan
from course_lib.theory.planner.quantity import Quantity, counted, derived, given, largest, total
from course_lib.theory.schedules import makespan, simulate

Named = tuple[str, Quantity]

# ---------------------------------------------------------------- collectives


def ring_bytes(collective: str, ways: int, nbytes: Quantity) -> Quantity:
    """What one rank sends in a collective of `nbytes`, those of the full array; of a halo, `nbytes`."""
    if ways == 1:
        return NOTHING
    if collective == "halo":
        return nbytes
    rounds = 2 if collective == "all-reduce" else 1
    return derived("rounds * (ways - 1) / ways * nbytes", "bytes", rounds=rounds, ways=ways, nbytes=nbytes)


def ring_seconds(
    collective: str, ways: int, nbytes: Quantity, plan: Plan, axis: str, machine: Machine
) -> Quantity:
    """Seconds of a collective of `nbytes` on an axis, around a ring; of a halo, of four messages."""
    if ways == 1:
        return counted(0, "one rank exchanges nothing", "s")
    link, sharing = machine.link(ways, stride_of(plan, axis))
    if collective == "halo":
        sides = counted(
            sum(2 * (n > 1) for n in plan.tiles) if plan.tiles != (1, 1) else 0, "sides of a tile"
        )
        side = derived("nbytes / sides", "bytes", nbytes=nbytes, sides=sides)
        return derived("sides * message", "s", sides=sides, message=link.message(side, sharing))
    part = derived("nbytes / ways", "bytes", nbytes=nbytes, ways=ways)
    message, adding = link.message(part, sharing), link.adding(part)
    if collective == "all-gather":
        return derived("(ways - 1) * message", "s", ways=ways, message=message)
    if collective == "reduce-scatter":
        return derived("(ways - 1) * (message + adding)", "s", ways=ways, message=message, adding=adding)
    return derived("(ways - 1) * (2 * message + adding)", "s", ways=ways, message=message, adding=adding)


def stride_of(plan: Plan, axis: str) -> int:
    """How far neighbours on an axis are apart: the ranks on all axes inside it."""
    return prod(plan.ways(inner) for inner in AXES[: AXES.index(axis)])


# ---------------------------------------------------------------- one stage, one micro-batch


def _passes(layers: Sequence[Layer], plan: Plan, machine: Machine, direction: Direction) -> Quantity:
    """Seconds of one micro-batch through these layers, in one direction, their messages included."""
    addends: list[Named] = []
    for layer in layers:
        parts = [*_computing(layer.operations, plan, machine, direction)]
        parts += _exchanging(layer.messages, plan, machine, direction)
        addends.append((layer.name, total("s", parts)))
    return total("s", addends)


def _computing(
    operations: Iterable[Operation], plan: Plan, machine: Machine, direction: Direction
) -> Iterable[Named]:
    for one in operations:
        seconds = machine.operation(one, direction, alone=plan.ranks == 1)
        if one.first and direction == "backward":
            seconds = derived("both / 2", "s", "its inputs need no gradient", both=seconds)
        yield from [(one.kind, seconds)] * one.times


def _exchanging(
    messages: Iterable[Message], plan: Plan, machine: Machine, direction: Direction
) -> Iterable[Named]:
    for one in messages:
        ways = plan.ways(one.axis)
        seconds = ring_seconds(one.collective, ways, one.nbytes, plan, one.axis, machine)
        yield from [(one.collective.replace("-", "_"), seconds)] * getattr(one, direction)


def stage_seconds(stage: Stage, plan: Plan, machine: Machine) -> tuple[Quantity, Quantity]:
    """Seconds of one micro-batch's forward and backward pass through a stage."""
    forward = _passes(stage.layers, plan, machine, "forward")
    back = [("backward", _passes(stage.layers, plan, machine, "backward"))]
    if plan.recompute:
        again = stage.layers if plan.pipeline > 1 else [one for one in stage.layers if one.name == "block"]
        back.append(("again", _passes(again, plan, machine, "forward")))
    gathers: list[Named] = []
    for nbytes in gathered_by(stage, plan):
        gathers.append(("gather", ring_seconds("all-gather", plan.data, nbytes, plan, "data", machine)))
    sums = [
        ("sum", ring_seconds("reduce-scatter", plan.data, nbytes, plan, "data", machine))
        for nbytes in summed_by(stage, plan)
        if plan.zero >= 2
    ]
    if gathers:
        forward = total("s", [("computing", forward), *gathers])
    return forward, total("s", [*back, *gathers, *sums])


def gathered_by(stage: Stage, plan: Plan) -> list[Quantity]:
    """The bytes of each all-gather of weights in stage 3, before a layer's forward and its backward pass."""
    if plan.zero < 3:
        return []
    weight = each_of(plan).weights
    return [
        counted(weight * n * plan.data, "weights of a layer", "bytes") for n in masters_of(stage.layers, plan)
    ]


def summed_by(stage: Stage, plan: Plan) -> list[Quantity]:
    """The bytes of each sum of gradients over the data ranks: of a bucket, or in stage 3 of a layer."""
    gradient = each_of(plan).gradients
    if plan.zero == 3:
        lengths = [n * plan.data for n in masters_of(stage.layers, plan)]
    elif plan.tiles != (1, 1):
        lengths = [size for layer in stage.layers for size in layer.sizes]
    else:
        sizes = [size for layer in stage.layers for size in layer.sizes][::-1]
        lengths = [sum(sizes[part.start : part.stop]) for part in buckets_of(stage.layers, plan)]
    return [counted(gradient * length, "gradients that are summed together", "bytes") for length in lengths]


# ---------------------------------------------------------------- a step


def seconds_of(shape: Shape, batch: int, plan: Plan, machine: Machine) -> Quantity:
    """Seconds of one step of training on a global batch of `batch` samples."""
    stages = stages_of(shape, batch, plan)
    each = [stage_seconds(stage, plan, machine) for stage in stages]
    ends = [(f"stage_{s.index}", _synchronizing(s, plan, machine)) for s in stages]
    updates = [(f"stage_{s.index}", _updating(s, plan, machine)) for s in stages]
    crowd = derived(
        "max(1, ranks / cores)", "", "ranks that share a core", ranks=plan.ranks, cores=machine.cores
    )
    return derived(
        "compute + crowd * (synchronize + update)",
        "s",
        compute=_schedule(stages, each, plan, machine, crowd),
        crowd=crowd,
        synchronize=largest("s", ends),
        update=largest("s", updates),
    )


def _schedule(
    stages: Sequence[Stage],
    each: Sequence[tuple[Quantity, Quantity]],
    plan: Plan,
    machine: Machine,
    crowd: Quantity,
) -> Quantity:
    """Seconds of all forward and backward passes: of the schedule, or of all work on the cores there are."""
    microbatches = given(plan.microbatches, "micro-batches")
    if plan.pipeline == 1:
        forward, backward = each[0]
        return derived(
            "crowd * microbatches * (forward + backward)",
            "s",
            crowd=crowd,
            microbatches=microbatches,
            forward=forward,
            backward=backward,
        )
    passing = [("message", _passing(stage.sent, plan, machine)) for stage in stages[:-1]]
    transfer = largest("s", passing)
    forward, backward = largest_pass(each, 0), largest_pass(each, 1)

    def of(which: int) -> list[float]:
        return [one[which].value for one in each]

    timed = simulate(schedule_of(plan), of(0), of(1), transfer.value)
    length = derived(
        "microbatches * (forward + backward) + idle",
        "s",
        f"the slowest stage, and how long the {plan.schedule} schedule, simulated, is besides",
        microbatches=microbatches,
        forward=forward,
        backward=backward,
        idle=counted(
            makespan(timed) - plan.microbatches * (forward.value + backward.value),
            "until the first micro-batch has come and the last has gone, and messages",
            "s",
        ),
    )
    work = total(
        "s",
        [
            (f"stage_{s.index}", derived("forward + backward", "s", forward=f, backward=b))
            for s, (f, b) in zip(stages, each, strict=True)
        ],
    )
    columns = counted(plan.ranks // plan.pipeline, "ranks per stage")
    return derived(
        "max(schedule, microbatches * columns * work / cores)",
        "s",
        "when ranks share cores, all work takes turns on them",
        schedule=length,
        microbatches=microbatches,
        columns=columns,
        work=work,
        cores=machine.cores,
    )


def largest_pass(each: Sequence[tuple[Quantity, Quantity]], which: int) -> Quantity:
    """The forward (0) or backward (1) pass of the stage that takes longest with both."""
    return max(each, key=lambda one: one[0].value + one[1].value)[which]


def _passing(nbytes: Quantity, plan: Plan, machine: Machine) -> Quantity:
    """Seconds of a micro-batch's way to the next stage: its header, and its numbers."""
    link, sharing = machine.link(plan.pipeline, stride_of(plan, "pipeline"))
    header = link.message(counted(0, "a header with shape and dtype", "bytes"), sharing)
    return derived("header + numbers", "s", header=header, numbers=link.message(nbytes, sharing))


def _synchronizing(stage: Stage, plan: Plan, machine: Machine) -> Quantity:
    """Seconds of sums and gathers between the last backward pass and the next step."""
    found: list[Named] = []
    for nbytes in summed_by(stage, plan):
        if plan.tiles != (1, 1):
            found.append(
                ("tiles", ring_seconds("all-reduce", prod(plan.tiles), nbytes, plan, "tiles", machine))
            )
        if plan.zero == 0:
            found.append(("all_reduce", ring_seconds("all-reduce", plan.data, nbytes, plan, "data", machine)))
        if plan.zero == 1:
            found.append(("sum", ring_seconds("reduce-scatter", plan.data, nbytes, plan, "data", machine)))
        if plan.zero in (1, 2):
            found.append(("gather", ring_seconds("all-gather", plan.data, nbytes, plan, "data", machine)))
    return total("s", found)


def _updating(stage: Stage, plan: Plan, machine: Machine) -> Quantity:
    """Seconds of AdamW on what this rank owns."""
    kind = "update in files" if plan.offload else "update"
    work = [
        counted(n, "numbers of a tensor that AdamW updates", "numbers")
        for n in masters_of(stage.layers, plan)
    ]
    alone = plan.ranks == 1
    return total(
        "s", [("adamw", machine.operation(Operation(kind, n), "forward", alone=alone)) for n in work]
    )


# ---------------------------------------------------------------- bytes


def sent_by(shape: Shape, batch: int, plan: Plan) -> Quantity:
    """Bytes that a rank sends per step, on the stage whose ranks send most."""
    found = [(f"stage_{stage.index}", _sent(stage, plan)) for stage in stages_of(shape, batch, plan)]
    return found[0][1] if len(found) == 1 else largest("bytes", found)


def _sent(stage: Stage, plan: Plan) -> Quantity:
    each: list[Named] = []
    again = 2 if plan.recompute else 1
    for layer in stage.layers:
        for one in layer.messages:
            recomputed = again if plan.pipeline > 1 or layer.name == "block" else 1
            times = one.forward * recomputed + one.backward
            each += [(one.axis, ring_bytes(one.collective, plan.ways(one.axis), one.nbytes))] * times
    if plan.pipeline > 1:
        back = stage.received if stage.index else NOTHING
        each += [("activations", stage.sent), ("their_gradients", back)]
    each += [("weights", ring_bytes("all-gather", plan.data, n)) for n in gathered_by(stage, plan)] * 2
    sums = summed_by(stage, plan)
    within = (
        [("gradients", ring_bytes("reduce-scatter", plan.data, n)) for n in sums] if plan.zero >= 2 else []
    )
    once: list[Named] = []
    if plan.zero < 2:
        kind = "reduce-scatter" if plan.zero else "all-reduce"
        once += [("gradients", ring_bytes(kind, plan.data, n)) for n in sums]
    if plan.zero in (1, 2):
        once += [("weights", ring_bytes("all-gather", plan.data, n)) for n in sums]
    if plan.tiles != (1, 1):
        once += [("over_tiles", ring_bytes("all-reduce", prod(plan.tiles), n)) for n in sums]
    return derived(
        "microbatches * each + once",
        "bytes",
        microbatches=given(plan.microbatches, "micro-batches"),
        each=total("bytes", [*each, *within]),
        once=total("bytes", once),
    )
