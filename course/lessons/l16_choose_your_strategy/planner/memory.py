"""The most bytes of tensors that a rank holds within a step: state, inputs, and what comes and goes.

    peak = weights + gradients + optimizer + inputs + max(backward, update)

    backward   what the layers keep for it and, when there is most, gradients of activations and buffers of
               ZeRO. A stage of a pipeline keeps it for every micro-batch in flight
    update     what AdamW makes of a bucket while it updates it

Every moment follows from what the library does (`parallel/zero.py`, `parallel/pipeline.py`, and
`parallel/tensor_parallel.py`); `training/memory_use.py` measures the same sum. On top comes what Python,
torch and MPI take for themselves, and what an operation uses inside.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from course.lessons.l16_choose_your_strategy.planner.models import (
    NOTHING,
    Layer,
    Part,
    TransformerShape,
    parameter_count,
)
from course.lessons.l16_choose_your_strategy.planner.plan import Plan
from course.lessons.l16_choose_your_strategy.planner.quantity import (
    Quantity,
    counted,
    derived,
    given,
    largest,
    total,
)
from course_lib.theory.memory import ADAM_FP32, ADAM_MIXED, SHARDED_FROM, StateBytes
from course_lib.theory.partition import balanced_ranges, even_ranges, fused_ranges
from course_lib.theory.schedules import Schedule, gpipe, one_f_one_b, peak_activations

ZERO = "Rajbhandari 2020, section 5"
MOMENTS = 4 + 4  # bytes of Adam's two moments, which `offload` keeps in files


@dataclass(frozen=True, slots=True)
class Stage:
    """What a rank of one stage of the pipeline has: its layers, and where they stand in it."""

    index: int
    layers: tuple[Layer, ...]
    received: Quantity  # bytes of a micro-batch that come from the stage before, or from the batch
    sent: Quantity  # and that go to the next one


def schedule_of(plan: Plan) -> Schedule:
    """The order of forward and backward passes on every stage."""
    make = gpipe if plan.schedule == "GPipe" else one_f_one_b
    return make(plan.pipeline, plan.microbatches)


def stages_of(shape: TransformerShape, batch: int, plan: Plan) -> list[Stage]:
    """The stages, cut so that the most expensive has as few floating-point operations as possible."""
    samples = batch // (plan.data * plan.microbatches)
    layers = shape.layers(Part(samples, plan.tensor, plan.sequence, each_of(plan).weights))
    *cut, loss = layers
    costs = [
        1 + sum(one.times * one.work.value for one in layer.operations if one.work.unit == "flop")
        for layer in cut
    ]
    found = []
    for index, part in enumerate(balanced_ranges(costs, plan.pipeline)):
        last = index == plan.pipeline - 1
        mine = (*cut[part.start : part.stop], *([loss] if last else []))
        first = Part(samples, element=each_of(plan).weights)
        received = cut[part.start - 1].output if index else shape.inputs_nbytes(first)
        found.append(Stage(index, mine, received, NOTHING if last else mine[-1].output))
    return found


def memory_of(shape: TransformerShape, batch: int, plan: Plan) -> Quantity:
    """The most bytes of tensors on the rank that has most, within a step."""
    stages = stages_of(shape, batch, plan)
    of_data_rank = Part(batch // plan.data, element=each_of(plan).weights)
    inputs = shape.inputs_nbytes(of_data_rank)
    found = [(f"stage_{stage.index}", _peak(stage, plan, inputs)) for stage in stages]
    return found[0][1] if len(found) == 1 else largest("bytes", found)


def _peak(stage: Stage, plan: Plan, inputs: Quantity) -> Quantity:
    """The most bytes on a rank of this stage."""
    state = state_of(stage.layers, plan)
    return derived(
        "weights + gradients + optimizer + inputs + max(backward, update)",
        "bytes",
        weights=state["weights"],
        gradients=state["gradients"],
        optimizer=state["optimizer"],
        inputs=inputs,
        backward=_backward(stage, plan),
        update=_update(stage.layers, plan),
    )


# ---------------------------------------------------------------- what is there all the time


def each_of(plan: Plan) -> StateBytes:
    """The bytes that one parameter needs."""
    return ADAM_MIXED if plan.mixed else ADAM_FP32


def state_of(layers: Sequence[Layer], plan: Plan) -> dict[str, Quantity]:
    """Weights, gradients and optimizer state of one rank, between two steps."""
    parameters = parameter_count(layers)
    found = {}
    for name in ("weights", "gradients", "optimizer"):
        nbytes = getattr(each_of(plan), name) - (MOMENTS if plan.offload and name == "optimizer" else 0)
        bytes_each = given(
            nbytes, f"of {name} per parameter, Adam, {'16' if plan.mixed else '32'}-bit", "bytes"
        )
        whole = plan.no_sync and name == "gradients"
        if plan.zero >= getattr(SHARDED_FROM, name) and not whole:
            found[name] = derived(
                "bytes_each * parameters / shards",
                "bytes",
                ZERO,
                bytes_each=bytes_each,
                parameters=parameters,
                shards=plan.shards,
            )
        else:
            found[name] = derived(
                "bytes_each * parameters", "bytes", bytes_each=bytes_each, parameters=parameters
            )
    return found


# ---------------------------------------------------------------- what comes and goes: backward


def _backward(stage: Stage, plan: Plan) -> Quantity:
    """The most bytes of activations, their gradients and buffers at any moment of the backward passes."""
    one = _moment(stage, plan)
    if plan.pipeline == 1:
        return one
    in_flight = counted(
        peak_activations(schedule_of(plan)[stage.index]),
        f"most micro-batches forward, not yet backward, {plan.schedule}",
    )
    loss = stage.layers[-1].kept if stage.layers[-1].name == "loss" else NOTHING
    kept = loss if plan.recompute else total("bytes", [(layer.name, layer.kept) for layer in stage.layers])
    inside = stage.layers[0].keeps_input and not plan.recompute  # in `kept`
    copies = int(stage.index > 0 and not inside)
    return derived(
        "in_flight * (copies * received + sent) + (in_flight - 1) * kept + at_the_fullest",
        "bytes",
        in_flight=in_flight,
        copies=counted(copies, "the received input, unless the first layer's activations have it"),
        received=stage.received,
        sent=stage.sent,
        kept=kept,
        at_the_fullest=one,
    )


def _moment(stage: Stage, plan: Plan) -> Quantity:
    """The moment of one micro-batch's backward pass when its activations and buffers are most."""
    kept: list[tuple[str, Quantity]] = []
    moments = []
    for index, layer in enumerate(stage.layers):
        before = total("bytes", kept)
        alone = plan.recompute and plan.pipeline == 1 and layer.name == "block"  # recomputed by itself
        kept.append((layer.name, stage.layers[index - 1].output if alone else layer.kept))
        again = [("recomputed", _without_input(stage, index)), ("outputs", layer.output)] if alone else []
        held = _ends(stage, index, plan)
        widest, finished = _buffers(stage.layers, index, plan)
        moments += [
            derived(
                "kept + working_space + stage_outputs + buffers",
                "bytes",
                f"while {layer.name} {index} goes backward",
                kept=total("bytes", [*kept, *again]),
                working_space=layer.widest,
                stage_outputs=held,
                buffers=widest,
            ),
            derived(
                "kept + working_space + buffers",
                "bytes",
                f"when {layer.name} {index} has its gradients",
                kept=before,
                working_space=layer.output,
                buffers=finished,
            ),
        ]
        if plan.zero == 2 and not (plan.recompute and (plan.pipeline > 1 or layer.name == "block")):
            moments += _when_full(stage.layers, index, before, plan)
    return max(moments, key=lambda moment: moment.value)


