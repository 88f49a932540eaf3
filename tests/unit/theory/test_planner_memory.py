"""The planner's memory against the bytes of all tensors that a rank of the library holds within a step."""

from typing import Any

import pytest
import torch
from lonely import Lonely

from course.lessons.l16_choose_your_strategy.planned import peak_nbytes, prepare
from course.lessons.l16_choose_your_strategy.planner.memory import memory_of, stages_of, state_of
from course.lessons.l16_choose_your_strategy.planner.models import Part, TransformerShape, parameter_count
from course.lessons.l16_choose_your_strategy.planner.plan import AXES, Plan
from course_lib.theory.memory import ADAM_FP32, ADAM_MIXED, STAGES
from course_lib.training.kept import kept_bytes
from course_lib.training.models import parameter_count as numbers_of
from course_lib.training.transformer import build_transformer
from tests.formulas import held_state

SMALL = TransformerShape(blocks=2, width=64, length=64, vocabulary=256, heads=4)
WIDE = TransformerShape(blocks=4, width=128, length=32, vocabulary=64, heads=4)
EXACT = 0.02


def grid(plan: Plan, stage: int = 0, arrives: dict[int, Any] | None = None) -> dict[str, Any]:
    """The communicators of a rank that is alone."""
    ranks = {axis: Lonely(plan.ways(axis)) for axis in AXES}
    ranks["pipeline"] = Lonely(plan.pipeline, stage, arrives)
    return ranks


def activation(shape: TransformerShape, samples: int, plan: Plan, nbytes: float) -> tuple[int, ...]:
    """The shape of what goes from stage to stage."""
    return samples, int(nbytes) // 4 // samples // shape.width, shape.width


def held(shape: TransformerShape, batch: int, plan: Plan) -> int:
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


@pytest.mark.parametrize("shape", [SMALL, WIDE], ids=["small", "wide"])
@pytest.mark.parametrize("stage", STAGES)
def test_every_stage_of_zero_holds_what_is_predicted(shape: TransformerShape, stage: int) -> None:
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
def test_every_way_to_cut_a_transformer_holds_what_is_predicted(plan: Plan) -> None:
    assert memory_of(WIDE, 16, plan).value == pytest.approx(held(WIDE, 16, plan), rel=0.03)


def test_the_activations_are_those_that_autograd_keeps() -> None:
    *blocks, _, _ = SMALL.layers(Part(samples=4))
    counted = sum(layer.kept.value for layer in blocks) + 4 * 4 * SMALL.length * SMALL.width  # into the head
    model = build_transformer(vocabulary=256, length=64, width=64, heads=4, layers=2, seed=0)
    tokens = torch.zeros(4, SMALL.length, dtype=torch.int64)
    assert counted + tokens.nbytes == kept_bytes(model, lambda: model(tokens))


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
    each = ADAM_MIXED if mixed else ADAM_FP32
    held = held_state([int(parameter_count(layers).value)], stage, 4, 0, each)
    assert sum(part.value for part in state.values()) == held.total


def test_offloading_takes_the_moments_out_of_memory() -> None:
    resident, offloaded = (memory_of(SMALL, 16, Plan(data=2, zero=1, offload=away)) for away in (False, True))
    parameters = parameter_count(SMALL.layers(Part(1))).value
    assert resident.value - offloaded.value == 8 * parameters / 2


def test_no_sync_keeps_full_gradients() -> None:
    layers = SMALL.layers(Part(1))
    often, once = (
        state_of(layers, Plan(data=4, zero=3, no_sync=how))["gradients"].value for how in (False, True)
    )
    assert once == 4 * often


def test_groups_shard_inside_a_group_alone() -> None:
    layers = SMALL.layers(Part(1))
    flat, hybrid = (state_of(layers, Plan(data=4, zero=3, groups=n))["weights"].value for n in (1, 2))
    assert hybrid == 2 * flat


def test_a_bucket_that_is_full_within_a_block_is_summed_beside_its_activations() -> None:
    shape = TransformerShape(blocks=2, width=256, length=32, vocabulary=64, heads=4)
    plan = Plan(data=4, zero=2, offload=True)  # the first bucket ends with a bias of block 0
    assert memory_of(shape, 16, plan).value == pytest.approx(17_842_216, rel=EXACT)  # as measured on 4 ranks
