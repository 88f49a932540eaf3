"""Bytes that a rank sends in a step, and how long the step takes.

    step = compute + synchronize + update

    compute       forward and backward passes of all micro-batches, the layers' own messages included; of a
                  pipeline as long as its schedule, simulated with the seconds of its stages
    synchronize   summing gradients and gathering weights over the data ranks, or gradients over tiles
    update        AdamW on the parameters that a rank owns

Nothing overlaps, as in the plain forms of the library. Collectives are rings (Patarasuk and Yuan, 2009), and
what the library's own call takes besides.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod

from course_lib.theory.planner.machine import Direction, Link, Machine
from course_lib.theory.planner.memory import Stage, buckets_of, each_of, masters_of, schedule_of, stages_of
from course_lib.theory.planner.models import NOTHING, Layer, Operation, Shape
from course_lib.theory.planner.plan import AXES, Plan
from course_lib.theory.planner.quantity import Quantity, counted, derived, given, largest, total
from course_lib.theory.schedules import makespan, simulate

Named = tuple[str, Quantity]
DIRECTIONS: tuple[Direction, Direction] = ("forward", "backward")

# ---------------------------------------------------------------- collectives


def ring_bytes(collective: str, ways: int, nbytes: Quantity) -> Quantity:
    """What one rank sends in a collective of `nbytes`, those of the full array; of a halo, `nbytes`."""
    if ways == 1:
        return NOTHING
    if collective == "halo":
        return nbytes
    rounds = 2 if collective == "all-reduce" else 1
    return derived("rounds * (ways - 1) / ways * nbytes", "bytes", rounds=rounds, ways=ways, nbytes=nbytes)


def exchange_seconds(collective: str, nbytes: Quantity, plan: Plan, axis: str, machine: Machine) -> Quantity:
    """Seconds of a collective of `nbytes` on an axis: a ring's messages and sums, and the library's call.

    A halo has two messages for each dimension of the image that is cut.
    """
    ways = plan.ways(axis)
    if ways == 1:
        return counted(0, "one rank exchanges nothing", "s")
    ring = ring_seconds(collective, ways, nbytes, *machine.link(ways, stride_of(plan, axis)), plan)
    calls = (
        [("sum_call", "reduce-scatter"), ("gather_call", "all-gather")]
        if (axis, collective) == ("data", "all-reduce")
        else [("call", collective)] * (sum(n > 1 for n in plan.tiles) if collective == "halo" else 1)
    )
    crowded = plan.ranks > machine.cores.value
    found = [(name, machine.call(f"{axis} {what}", nbytes, crowded=crowded)) for name, what in calls]
    return total("s", [("ring", ring), *found])


def ring_seconds(
    collective: str, ways: int, nbytes: Quantity, link: Link, sharing: int, plan: Plan
) -> Quantity:
    """Seconds of the messages and sums of a collective; `sharing` rings use the link."""
    if collective == "halo":
        sides = counted(sum(2 * (n > 1) for n in plan.tiles), "sides of a tile, at most")
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


@dataclass(frozen=True, slots=True)
class Pass:
    """One micro-batch through a stage in one direction: seconds of operations, and of exchanges."""

    computing: Quantity
    exchanging: Quantity

    @property
    def seconds(self) -> Quantity:
        """Both."""
        return derived("computing + exchanging", "s", computing=self.computing, exchanging=self.exchanging)


def passes_of(stage: Stage, plan: Plan, machine: Machine) -> tuple[Pass, Pass]:
    """The forward and the backward pass of one micro-batch through a stage."""
    forward, backward = (_layers(stage.layers, plan, machine, way) for way in DIRECTIONS)
    if plan.recompute:
        again = stage.layers if plan.pipeline > 1 else [one for one in stage.layers if one.name == "block"]
        for computing, more in zip(backward, _layers(again, plan, machine, "forward"), strict=True):
            computing += [(f"{name}_again", seconds) for name, seconds in more]
    for nbytes in gathered_by(stage, plan):
        fresh = _fresh(nbytes, plan, machine)
        gather = ("gather", exchange_seconds("all-gather", nbytes, plan, "data", machine))
        for computing, exchanging in (forward, backward):
            computing.append(("memory_of_weights", fresh))
            exchanging.append(gather)
    if plan.zero >= 2:
        for nbytes in summed_by(stage, plan):
            backward[0].append(("memory_of_gradients", _fresh(nbytes, plan, machine)))
            summed = exchange_seconds("reduce-scatter", nbytes, plan, "data", machine)
            backward[1].append(("sum", summed))
    return Pass(*(total("s", some) for some in forward)), Pass(*(total("s", some) for some in backward))


def _layers(
    layers: Sequence[Layer], plan: Plan, machine: Machine, direction: Direction
) -> tuple[list[Named], list[Named]]:
    """Seconds of the operations and of the exchanges of each layer, by its name."""
    computing: list[Named] = []
    exchanging: list[Named] = []
    for layer in layers:
        computing.append((layer.name, total("s", _computing(layer.operations, plan, machine, direction))))
        for one in layer.messages:
            seconds = exchange_seconds(one.collective, one.nbytes, plan, one.axis, machine)
            exchanging += [(one.collective.replace("-", "_"), seconds)] * getattr(one, direction)
    return computing, exchanging


def _computing(
    operations: Iterable[Operation], plan: Plan, machine: Machine, direction: Direction
) -> Iterable[Named]:
    element = each_of(plan).weights
    for one in operations:
        seconds = machine.operation(one, direction, alone=plan.ranks == 1, element=element)
        if one.first and direction == "backward":
            seconds = derived("both / 2", "s", "its inputs need no gradient", both=seconds)
        yield from [(one.kind, seconds)] * one.times


def _fresh(nbytes: Quantity, plan: Plan, machine: Machine) -> Quantity:
    """Seconds of new memory for so many bytes, and of filling it."""
    element = each_of(plan).weights
    numbers = derived("nbytes / number", "numbers", nbytes=nbytes, number=given(element, "bytes"))
    fresh = Operation("fresh", numbers)
    return machine.operation(fresh, "forward", alone=plan.ranks == 1, element=element)


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
    each = [passes_of(stage, plan, machine) for stage in stages]
    crowd = derived(
        "max(1, ranks / cores)", "", "ranks that share a core", ranks=plan.ranks, cores=machine.cores
    )
    return derived(
        "compute + synchronize + crowd * update",
        "s",
        compute=_one_stage(each[0], plan, crowd)
        if plan.pipeline == 1
        else _pipeline(stages, each, plan, machine),
        synchronize=largest("s", [(f"stage_{s.index}", _synchronizing(s, plan, machine)) for s in stages]),
        crowd=crowd,
        update=largest("s", [(f"stage_{s.index}", _updating(s, plan, machine)) for s in stages]),
    )


def _one_stage(both: tuple[Pass, Pass], plan: Plan, crowd: Quantity) -> Quantity:
    """Seconds of all forward and backward passes when every rank computes all layers."""
    forward, backward = both
    return derived(
        "microbatches * (crowd * (forward + backward) + exchanging)",
        "s",
        microbatches=given(plan.microbatches, "micro-batches"),
        crowd=crowd,
        forward=forward.computing,
        backward=backward.computing,
        exchanging=total("s", [("forward", forward.exchanging), ("backward", backward.exchanging)]),
    )


def _pipeline(
    stages: Sequence[Stage], each: Sequence[tuple[Pass, Pass]], plan: Plan, machine: Machine
) -> Quantity:
    """Seconds of all passes: of the schedule, or of all work if there are not enough cores for it."""
    transfer = largest("s", [("message", _passing(stage.sent, plan, machine)) for stage in stages[:-1]])
    forward, backward = ([one[way].seconds.value for one in each] for way in (0, 1))
    timed = simulate(schedule_of(plan), forward, backward, transfer.value)
    slowest = max(each, key=lambda one: one[0].seconds.value + one[1].seconds.value)
    busy = plan.microbatches * (slowest[0].seconds.value + slowest[1].seconds.value)
    microbatches = given(plan.microbatches, "micro-batches")
    schedule = derived(
        "microbatches * (forward + backward) + idle",
        "s",
        f"the slowest stage, and what the simulated {plan.schedule} schedule takes besides",
        microbatches=microbatches,
        forward=slowest[0].seconds,
        backward=slowest[1].seconds,
        idle=counted(
            makespan(timed) - busy, "until the first micro-batch comes, after the last, messages", "s"
        ),
    )
    work = [
        (f"stage_{stage.index}_{name}", one.seconds)
        for stage, both in zip(stages, each, strict=True)
        for name, one in zip(DIRECTIONS, both, strict=True)
    ]
    return derived(
        "max(schedule, microbatches * columns * (work + messages) / cores)",
        "s",
        "when ranks share cores, the cores do the work of all ranks",
        schedule=schedule,
        microbatches=microbatches,
        columns=counted(plan.ranks // plan.pipeline, "ranks per stage"),
        work=total("s", work),
        messages=derived("2 * boundaries * message", "s", boundaries=plan.pipeline - 1, message=transfer),
        cores=machine.cores,
    )


def _passing(nbytes: Quantity, plan: Plan, machine: Machine) -> Quantity:
    """Seconds of a micro-batch's way to the next stage."""
    link, sharing = machine.link(plan.pipeline, stride_of(plan, "pipeline"))
    crowded = plan.ranks > machine.cores.value
    call = machine.call("pipeline message", nbytes, crowded=crowded)
    return derived("call + numbers", "s", call=call, numbers=link.message(nbytes, sharing))


def _synchronizing(stage: Stage, plan: Plan, machine: Machine) -> Quantity:
    """Seconds of sums and gathers between the last backward pass and the next step."""
    kinds: list[tuple[str, str, str]] = []
    if plan.tiles != (1, 1):
        kinds.append(("over_tiles", "all-reduce", "tiles"))
    if plan.zero < 2:
        kinds.append(("gradients", "reduce-scatter" if plan.zero else "all-reduce", "data"))
    if plan.zero in (1, 2):
        kinds.append(("weights", "all-gather", "data"))
    return total(
        "s",
        [
            (name, exchange_seconds(collective, nbytes, plan, axis, machine))
            for name, collective, axis in kinds
            for nbytes in summed_by(stage, plan)
        ],
    )


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
