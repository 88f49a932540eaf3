"""How long a step of a plan takes, and how many bytes each rank sends.

    step = sharing * computing + tensor_messages + gathers + idle + synchronize + crowd * update

    computing         all forward and backward passes of the slowest stage
    tensor_messages   all-reduces inside the layers: what comes next needs their result, so none can hide
    gathers           what is left of stage 3's gathers, and of sums in every micro-batch, behind computing
    idle              a pipeline's stages wait for the first micro-batch, and after the last
    synchronize       what is left of sums of gradients and gathers of weights, once per step
    update            AdamW on the parameters that a rank owns

What can hide:  left = max(last, messages - overlap * room). The room is the computing that runs meanwhile;
the last message (of the first layer's gradients) has nothing left to hide behind. With `overlap` 0, as in
the plain forms of the library, all is left. Sends of a pipeline hide in the simulated schedule.

Collectives are rings (Patarasuk and Yuan, 2009), and what the library's own call takes besides.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod

from course.lessons.l16_choose_your_strategy.planner.machine import Direction, Link, Machine
from course.lessons.l16_choose_your_strategy.planner.memory import (
    Stage,
    buckets_of,
    each_of,
    masters_of,
    schedule_of,
    stages_of,
)
from course.lessons.l16_choose_your_strategy.planner.models import NOTHING, Layer, Operation, TransformerShape
from course.lessons.l16_choose_your_strategy.planner.plan import AXES, Plan
from course.lessons.l16_choose_your_strategy.planner.quantity import (
    Quantity,
    counted,
    derived,
    given,
    largest,
    total,
)
from course_lib.theory.schedules import makespan, simulate

Named = tuple[str, Quantity]
DIRECTIONS: tuple[Direction, Direction] = ("forward", "backward")
NO_TIME = given(0, "nothing", "s")

# ---------------------------------------------------------------- collectives


def ring_bytes(collective: str, ways: int, nbytes: Quantity) -> Quantity:
    """What one rank sends in a collective of `nbytes`, those of the full array."""
    if ways == 1:
        return NOTHING
    rounds = 2 if collective == "all-reduce" else 1
    return derived("rounds * (ways - 1) / ways * nbytes", "bytes", rounds=rounds, ways=ways, nbytes=nbytes)


def exchange_seconds(collective: str, nbytes: Quantity, plan: Plan, axis: str, machine: Machine) -> Quantity:
    """Seconds of a collective of `nbytes` on an axis: a ring's messages and sums, and the library's call."""
    ways = plan.ways(axis)
    if ways == 1:
        return NO_TIME
    ring = ring_seconds(collective, ways, nbytes, *machine.link(ways, stride_of(plan, axis)))
    name = "data" if axis in ("shards", "groups") else axis
    calls = (
        [("sum_call", "reduce-scatter"), ("gather_call", "all-gather")]
        if (name, collective) == ("data", "all-reduce")
        else [("call", collective)]
    )
    crowded = plan.ranks > machine.devices.value
    found = [(what, machine.call(f"{name} {kind}", nbytes, crowded=crowded)) for what, kind in calls]
    return total("s", [("ring", ring), *found])


def ring_seconds(collective: str, ways: int, nbytes: Quantity, link: Link, sharing: float) -> Quantity:
    """Seconds of the messages and sums of a collective; `sharing` rings use a port of the link."""
    part = derived("nbytes / ways", "bytes", nbytes=nbytes, ways=ways)
    message, adding = link.message(part, sharing), link.adding(part)
    if collective == "all-gather":
        return derived("(ways - 1) * message", "s", ways=ways, message=message)
    if collective == "reduce-scatter":
        return derived("(ways - 1) * (message + adding)", "s", ways=ways, message=message, adding=adding)
    return derived("(ways - 1) * (2 * message + adding)", "s", ways=ways, message=message, adding=adding)


def stride_of(plan: Plan, axis: str) -> int:
    """How far neighbours on an axis are apart: the ranks on all axes inside it."""
    data = plan.pipeline * plan.tensor
    outside = {"shards": data, "groups": data * plan.shards}
    return outside.get(axis) or prod(plan.ways(inner) for inner in AXES[: AXES.index(axis)])


def summed(nbytes: Quantity, plan: Plan, machine: Machine) -> Quantity:
    """Seconds of summing gradients that ZeRO shards: inside a group, then their shards between the groups."""
    inside = exchange_seconds("reduce-scatter", nbytes, plan, "shards", machine)
    if plan.groups == 1:
        return inside
    shard = derived("nbytes / shards", "bytes", nbytes=nbytes, shards=plan.shards)
    between = exchange_seconds("all-reduce", shard, plan, "groups", machine)
    return derived("inside + between", "s", inside=inside, between=between)


# ---------------------------------------------------------------- what hides


def left(messages: Sequence[Named], room: Quantity, machine: Machine) -> Quantity:
    """Seconds of messages that computing does not hide: at least those of the last one."""
    if not messages:
        return NO_TIME
    return derived(
        "max(last, messages - overlap * room)",
        "s",
        last=messages[-1][1],
        messages=total("s", messages),
        overlap=given(machine.overlap, "of what can hide, the part that does"),
        room=room,
    )


# ---------------------------------------------------------------- one stage, one micro-batch


@dataclass(frozen=True, slots=True)
class Pass:
    """One micro-batch through a stage in one direction: seconds of operations, and of messages.

    Nothing hides the tensor ranks' messages, `waits`; of the others `gathers` are left.
    """

    computing: Quantity
    waits: Quantity
    gathers: Quantity

    @property
    def seconds(self) -> Quantity:
        """All three."""
        return derived(
            "computing + waits + gathers",
            "s",
            computing=self.computing,
            waits=self.waits,
            gathers=self.gathers,
        )


def passes_of(stage: Stage, plan: Plan, machine: Machine) -> tuple[Pass, Pass]:
    """The forward and the backward pass of one micro-batch through a stage."""
    forward, backward = (_layers(stage.layers, plan, machine, way) for way in DIRECTIONS)
    if plan.recompute:
        again = stage.layers if plan.pipeline > 1 else [one for one in stage.layers if one.name == "block"]
        for computing, more in zip(backward, _layers(again, plan, machine, "forward"), strict=True):
            computing += [(f"{name}_again", seconds) for name, seconds in more]
    gathers: list[Named] = []
    for nbytes in gathered_by(stage, plan):
        gathers.append(("gather", exchange_seconds("all-gather", nbytes, plan, "shards", machine)))
        for computing, _ in (forward, backward):
            computing.append(("memory_of_weights", _fresh(nbytes, plan, machine)))
    sums: list[Named] = []
    if plan.zero >= 2 and not plan.no_sync:
        for nbytes in summed_by(stage, plan):
            backward[0].append(("memory_of_gradients", _fresh(nbytes, plan, machine)))
            sums.append(("sum", summed(nbytes, plan, machine)))
    both = ((forward, gathers), (backward, gathers + sums))
    found = []
    for (computing, waits), messages in both:
        room = total("s", computing)
        found.append(Pass(room, total("s", waits), left(messages, room, machine)))
    return found[0], found[1]


def _layers(
    layers: Sequence[Layer], plan: Plan, machine: Machine, direction: Direction
) -> tuple[list[Named], list[Named]]:
    """Seconds of the operations and of the tensor ranks' messages of each layer, by its name."""
    computing: list[Named] = []
    waits: list[Named] = []
    for layer in layers:
        computing.append((layer.name, total("s", _computing(layer.operations, plan, machine, direction))))
        for one in layer.messages:
            seconds = exchange_seconds(one.collective, one.nbytes, plan, "tensor", machine)
            waits += [(one.collective.replace("-", "_"), seconds)] * getattr(one, direction)
    return computing, waits