def _when_full(layers: Sequence[Layer], index: int, before: Quantity, plan: Plan) -> list[Quantity]:
    """Stage 2: the moments when a bucket becomes full inside layer `index`, which still keeps a part."""
    layer, nbytes = layers[index], each_of(plan).gradients
    last_first = [(place, size) for place, one in enumerate(layers) for size in one.sizes][::-1]
    moments = []
    for part in buckets_of(layers, plan):
        if last_first[part.stop - 1][0] != index:
            continue
        to_come = [size for place, size in last_first[part.stop :] if place == index]
        bucket = sum(size for _, size in last_first[part.start : part.stop])
        moments.append(
            derived(
                "before + to_come / parameters * kept + output + beside + 2 * bucket",
                "bytes",
                f"while a bucket that is full within {layer.name} {index} is summed: as it was, and flat",
                before=before,
                to_come=counted(sum(to_come), "parameters of the layer without a gradient yet"),
                parameters=counted(layer.parameters, "parameters of the layer"),
                kept=layer.kept,
                output=layer.output,
                beside=counted(
                    nbytes * sum(to_come[:1]), "the gradient made with the bucket's last", "bytes"
                ),
                bucket=counted(nbytes * bucket, "gradients in the bucket", "bytes"),
            )
        )
    return moments


def _without_input(stage: Stage, index: int) -> Quantity:
    """What a recomputed layer keeps beside its input, which was there before."""
    layer = stage.layers[index]
    if not (index and layer.keeps_input):
        return layer.kept
    return derived("kept - input", "bytes", kept=layer.kept, input=stage.layers[index - 1].output)


def _ends(stage: Stage, index: int, plan: Plan) -> Quantity:
    """A stage's outputs and their gradient, which it holds until it is through: what is not counted yet."""
    last = index == len(stage.layers) - 1
    copies = int(plan.recompute) if last else 1 + plan.recompute
    return derived(
        "copies * sent", "bytes", copies=counted(copies, "outputs, their gradient"), sent=stage.sent
    )


