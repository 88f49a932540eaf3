"""The planner's memory against the bytes of all tensors that a rank of the library holds within a step."""

from typing import Any

import pytest
from lonely import Lonely

from course_lib.parallel.planned import peak_nbytes, prepare
from course_lib.theory.memory import ADAM_FP32, ADAM_MIXED, STAGES, bytes_per_parameter
from course_lib.theory.planner.memory import memory_of, stages_of, state_of
from course_lib.theory.planner.models import Part, Shape, TransformerShape, parameter_count
from course_lib.theory.planner.nets import ConvShape, MLPShape
from course_lib.theory.planner.plan import AXES, Plan
from course_lib.theory.planner.quantity import leaves
from course_lib.training.models import parameter_count as numbers_of
from course_lib.training.transformer import build_transformer
from tests.formulas import transformer_activations

SMALL = TransformerShape(blocks=2, width=64, length=64, vocabulary=256, heads=4)
WIDE = TransformerShape(blocks=4, width=128, length=32, vocabulary=64, heads=4)
MLP = MLPShape((128, 256, 256, 256, 256, 10))
CONV = ConvShape(32, (3, 16, 16, 16))
EXACT, NEAR = 0.02, 0.15


def grid(plan: Plan, stage: int = 0, arrives: dict[int, Any] | None = None) -> dict[str, Any]:
    """The communicators of a rank that is alone."""
    ranks = {axis: Lonely(plan.ways(axis)) for axis in AXES}
    ranks["pipeline"] = Lonely(plan.pipeline, stage, arrives)
    return ranks


def activation(shape: Shape, samples: int, plan: Plan, nbytes: float) -> tuple[int, ...]:
    """The shape of what goes from stage to stage."""
    numbers = int(nbytes) // 4 // samples
    if isinstance(shape, TransformerShape):
        return samples, numbers // shape.width, shape.width
    if isinstance(shape, ConvShape):
        return samples, numbers // shape.side**2, shape.side, shape.side
    return samples, numbers


def held(shape: Shape, batch: int, plan: Plan) -> int:
    """The most bytes on any stage's rank, counted while it trains."""
    stages, samples, peaks = stages_of(shape, batch, plan), batch // plan.data // plan.microbatches, []
    for stage in stages:
        arrives = {}
        if stage.index:
            arrives[stage.index - 1] = activation(shape, samples, plan, stage.received.value)
        if stage.index + 1 < len(stages):
            arrives[stage.index + 1] = activation(shape, samples, plan, stage.sent.value)
        peaks.append(peak_nbytes(prepare(grid(plan, stage.index, arrives), shape, batch, plan)))
    return max(peaks)


@pytest.mark.parametrize("shape", [SMALL, WIDE, MLP, CONV], ids=lambda shape: type(shape).__name__)
@pytest.mark.parametrize("stage", STAGES)
def test_every_stage_of_zero_holds_what_is_predicted(shape: Shape, stage: int) -> None:
    plan = Plan(data=4, zero=stage)
    assert memory_of(shape, 16, plan).value == pytest.approx(held(shape, 16, plan), rel=EXACT)


@pytest.mark.parametrize(
    "plan",
    [
        Plan(tensor=2),
        Plan(tensor=4),
        Plan(tensor=4, sequence=True),
        Plan(data=2, zero=1, tensor=2),
        Plan(data=2, zero=3, tensor=2, sequence=True),
        Plan(recompute=True),
        Plan(data=2, zero=2, recompute=True, microbatches=2),
        Plan(pipeline=2, microbatches=4),
        Plan(pipeline=2, microbatches=4, schedule="GPipe"),
        Plan(pipeline=2, microbatches=4, recompute=True),
        Plan(data=2, zero=3, pipeline=2, microbatches=4),
        Plan(data=2, zero=1, pipeline=2, tensor=2, microbatches=2),
    ],
    ids=lambda plan: plan.name,
)
@pytest.mark.parametrize(
    "shape", [pytest.param(SMALL, marks=pytest.mark.slow, id="small"), pytest.param(WIDE, id="wide")]
)
def test_every_way_to_cut_a_transformer_holds_what_is_predicted(shape: TransformerShape, plan: Plan) -> None:
    assert memory_of(shape, 16, plan).value == pytest.approx(held(shape, 16, plan), rel=0.03)


@pytest.mark.parametrize("shape", [MLP, CONV], ids=["fully connected", "convolutions"])
@pytest.mark.parametrize("recompute", [False, True])
def test_stages_of_other_nets_hold_what_is_predicted(shape: Shape, *, recompute: bool) -> None:
    plan = Plan(pipeline=2, microbatches=4, recompute=recompute)
    assert memory_of(shape, 64, plan).value == pytest.approx(held(shape, 64, plan), rel=NEAR)


@pytest.mark.parametrize("samples", [16, 512])
def test_a_tiled_layer_gathers_a_tile_at_a_time(samples: int) -> None:
    shape, plan = MLPShape(MLP.widths, layer_tiles=4), Plan(data=4, zero=3)
    predicted = memory_of(shape, samples, plan).value
    assert predicted == pytest.approx(held(shape, samples, plan), rel=NEAR)
    assert predicted < memory_of(MLP, samples, plan).value


def test_the_activations_are_those_of_the_paper_that_counts_them() -> None:
    *blocks, _, _ = SMALL.layers(Part(samples=4))
    counted = sum(layer.kept.value for layer in blocks) + 4 * 4 * SMALL.length * SMALL.width  # into the head
    indices = 8 * 4 * SMALL.length
    assert counted + indices == transformer_activations(batch=4, length=64, width=64, heads=4, layers=2)


@pytest.mark.parametrize("tensor", [1, 2])
def test_the_parameters_are_those_of_the_model(tensor: int) -> None:
    model = build_transformer(vocabulary=256, length=64, width=64, heads=4, layers=2, seed=0)
    layers = SMALL.layers(Part(1, tensor=tensor))
    uncut = sum(p.numel() for name, p in model.named_parameters() if is_replicated(name))
    assert parameter_count(layers).value == (numbers_of(model) - uncut) / tensor + uncut


def is_replicated(name: str) -> bool:
    """Norms, positions, and biases that are added after a sum."""
    return "norm" in name or "position" in name or name.endswith(("project.bias", "down.bias"))


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("mixed", [False, True])
def test_the_state_is_that_of_the_zero_paper(stage: int, *, mixed: bool) -> None:
    layers = SMALL.layers(Part(1))
    state = state_of(layers, Plan(data=4, zero=stage, mixed=mixed))
    each = bytes_per_parameter(stage, 4, ADAM_MIXED if mixed else ADAM_FP32)
    assert sum(part.value for part in state.values()) == each * parameter_count(layers).value


def test_offloading_takes_the_moments_out_of_memory() -> None:
    resident, offloaded = (memory_of(SMALL, 16, Plan(data=2, zero=1, offload=away)) for away in (False, True))
    parameters = parameter_count(SMALL.layers(Part(1))).value
    assert resident.value - offloaded.value == 8 * parameters / 2


def test_nothing_in_a_prediction_is_a_number_from_nowhere() -> None:
    for shape, plan in (
        (SMALL, Plan(data=2, zero=2, pipeline=2, microbatches=4)),
        (CONV, Plan(tiles=(2, 2))),
    ):
        assert all(leaf.source in ("given", "counted") for leaf in leaves(memory_of(shape, 16, plan)))