def _computing(
    operations: Iterable[Operation], plan: Plan, machine: Machine, direction: Direction
) -> Iterable[Named]:
    for one in operations:
        alone, element = plan.ranks == 1, each_of(plan).weights
        seconds = machine.operation(one, direction, alone=alone, element=element)
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
        counted(weight * n * plan.shards, "weights of a layer", "bytes")
        for n in masters_of(stage.layers, plan)
    ]


def summed_by(stage: Stage, plan: Plan) -> list[Quantity]:
    """The bytes of each sum of gradients over the data ranks: of a bucket, or in stage 3 of a layer."""
    gradient = each_of(plan).gradients
    if plan.zero == 3:
        lengths = [n * plan.shards for n in masters_of(stage.layers, plan)]
    else:
        sizes = [size for layer in stage.layers for size in layer.sizes][::-1]
        lengths = [sum(sizes[part.start : part.stop]) for part in buckets_of(stage.layers, plan)]
    return [counted(gradient * length, "gradients that are summed together", "bytes") for length in lengths]


# ---------------------------------------------------------------- a step


def seconds_of(shape: TransformerShape, batch: int, plan: Plan, machine: Machine) -> Quantity:
    """Seconds of one step of training on a global batch of `batch` samples."""
    stages = stages_of(shape, batch, plan)
    each = [passes_of(stage, plan, machine) for stage in stages]
    crowd = derived(
        "max(1, ranks / devices)", "", "ranks per device", ranks=plan.ranks, devices=machine.devices
    )
    slowest = max(each, key=lambda both: both[0].seconds.value + both[1].seconds.value)

    def in_all(name: str) -> Quantity:
        forward, backward = (getattr(one, name) for one in slowest)
        return derived(
            "microbatches * (forward + backward)",
            "s",
            microbatches=given(plan.microbatches, "micro-batches"),
            forward=forward,
            backward=backward,
        )

    once = [
        (f"stage_{stage.index}", _synchronizing(stage, both, plan, machine))
        for stage, both in zip(stages, each, strict=True)
    ]
    return derived(
        "sharing * computing + tensor_messages + gathers + idle + synchronize + crowd * update",
        "s",
        sharing=crowd if plan.pipeline == 1 else given(1, "see idle"),
        computing=in_all("computing"),
        tensor_messages=in_all("waits"),
        gathers=in_all("gathers"),
        idle=NO_TIME if plan.pipeline == 1 else _idle(stages, each, plan, machine),
        synchronize=largest("s", once),
        crowd=crowd,
        update=largest("s", [(f"stage_{s.index}", _updating(s, plan, machine)) for s in stages]),
    )