def _buffers(layers: Sequence[Layer], index: int, plan: Plan) -> tuple[Quantity, Quantity]:
    """Bytes of gradients and weights besides the state: while layer `index` goes backward, and at its end."""
    each, layer = each_of(plan), layers[index]
    nbytes = given(each.gradients, "of a gradient", "bytes")
    running = finished = NOTHING
    if plan.recompute and (plan.pipeline > 1 or layer.name == "block"):
        why = "new gradients, until all that is recomputed have theirs"
        before = parameter_count(layers[index + 1 :] if plan.pipeline > 1 else ())
        with_its = parameter_count(layers[index:] if plan.pipeline > 1 else [layer])
        running = derived("gradient * parameters", "bytes", why, gradient=nbytes, parameters=before)
        finished = derived("gradient * parameters", "bytes", why, gradient=nbytes, parameters=with_its)
    if plan.zero == 2:
        waiting, bucket = _pending(layers, index, plan)
        running = derived("waiting + new", "bytes", waiting=waiting, new=running)
        summed = derived("2 * bucket", "bytes", "as autograd left it, and flat", bucket=bucket)
        finished = largest("bytes", [("new", finished), ("summed", summed)])
    if plan.zero == 3 and layer.name != "loss":
        loose = [one for one in layers if not one.gathered]
        reached = any(one.parameters and not one.gathered for one in layers[: index + 1])
        running = derived(
            "(weight + gradient) * (gathered + rest)",
            "bytes",
            "full weights and gradients of the layer that runs, and of what is in no layer",
            weight=given(each.weights, "of a weight", "bytes"),
            gradient=nbytes,
            gathered=counted(layer.parameters if layer.gathered else 0, "parameters of the layer"),
            rest=parameter_count(loose) if reached else NOTHING,
        )
    return running, finished


def _pending(layers: Sequence[Layer], index: int, plan: Plan) -> tuple[Quantity, Quantity]:
    """Stage 2: bytes of gradients that wait for their bucket, and the largest bucket that fills here."""
    nbytes = each_of(plan).gradients
    last_first = [(place, size) for place, layer in enumerate(layers) for size in layer.sizes][::-1]
    pending = full = 0
    for part in buckets_of(layers, plan):
        inside = last_first[part.start : part.stop]
        becomes_full_in = inside[-1][0]
        if becomes_full_in <= index:
            pending += sum(size for place, size in inside if place > index)
        if becomes_full_in == index:
            full = max(full, sum(size for _, size in inside))
    return (
        counted(nbytes * pending, "gradients whose bucket is not full yet", "bytes"),
        counted(nbytes * full, "the largest bucket that becomes full in the layer", "bytes"),
    )


def buckets_of(layers: Sequence[Layer], plan: Plan) -> list[range]:
    """The buckets of stages 0 to 2: neighbours, last first, up to `bucket_nbytes`, as in the library."""
    sizes = [size for layer in layers for size in layer.sizes][::-1]
    return fused_ranges([each_of(plan).weights * size for size in sizes], plan.bucket_nbytes)


# ---------------------------------------------------------------- what comes and goes: update


def _update(layers: Sequence[Layer], plan: Plan) -> Quantity:
    """The most bytes that the sum of the gradients and AdamW's update need besides the state."""
    lengths = masters_of(layers, plan)
    most, before = max(zip(lengths, [0, *lengths], strict=False), key=lambda pair: 2 * pair[0] + pair[1])
    adam = derived(
        "number * (2 * numbers + previous)",
        "bytes",
        "torch's AdamW: a root and a quotient, beside the quotient of the tensor before",
        number=given(4, "of a 32-bit number", "bytes"),
        numbers=counted(most, "numbers of a tensor that the optimizer updates at once"),
        previous=counted(before, "numbers of the one before it"),
    )
    if plan.mixed:
        copies = counted(4 * sum(lengths), "32-bit copies of the gradients", "bytes")
        adam = derived("adam + copies", "bytes", adam=adam, copies=copies)
    return adam


def masters_of(layers: Sequence[Layer], plan: Plan) -> list[int]:
    """The numbers of each tensor that this rank's optimizer updates."""
    sizes = [size for layer in layers for size in layer.sizes]
    if plan.zero == 3:
        rest = sum(layer.parameters for layer in layers if not layer.gathered)
        pieces = [layer.parameters for layer in layers if layer.gathered]
        flat = [rest, *pieces] if rest else pieces
    else:
        last_first = sizes[::-1]
        flat = [sum(last_first[part.start : part.stop]) for part in buckets_of(layers, plan)]
    return [len(even_ranges(n, plan.shards)[0]) if plan.zero else n for n in flat]