def _idle(
    stages: Sequence[Stage], each: Sequence[tuple[Pass, Pass]], plan: Plan, machine: Machine
) -> Quantity:
    """Seconds that the slowest stage waits: in the schedule, or for devices that do all ranks' work."""
    transfer = largest("s", [("message", _passing(stage.sent, plan, machine)) for stage in stages[:-1]])
    forward, backward = ([one[way].seconds.value for one in each] for way in (0, 1))
    timed = simulate(schedule_of(plan), forward, backward, transfer.value)
    busy = plan.microbatches * max(f + b for f, b in zip(forward, backward, strict=True))
    work = [
        (f"stage_{stage.index}_{name}", one.seconds)
        for stage, both in zip(stages, each, strict=True)
        for name, one in zip(DIRECTIONS, both, strict=True)
    ]
    return derived(
        "max(schedule, microbatches * columns * (work + 2 * boundaries * message) / devices) - busy",
        "s",
        f"the simulated {plan.schedule} schedule; when ranks share devices, these do the work of all ranks",
        schedule=counted(makespan(timed), "from the first forward pass to the last backward pass", "s"),
        microbatches=given(plan.microbatches, "micro-batches"),
        columns=counted(plan.ranks // plan.pipeline, "ranks per stage"),
        work=total("s", work),
        boundaries=plan.pipeline - 1,
        message=transfer,
        devices=machine.devices,
        busy=counted(busy, "all passes of the slowest stage", "s"),
    )


def _passing(nbytes: Quantity, plan: Plan, machine: Machine) -> Quantity:
    """Seconds of a micro-batch's way to the next stage."""
    link, sharing = machine.link(plan.pipeline, stride_of(plan, "pipeline"))
    crowded = plan.ranks > machine.devices.value
    call = machine.call("pipeline message", nbytes, crowded=crowded)
    return derived("call + numbers", "s", call=call, numbers=link.message(nbytes, sharing))


def _synchronizing(stage: Stage, both: tuple[Pass, Pass], plan: Plan, machine: Machine) -> Quantity:
    """Seconds left of what is summed and gathered once per step.

    Sums hide behind the last micro-batch's backward pass, gathers of updated weights behind the next step's
    first forward pass.
    """
    forward, backward = both
    sums: list[Named] = []
    gathers: list[Named] = []
    for nbytes in summed_by(stage, plan) if plan.data > 1 else ():
        if plan.zero == 0:
            sums.append(("gradients", exchange_seconds("all-reduce", nbytes, plan, "data", machine)))
        elif plan.zero == 1 or plan.no_sync:
            sums.append(("gradients", summed(nbytes, plan, machine)))
        if plan.zero in (1, 2):
            gathers.append(("weights", exchange_seconds("all-gather", nbytes, plan, "shards", machine)))
    return derived(
        "sums + gathers",
        "s",
        sums=left(sums, backward.computing, machine),
        gathers=left(gathers, forward.computing, machine),
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


def sent_by(shape: TransformerShape, batch: int, plan: Plan) -> Quantity:
    """Bytes sent per rank and step, on the stage whose ranks send most."""
    found = [(f"stage_{stage.index}", _sent(stage, plan)) for stage in stages_of(shape, batch, plan)]
    return found[0][1] if len(found) == 1 else largest("bytes", found)


def _sent(stage: Stage, plan: Plan) -> Quantity:
    each: list[Named] = []
    for layer in stage.layers:
        for one in layer.messages:
            again = plan.recompute and (plan.pipeline > 1 or layer.name == "block")
            times = one.forward * (1 + again) + one.backward
            each += [
                (one.collective.replace("-", "_"), ring_bytes(one.collective, plan.tensor, one.nbytes))
            ] * times
    if plan.pipeline > 1:
        back = stage.received if stage.index else NOTHING
        each += [("activations", stage.sent), ("their_gradients", back)]
    each += [("weights", ring_bytes("all-gather", plan.shards, n)) for n in gathered_by(stage, plan)] * 2
    once: list[Named] = []
    for nbytes in summed_by(stage, plan):
        kind = "reduce-scatter" if plan.zero else "all-reduce"
        often = plan.zero >= 2 and not plan.no_sync
        (each if often else once).append(("gradients", ring_bytes(kind, plan.shards, nbytes)))
        if plan.zero and plan.groups > 1:
            shard = derived("nbytes / shards", "bytes", nbytes=nbytes, shards=plan.shards)
            (each if often else once).append(("between_groups", ring_bytes("all-reduce", plan.groups, shard)))
        if plan.zero in (1, 2):
            once.append(("weights", ring_bytes("all-gather", plan.shards, nbytes)))
    return derived(
        "microbatches * each + once",
        "bytes",
        microbatches=given(plan.microbatches, "micro-batches"),
        each=total("bytes", each),
        once=total("bytes", once),
    )
